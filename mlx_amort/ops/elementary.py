"""exp, row sums and row maxima as the backend does them best."""

from __future__ import annotations

import mlx.core as mx

from mlx_amort.ops.cpu import polynomials
from mlx_amort.ops.cpu.reductions import folded
from mlx_amort.ops.paths import active_path


def exp_nonpositive(x: mx.array) -> mx.array:
    """exp(x) for x <= 0; on the CPU to an absolute error of 1e-6. Shapes: any. Dtypes: float32 in and out."""
    return polynomials.exp_nonpositive(x) if active_path() == "cpu" else mx.exp(x)


def row_sum(x: mx.array) -> mx.array:
    """Sum over the last axis, kept as an axis of length 1. Shapes: [..., n] -> [..., 1]."""
    rows = folded(x) if active_path() == "cpu" else None
    return (x if rows is None else rows.sum(axis=-2)).sum(axis=-1, keepdims=True)


def row_max(x: mx.array) -> mx.array:
    """Maximum over the last axis, kept as an axis of length 1. Shapes: [..., n] -> [..., 1]."""
    rows = folded(x) if active_path() == "cpu" else None
    return (x if rows is None else rows.max(axis=-2)).max(axis=-1, keepdims=True)
