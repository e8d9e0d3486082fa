"""The card of a corpus against counts made by loops, and against what is known of Python's own text."""

from __future__ import annotations

import json
import math
import zlib
from collections import Counter
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_amort.data import card
from mlx_amort.data.card import describe, zlib_bits_per_byte
from mlx_amort.data.corpus import Corpus
from mlx_amort.data.opening import open_corpus
from mlx_amort.data.parts import MemoryPart
from mlx_amort.data.slots import is_boundary

WORD_BYTES = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789" + bytes(range(0x80, 0xC0))


def memory_corpus(text: bytes, validation_units: int) -> Corpus:
    return Corpus("memory", "uint8", (MemoryPart(text, "", ("",)),), (), validation_units)


def boundaries_by_loop(chunk: bytes, rule: str) -> list[bool]:
    marked = []
    for place, byte in enumerate(chunk):
        in_class = byte not in WORD_BYTES
        follows_one = place > 0 and chunk[place - 1] not in WORD_BYTES
        marked.append(place == 0 or (in_class and not (rule == "first" and follows_one)))
    return marked


@given(
    st.lists(st.binary(min_size=7, max_size=7), min_size=1, max_size=5), st.sampled_from(["every", "first"])
)
def test_boundaries_are_those_of_the_rule(chunks: list[bytes], rule: str) -> None:
    found = is_boundary(np.array([list(chunk) for chunk in chunks], np.uint8), rule)
    assert found.tolist() == [boundaries_by_loop(chunk, rule) for chunk in chunks]


@pytest.mark.parametrize("rule", ["every", "first"])
def test_the_card_marks_what_the_model_marks(rule: Literal["every", "first"]) -> None:
    import mlx.core as mx

    from mlx_amort.ops.patching import is_boundary as model_is_boundary

    chunks = np.random.default_rng(0).integers(0, 256, (20, 50), np.uint8)
    marked = np.array(model_is_boundary(mx.array(chunks), rule))
    np.testing.assert_array_equal(is_boundary(chunks, rule), marked)


def test_the_card_counts_what_loops_count() -> None:
    text = b"def f(x):\n    return x + 1  # one more\n\n" * 20 + b"tail"
    seq, stride = 32, 4
    found = describe(memory_corpus(text, 100), seq, stride)
    json.dumps(found)
    chunks = [text[start : start + seq] for start in range(0, len(text) - seq + 1, seq)]
    for rule in ("every", "first"):
        per_chunk = [sum(boundaries_by_loop(chunk, rule)) for chunk in chunks]
        assert found["boundaries"][rule] == {
            "chunks": len(chunks),
            "density": pytest.approx(sum(per_chunk) / len(chunks) / seq),
            "overflow_share": pytest.approx(sum(count > seq // stride for count in per_chunk) / len(chunks)),
            "unslotted_share": pytest.approx(
                sum(max(0, count - seq // stride) for count in per_chunk) / sum(per_chunk)
            ),
        }
    assert found["boundaries"]["every"]["overflow_share"] > 0
    shares = [count / len(text) for count in Counter(text).values()]
    assert found["order0_entropy_bits"] == pytest.approx(-sum(share * math.log2(share) for share in shares))
    assert (found["train_units"], found["validation_units"]) == (len(text) - 100, 100)
    assert found["zlib_bits"] == pytest.approx(8 * len(zlib.compress(text[-100:], 9)) / 100)


def test_entropy_at_its_ends() -> None:
    assert describe(memory_corpus(bytes(1000), 10), 8, 4)["order0_entropy_bits"] == 0
    assert describe(memory_corpus(bytes(range(256)) * 4, 10), 8, 4)["order0_entropy_bits"] == pytest.approx(8)


def test_a_short_corpus_and_ids_have_no_boundaries(tmp_path: Path) -> None:
    assert describe(memory_corpus(b"short text", 2), 16, 4)["boundaries"] is None
    (tmp_path / "ids.bin").write_bytes(np.arange(1000, dtype="<u2").tobytes())
    found = describe(open_corpus(str(tmp_path / "ids.bin"), "uint16", 0.1), 16, 4)
    assert (found["boundaries"], found["unit"]) == (None, "id")
    assert found["order0_entropy_bits"] == pytest.approx(math.log2(1000))
    json.dumps(found)


def test_a_large_corpus_is_measured_on_spread_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(card, "PIECE_UNITS", 64)
    monkeypatch.setattr(card, "ZLIB_UNITS", 50)
    found = describe(memory_corpus(b"some text. " * 1000, 500), 32, 4)
    assert found["measured_units"] == 31 * 64 + 11000 % 64
    assert found["boundaries"]["first"]["chunks"] == (31 * 64 + 11000 % 64) // 32
    assert found["zlib_units"] == 50


def test_zlib_weighs_corpora_by_what_they_hold_out() -> None:
    flat, noisy = memory_corpus(bytes(4000), 3000), memory_corpus(np.random.default_rng(0).bytes(4000), 1000)
    expected = (
        8
        * (len(zlib.compress(bytes(3000), 9)) + len(zlib.compress(noisy.read(3000, 1000).tobytes(), 9)))
        / 4000
    )
    assert zlib_bits_per_byte([flat, noisy]) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "overflow", "unslotted"), [("builtin:docs", 0.76, 0.25), ("builtin:stdlib", 0.99, 0.42)]
)
def test_the_specification_holds_on_pythons_own_text(name: str, overflow: float, unslotted: float) -> None:
    rules = describe(open_corpus(name, "uint8", 0.05), 1024, 4)["boundaries"]
    # The text differs a little from one Python to the next.
    assert rules["every"]["overflow_share"] == pytest.approx(overflow, abs=0.04)
    assert rules["every"]["unslotted_share"] == pytest.approx(unslotted, abs=0.03)
    assert rules["first"]["overflow_share"] == 0
    assert 0.11 < rules["first"]["density"] < 0.15


def test_the_sample_is_safe_to_print() -> None:
    text = b"first\n" + b"x" * 600 + b"\n\x1b[31mred\xff\n" + b"y" * 200 + b"\nlast" + b"\n" * 400
    sample = describe(memory_corpus(text, 50), 16, 4)["sample"]
    assert sample == ["\ufffd[31mred\ufffd", "y" * 100, "last"]
