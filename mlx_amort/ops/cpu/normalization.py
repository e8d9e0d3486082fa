"""RMSNorm with a gradient that keeps its input and one number per row; MLX's own is unfused on the CPU."""

from __future__ import annotations

from typing import cast

import mlx.core as mx

from mlx_amort.ops.constants import NORM_EPSILON
from mlx_amort.ops.cpu.fusion import fence
from mlx_amort.ops.elementary import row_sum
from mlx_amort.ops.recompute import held_back


def rms_norm(x: mx.array, weight: mx.array) -> mx.array:
    """As ops/normalization.py."""
    normed, _ = cast(tuple[mx.array, mx.array], _normalize(x, weight))
    return normed


@mx.custom_function
def _normalize(x: mx.array, weight: mx.array) -> tuple[mx.array, mx.array]:
    wide = x.astype(mx.float32)
    mean_square = row_sum(wide * wide) * (1.0 / x.shape[-1])
    scale = fence(mx.rsqrt(mean_square + NORM_EPSILON))
    return (wide * scale * weight).astype(x.dtype), scale


@_normalize.vjp
def _normalize_vjp(
    primals: tuple[mx.array, mx.array],
    cotangents: tuple[mx.array, mx.array],
    outputs: tuple[mx.array, mx.array],
) -> tuple[mx.array, mx.array]:
    # dx = scale w dy - x scale^3 mean(w dy x);  dw = sum over rows of scale x dy.
    x, weight = held_back(primals, cotangents[0])
    grad = fence(cotangents[0].astype(mx.float32))
    wide = fence(x.astype(mx.float32))
    scale = outputs[1]
    width = x.shape[-1]
    product = fence(grad * wide)
    projection = product @ weight.astype(mx.float32)[:, None]
    correction = fence(projection * (scale * scale * scale) * (-1.0 / width))
    grad_weight = scale.reshape(1, -1) @ product.reshape(-1, width)
    # The weight's gradient first: put off, it would hold `product`.
    (grad,) = held_back([grad], grad_weight)
    grad_x = (grad * weight * scale + wide * correction).astype(x.dtype)
    return grad_x, grad_weight.reshape(width).astype(weight.dtype)
