"""Depthwise causal convolution over slots, with the last inputs of the stream before it."""

from __future__ import annotations

from typing import cast

import mlx.core as mx

from mlx_amort.ops.paths import fence
from mlx_amort.ops.recompute import held_back

TAPS = 4
TAIL = TAPS - 1


def causal_convolution(joined: mx.array, weight: mx.array) -> mx.array:
    """c_t[j] = Σ_i weight[j, i] · z_{t-3+i}[j], where `joined` holds the 3 inputs before slot 0, then all slots.

    Shapes: joined [B, N + 3, n], weight [n, 4] -> [B, N, n]. Dtypes: as `joined`; sums in float32.
    """
    return cast(mx.array, _causal_convolution(joined, weight))


@mx.custom_function
def _causal_convolution(joined: mx.array, weight: mx.array) -> mx.array:
    slots = joined.shape[1] - TAIL
    taps = weight.astype(mx.float32).T
    wide = joined.astype(mx.float32)
    total = taps[0] * wide[:, :slots]
    for i in range(1, TAPS):
        total = total + fence(taps[i] * wide[:, i : i + slots])
    return total.astype(joined.dtype)


@_causal_convolution.vjp
def _causal_convolution_vjp(
    primals: tuple[mx.array, mx.array], cotangent: mx.array, output: mx.array
) -> tuple[mx.array, mx.array]:
    joined, weight = held_back(primals, cotangent)
    slots = cotangent.shape[1]
    length = joined.shape[1]
    taps = weight.astype(mx.float32).T
    grad = fence(cotangent.astype(mx.float32))
    wide = joined.astype(mx.float32)
    # Input s met tap i at slot s - i: shift the padded cotangent the other way.
    padded = mx.pad(grad, [(0, 0), (TAIL, TAIL), (0, 0)])
    grad_joined = taps[0] * padded[:, TAIL : TAIL + length]
    for i in range(1, TAPS):
        grad_joined = grad_joined + fence(taps[i] * padded[:, TAIL - i : TAIL - i + length])
    grad_taps = [fence(grad * wide[:, i : i + slots]).sum(axis=1).sum(axis=0) for i in range(TAPS)]
    grad_weight = mx.stack(grad_taps, axis=-1)
    return grad_joined.astype(joined.dtype), grad_weight.astype(weight.dtype)
