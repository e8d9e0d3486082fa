"""Where a corpus comes from: a path or builtin:NAME becomes a listing of parts, and of what was left out.

A file that is named must be text (or token ids); of a folder only the texts are taken, recursively. With
`raw` a named file is read as the bytes it holds, and of a folder whatever has hardly a control byte.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

from mlx_amort.config.values import SourceConfig
from mlx_amort.data.kinds import HEAD_BYTES, is_text, kind_of
from mlx_amort.data.parts import FilePart, Listing, MemoryPart, Skipped
from mlx_amort.data.split_names import note_of_splits
from mlx_amort.data.token_ids import ID_BYTES, id_header_bytes
from mlx_amort.errors import UserError, advice, did_you_mean
from mlx_amort.files import expand_home

# Installed packages differ from machine to machine and many systems leave the tests out.
STDLIB_EXCLUDED = frozenset({"site-packages", "dist-packages", "test"})
BINARY = "binary"
# As the files of /proc and /sys are.
SHORT = "shorter than its size says"
RAW_HINT = "set data.raw=true to train on its bytes as they are"
# What opening would wait for, or never end to read.
_FORMS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def list_source(source: SourceConfig, dtype: str, raw: bool = False) -> Listing:
    """Find the parts of a file, a folder (its text files, recursively) or builtin:NAME.

    Raises: UserError when there is nothing to read or it cannot hold units of this dtype.
    """
    path = source.path
    what = f"corpus '{path}'"
    if path.startswith("builtin:"):
        name = path.removeprefix("builtin:")
        if name not in BUILTINS:
            raise UserError(what, "no such built-in corpus", did_you_mean(name, BUILTINS))
        if dtype != "uint8":
            raise UserError(what, f"is text, not {dtype} ids", "set data.dtype=uint8")
        return BUILTINS[name]()
    root = expand_home(path, what)
    if dtype != "uint8" and root.suffix != ".bin":
        raise UserError(what, f"{dtype} ids are read from a .bin file", "set data.dtype=uint8 for text")
    try:
        mode = root.stat().st_mode
        if stat.S_ISDIR(mode):
            listing = _list_folder(root, raw=raw)
        elif stat.S_ISREG(mode):
            listing = _list_file(root, what, dtype, raw)
        else:
            form = next((name for is_form, name in _FORMS if is_form(mode)), "neither a file nor a folder")
            raise UserError(what, f"is {form}", "write it to a file, and name that")
    except FileNotFoundError as error:
        raise _not_found(source) from error
    except OSError as error:
        raise UserError(
            what,
            f"cannot be read ({error.strerror})",
            f"{advice(error)}, or name a file, a folder, builtin:docs or builtin:stdlib",
        ) from error
    return Listing(listing.parts, listing.skipped, (*_note_of_two_readings(path), *listing.notes))


def _not_found(source: SourceConfig) -> UserError:
    todo = "name a file, a folder, builtin:docs or builtin:stdlib"
    if source.given is None:
        return UserError(f"corpus '{source.path}'", "cannot be read (No such file or directory)", todo)
    why = (
        f"there is no such file, and none named '{source.given}' (a number after the last colon is a weight)"
    )
    return UserError(f"corpus '{source.path}'", why, todo)


def _note_of_two_readings(path: str) -> Iterator[str]:
    shorter, colon, tail = path.rpartition(":")
    if colon and tail.replace(".", "", 1).isdecimal() and os.path.lexists(os.path.expanduser(shorter)):
        other = f"write {shorter}:{float(tail):.1f}" if f"{float(tail):.1f}" != tail else "rename this one"
        yield f"'{path}' is read as the file of that name; for '{shorter}' with weight {tail} {other}"


def _list_file(path: Path, what: str, dtype: str, raw: bool) -> Listing:
    if raw:
        part = _file_part(path, path.name, DTYPE_BYTES[dtype])
        kind = kind_of(_head(path)) if dtype == "uint8" else None
        noted = f"{path.name} is {kind.name}: its bytes are read as they are (data.raw)" if kind else ""
        return Listing((part,), notes=(noted,) if noted else ())
    head, size_bytes = _head(path), path.stat().st_size
    if len(head) < min(size_bytes, HEAD_BYTES):
        raise UserError(what, f"is {SHORT}", "copy its content to a file, and name that")
    if dtype != "uint8":
        header_bytes = id_header_bytes(what, head, size_bytes)
        return Listing((_file_part(path, path.name, ID_BYTES, header_bytes),))
    kind = kind_of(head)
    if kind is not None:
        raise UserError(what, f"is {kind.name}, not plain text", f"{kind.advice(str(path))}, or {RAW_HINT}")
    if not is_text(head):
        ids = "; for token ids data.dtype=uint16" if path.suffix == ".bin" else ""
        raise UserError(what, "is binary, of no kind known here", f"{RAW_HINT}{ids}")
    return Listing((_file_part(path, path.name, 1),))


DTYPE_BYTES = {"uint8": 1, "uint16": ID_BYTES}


def _head(path: Path) -> bytes:
    with open(path, "rb") as file:
        return file.read(HEAD_BYTES)


def _file_part(path: Path, label: str, unit_bytes: int, header_bytes: int = 0) -> FilePart:
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
    if status.st_size % unit_bytes:
        raise UserError(
            f"corpus '{path}'",
            f"{status.st_size:,} bytes are not whole ids of {unit_bytes} bytes each",
            "check how it was written, or set data.dtype=uint8",
        )
    units = (status.st_size - header_bytes) // unit_bytes
    return FilePart(str(path), label, units, (status.st_dev, status.st_ino), header_bytes)


def _list_folder(
    root: Path, suffix: str = "", excluded: frozenset[str] = frozenset(), raw: bool = False
) -> Listing:
    parts: list[FilePart] = []
    skipped: list[Skipped] = []
    seen: dict[tuple[int, int], str] = {}
    # A folder that cannot be listed is not a folder without texts.
    os.scandir(root).close()
    for path in _walk(root, excluded, skipped):
        label = path.relative_to(root).as_posix()
        if not path.name.endswith(suffix):
            continue
        try:
            # Opening a pipe would wait for its writer for ever, so the form is asked first.
            if not stat.S_ISREG(path.stat().st_mode):
                skipped.append(Skipped(label, "not a regular file"))
                continue
            head = _head(path)
            part = _file_part(path, label, 1)
        except OSError as error:
            skipped.append(Skipped(label, f"cannot be read ({error.strerror})"))
            continue
        left_out = _reason_to_skip(path, label, part, head, raw)
        if left_out is not None:
            skipped.append(left_out)
        # A second link to the same file would put its held-out bytes into the training part.
        elif (first := seen.setdefault(part.identity, label)) != label:
            skipped.append(Skipped(label, f"the same file as {first}"))
        else:
            parts.append(part)
    if not parts:
        raise _no_text(root, skipped)
    parts.sort(key=lambda part: part.label)
    return Listing(tuple(parts), tuple(skipped), tuple(note_of_splits(part.label for part in parts)))


def _reason_to_skip(path: Path, label: str, part: FilePart, head: bytes, raw: bool) -> Skipped | None:
    if part.units == 0:
        return Skipped(label, "empty")
    if len(head) < min(part.units, HEAD_BYTES):
        return Skipped(label, SHORT)
    kind = None if raw else kind_of(head)
    if kind is not None:
        return Skipped(label, kind.name, kind.advice(str(path)))
    return None if is_text(head) else Skipped(label, BINARY)


def _no_text(root: Path, skipped: list[Skipped]) -> UserError:
    why = "has no text file in it"
    if skipped:
        shown = ", ".join(f"{left.path}: {left.reason}" for left in skipped[:2])
        why = f"{why} ({len(skipped)} left out: {shown}{', ...' if len(skipped) > 2 else ''})"
    todo = next((left.todo for left in skipped if left.todo), "name a folder with texts, or one file")
    return UserError(f"corpus '{root}'", why, todo)


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
    part = MemoryPart(text, "pydoc_data.topics by sha256", ("builtin:docs",))
    return Listing((part,), is_shuffled=True)


def _python_sources() -> Listing:
    root = Path(sysconfig.get_path("stdlib"))
    if not root.is_dir():
        raise UserError(
            "corpus 'builtin:stdlib'", f"this Python has no folder {root}", "name a text of your own"
        )
    return _list_folder(root, ".py", STDLIB_EXCLUDED)


BUILTINS: dict[str, Callable[[], Listing]] = {"docs": _python_documentation, "stdlib": _python_sources}
