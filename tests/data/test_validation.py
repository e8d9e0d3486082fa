"""Every held-out unit with a predecessor is a target exactly once, along streams that can carry a state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mlx_amort.data.corpus import Corpus
from mlx_amort.data.opening import open_corpus
from mlx_amort.data.parts import MemoryPart, Units
from mlx_amort.data.validation import validation_chunks, validation_streams, validation_targets


def numbered_corpus(first: int, units: int, validation_units: int) -> Corpus:
    """Ids that tell their own position, made in memory."""
    ids = np.arange(first, first + units, dtype=np.uint16)

    class Numbered(MemoryPart):
        @property
        def units(self) -> int:
            return len(ids)

        def read(self, start: int, count: int, dtype: np.dtype[Any]) -> Units:
            return ids[start : start + count]

    return Corpus("numbered", "uint16", (Numbered(b"", "", ("",)),), (), validation_units)


@given(
    sizes=st.lists(st.tuples(st.integers(0, 20), st.integers(2, 300)), min_size=1, max_size=3),
    rows=st.integers(1, 9),
    seq=st.integers(1, 40),
)
def test_every_held_out_unit_is_counted_once(sizes: list[tuple[int, int]], rows: int, seq: int) -> None:
    corpora: list[Corpus] = []
    expected: list[int] = []
    first = 0
    for train_units, validation_units in sizes:
        corpora.append(numbered_corpus(first, train_units + validation_units, validation_units))
        expected += range(first + train_units + 1, first + train_units + validation_units)
        first += train_units + validation_units
    counted: list[int] = []
    last = np.zeros(rows, np.uint16)
    chunks = list(validation_streams(corpora, rows, seq))
    for chunk in chunks:
        assert chunk.tokens.shape == (rows, seq + 1) and chunk.is_counted.shape == (rows, seq)
        targets = chunk.tokens[:, 1:][chunk.is_counted]
        # A target is predicted from the unit before it, which over a cut is the last of the chunk before.
        np.testing.assert_array_equal(chunk.tokens[:, :-1][chunk.is_counted], targets - 1)
        goes_on = chunk.is_counted[:, 0]
        if not chunk.is_start:
            np.testing.assert_array_equal(chunk.tokens[goes_on, 0], last[goes_on])
        # Padding only ends a stream: nothing is counted after it, in this chunk or a later one.
        assert (np.diff(chunk.is_counted.astype(int), axis=1) <= 0).all()
        last = chunk.tokens[:, -1]
        counted += targets.tolist()
    assert sorted(counted) == expected
    assert len(counted) == validation_targets(corpora)
    assert len(chunks) == validation_chunks(corpora, rows, seq)
    starts = [chunk.corpus_index for chunk in chunks if chunk.is_start]
    assert starts == list(range(len(corpora)))


def test_the_layout_is_fixed_and_leaves_the_training_part_alone(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"t" * 50 + b"abcdefghij")
    corpus = open_corpus(str(tmp_path / "a.txt"), "uint8", 10 / 60)
    chunks = list(validation_streams([corpus], rows=2, seq=4))
    assert [chunk.tokens.tobytes() for chunk in chunks] == [b"abcde" + b"fghij", b"ef\0\0\0" + b"\0" * 5]
    assert chunks[1].is_counted.tolist() == [[True, False, False, False], [False] * 4]
