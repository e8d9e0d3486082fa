"""Writing to a standard stream that may be closed, full, or unable to show a character."""

from __future__ import annotations

import os
import sys
from typing import TextIO


def make_standard_streams_safe() -> None:
    """A stream that the caller closed becomes one that keeps nothing; no character is refused."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def write(stream: TextIO, text: str) -> bool:
    """Write and flush; False, and the stream silent from now on, when nobody can read it any more."""
    try:
        stream.write(text)
        stream.flush()
    except OSError:
        silence(stream)
        return False
    return True


def silence(stream: TextIO) -> None:
    """Lead a stream that failed to nowhere: what it still holds would fail again when the program ends."""
    try:
        descriptor = stream.fileno()
    # A stream in memory has no descriptor, and a closed one none any more.
    except (OSError, ValueError):
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
