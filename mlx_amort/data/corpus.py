"""A corpus: the files of one source read as one long row of units, the tail of it held out for validation.

The files stand one after the other with nothing between them; a prefix sum of their sizes finds the file of a
unit, so a row may run from one file into the next and a read touches only what it needs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from mlx_amort.config.values import DataConfig
from mlx_amort.data.sources import DISK_DTYPES, Part, Skipped, Units, list_source
from mlx_amort.errors import UserError

PIECE_UNITS = 1 << 20
# A validation part predicts its second unit from its first: one unit alone says nothing.
LEAST_VALIDATION_UNITS = 2
# What a fingerprint reads: all of so many units, which takes about 20 ms, or so many blocks of a larger corpus.
SMALL_UNITS = 1 << 24
SAMPLED_BLOCKS = 66
BLOCK_UNITS = 4096

# Told how much is done, and how much there is to do in all.
ProgressCallback = Callable[[int, int], None]


class Corpus:
    """One source of units: [0, train_units) to train on, the `validation_units` after them held out."""

    def __init__(
        self,
        name: str,
        dtype: str,
        parts: tuple[Part, ...],
        skipped: tuple[Skipped, ...],
        validation_units: int,
    ) -> None:
        self.name = name
        self.dtype = dtype
        self.parts = parts
        self.skipped = skipped
        self._ends = np.cumsum([part.units for part in parts], dtype=np.int64)
        self.units = int(self._ends[-1])
        self.validation_units = validation_units
        self.train_units = self.units - validation_units

    def read(self, start: int, count: int) -> Units:
        """Copy out units [start, start + count) of the whole corpus, across files where need be.

        Shapes: [count]. Dtypes: uint8 or uint16.
        Raises: IndexError outside the corpus; UserError when a file changed or went away.
        """
        if start < 0 or count < 0 or start + count > self.units:
            raise IndexError(f"[{start}, {start + count}) is outside the {self.units} units of {self.name}")
        units: Units = np.empty(count, self.dtype)
        index = int(np.searchsorted(self._ends, start, side="right"))
        filled = 0
        while filled < count:
            part = self.parts[index]
            offset = start + filled - (int(self._ends[index]) - part.units)
            taken = min(count - filled, part.units - offset)
            units[filled : filled + taken] = part.read(offset, taken, DISK_DTYPES[self.dtype])
            filled += taken
            index += 1
        return units

    def pieces(self, start: int, stop: int, piece_units: int = PIECE_UNITS) -> Iterator[Units]:
        """Yield units [start, stop) in order, `piece_units` at a time."""
        for offset in range(start, stop, piece_units):
            yield self.read(offset, min(piece_units, stop - offset))

    def fingerprint(self) -> str:
        """Return a short hash of the files' names, sizes and content; another one means other bytes of a step.

        Up to SMALL_UNITS the content is hashed whole. A larger corpus is sampled, as reading it takes long: its
        first block, its last, and blocks spread evenly between them; a change that misses them all is not seen.
        Raises: UserError when a file changed or went away.
        """
        digest = hashlib.sha256(f"{self.dtype}\n".encode())
        for part in self.parts:
            digest.update(f"{part.label}\0{part.units}\n".encode("utf-8", "surrogateescape"))
        for start, stop in self._hashed_stretches():
            for piece in self.pieces(start, stop):
                digest.update(piece.astype(DISK_DTYPES[self.dtype], copy=False).tobytes())
        return digest.hexdigest()[:16]

    def _hashed_stretches(self) -> list[tuple[int, int]]:
        if self.units <= SMALL_UNITS:
            return [(0, self.units)]
        last = self.units - BLOCK_UNITS
        starts = [last * index // (SAMPLED_BLOCKS - 1) for index in range(SAMPLED_BLOCKS)]
        return [(start, start + BLOCK_UNITS) for start in starts]


def open_corpus(path: str, dtype: str, validation_fraction: float) -> Corpus:
    """Open a file, a folder, a .bin or builtin:NAME without reading it.

    validation_units = floor(units · validation_fraction)
    Raises: UserError when there is nothing to read, or too little to hold anything out.
    """
    listing = list_source(path, dtype)
    units = sum(part.units for part in listing.parts)
    validation_units = int(units * validation_fraction)
    if validation_units < LEAST_VALIDATION_UNITS:
        raise UserError(
            f"corpus '{path}'",
            f"has {units:,} {unit_name(dtype)}s, and validation_fraction={validation_fraction:g} holds out "
            f"{validation_units} where {LEAST_VALIDATION_UNITS} are needed",
            "give a larger text or a larger data.validation_fraction",
        )
    return Corpus(path, dtype, listing.parts, listing.skipped, validation_units)


def open_corpora(config: DataConfig) -> tuple[Corpus, ...]:
    """Open every source of a mix, in the order of the configuration.

    Raises: UserError as `open_corpus`, and when two sources share a file, for what one holds out the other
    would train on.
    """
    corpora = tuple(
        open_corpus(source.path, config.dtype, config.validation_fraction) for source in config.sources
    )
    owners: dict[object, Corpus] = {}
    for corpus in corpora:
        for part in corpus.parts:
            other = owners.setdefault(part.identity, corpus)
            if other is not corpus:
                raise UserError(
                    f"corpora '{other.name}' and '{corpus.name}'",
                    f"both contain {part.label}, so validation bytes of one would be trained on in the other",
                    "name every text once",
                )
    return corpora


def check_ids(corpora: Sequence[Corpus], vocabulary: int, progress: ProgressCallback | None = None) -> None:
    """Read every id once and hold it against the model's vocabulary; bytes fit 256 and are not read.

    `progress` is told (ids read, ids in all) after every piece; what it raises ends the reading.
    Raises: UserError naming the first id that is too large, and where it stands.
    """
    doubtful = [corpus for corpus in corpora if vocabulary <= np.iinfo(np.dtype(corpus.dtype)).max]
    done, total = 0, sum(corpus.units for corpus in doubtful)
    for corpus in doubtful:
        start = 0
        for piece in corpus.pieces(0, corpus.units):
            if int(piece.max()) >= vocabulary:
                at = int(np.argmax(piece >= vocabulary))
                raise UserError(
                    f"corpus '{corpus.name}'",
                    f"{unit_name(corpus.dtype)} {int(piece[at])} at position {start + at:,} is outside the "
                    f"model's vocabulary of {vocabulary}",
                    "raise model.vocabulary, or check data.dtype",
                )
            start += len(piece)
            done += len(piece)
            if progress is not None:
                progress(done, total)


def unit_name(dtype: str | np.dtype[Any]) -> str:
    """Return what one unit of this dtype is called: byte or id."""
    return "byte" if np.dtype(dtype).itemsize == 1 else "id"
