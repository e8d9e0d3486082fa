"""Depthwise causal convolution over slots, with the last inputs of the stream before it."""

from __future__ import annotations

from typing import cast

import mlx.core as mx

from mlx_amort.ops.constants import CONVOLUTION_TAIL as TAIL
from mlx_amort.ops.constants import CONVOLUTION_TAPS as TAPS
from mlx_amort.ops.cpu.convolution import gradient_tiles
from mlx_amort.ops.cpu.fusion import fence
from mlx_amort.ops.recompute import held_back, held_far_back


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
    rows, slots, _ = cotangent.shape
    taps = weight.astype(mx.float32).T
    parts: list[mx.array] = []
    grad_taps: list[mx.array] = []
    for start, end in gradient_tiles(rows, slots, joined.dtype):
        grad, inputs = cotangent[:, max(0, start - TAIL) : end], joined[:, start : end + TAIL]
        if parts:
            grad, inputs = held_far_back([grad, inputs], [parts[-1], *grad_taps])
        # The tile's inputs met the slots from 3 before it; outside the stream's slots there is no cotangent.
        outside = (TAIL if start == 0 else 0, TAIL if end == slots else 0)
        part, own = _tile_gradients(grad, inputs, taps, outside)
        parts.append(part.astype(joined.dtype))
        grad_taps = [a + b for a, b in zip(grad_taps, own, strict=True)] if grad_taps else own
    grad_joined = parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=1)
    return grad_joined, mx.stack(grad_taps, axis=-1).astype(weight.dtype)


def _tile_gradients(
    grad: mx.array, inputs: mx.array, taps: mx.array, outside: tuple[int, int]
) -> tuple[mx.array, list[mx.array]]:
    """Gradients of a tile's inputs, all but the last 3 unless it is the last tile, and of the four taps."""
    grad = fence(grad.astype(mx.float32))
    wide = inputs.astype(mx.float32)
    # Input s met tap i at slot s - i: shift the padded cotangent the other way.
    padded = mx.pad(grad, [(0, 0), outside, (0, 0)])
    length = padded.shape[1] - TAIL
    grad_inputs = taps[0] * padded[:, TAIL:]
    for i in range(1, TAPS):
        grad_inputs = grad_inputs + fence(taps[i] * padded[:, TAIL - i : TAIL - i + length])
    slots = wide.shape[1] - TAIL
    own = grad[:, grad.shape[1] - slots :]
    return grad_inputs, [fence(own * wide[:, i : i + slots]).sum(axis=1).sum(axis=0) for i in range(TAPS)]
