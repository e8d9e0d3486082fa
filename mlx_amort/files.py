"""Writing a file so that a kill or a power cut leaves the old content or the new, never a part."""

from __future__ import annotations

import os
from pathlib import Path

HIDDEN = "."
"""What the name of everything temporary begins with."""


def write_whole(path: Path, text: str) -> None:
    """Replace a small text file in one go: written beside it, flushed to disk, renamed."""
    temporary = path.with_name(f"{HIDDEN}{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    flush_to_disk(temporary)
    os.replace(temporary, path)
    flush_to_disk(path.parent)


def flush_to_disk(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
