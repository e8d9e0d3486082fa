"""Which implementation of an operation a backend gets: the one place where that is decided.

cpu    polynomials for exp and erf (MLX's own are scalar on x86), products in float32
metal  MLX's fused kernels forward, our blockwise gradient of attention (MLX's is unfused there)
cuda   MLX's fused kernels in both directions

The path is read while a function is traced, so a compiled function keeps the path it was traced with.
Every path runs on every backend; tests force each of them and compare.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

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


def fence(x: mx.array) -> mx.array:
    """`x`, cut off from fusion with what follows (free when `x` is contiguous).

    mx.compile fuses elementwise chains up to a depth of 11 and recomputes a broadcast operand for every
    element it meets; on the CPU a chain cut in the wrong place falls to a strided kernel, three times slower.
    """
    return mx.contiguous(x) if active_path() == "cpu" else x


def lanes() -> list[mx.Stream]:
    """Streams that independent elementwise kernels are dealt to: two on the CPU, where a kernel runs on one core."""
    default = mx.default_stream(mx.default_device())
    return [default, _second_cpu_stream()] if mx.default_device() == mx.Device(mx.cpu) else [default]


@cache
def _second_cpu_stream() -> mx.Stream:
    return mx.new_stream(mx.Device(mx.cpu))
