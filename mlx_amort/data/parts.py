"""What a corpus is read from: stretches of files on disk, or a text in memory.

A *unit* is what a model reads at once: a byte, or a token id where the corpus is uint16.
A file's content is never held: a read maps the stretch it needs and the mapping goes with it, so neither
memory nor open files grow with the corpus, and any thread may read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mlx_amort.amounts import counted
from mlx_amort.errors import UserError, advice

Units = npt.NDArray[np.unsignedinteger[Any]]

# On disk a token id is little-endian whatever the machine is.
DISK_DTYPES: dict[str, np.dtype[Any]] = {"uint8": np.dtype("u1"), "uint16": np.dtype("<u2")}


SHOWN_NAMES = 3


@dataclass(frozen=True)
class FilePart:
    """A file of units, known by its size and identity (device, inode) from when the corpus was opened.

    header_bytes: what stands before the first unit and is not read.
    """

    path: str
    label: str
    units: int
    identity: tuple[int, int]
    header_bytes: int = 0

    def read(self, start: int, count: int, dtype: np.dtype[Any]) -> Units:
        """Map units [start, start + count) of the file.

        Raises: UserError when the file is gone, cannot be read, or is not the size it was.
        """
        try:
            with open(self.path, "rb") as file:
                size_bytes = os.fstat(file.fileno()).st_size
                opened_bytes = self.header_bytes + self.units * dtype.itemsize
                if size_bytes != opened_bytes:
                    raise UserError(
                        f"corpus file {self.path}",
                        f"was {opened_bytes:,} bytes when it was opened and is {size_bytes:,} now",
                        "leave a corpus as it is while a run reads it",
                    )
                offset = self.header_bytes + start * dtype.itemsize
                return np.memmap(file, dtype, mode="r", offset=offset, shape=(count,))
        except OSError as error:
            raise UserError(
                f"corpus file {self.path}",
                f"cannot be read ({error.strerror})",
                f"{advice(error)}, and leave a corpus where it is while a run reads it",
            ) from error


@dataclass(frozen=True, eq=False)
class MemoryPart:
    """A small text held in memory."""

    text: bytes
    label: str
    identity: tuple[str]

    @property
    def units(self) -> int:
        """Bytes of the text."""
        return len(self.text)

    def read(self, start: int, count: int, dtype: np.dtype[Any]) -> Units:
        """Return units [start, start + count), a view."""
        units: Units = np.frombuffer(self.text, dtype, count, start)
        return units


Part = FilePart | MemoryPart


@dataclass(frozen=True)
class Skipped:
    """A file or folder that a corpus leaves out, why, and what would make it a part of one."""

    path: str
    reason: str
    todo: str = ""


def left_out(skipped: Sequence[Skipped]) -> str:
    """Return how many files were left out and why, with a few names of each kind: for one line."""
    names: dict[str, list[str]] = {}
    for file in skipped:
        # "a copy of x" and "a copy of y" are one kind of reason.
        names.setdefault(re.sub(r"^(a copy of|the same file as) .*", r"\1 another", file.reason), []).append(
            file.path
        )
    reasons = (
        f"{len(paths):,} {reason} ({', '.join(paths[:SHOWN_NAMES])}{', ...' if len(paths) > SHOWN_NAMES else ''})"
        for reason, paths in names.items()
    )
    return f"{counted(len(skipped), 'file')}: {', '.join(reasons)}"


@dataclass(frozen=True)
class Listing:
    """What a source consists of, in reading order, what was left out, and what its reader should know.

    is_shuffled: the parts already stand in an order that makes any stretch an even sample.
    """

    parts: tuple[Part, ...]
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[str, ...] = ()
    is_shuffled: bool = False
