"""Writing a file so that a kill or a power cut leaves the old content or the new, never a part."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from mlx_amort.errors import UserError

HIDDEN = "."
"""What the name of everything temporary begins with."""


def write_whole(path: Path, text: str) -> None:
    """Replace a small text file in one go: written beside it, flushed to disk, renamed.

    Raises: OSError, which names the file, when it cannot be written; what it held before stays.
    """
    temporary = path.with_name(f"{HIDDEN}{path.name}.{os.getpid()}")
    try:
        # A name that is no text in UTF-8 is written as JSON and YAML escape it, and so read back.
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


def make_folder(path: Path, what: str) -> None:
    """Make a folder that the user named as `what`, and see that a file can be written there, before long work.

    Raises: UserError when it cannot.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        why = "is no folder" if path.exists() and not path.is_dir() else "is no folder that can be written to"
        raise UserError(what, f"{why} ({error.strerror})", "name another folder") from error


def flush_to_disk(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def cache_folder() -> Path:
    """Where what can be made again is kept: $XDG_CACHE_HOME/mlx-amort, ~/.cache where that is not set."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path(os.path.expanduser("~")) / ".cache") / "mlx-amort"
