"""A corpus: the files of one source read as one long row of units, a part of it held out for validation.

The files stand one after the other with nothing between them; a prefix sum of their sizes finds the file of a
unit, so a row may run from one file into the next and a read touches only what it needs. What is held out is
read after all that is trained on, wherever it stands in the files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from mlx_amort.amounts import counted
from mlx_amort.config.values import ValidationSplit
from mlx_amort.data.held_out import Stretch, held_out_stretches, training_stretches
from mlx_amort.data.parts import DISK_DTYPES, Part, Skipped, Units
from mlx_amort.errors import UserError

PIECE_UNITS = 1 << 20
# What 0.1's fingerprint reads: all of so many units, or so many blocks of a larger corpus.
SMALL_UNITS = 1 << 24
# What the content's hash reads whole, in a quarter of a second.
HASHED_UNITS = 1 << 28
SAMPLED_BLOCKS = 66
BLOCK_UNITS = 4096

# Called with how much is done, and how much there is to do in all.
ProgressCallback = Callable[[int, int], None]


class Corpus:
    """One source of units: [0, train_units) to train on, the `validation_units` after them held out."""

    ITS_END = "its end"

    def __init__(
        self,
        name: str,
        dtype: str,
        parts: tuple[Part, ...],
        skipped: tuple[Skipped, ...],
        validation_units: int,
        split: ValidationSplit = "tail",
        notes: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        self.dtype = dtype
        self.parts = parts
        self.skipped = skipped
        self.notes = notes
        self._part_ends = np.cumsum([part.units for part in parts], dtype=np.int64)
        self.units = int(self._part_ends[-1])
        self.validation_units = validation_units
        self.train_units = self.units - validation_units
        self._held_out = held_out_stretches(self.units, validation_units, split)
        self._stretches = [*training_stretches(self.units, self._held_out), *self._held_out]
        self._stretch_ends = np.cumsum([stretch.units for stretch in self._stretches], dtype=np.int64)

    def read(self, start: int, count: int) -> Units:
        """Copy out units [start, start + count): what is trained on, then what is held out.

        Shapes: [count]. Dtypes: uint8 or uint16.
        Raises: IndexError outside the corpus; UserError when a file changed or went away.
        """
        self._check_inside(start, count)
        units: Units = np.empty(count, self.dtype)
        index = int(np.searchsorted(self._stretch_ends, start, side="right"))
        filled = 0
        while filled < count:
            stretch = self._stretches[index]
            offset = start + filled - (int(self._stretch_ends[index]) - stretch.units)
            taken = min(count - filled, stretch.units - offset)
            self._fill(units[filled : filled + taken], stretch.start + offset)
            filled += taken
            index += 1
        return units

    def read_as_filed(self, start: int, count: int) -> Units:
        """Copy out units [start, start + count), counted as the files stand. Shapes, dtypes, errors as `read`."""
        self._check_inside(start, count)
        units: Units = np.empty(count, self.dtype)
        self._fill(units, start)
        return units

    def pieces(self, start: int, stop: int, piece_units: int = PIECE_UNITS) -> Iterator[Units]:
        """Yield units [start, stop) in the order of `read`, `piece_units` at a time."""
        for offset in range(start, stop, piece_units):
            yield self.read(offset, min(piece_units, stop - offset))

    def pieces_as_filed(self, start: int, stop: int) -> Iterator[Units]:
        """Yield units [start, stop), counted as the files stand, PIECE_UNITS at a time."""
        for offset in range(start, stop, PIECE_UNITS):
            yield self.read_as_filed(offset, min(PIECE_UNITS, stop - offset))

    @property
    def place_held_out(self) -> str:
        """Where what is held out stands, for people: the last files by name, or how many blocks."""
        if not self._held_out:
            return "nothing is held out"
        if len(self._held_out) > 1:
            return f"in {len(self._held_out)} blocks spread over it"
        if not self.train_units:
            return "all of it"
        if len(self.parts) == 1:
            return self.ITS_END
        first = int(np.searchsorted(self._part_ends, self.train_units, side="right"))
        names = self.parts[first].label
        if first < len(self.parts) - 1:
            names = f"{names} to {self.parts[-1].label}"
        return (
            f"{self.ITS_END}, in {len(self.parts) - first:,} of {counted(len(self.parts), 'file')}: {names}"
        )

    def fingerprint(self) -> str:
        """Return a short hash of the files' names, sizes and content, as 0.1 wrote it.

        Up to SMALL_UNITS the content is hashed whole. A larger corpus is sampled, as reading it takes long: its
        first block, its last, and blocks spread evenly between them; a change that misses them all is not seen.
        Raises: UserError when a file changed or went away.
        """
        digest = hashlib.sha256(f"{self.dtype}\n".encode())
        for part in self.parts:
            digest.update(f"{part.label}\0{part.units}\n".encode("utf-8", "surrogateescape"))
        return self._hashed(digest, SMALL_UNITS)

    def content(self) -> str:
        """Return a short hash of the units alone, whatever the files are called and wherever they lie.

        Up to HASHED_UNITS are hashed whole; a larger corpus is sampled, as for the fingerprint.
        Raises: UserError when a file changed or went away.
        """
        return self._hashed(hashlib.sha256(f"{self.dtype} {self.units}\n".encode()), HASHED_UNITS)

    def _hashed(self, digest: hashlib._Hash, whole_units: int) -> str:
        stretches = [Stretch(0, self.units)]
        if self.units > whole_units:
            last = self.units - BLOCK_UNITS
            starts = (last * index // (SAMPLED_BLOCKS - 1) for index in range(SAMPLED_BLOCKS))
            stretches = [Stretch(start, BLOCK_UNITS) for start in starts]
        for start, units in stretches:
            for piece in self.pieces_as_filed(start, start + units):
                digest.update(piece.astype(DISK_DTYPES[self.dtype], copy=False).tobytes())
        return digest.hexdigest()[:16]

    def _check_inside(self, start: int, count: int) -> None:
        if start < 0 or count < 0 or start + count > self.units:
            raise IndexError(f"[{start}, {start + count}) is outside the {self.units} units of {self.name}")

    def _fill(self, units: Units, start: int) -> None:
        """Read as many units as `units` has from `start`, counted as the files stand, across files."""
        index = int(np.searchsorted(self._part_ends, start, side="right"))
        filled = 0
        while filled < len(units):
            part = self.parts[index]
            offset = start + filled - (int(self._part_ends[index]) - part.units)
            taken = min(len(units) - filled, part.units - offset)
            units[filled : filled + taken] = part.read(offset, taken, DISK_DTYPES[self.dtype])
            filled += taken
            index += 1


def check_ids(corpora: Sequence[Corpus], vocabulary: int, progress: ProgressCallback | None = None) -> None:
    """Read every id once and hold it against the model's vocabulary; bytes fit 256 and are not read.

    `progress` is called with (ids read, ids in all) after every piece; what it raises ends the reading.
    Raises: UserError naming the first id that is too large, and where it stands.
    """
    doubtful = [corpus for corpus in corpora if vocabulary <= np.iinfo(np.dtype(corpus.dtype)).max]
    done, total = 0, sum(corpus.units for corpus in doubtful)
    for corpus in doubtful:
        start = 0
        for piece in corpus.pieces_as_filed(0, corpus.units):
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
