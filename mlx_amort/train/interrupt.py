"""Ctrl-C, SIGTERM and a closed terminal as a question the loop asks between steps."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

from mlx_amort.backend.disturbance import heard_naps

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def held_signals() -> Iterator[None]:
    """While entered, this thread leaves signals to others: Python still notes them, and what is started here does not
    hear them. A terminal sends Ctrl-C to the compilers that MLX starts too, and a kernel cut off ends the run.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Interrupt:
    """While entered (in the main thread), a signal is only noted; the step under way ends undisturbed.

    The first signal decides the exit code, further ones change nothing. That the process was stopped and continued
    is noted too (backend/disturbance.py).
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}
        self._naps = heard_naps()

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
        self._naps.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._naps.__exit__(kind, error, traceback)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is None:
            self.signal = signal.Signals(number)
