"""What is held out: blocks from everywhere or the tail, always the same, and never trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_amort.data.corpus import Corpus
from mlx_amort.data.held_out import (
    LEAST_BLOCK_UNITS,
    MOST_BLOCKS,
    held_out_stretches,
    training_stretches,
)
from mlx_amort.data.opening import open_corpus
from mlx_amort.data.parts import MemoryPart
from mlx_amort.data.stream import ByteStream
from mlx_amort.data.validation import validation_streams


@given(st.integers(2, 10**9), st.floats(0, 1), st.sampled_from(["blocks", "tail"]))
def test_both_parts_are_the_whole_corpus_and_have_nothing_in_common(
    units: int, share: float, split: Literal["blocks", "tail"]
) -> None:
    wanted = int(units * share)
    held_out = held_out_stretches(units, wanted, split)
    trained = training_stretches(units, held_out)
    assert sum(stretch.units for stretch in held_out) == wanted
    assert all(stretch.units > 0 for stretch in [*held_out, *trained])
    place = 0
    for start, length in sorted([*held_out, *trained]):
        assert start == place
        place += length
    assert place == units
    assert len(held_out) <= MOST_BLOCKS
    if len(held_out) > 1:
        assert min(stretch.units for stretch in held_out) >= LEAST_BLOCK_UNITS


def test_blocks_come_from_everywhere_and_never_move() -> None:
    held_out = held_out_stretches(10_000_000, 500_000, "blocks")
    assert len(held_out) == MOST_BLOCKS
    strata = [stretch.start * MOST_BLOCKS // 10_000_000 for stretch in held_out]
    assert strata == list(range(MOST_BLOCKS))
    # A saved run resumes on these: if this fails, runs before the change would train on what they hold out.
    assert held_out[:3] == [(1713, 7812), (192105, 7813), (329039, 7812)]


def test_too_little_for_two_blocks_is_the_tail() -> None:
    for units, wanted in [(100_000, 2 * LEAST_BLOCK_UNITS - 1), (20_000, 10_001)]:
        assert held_out_stretches(units, wanted, "blocks") == [(units - wanted, wanted)]
    assert held_out_stretches(100, 0, "blocks") == []


def test_the_training_part_and_the_held_out_part_are_read_from_their_places() -> None:
    units = 300_000
    text = bytearray(b"t" * units)
    held_out = held_out_stretches(units, 30_000, "blocks")
    assert len(held_out) == 7
    for start, length in held_out:
        text[start : start + length] = bytes(97 + place % 7 for place in range(length))
    corpus = Corpus("c", "uint8", (MemoryPart(bytes(text), "", ("",)),), (), 30_000, "blocks")
    assert set(corpus.read(0, corpus.train_units).tobytes()) == {ord("t")}
    joined = b"".join(bytes(text[start : start + length]) for start, length in held_out)
    assert corpus.read(corpus.train_units, 30_000).tobytes() == joined
    assert corpus.read_as_filed(0, units).tobytes() == bytes(text)
    stream = ByteStream([corpus], [1.0], seed=3, rows=64, row_units=4097)
    assert set(stream.batch(5).tobytes()) == {ord("t")}
    counted = b"".join(
        bytes(chunk.tokens[row, 1:][chunk.is_counted[row]])
        for chunk in validation_streams([corpus], rows=1, seq=512)
        for row in range(1)
    )
    assert counted == joined[1:]


def test_a_folder_holds_out_of_many_files_and_says_what_its_tail_is(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"{number:02}.txt").write_bytes(b"%d " % number * 7000)
    blocks = open_corpus(str(tmp_path), "uint8", 0.1, "blocks")
    assert blocks.place_held_out == f"in {blocks.validation_units // LEAST_BLOCK_UNITS} blocks spread over it"
    words = blocks.read(blocks.train_units, blocks.validation_units).tobytes().split()
    assert len(set(words)) >= 9
    tail = open_corpus(str(tmp_path), "uint8", 0.1)
    assert tail.place_held_out == "its end, in 2 of 20 files: 18.txt to 19.txt"
    assert open_corpus(str(tmp_path), "uint8", 0.01).place_held_out == "its end, in 1 of 20 files: 19.txt"
    assert open_corpus(str(tmp_path / "03.txt"), "uint8", 0.1).place_held_out == "its end"
    assert blocks.content() == tail.content() and blocks.fingerprint() == tail.fingerprint()


def test_the_built_in_documentation_is_shuffled_and_keeps_its_tail() -> None:
    assert open_corpus("builtin:docs", "uint8", 0.5, "blocks").place_held_out == "its end"


@pytest.mark.parametrize("fraction", [0.05, 0.3])
def test_blocks_are_a_fairer_sample_than_the_tail(tmp_path: Path, fraction: float) -> None:
    # Sorted by content, as sub-packages are: the tail is all of one kind.
    sizes = 40_000
    for number in range(10):
        (tmp_path / f"{number}.txt").write_bytes(bytes([97 + number]) * sizes)
    counts = {}
    for split in ("blocks", "tail"):
        corpus = open_corpus(str(tmp_path), "uint8", fraction, split)
        held_out = corpus.read(corpus.train_units, corpus.validation_units)
        counts[split] = len(np.unique(held_out))
    assert counts["blocks"] > 2 * counts["tail"] - 1
