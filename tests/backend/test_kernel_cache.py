"""Compiled kernels are kept where they survive, come through one compiled header, and damage is repaired."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from textwrap import indent

import pytest

from mlx_amort.backend import kernel_cache
from mlx_amort.backend.kernel_cache import delete_damaged, explain, watch_compiling

pytestmark = [
    pytest.mark.skipif(
        sys.platform != "linux", reason="only MLX's CPU backend on Linux keeps kernels in files"
    ),
    pytest.mark.skipif(
        shutil.which("g++") is None, reason="without g++ MLX compiles nothing: its cache is not seen"
    ),
]

# Where Python puts its temporary files when nothing is set.
TEMPORARY = next(folder for folder in ("/tmp", "/var/tmp", "/usr/tmp") if os.access(folder, os.W_OK))
OURS = ("TMPDIR", "TMP", "TEMP", "TEMPDIR", "MLX_AMORT_TMPDIR")
KERNEL = """
import os, sys, tempfile
from mlx_amort.backend import load_blas
load_blas()
import mlx.core as mx
from mlx_amort.backend.disturbance import this_moment
from mlx_amort.backend.kernel_cache import loaded_kernels
assert loaded_kernels() == 0
before = this_moment()
assert mx.compile(lambda x: x * 3 + 1)(mx.ones((2, 2))).tolist() == [[4, 4], [4, 4]]
print(tempfile.gettempdir(), loaded_kernels(), this_moment().has_compiled_since(before))
"""


PLAIN_PATH = os.pathsep.join(
    entry for entry in os.environ["PATH"].split(os.pathsep) if not kernel_cache._is_ours(Path(entry))
)
"""Without the compiled header that this suite shares, which takes seconds to make."""


def environment(cache: Path, **settings: str) -> dict[str, str]:
    """That of a process whose kernels no other one has compiled."""
    kept = {name: value for name, value in os.environ.items() if name not in OURS}
    return {**kept, "XDG_CACHE_HOME": str(cache), **settings}


def printed(cache: Path, program: str = KERNEL, **settings: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(cache, **settings),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def libraries(folder: Path) -> list[Path]:
    return sorted(folder.rglob("lib*.so"))


def headers(cache: Path) -> list[Path]:
    return sorted(cache.rglob("*.gch"))


def test_kernels_are_kept_in_the_user_s_cache_folder_and_found_again(tmp_path: Path) -> None:
    assert printed(tmp_path) == f"{TEMPORARY} 1 True"
    (library,) = libraries(tmp_path / "mlx-amort" / "kernels")
    compiled_at = library.stat().st_mtime_ns
    assert printed(tmp_path).startswith(f"{TEMPORARY} 1 ") and library.stat().st_mtime_ns == compiled_at


def test_a_process_that_this_one_starts_shares_its_kernels_and_has_its_own_temporary_folder(
    tmp_path: Path,
) -> None:
    child = f"import subprocess; subprocess.run([sys.executable, '-c', {KERNEL!r}], check=True)"
    first, second = printed(tmp_path, f"{KERNEL}\nsys.stdout.flush()\n{child}").splitlines()
    assert first.startswith(f"{TEMPORARY} 1 ") and second.startswith(f"{TEMPORARY} 1 ")


def test_a_folder_that_the_user_set_keeps_the_kernels(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    assert printed(tmp_path, TMPDIR=str(mine)).startswith(f"{mine} 1 ")
    assert len(libraries(mine)) == 1 and not libraries(tmp_path / "mlx-amort")


def test_a_temporary_folder_that_does_not_exist_is_done_without(tmp_path: Path) -> None:
    assert printed(tmp_path, TMPDIR=str(tmp_path / "gone")).startswith(f"{TEMPORARY} 1 ")
    assert len(libraries(tmp_path / "mlx-amort")) == 1


def test_a_kernel_is_the_same_to_the_byte_with_and_without_the_compiled_header(tmp_path: Path) -> None:
    without = (
        "from mlx_amort.backend import kernel_cache as k\nk._put_before_compiler = lambda: None\n" + KERNEL
    )
    for name, program in (("with", KERNEL), ("without", without)):
        printed(tmp_path / name, program, PATH=PLAIN_PATH)
    assert headers(tmp_path / "with") and not headers(tmp_path / "without")
    code = []
    for name in ("with", "without"):
        (library,) = libraries(tmp_path / name)
        # MLX's source has a name by chance, which a library's table of symbols holds.
        subprocess.run(["strip", "-o", str(tmp_path / f"{name}.so"), str(library)], check=True)
        code.append((tmp_path / f"{name}.so").read_bytes())
    assert code[0] == code[1]


@pytest.mark.parametrize("kept_bytes", [0, 1000, 4096, 12000])
def test_a_kernel_that_was_cut_short_is_compiled_anew(tmp_path: Path, kept_bytes: int) -> None:
    printed(tmp_path)
    (library,) = libraries(tmp_path)
    whole_bytes = library.stat().st_size
    os.truncate(library, kept_bytes)
    assert printed(tmp_path) == f"{TEMPORARY} 1 True"
    assert library.stat().st_size == whole_bytes


def test_what_compilers_left_is_deleted_after_an_hour(tmp_path: Path) -> None:
    cpu = tmp_path / "mlx" / "0.0" / "cpu"
    cpu.mkdir(parents=True)
    for name, age_s in (("tmp_old.cpp", 4000), ("building-1.so", 4000), ("tmp_new.so", 10)):
        (cpu / name).touch()
        os.utime(cpu / name, (time.time() - age_s, time.time() - age_s))
    assert delete_damaged(tmp_path) == []
    assert [path.name for path in cpu.glob("*.*") if not path.name.startswith(".")] == ["tmp_new.so"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_all_leaves_the_kernel_to_be_finished(tmp_path: Path, number: signal.Signals) -> None:
    # A compiler in whose work the signal goes to its whole group, as a terminal's Ctrl-C does.
    (tmp_path / "g++").write_text(
        f'#!/bin/sh\n[ "$1" = --version ] || kill -{number:d} 0\nexec /usr/bin/g++ "$@"\n'
    )
    (tmp_path / "g++").chmod(0o755)
    step = f"with Interrupt() as interrupt, held_signals():\n{indent(KERNEL, '    ')}\nprint(interrupt.exit_code)"
    ended = subprocess.run(
        [sys.executable, "-c", f"from mlx_amort.train.interrupt import Interrupt, held_signals\n{step}"],
        env=environment(tmp_path, PATH=f"{tmp_path}:/usr/bin:/bin"),
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split()[1:] == ["1", "True", str(128 + number)]


def test_whoever_else_calls_the_compiler_gets_it_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "main.cpp").write_text("#include <cstdio>\nint main() { std::puts(__VERSION__); }\n")
    compiled = "import subprocess; subprocess.run(['g++', 'main.cpp', '-o', 'program'], check=True)"
    program = (
        f"from mlx_amort.backend import load_blas; load_blas()\nimport os; os.chdir({str(tmp_path)!r})\n"
    )
    program += compiled
    printed(tmp_path, program, PATH=PLAIN_PATH)
    assert subprocess.run([tmp_path / "program"], capture_output=True, check=True).stdout.strip()
    assert not headers(tmp_path)


def test_kernels_are_counted_while_they_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = iter([3, 4])
    monkeypatch.setattr(kernel_cache, "loaded_kernels", lambda: next(ready, 5))
    monkeypatch.setattr(kernel_cache, "_LOOK_EVERY_S", 0.001)
    told: list[int] = []
    with watch_compiling(told.append):
        while len(told) < 2:
            time.sleep(0.001)
    assert told == [4, 5]


@pytest.mark.parametrize(
    ("text", "todo"),
    [
        ("Could not load C++ shared library /x.so: file too short", "delete that folder"),
        ("[Compile::eval_cpu] Failed to compile function f: Failed to execute command", "g++ works"),
        ("filesystem error: temp_directory_path: Not a directory [/gone]", "set TMPDIR"),
    ],
)
def test_an_error_of_mlx_s_compiling_says_what_to_do(text: str, todo: str) -> None:
    told = explain(RuntimeError(text))
    assert told is not None and todo in told.todo
    assert explain(RuntimeError("array is not initialized")) is None
