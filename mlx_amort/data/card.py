"""A corpus described: size and split, what simple means make of it, whether its words fit the patch slots.

A large corpus is measured on evenly spaced pieces and the card says how much was read; zlib's figure is over
held-out bytes, as a model's is, so the two may be compared.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mlx_amort.amounts import printable_lines
from mlx_amort.data.corpus import PIECE_UNITS, Corpus, unit_name
from mlx_amort.data.parts import Units
from mlx_amort.data.slots import Tally, is_boundary

MOST_PIECES = 32
ZLIB_UNITS = 4 << 20
SAMPLE_UNITS = 2000
SAMPLE_LINES = 4
SAMPLE_COLUMNS = 100


def describe(corpus: Corpus, seq: int, patch_stride: int) -> dict[str, Any]:
    """Return the card of a corpus: plain numbers and strings, ready for JSON.

    Per boundary rule: density = boundaries / bytes; overflow_share = chunks with more boundaries than slots /
    chunks; unslotted_share = boundaries that own no slot / boundaries. `boundaries` is null for ids and for a
    corpus shorter than one chunk; zlib's figure is null where nothing is held out.
    Units: `*_bits` are bits per byte, per id for a uint16 corpus.
    """
    counts = np.zeros(np.iinfo(np.dtype(corpus.dtype)).max + 1, np.int64)
    tallies = {"every": Tally(), "first": Tally()}
    slots = seq // patch_stride
    for piece in _spread_pieces(corpus, seq):
        counts += np.bincount(piece, minlength=len(counts))
        if corpus.dtype == "uint8":
            chunks = piece[: len(piece) // seq * seq].reshape(-1, seq)
            for rule, tally in tallies.items():
                tally.add(is_boundary(chunks, rule).sum(axis=1), slots)
    zlib_bits, zlib_units = _zlib_bits(corpus) if corpus.validation_units else (None, 0)
    return {
        "name": corpus.name,
        "unit": unit_name(corpus.dtype),
        "units": corpus.units,
        "files": len(corpus.parts),
        "skipped": [dataclasses.asdict(skipped) for skipped in corpus.skipped],
        "notes": list(corpus.notes),
        "fingerprint": corpus.fingerprint(),
        "train_units": corpus.train_units,
        "validation_units": corpus.validation_units,
        "place_held_out": corpus.place_held_out,
        "measured_units": int(counts.sum()),
        "order0_entropy_bits": _entropy_bits(counts),
        "zlib_bits": zlib_bits,
        "zlib_units": zlib_units,
        "seq": seq,
        "patch_stride": patch_stride,
        "slots": slots,
        "boundaries": {rule: tally.shares(seq) for rule, tally in tallies.items()}
        if tallies["every"].chunks
        else None,
        "sample": _sample(corpus),
    }


def zlib_bits_per_byte(corpora: Sequence[Corpus]) -> float:
    """Return what zlib at level 9 needs per byte on the validation parts, a yardstick for the model's figure.

    Each corpus is compressed on its own, up to the first 4 MiB of its validation part, and counts by the size
    of that part, as in a model's validation.
    Units: bits per byte, per id for a uint16 corpus.
    """
    sizes = [corpus.validation_units for corpus in corpora]
    return float(np.average([_zlib_bits(corpus)[0] for corpus in corpora], weights=sizes))


def _spread_pieces(corpus: Corpus, seq: int) -> Iterator[Units]:
    """Yield the whole corpus, or evenly spaced pieces of it, each but the last a whole number of chunks."""
    piece_units = max(1, PIECE_UNITS // seq) * seq
    pieces = -(-corpus.units // piece_units)
    for index in np.unique(np.linspace(0, pieces - 1, min(pieces, MOST_PIECES)).round().astype(np.int64)):
        start = int(index) * piece_units
        yield corpus.read_as_filed(start, min(piece_units, corpus.units - start))


def _entropy_bits(counts: npt.NDArray[np.int64]) -> float:
    """H = -Σ p log2 p over the frequencies of single units."""
    shares = counts[counts > 0] / counts.sum()
    # Adding zero turns the -0.0 of a corpus of one unit into 0.0.
    return float(-(shares * np.log2(shares)).sum()) + 0.0


def _zlib_bits(corpus: Corpus) -> tuple[float, int]:
    units = min(corpus.validation_units, ZLIB_UNITS)
    compressor = zlib.compressobj(9)
    compressed_bytes = 0
    for piece in corpus.pieces(corpus.train_units, corpus.train_units + units):
        compressed_bytes += len(compressor.compress(piece.tobytes()))
    compressed_bytes += len(compressor.flush())
    return 8 * compressed_bytes / units, units


def _sample(corpus: Corpus) -> list[str]:
    """Return a few lines from the middle of the training part, safe to print."""
    middle = corpus.train_units // 2
    units = corpus.read(middle, min(SAMPLE_UNITS, corpus.units - middle))
    if corpus.dtype != "uint8":
        return [" ".join(map(str, units[:16]))]
    lines = printable_lines(units.tobytes().decode("utf-8", errors="replace"))
    # The middle falls inside a line; what follows its end is whole, unless the text has no lines.
    return [line[:SAMPLE_COLUMNS] for line in lines[1:] or lines if line.strip()][:SAMPLE_LINES]
