"""A corpus as one row of units: reads across files, the split, ids, and memory that stays small."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_amort.data.corpus import (
    BLOCK_UNITS,
    PIECE_UNITS,
    SAMPLED_BLOCKS,
    SMALL_UNITS,
    Corpus,
    check_ids,
)
from mlx_amort.data.opening import open_corpus
from mlx_amort.data.parts import FilePart, MemoryPart, Units
from mlx_amort.data.stream import ByteStream
from mlx_amort.errors import UserError


def ids_corpus(path: Path, ids: object, validation_fraction: float = 0.1) -> Corpus:
    path.write_bytes(np.asarray(ids, "<u2").tobytes())
    return open_corpus(str(path), "uint16", validation_fraction)


def resident_bytes() -> int:
    status = Path("/proc/self/status")
    if not status.exists():
        return 0
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS"))
    return 1024 * int(line.split()[1])


@given(st.lists(st.binary(min_size=1, max_size=9), min_size=1, max_size=12), st.data())
def test_a_read_across_files_is_a_slice_of_them_joined(texts: list[bytes], data: st.DataObject) -> None:
    joined = b"".join(texts)
    corpus = Corpus("joined", "uint8", tuple(MemoryPart(text, "", ("",)) for text in texts), (), 0)
    start = data.draw(st.integers(0, len(joined)))
    count = data.draw(st.integers(0, len(joined) - start))
    assert corpus.units == len(joined)
    assert corpus.read(start, count).tobytes() == joined[start : start + count]


def test_a_read_touches_only_the_files_it_needs(tmp_path: Path) -> None:
    for name in "abcd":
        (tmp_path / name).write_text(name * 10)
    corpus = open_corpus(str(tmp_path), "uint8", 0.5)
    (tmp_path / "a").unlink()
    (tmp_path / "d").unlink()
    assert corpus.read(10, 20).tobytes() == b"b" * 10 + b"c" * 10
    with pytest.raises(UserError):
        corpus.read(9, 20)


def test_what_is_read_is_a_copy(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    corpus = open_corpus(str(tmp_path / "a.txt"), "uint8", 0.5)
    corpus.read(0, 4)[:] = 0
    assert corpus.read(0, 4).tobytes() == b"text"
    for start, count in [(-1, 2), (3, 2), (0, 5), (0, -1)]:
        with pytest.raises(IndexError):
            corpus.read(start, count)


@given(st.integers(2, 10**6), st.floats(0.001, 0.999))
def test_the_split_is_whole(units: int, fraction: float) -> None:
    corpus = Corpus("split", "uint8", (FilePart("", "", units, (0, 0)),), (), int(units * fraction))
    assert corpus.train_units + corpus.validation_units == corpus.units
    assert abs(corpus.validation_units - units * fraction) < 1


def test_ids_outside_the_vocabulary_are_found_wherever_they_stand(tmp_path: Path) -> None:
    ids = np.zeros(PIECE_UNITS + 100, np.uint16)
    ids[0] = 999
    check_ids([ids_corpus(tmp_path / "a.bin", ids)], 1000)
    ids[PIECE_UNITS + 50] = 1000
    with pytest.raises(
        UserError, match=r"id 1000 at position 1,048,626 is outside the model's vocabulary of 1000"
    ):
        check_ids([ids_corpus(tmp_path / "b.bin", ids)], 1000)


def test_checking_ids_tells_how_far_it_is_and_can_be_stopped(tmp_path: Path) -> None:
    many = ids_corpus(tmp_path / "a.bin", np.zeros(PIECE_UNITS + 100, np.uint16))
    few = ids_corpus(tmp_path / "b.bin", np.zeros(50, np.uint16))
    told: list[tuple[int, int]] = []
    check_ids([many, few], 1000, lambda done, total: told.append((done, total)))
    total = PIECE_UNITS + 150
    assert told == [(PIECE_UNITS, total), (PIECE_UNITS + 100, total), (total, total)]
    check_ids([many], 65_536, lambda done, total: pytest.fail("ids that all fit were read"))

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check_ids([many], 1000, stop)


def test_bytes_are_held_against_a_smaller_vocabulary(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\x10\x20\xff\x10")
    corpus = open_corpus(str(tmp_path / "a.txt"), "uint8", 0.5, raw=True)
    check_ids([corpus], 256)
    with pytest.raises(UserError, match="byte 255 at position 2"):
        check_ids([corpus], 255)


def test_the_fingerprint_follows_every_byte_of_a_small_corpus(tmp_path: Path) -> None:
    text = bytearray(b"text" * 5000)
    found = set()
    for place in (0, 4096, 10_000, 19_999):
        text[place] ^= 1
        (tmp_path / "a.txt").write_bytes(text)
        found.add(open_corpus(str(tmp_path), "uint8", 0.5).fingerprint())
    assert len(found) == 4


def test_the_fingerprint_of_a_large_corpus_reads_its_ends_and_little_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.bin"
    with open(file, "wb") as handle:
        handle.truncate(6 * SMALL_UNITS)
    found = {open_corpus(str(file), "uint16", 0.5).fingerprint()}
    for place in (0, 6 * SMALL_UNITS - 1):
        with open(file, "r+b") as changed:
            changed.seek(place)
            changed.write(b"\1")
        found.add(open_corpus(str(file), "uint16", 0.5).fingerprint())
    assert len(found) == 3
    counts: list[int] = []
    whole = Corpus.read_as_filed

    def counted(corpus: Corpus, start: int, count: int) -> Units:
        counts.append(count)
        return whole(corpus, start, count)

    monkeypatch.setattr(Corpus, "read_as_filed", counted)
    open_corpus(str(file), "uint16", 0.5).fingerprint()
    assert counts == [BLOCK_UNITS] * SAMPLED_BLOCKS


def test_the_fingerprint_follows_names_and_sizes(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    before = open_corpus(str(tmp_path), "uint8", 0.5).fingerprint()
    assert open_corpus(str(tmp_path), "uint8", 0.5).fingerprint() == before
    (tmp_path / "b.txt").write_text("more")
    assert open_corpus(str(tmp_path), "uint8", 0.5).fingerprint() != before


@pytest.mark.slow
def test_two_gigabytes_are_read_in_a_little_memory(tmp_path: Path) -> None:
    file = tmp_path / "sparse.bin"
    with open(file, "wb") as handle:
        handle.truncate(2 << 30)
    before = resident_bytes()
    tracemalloc.start()
    corpus = open_corpus(str(file), "uint8", 0.05, raw=True)
    stream = ByteStream([corpus], [1.0], seed=0, rows=8, row_units=4097)
    total = sum(int(stream.batch(step).sum()) for step in range(50))
    for piece in corpus.pieces(1 << 30, (1 << 30) + (64 << 20)):
        total += int(piece.max())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total == 0
    assert peak < 8 << 20
    assert resident_bytes() - before < 32 << 20
