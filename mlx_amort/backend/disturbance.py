"""What a step's time holds beside the step: compiling a kernel, or a nap of the machine or of the process."""

from __future__ import annotations

import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

_LEAST_NAP_S = 0.1
_continued = 0


@dataclass(frozen=True)
class Moment:
    """Counters that stand still while nothing but the step goes on.

    Units: compilers_s is processor time of the processes that this one started and waited for; asleep_s the time that
    the machine has been suspended. continued: how often the process has been stopped and continued.
    """

    compilers_s: float
    asleep_s: float
    continued: int

    def has_compiled_since(self, earlier: Moment) -> bool:
        """Whether MLX's CPU backend compiled a kernel in between; on GPUs only the first step is known to."""
        return self.compilers_s > earlier.compilers_s

    def has_napped_since(self, earlier: Moment) -> bool:
        """Whether the machine was suspended in between, or the process stopped (within `heard_naps`)."""
        return self.asleep_s - earlier.asleep_s > _LEAST_NAP_S or self.continued != earlier.continued


def this_moment() -> Moment:
    """The counters now."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Moment(spent.ru_utime + spent.ru_stime, _asleep_s(), _continued)


@contextmanager
def heard_naps() -> Iterator[None]:
    """While entered, in the main thread, that the process was stopped (SIGSTOP, Ctrl-Z) and continued is noted."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGCONT, _note)
    try:
        yield
    finally:
        signal.signal(signal.SIGCONT, before)


def _note(number: int, frame: FrameType | None) -> None:
    global _continued
    _continued += 1


def _asleep_s() -> float:
    """How far the clock that goes on in a suspended machine is ahead of the one that stands still."""
    if sys.platform == "darwin":
        return time.clock_gettime(time.CLOCK_MONOTONIC) - time.clock_gettime(time.CLOCK_UPTIME_RAW)
    if sys.platform == "linux":
        return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)
    return 0.0
