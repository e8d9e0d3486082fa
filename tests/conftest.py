"""Loads the fast BLAS before any test imports mlx."""

from __future__ import annotations

import signal

from mlx_amort.backend import load_blas

load_blas()

# A suite started behind a shell or under nohup has these ignored, and so would every run it starts and interrupts.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)
