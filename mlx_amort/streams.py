"""Writing to a standard stream that may be closed, full, no terminal, or unable to show a character."""

from __future__ import annotations

import math
import os
import shutil
import sys
import time
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
    # A stream in memory has no descriptor, and a closed one has none any more.
    except (OSError, ValueError):
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


class MovingLine:
    """A line that the next one replaces on a terminal; elsewhere a whole line, at most every few seconds.

    A dumb terminal, one whose user wants none of this (NO_COLOR), and a line that is wider than the terminal get whole
    lines too.
    """

    def __init__(self, stream: TextIO, plain_every_s: float) -> None:
        self._stream = stream
        self._plain_every_s = plain_every_s
        self._can_move = can_move_cursor(stream)
        self._is_shown = False
        self._wrote_at = -math.inf

    @property
    def can_move(self) -> bool:
        """Whether lines that fit are replaced."""
        return self._can_move

    def show(self, text: str) -> bool:
        """Show a line instead of the last one; whether it stays, as a line of its own."""
        if self._can_move and len(text) < _columns(self._stream):
            write(self._stream, f"\r{text}\x1b[K")
            self._is_shown = True
        elif time.monotonic() - self._wrote_at >= self._plain_every_s:
            self.stay(text)
            return True
        return False

    def stay(self, text: str) -> None:
        """Write a line that stays."""
        self.clear()
        write(self._stream, f"{text}\n")
        self._wrote_at = time.monotonic()

    def clear(self) -> None:
        """Take the moving line away."""
        if self._is_shown:
            write(self._stream, "\r\x1b[K")
        self._is_shown = False

    def hurry(self) -> None:
        """Let the next line be shown at once."""
        self._wrote_at = -math.inf


def can_move_cursor(stream: TextIO) -> bool:
    """Whether a stream is a terminal that understands control sequences, and whose user has not declined them."""
    is_plain = os.environ.get("TERM", "dumb") in ("", "dumb") or bool(os.environ.get("NO_COLOR"))
    return stream.isatty() and not is_plain


def _columns(stream: TextIO) -> int:
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        columns = 0
    return columns or shutil.get_terminal_size().columns
