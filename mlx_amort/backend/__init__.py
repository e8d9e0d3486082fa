"""The machine under a run: which BLAS, which device, how much memory."""

from __future__ import annotations

import os

from mlx_amort.backend.blas import load_fast_blas
from mlx_amort.backend.kernel_cache import keep_kernels
from mlx_amort.backend.machine import describe_machine, set_cpu_cache_limit, wired_working_set

__all__ = ["describe_machine", "load_blas", "set_cpu_cache_limit", "wired_working_set"]

_TF32_SETTING = "MLX_ENABLE_TF32"


def load_blas() -> None:
    """Put what MLX finds when it is loaded where it finds it; must run before `import mlx.core`.

    On the CPU of Linux that is a fast BLAS (backend/blas.py), and a folder for its kernels that survives
    (backend/kernel_cache.py). On GPUs float32 products are float32 then, unless MLX_ENABLE_TF32 is set: MLX's
    default there rounds operands to 10 bits, which the Gram form and polynomials of degree 9
    (ops/orthogonalize.py) do not stand.
    """
    os.environ.setdefault(_TF32_SETTING, "0")
    load_fast_blas()
    keep_kernels()
