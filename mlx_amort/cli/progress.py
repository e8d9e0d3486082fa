"""Progress of something that is counted, on stderr."""

from __future__ import annotations

import sys
import time

from mlx_amort.amounts import format_duration
from mlx_amort.streams import MovingLine

QUIET_S = 2.0
PLAIN_LINE_EVERY_S = 10.0
TERMINAL_LINE_EVERY_S = 0.2


class ProgressLine:
    """What is done and the time left: one changing line on a terminal, else a line now and then.

    What is over within two seconds says nothing.
    """

    def __init__(self, doing: str, unit: str) -> None:
        self._doing = doing
        self._unit = unit
        self._line = MovingLine(sys.stderr, PLAIN_LINE_EVERY_S)
        self._started_at = time.monotonic()
        self._next_at = self._started_at + QUIET_S

    @property
    def elapsed_s(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._started_at

    def __call__(self, done: int, total: int) -> None:
        """Tell that so much is done, of so much in all, if it is time to."""
        now = time.monotonic()
        if now < self._next_at:
            return
        self._next_at = now + TERMINAL_LINE_EVERY_S
        left = format_duration(self.elapsed_s / done * (total - done))
        self._line.show(f"{self._doing}: {self._unit} {done:,} of {total:,}, {left} left")

    def close(self) -> None:
        """Take the changing line away."""
        self._line.clear()
