"""Which implementation of an operation a backend gets: the one place where that is decided.

cpu    the forms of ops/cpu: polynomials for exp and erf (MLX's own are scalar on x86), products in float32
metal  MLX's fused kernels forward, our blockwise gradient of attention (MLX's is unfused there)
cuda   MLX's fused kernels in both directions

The path is read while a function is traced, so a compiled function keeps the path it was traced with.
Every path runs on every backend; tests force each of them and compare.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import mlx.core as mx

from mlx_amort.ops.constants import Backend

_forced: ContextVar[Backend | None] = ContextVar("forced_path", default=None)


def device_path() -> Backend:
    """The backend of MLX's default device."""
    if mx.default_device().type == mx.cpu:
        return "cpu"
    return "metal" if mx.metal.is_available() else "cuda"


def active_path() -> Backend:
    """The path of the default device, or the one forced by `forced_path`."""
    forced = _forced.get()
    return device_path() if forced is None else forced


@contextmanager
def forced_path(path: Backend) -> Iterator[None]:
    """Trace what is called inside with `path`, whatever the device; for tests and comparisons."""
    token = _forced.set(path)
    try:
        yield
    finally:
        _forced.reset(token)
