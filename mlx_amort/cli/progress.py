"""Progress of something that is counted, on stderr."""

from __future__ import annotations

import sys
import time

from mlx_amort.amounts import format_duration
from mlx_amort.streams import write

QUIET_S = 2.0
PLAIN_LINE_EVERY_S = 10.0
TERMINAL_LINE_EVERY_S = 0.2


class Progress:
    """What is done and the time left: one changing line on a terminal, else a line now and then.

    What is over within two seconds says nothing.
    """

    def __init__(self, doing: str, unit: str) -> None:
        self._doing = doing
        self._unit = unit
        self._started_at = time.monotonic()
        self._is_terminal = sys.stderr.isatty()
        self._every_s = TERMINAL_LINE_EVERY_S if self._is_terminal else PLAIN_LINE_EVERY_S
        self._told_at = self._started_at + QUIET_S - self._every_s
        self._has_told = False

    @property
    def elapsed_s(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._started_at

    def __call__(self, done: int, total: int) -> None:
        """Tell that so much is done, of so much in all, if it is time to."""
        now = time.monotonic()
        if now - self._told_at < self._every_s:
            return
        self._told_at, self._has_told = now, True
        left = format_duration(self.elapsed_s / done * (total - done))
        line = f"{self._doing}: {self._unit} {done:,} of {total:,}, {left} left"
        write(sys.stderr, f"\r\x1b[K{line}" if self._is_terminal else f"{line}\n")

    def close(self) -> None:
        """Take the changing line away."""
        if self._is_terminal and self._has_told:
            write(sys.stderr, "\r\x1b[K")
