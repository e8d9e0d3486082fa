#!/bin/sh
# Make the cases of this folder again, from the repository's root: sh tests/golden/make_golden.sh
set -eu

make_case() {
    name=$1
    shift
    python -m tests.reference.make_golden "tests/golden/$name.npz" "$@"
}

make_case dense --trunk dense --chunks 2 --text bytes
make_case recurrent --trunk recurrent --chunks 2
make_case patched_first --trunk patched --chunks 2 --boundary-rule first --text punctuation
make_case hybrid --batch 3 --chunks 2 --text mixed
make_case hybrid_3chunks --batch 1 --chunks 3
make_case hybrid_stride_8 --seq 32 --chunks 2 --batch 1 --patch-stride 8 --boundary-rule first
