"""Files of token ids: the header of a shard is not trained on, and what holds no 16-bit ids is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mlx_amort.data.opening import open_corpus
from mlx_amort.errors import UserError

IDS = np.random.default_rng(0).zipf(1.2, 3000) % 50_257


def shard(magic: int, version: int, ids: int, content: bytes, byte_order: str = "<") -> bytes:
    header = np.zeros(256, f"{byte_order}i4")
    header[:3] = magic, version, ids
    return header.tobytes() + content


def test_the_header_of_a_shard_is_skipped(tmp_path: Path) -> None:
    ids = IDS.astype("<u2")
    (tmp_path / "a.bin").write_bytes(shard(20240520, 1, 3000, ids.tobytes()))
    corpus = open_corpus(str(tmp_path / "a.bin"), "uint16", 0.1)
    assert (corpus.units, corpus.validation_units) == (3000, 300)
    np.testing.assert_array_equal(corpus.read(0, 3000), ids)
    np.testing.assert_array_equal(corpus.read(17, 5), ids[17:22])
    (tmp_path / "plain.bin").write_bytes(ids.tobytes())
    plain = open_corpus(str(tmp_path / "plain.bin"), "uint16", 0.1)
    assert plain.content() == corpus.content()
    raw = open_corpus(str(tmp_path / "a.bin"), "uint16", 0.1, raw=True)
    assert raw.units == 3000 + 512


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (shard(20240520, 2, 3000, IDS.astype("<u2").tobytes()), "of version 2, where 1 is known"),
        (shard(20240520, 1, 3001, IDS.astype("<u2").tobytes()), "counts 3,001 ids where 3,000 follow"),
        (shard(20240520, 1, 2999, IDS.astype("<u2").tobytes()), "counts 2,999 ids where 3,000 follow"),
        (shard(20240520, 1, 3000, IDS.astype("<u2").tobytes())[:-1], "where 2,999.5 follow"),
        (shard(20240520, 1, 3000, b"")[:600], "counts 3,000 ids where 0 follow"),
        (shard(20240801, 7, 3000, IDS.astype("<u4").tobytes()), r"header 20240801\), which has 32-bit ids"),
        (shard(20240801, 6, 3000, IDS.astype("<u4").tobytes()), "of version 6, where 7 is known"),
        (shard(20240520, 1, 3000, IDS.astype(">u2").tobytes(), ">"), "is a big-endian shard"),
        (shard(20240326, 3, 1024, bytes(2000)), r"is a model of llm\.c, not token ids"),
        (IDS.astype("<u4").tobytes(), "looks like ids of 32 or 64 bits"),
        ((IDS + 100_000).astype("<u4").tobytes(), "looks like ids of 32 or 64 bits"),
        (IDS.astype("<i8").tobytes(), "looks like ids of 32 or 64 bits"),
        (b"a text that somebody called .bin\n" * 20, "is text, not uint16 ids; set data.dtype=uint8"),
        (b"\x93NUMPY\x01\0v\0{'descr': '<u2'}" + IDS.astype("<u2").tobytes(), "is a NumPy array"),
        (b"\x1f\x8b\x08\0" + bytes(100), "is gzip-compressed, not a plain row of uint16 ids"),
    ],
)
def test_what_holds_no_16_bit_ids_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "a.bin").write_bytes(content)
    with pytest.raises(UserError, match=words):
        open_corpus(str(tmp_path / "a.bin"), "uint16", 0.1)


@pytest.mark.parametrize("ids", [IDS, np.zeros(500), np.arange(500), IDS % 200, np.arange(500) % 2 * 7])
def test_plain_ids_are_taken(tmp_path: Path, ids: np.ndarray) -> None:
    (tmp_path / "a.bin").write_bytes(ids.astype("<u2").tobytes())
    corpus = open_corpus(str(tmp_path / "a.bin"), "uint16", 0.1)
    np.testing.assert_array_equal(corpus.read(0, corpus.units), ids)
