"""Files: read without waiting, written so that a kill or a power cut leaves the old content or the new."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from mlx_amort.errors import UserError, advice

HIDDEN = "."
"""What the name of everything temporary begins with."""


def write_whole(path: Path, text: str) -> None:
    """Replace a small text file in one go: written beside it, flushed to disk, renamed.

    Raises: OSError, which names the file, when it cannot be written; what it held before stays.
    """
    temporary = path.with_name(f"{HIDDEN}{path.name}.{os.getpid()}")
    try:
        # A name that is not text in UTF-8 is written as JSON and YAML escape it, and so read back.
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")
        flush_to_disk(temporary)
        os.replace(temporary, path)
        flush_to_disk(path.parent)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        # A full disk names no file.
        error.filename = str(path)
        raise


def read_regular(path: Path, most_bytes: int) -> bytes:
    """The first `most_bytes` of a regular file; a pipe would be waited for, and a device may have no end.

    Raises: OSError when it cannot be read, UserError when it is of another kind.
    """
    # The kind is asked before opening, which may act on a device, and again of what was opened.
    _check_regular(path, os.stat(path).st_mode)
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        _check_regular(path, os.fstat(file.fileno()).st_mode)
        return file.read(most_bytes)


def expand_home(path: str | Path, what: str = "") -> Path:
    """A path whose leading `~` or `~USER` is replaced by that home; a file of that very name goes before it.

    Raises: UserError, about `what` (else the path), when there is no such user, or no home folder.
    """
    text = os.fspath(path)
    # Asked of the text, for a Path forgets a leading `./`.
    if not text.startswith("~"):
        return Path(path)
    expanded = os.path.expanduser(text)
    if expanded.startswith("~") and not os.path.lexists(expanded):
        user = expanded[1:].partition("/")[0]
        why = f"there is no user named {user}" if user else "no home folder is known"
        raise UserError(what or text, why, "write the whole path")
    return Path(expanded)


def _check_regular(path: Path, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise UserError(str(path), "is a folder", "name a file in it")
    if not stat.S_ISREG(mode):
        raise UserError(str(path), "is a pipe, a socket or a device", "name a regular file")


def make_folder(path: Path, what: str) -> None:
    """Make a folder that the user named as `what`, and see that a file can be written there, before long work.

    Raises: UserError when it cannot.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        if isinstance(error, FileExistsError):
            raise UserError(what, "is not a folder", "name another") from error
        why = f"is not a folder that can be written to ({error.strerror})"
        raise UserError(what, why, f"{advice(error)}, or name another folder") from error


def flush_to_disk(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, is on disk.

    File systems that cannot flush a folder (SMB, some of FUSE) answer EINVAL or ENOTSUP; they are not waited for.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if not (path.is_dir() and error.errno in (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP)):
            raise
    finally:
        os.close(descriptor)
