"""The streams of the CPU, on each of which one kernel runs at a time, on one core."""

from __future__ import annotations

from functools import cache

import mlx.core as mx

from mlx_amort.ops.paths import device_path


def elementwise_streams() -> list[mx.Stream]:
    """Streams that independent elementwise kernels are dealt to: two on the CPU, else the default one."""
    default = mx.default_stream(mx.default_device())
    return [default, _second_stream()] if device_path() == "cpu" else [default]


@cache
def _second_stream() -> mx.Stream:
    return mx.new_stream(mx.Device(mx.cpu))
