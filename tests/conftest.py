"""Loads the fast BLAS before any test imports mlx."""

from __future__ import annotations

import os
import signal

from mlx_amort.backend import load_blas
from mlx_amort.backend.cache_folder import built_folder

# One of several workers has one core.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Tests that have a cache folder of their own share what was built once all the same.
os.environ["MLX_AMORT_CACHE"] = str(built_folder())
load_blas()

# A suite started behind a shell or under nohup has these ignored, and so would every run it starts and interrupts.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)
