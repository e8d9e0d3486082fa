"""Where a corpus comes from: a path or builtin:NAME becomes a list of parts, files on disk or text in memory.

A *unit* is what a model reads at once: a byte, or a token id where the corpus is uint16.
A file's content is never held: a read maps the stretch it needs and the mapping goes with it, so neither
memory nor open files grow with the corpus, and any thread may read.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mlx_amort.errors import UserError, did_you_mean
from mlx_amort.files import expand_home

Units = npt.NDArray[np.unsignedinteger[Any]]

# On disk a token id is little-endian whatever the machine is.
DISK_DTYPES: dict[str, np.dtype[Any]] = {"uint8": np.dtype("u1"), "uint16": np.dtype("<u2")}

# Installed packages differ from machine to machine and many systems leave the tests out.
STDLIB_EXCLUDED = frozenset({"site-packages", "dist-packages", "test"})

SNIFFED_BYTES = 8192
# Text has tabs, line ends, form feeds, escapes and hardly another control byte; packed data has 1 in 10.
CONTROL_BYTES = bytes(byte for byte in range(32) if byte not in b"\t\n\f\r\x08\x1b") + b"\x7f"
CONTROL_SHARE = 0.02


@dataclass(frozen=True)
class FilePart:
    """A file of units, known by its size and identity (device, inode) from when the corpus was opened."""

    path: str
    label: str
    units: int
    identity: tuple[int, int]

    def read(self, start: int, count: int, dtype: np.dtype[Any]) -> Units:
        """Map units [start, start + count) of the file.

        Raises: UserError when the file is gone, cannot be read, or is not the size it was.
        """
        try:
            with open(self.path, "rb") as file:
                size_bytes, opened_bytes = os.fstat(file.fileno()).st_size, self.units * dtype.itemsize
                if size_bytes != opened_bytes:
                    raise UserError(
                        f"corpus file {self.path}",
                        f"was {opened_bytes:,} bytes when it was opened and is {size_bytes:,} now",
                        "leave a corpus as it is while a run reads it",
                    )
                return np.memmap(file, dtype, mode="r", offset=start * dtype.itemsize, shape=(count,))
        except OSError as error:
            raise UserError(
                f"corpus file {self.path}",
                f"cannot be read ({error.strerror})",
                "leave a corpus where it is while a run reads it",
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
    """A file or folder inside a corpus folder that was not taken, and why."""

    path: str
    reason: str


@dataclass(frozen=True)
class Listing:
    """What a source consists of, in reading order, and what was left out."""

    parts: tuple[Part, ...]
    skipped: tuple[Skipped, ...] = ()


def list_source(path: str, dtype: str) -> Listing:
    """Find the parts of a file, a folder (its text files, recursively) or builtin:NAME.

    Raises: UserError when there is nothing to read or it cannot hold units of this dtype.
    """
    if path.startswith("builtin:"):
        name = path.removeprefix("builtin:")
        if name not in BUILTINS:
            raise UserError(f"corpus '{path}'", "no such built-in corpus", did_you_mean(name, BUILTINS))
        if dtype != "uint8":
            raise UserError(f"corpus '{path}'", f"is text, not {dtype} ids", "set data.dtype=uint8")
        return BUILTINS[name]()
    root = expand_home(path)
    if dtype != "uint8" and root.suffix != ".bin":
        raise UserError(
            f"corpus '{path}'", f"{dtype} ids are read from a .bin file", "set data.dtype=uint8 for text"
        )
    try:
        mode = root.stat().st_mode
        if stat.S_ISDIR(mode):
            return _list_folder(root)
        if not stat.S_ISREG(mode):
            raise UserError(
                f"corpus '{path}'", "is neither a file nor a folder", "name a file, a folder or builtin:docs"
            )
        return Listing((_file_part(root, root.name, DISK_DTYPES[dtype].itemsize),))
    except OSError as error:
        raise UserError(
            f"corpus '{path}'",
            f"cannot be read ({error.strerror})",
            "name a file, a folder, builtin:docs or builtin:stdlib",
        ) from error


def is_text(head: bytes) -> bool:
    """Whether the first bytes of a file look like text: no NUL and hardly a control byte."""
    control = len(head) - len(head.translate(None, CONTROL_BYTES))
    return b"\0" not in head and control <= CONTROL_SHARE * len(head)


def _file_part(path: Path, label: str, unit_bytes: int) -> FilePart:
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
    if status.st_size % unit_bytes:
        raise UserError(
            f"corpus '{path}'",
            f"{status.st_size:,} bytes are not whole ids of {unit_bytes} bytes each",
            "check how it was written, or set data.dtype=uint8",
        )
    return FilePart(str(path), label, status.st_size // unit_bytes, (status.st_dev, status.st_ino))


def _list_folder(root: Path, suffix: str = "", excluded: frozenset[str] = frozenset()) -> Listing:
    parts: list[FilePart] = []
    skipped: list[Skipped] = []
    seen: set[tuple[int, int]] = set()
    for path in _walk(root, excluded, skipped):
        label = path.relative_to(root).as_posix()
        if not path.name.endswith(suffix):
            continue
        try:
            # Opening a pipe would wait for its writer for ever, so the kind is asked first.
            if not stat.S_ISREG(path.stat().st_mode):
                skipped.append(Skipped(label, "not a regular file"))
                continue
            with open(path, "rb") as file:
                head = file.read(SNIFFED_BYTES)
            part = _file_part(path, label, 1)
        except OSError as error:
            skipped.append(Skipped(label, f"cannot be read ({error.strerror})"))
            continue
        if not is_text(head):
            skipped.append(Skipped(label, "binary"))
        elif part.units and part.identity not in seen:
            # A second link to the same file would put its held-out bytes into the training part.
            seen.add(part.identity)
            parts.append(part)
    if not parts:
        raise UserError(
            f"corpus '{root}'",
            f"no text file in this folder ({len(skipped)} skipped)",
            "name a folder with texts, or one file",
        )
    return Listing(tuple(sorted(parts, key=lambda part: part.label)), tuple(skipped))


def _walk(root: Path, excluded: frozenset[str], skipped: list[Skipped]) -> Iterator[Path]:
    """Yield the files below root in a fixed order, each real folder once, so that a loop of links ends."""

    def refuse(error: OSError) -> None:
        skipped.append(Skipped(os.path.relpath(error.filename, root), f"cannot be read ({error.strerror})"))

    seen: set[tuple[int, int]] = set()
    for folder, subfolders, names in os.walk(root, onerror=refuse, followlinks=True):
        status = os.stat(folder)
        if (status.st_dev, status.st_ino) in seen:
            subfolders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        subfolders[:] = sorted(
            name for name in subfolders if not name.startswith(".") and name not in excluded
        )
        for name in sorted(names):
            if not name.startswith("."):
                yield Path(folder, name)


def _python_documentation() -> Listing:
    """The topics in the order of the SHA-256 of their names: in that of the names, the tail held out is tables."""
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise UserError(
            "corpus 'builtin:docs'", "this Python has no pydoc_data", "name a text of your own"
        ) from error
    shuffled = sorted(topics, key=lambda name: hashlib.sha256(name.encode()).digest())
    text = "\n".join(topics[name] for name in shuffled).encode()
    # The label is part of the corpus's fingerprint, which must tell this order from any other.
    return Listing((MemoryPart(text, "pydoc_data.topics by sha256", ("builtin:docs",)),))


def _python_sources() -> Listing:
    root = Path(sysconfig.get_path("stdlib"))
    if not root.is_dir():
        raise UserError(
            "corpus 'builtin:stdlib'", f"this Python has no folder {root}", "name a text of your own"
        )
    return _list_folder(root, ".py", STDLIB_EXCLUDED)


BUILTINS: dict[str, Callable[[], Listing]] = {"docs": _python_documentation, "stdlib": _python_sources}
