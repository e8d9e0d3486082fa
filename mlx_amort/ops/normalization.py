"""RMSNorm with statistics in float32."""

from __future__ import annotations

import mlx.core as mx

from mlx_amort.ops.constants import NORM_EPSILON
from mlx_amort.ops.cpu import normalization as cpu
from mlx_amort.ops.paths import active_path


def rms_norm(x: mx.array, weight: mx.array) -> mx.array:
    """x / sqrt(mean(x^2) + 1e-5) * weight over the last axis. Source: Zhang and Sennrich 2019.

    Shapes: x [..., n], weight [n]. Dtypes: as `x`; statistics in float32.
    """
    if active_path() == "cpu":
        return cpu.rms_norm(x, weight)
    return mx.fast.rms_norm(x, weight.astype(x.dtype), NORM_EPSILON)
