"""The environment of a command that a test runs: nothing of the user's but what was built once for this machine."""

from __future__ import annotations

import os
from pathlib import Path

from mlx_amort.backend.cache_folder import cache_folder

ROOT = Path(__file__).parents[1]
# Threads of products are part of what a machine is.
_KEPT = ("OPENBLAS_NUM_THREADS",)
# Asked for once, before a test names a cache of its own.
_BUILT = cache_folder()


def clean_environment(home: Path) -> dict[str, str]:
    """A home of its own, and this suite's compiled kernels, which take a minute to make."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    built = {"MLX_AMORT_CACHE": str(_BUILT)}
    return {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(home), **built, **kept}
