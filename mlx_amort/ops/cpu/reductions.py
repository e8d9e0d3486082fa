"""Reductions over the last axis: on the CPU MLX computes them one by one, those over an earlier axis vectorise."""

from __future__ import annotations

import mlx.core as mx

from mlx_amort.ops.constants import FOLD
from mlx_amort.ops.cpu.fusion import fence


def folded(x: mx.array) -> mx.array | None:
    """The last axis in rows of `FOLD`, to be reduced over its rows first; None where it is short or does not divide."""
    width = x.shape[-1]
    if width % FOLD or width < 4 * FOLD:
        return None
    return fence(x).reshape(*x.shape[:-1], width // FOLD, FOLD)
