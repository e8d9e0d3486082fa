"""Ctrl-C, SIGTERM and a closed terminal as a question the loop asks between steps."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupt:
    """While entered (in the main thread), a signal is only noted; the step under way ends undisturbed.

    The first signal decides the exit code, further ones change nothing.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    @property
    def is_set(self) -> bool:
        """Whether a signal has come."""
        return self.signal is not None

    @property
    def exit_code(self) -> int:
        """What a shell reports for a program that this signal ended: 128 + its number."""
        assert self.signal is not None
        return 128 + self.signal

    def __enter__(self) -> Interrupt:
        # Under nohup SIGHUP is ignored already, and stays so.
        heard = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
        self._before = {number: signal.signal(number, self._note) for number in heard}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is None:
            self.signal = signal.Signals(number)
