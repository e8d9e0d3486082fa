"""Causal attention on the CPU: in tiles in both directions, with products in float32.

Per block of queries: s = q kᵀ, p = softmax(s), out = p v. The gradient keeps q, k, v, out and the log-sum-exp of a row,
and recomputes p tile by tile, as ops/attention.py says.
"""

from __future__ import annotations

from functools import reduce
from typing import cast

import mlx.core as mx

from mlx_amort.ops.attention_tiles import (
    Tile,
    after,
    gather_gradients,
    joined,
    masked,
    tiles_of,
    total,
    transposed,
)
from mlx_amort.ops.constants import CPU_QUERY_BLOCK
from mlx_amort.ops.cpu.fusion import fence
from mlx_amort.ops.elementary import exp_nonpositive, row_max, row_sum
from mlx_amort.ops.recompute import held_back


def causal_attention(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
    """As ops/attention.py."""
    return cast(tuple[mx.array, mx.array], _tiled(q, k, v))[0]


def scores_dominate(length: int, head_width: int) -> bool:
    """Whether the scores of the only tile are far larger than its queries.

    Then what is allocated ahead of it, or for it ahead of others, is what a forward pass peaks at.
    """
    return 4 * head_width <= length <= CPU_QUERY_BLOCK


def _with_column(x: mx.array, column: mx.array) -> mx.array:
    return mx.concatenate([x, mx.broadcast_to(column, (*x.shape[:-1], 1))], axis=-1)


@mx.custom_function
def _tiled(q: mx.array, k: mx.array, v: mx.array) -> tuple[mx.array, mx.array]:
    """Attention and the log-sum-exp of every row [B, h, S, 1], all products in float32."""
    width = q.shape[-1]
    scaled = fence(q.astype(mx.float32) * width**-0.5)
    keys = fence(k.astype(mx.float32))
    # A column of ones beside v turns the product p v into numerator and row sum at once.
    values = _with_column(v.astype(mx.float32), mx.ones(()))
    outputs: list[mx.array] = []
    log_sums: list[mx.array] = []
    for tiles in tiles_of(q.shape[-2], CPU_QUERY_BLOCK):
        start, end = tiles[-1][:2]
        block = after(scaled[..., start:end, :], outputs[-1:])
        scores = [fence(masked(block @ transposed(keys[..., c:d, :]), (a, b, c, d))) for a, b, c, d in tiles]
        largest = fence(reduce(mx.maximum, [row_max(tile) for tile in scores]))
        weighted = fence(
            total(
                [
                    fence(exp_nonpositive(tile_scores - largest)) @ values[..., c:d, :]
                    for tile_scores, (_, _, c, d) in zip(scores, tiles, strict=True)
                ]
            )
        )
        row_total = fence(weighted[..., width:])
        outputs.append(weighted[..., :width] / row_total)
        log_sums.append(largest + mx.log(row_total))
    return joined(outputs).astype(q.dtype), joined(log_sums)


@_tiled.vjp
def _tiled_vjp(
    primals: tuple[mx.array, mx.array, mx.array],
    cotangents: tuple[mx.array, mx.array],
    outputs: tuple[mx.array, mx.array],
) -> tuple[mx.array, mx.array, mx.array]:
    q, k, v, out, log_sum = held_back([*primals, *outputs], cotangents[0])
    scale = q.shape[-1] ** -0.5
    grad = fence(cotangents[0].astype(mx.float32))
    dot = row_sum(grad * out.astype(mx.float32))
    scaled = fence(q.astype(mx.float32) * scale)
    keys = fence(k.astype(mx.float32))
    # [q, -lse] [k, 1]ᵀ and [do, -dot] [v, 1]ᵀ subtract the row constants inside the products.
    queries_shifted = _with_column(scaled, -log_sum)
    keys_one = _with_column(keys, mx.ones(()))
    grad_shifted = _with_column(grad, -dot)
    values_one = _with_column(v.astype(mx.float32), mx.ones(()))

    def tile_gradient(tile: Tile, before: list[mx.array]) -> tuple[mx.array, mx.array]:
        a, b, c, d = tile
        scores = after(queries_shifted[..., a:b, :], before) @ transposed(keys_one[..., c:d, :])
        weights = fence(exp_nonpositive(masked(scores, tile)))
        return weights, fence(weights * (grad_shifted[..., a:b, :] @ transposed(values_one[..., c:d, :])))

    grad_q, grad_k, grad_v = gather_gradients(tile_gradient, scaled, keys, grad, CPU_QUERY_BLOCK)
    return (grad_q * scale).astype(q.dtype), grad_k.astype(k.dtype), grad_v.astype(v.dtype)
