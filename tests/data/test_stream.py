"""The bytes of step n: pure, resumable, disjoint over ranks, never from the held-out tail."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_amort.data.corpus import Corpus
from mlx_amort.data.opening import open_corpus
from mlx_amort.data.parts import MemoryPart, Units
from mlx_amort.data.stream import ByteStream, PrefetchedStream
from mlx_amort.errors import UserError


def memory_corpus(text: bytes, validation_units: int = 0) -> Corpus:
    return Corpus("memory", "uint8", (MemoryPart(text, "", ("",)),), (), validation_units)


RANDOM = np.random.default_rng(0)
CORPORA = [
    memory_corpus(RANDOM.integers(0, 256, size, np.uint8).tobytes(), size // 10) for size in (500, 90, 4000)
]
WEIGHTS = [1.0, 0.5, 2.0]


@given(
    seed=st.integers(0, 2**128 - 1),
    steps=st.lists(st.integers(0, 2**40), min_size=1, max_size=4),
    rows=st.integers(1, 6),
    row_units=st.integers(1, 81),
)
def test_a_step_is_a_pure_function(seed: int, steps: list[int], rows: int, row_units: int) -> None:
    stream = ByteStream(CORPORA, WEIGHTS, seed, rows, row_units)
    in_order = [stream.batch(step) for step in steps]
    for step, batch in reversed(list(zip(steps, in_order, strict=True))):
        restarted = ByteStream(CORPORA, WEIGHTS, seed, rows, row_units)
        np.testing.assert_array_equal(restarted.batch(step), batch)
    assert in_order[0].shape == (rows, row_units) and in_order[0].dtype == np.uint8


def test_the_places_of_a_seed_never_change() -> None:
    # A saved run resumes on these: if this fails, every run before the change resumes on other bytes.
    stream = ByteStream([memory_corpus(bytes(1000)), memory_corpus(bytes(1000))], [0.7, 0.3], 1234, 3, 10)
    assert stream.places(0) == [(0, 584), (0, 687), (1, 200)]
    assert stream.places(10**6) == [(0, 209), (0, 379), (0, 298)]


@given(
    seed=st.integers(0, 2**64 - 1),
    step=st.integers(0, 2**30),
    world=st.integers(1, 4),
    share=st.integers(1, 3),
)
def test_ranks_share_one_global_batch(seed: int, step: int, world: int, share: int) -> None:
    rows = world * share
    everything = ByteStream(CORPORA, WEIGHTS, seed, rows, 50)
    ranks = [ByteStream(CORPORA, WEIGHTS, seed, rows, 50, rank, world) for rank in range(world)]
    assert all(rank.rows == share for rank in ranks)
    np.testing.assert_array_equal(
        np.concatenate([rank.batch(step) for rank in ranks]), everything.batch(step)
    )


def test_steps_rows_and_seeds_all_differ() -> None:
    corpus = memory_corpus(bytes(10**6))
    places = {
        place[1]
        for seed in range(4)
        for step in range(25)
        for place in ByteStream([corpus], [1.0], seed, 10, 8).places(step)
    }
    # 1000 draws out of a million meet by chance about once in two thousand.
    assert len(places) > 990


@given(seed=st.integers(0, 2**64 - 1), step=st.integers(0, 2**30))
def test_no_held_out_byte_is_drawn(seed: int, step: int) -> None:
    corpora = [memory_corpus(b"t" * 60 + b"V" * 5, 5), memory_corpus(b"t" * 51 + b"V" * 400, 400)]
    assert set(ByteStream(corpora, [1, 1], seed, 8, 50).batch(step).tobytes()) == {ord("t")}


def test_every_start_is_drawn_about_equally() -> None:
    stream = ByteStream([memory_corpus(bytes(22), 4)], [1.0], 0, 4000, 9)
    counts = np.bincount([start for _, start in stream.places(0)], minlength=10)
    assert len(counts) == 10 and counts.min() > 300 and counts.max() < 500


def test_weights_are_shares_of_rows_whatever_the_sizes() -> None:
    stream = ByteStream([memory_corpus(bytes(50)), memory_corpus(bytes(9000))], [1.4, 0.6], 0, 4000, 9)
    drawn = np.mean([index for index, _ in stream.places(3)])
    assert abs(drawn - 0.3) < 0.03


def test_too_little_text_is_told_in_numbers() -> None:
    corpus = memory_corpus(bytes(100), 10)
    ByteStream([corpus], [1.0], 0, 1, 90)
    with pytest.raises(UserError, match="training part has 90 bytes and one row takes 91"):
        ByteStream([corpus], [1.0], 0, 1, 91)
    with pytest.raises(UserError, match=r"6 rows per step .* do not divide among 4 processes"):
        ByteStream([corpus], [1.0], 0, 6, 9, rank=0, world=4)


def test_reading_ahead_changes_nothing() -> None:
    stream = ByteStream(CORPORA, WEIGHTS, 7, 4, 60)
    with PrefetchedStream(stream) as ahead:
        for step in [0, 1, 2, 9, 3, 4, 4]:
            np.testing.assert_array_equal(ahead.batch(step), stream.batch(step))


def test_the_next_step_is_read_while_the_caller_works() -> None:
    class Watched(ByteStream):
        def __init__(self) -> None:
            super().__init__(CORPORA, WEIGHTS, 0, 2, 10)
            self.done = {step: threading.Event() for step in range(3)}

        def batch(self, step: int) -> Units:
            units = super().batch(step)
            self.done[step].set()
            return units

    stream = Watched()
    with PrefetchedStream(stream) as ahead:
        ahead.batch(0)
        assert stream.done[1].wait(timeout=10)
        assert not stream.done[2].is_set()


def test_an_error_of_the_thread_reaches_the_caller_and_close_ends_the_thread(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"text" * 100)
    stream = ByteStream([open_corpus(str(file), "uint8", 0.1)], [1.0], 0, 2, 30)
    before = threading.active_count()
    ahead = PrefetchedStream(stream)
    ahead.batch(0)
    ahead.batch(1)
    file.unlink()
    with pytest.raises(UserError, match="No such file"):
        for step in (2, 3):
            ahead.batch(step)
    ahead.close()
    assert threading.active_count() == before
