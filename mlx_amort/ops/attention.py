"""Causal attention within a chunk, in tiles that stop at the diagonal.

Queries are cut into blocks; each block meets two tiles of keys: those before the block, all visible, and its own, under
a triangular mask. Per block: s = q kᵀ, p = softmax(s), out = p v. The gradient keeps q, k, v, out and (CPU path) the
log-sum-exp of a row, and recomputes p tile by tile:

    dv += pᵀ do      ds = p ∘ (do vᵀ - rowsum(do ∘ out))      dq += ds k      dk += dsᵀ q

so neither direction holds [S, S] scores. The blocks wait for one another: left to itself MLX's scheduler takes all
of them side by side and holds every tile at once. Source: Dao et al. 2022 (FlashAttention), algorithm 4, coarsely.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import cast

import mlx.core as mx

from mlx_amort.ops.constants import CPU_QUERY_BLOCK, GPU_QUERY_BLOCK
from mlx_amort.ops.elementary import exp_nonpositive, row_max, row_sum
from mlx_amort.ops.paths import active_path, fence
from mlx_amort.ops.recompute import held_back

Tile = tuple[int, int, int, int]
"""Queries [start, end) and keys [key_start, key_end); masked when both ranges are the same."""


def causal_attention(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
    """softmax(q kᵀ / sqrt(d)) v, each position seeing itself and what came before it.

    Shapes: q, k, v [B, h, S, d] -> [B, h, S, d]. Dtypes: result as `q`; softmax in float32.
    """
    if active_path() == "cpu":
        return cast(tuple[mx.array, mx.array], _tiled(q, k, v))[0]
    if active_path() == "metal":
        return cast(mx.array, _fused_forward(q, k, v))
    return mx.fast.scaled_dot_product_attention(q, k, v, scale=q.shape[-1] ** -0.5, mask="causal")


def scores_dominate(length: int, head_width: int) -> bool:
    """Whether on the CPU the scores of the only tile are far larger than its queries.

    Then what is allocated ahead of it, or for it ahead of others, is what a forward pass peaks at.
    """
    return active_path() == "cpu" and 4 * head_width <= length <= CPU_QUERY_BLOCK


def _tiles(length: int, block: int) -> list[list[Tile]]:
    """The tiles of every block of queries: the keys before it (none for the first), then its own."""
    blocks = [(start, min(start + block, length)) for start in range(0, length, block)]
    return [[*([(a, b, 0, a)] if a else []), (a, b, a, b)] for a, b in blocks]


def _masked(scores: mx.array, tile: Tile) -> mx.array:
    start, end, key_start, _ = tile
    if key_start != start:
        return scores
    places = mx.arange(end - start)
    return scores + fence(mx.where(places[None, :] <= places[:, None], 0.0, -math.inf))


def _with_column(x: mx.array, column: mx.array) -> mx.array:
    return mx.concatenate([x, mx.broadcast_to(column, (*x.shape[:-1], 1))], axis=-1)


def _after(x: mx.array, before: list[mx.array]) -> mx.array:
    """`x`, to be had once all of `before` is computed."""
    return held_back([x], before)[0] if before else x


def _transposed(x: mx.array) -> mx.array:
    return x.swapaxes(-1, -2)


def _joined(parts: list[mx.array]) -> mx.array:
    return parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=-2)


def _total(parts: list[mx.array]) -> mx.array:
    return reduce(mx.add, parts)


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
    for tiles in _tiles(q.shape[-2], CPU_QUERY_BLOCK):
        start, end = tiles[-1][:2]
        block = _after(scaled[..., start:end, :], outputs[-1:])
        scores = [
            fence(_masked(block @ _transposed(keys[..., c:d, :]), (a, b, c, d))) for a, b, c, d in tiles
        ]
        largest = fence(reduce(mx.maximum, [row_max(tile) for tile in scores]))
        weighted = fence(
            _total(
                [
                    fence(exp_nonpositive(tile_scores - largest)) @ values[..., c:d, :]
                    for tile_scores, (_, _, c, d) in zip(scores, tiles, strict=True)
                ]
            )
        )
        total = fence(weighted[..., width:])
        outputs.append(weighted[..., :width] / total)
        log_sums.append(largest + mx.log(total))
    return _joined(outputs).astype(q.dtype), _joined(log_sums)


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
        scores = _after(queries_shifted[..., a:b, :], before) @ _transposed(keys_one[..., c:d, :])
        weights = fence(exp_nonpositive(_masked(scores, tile)))
        return weights, fence(weights * (grad_shifted[..., a:b, :] @ _transposed(values_one[..., c:d, :])))

    grad_q, grad_k, grad_v = _gradients(tile_gradient, scaled, keys, grad, CPU_QUERY_BLOCK)
    return (grad_q * scale).astype(q.dtype), grad_k.astype(k.dtype), grad_v.astype(v.dtype)


def _gradients(
    tile_gradient: Callable[[Tile, list[mx.array]], tuple[mx.array, mx.array]],
    queries: mx.array,
    keys: mx.array,
    grad: mx.array,
    block: int,
) -> tuple[mx.array, mx.array, mx.array]:
    """dq, dk, dv from p and ds of every tile; dk and dv gather what later blocks of queries add.

    `tile_gradient` gets a tile and what must be computed before it.
    """
    tiles_of_block = _tiles(queries.shape[-2], block)
    grad_queries: list[mx.array] = []
    grad_keys: list[mx.array] = []
    grad_values: list[mx.array] = []
    before: tuple[mx.array, mx.array] | None = None
    # From the last block back: its early tile covers all keys of the blocks still to come.
    for tiles in reversed(tiles_of_block):
        done = [*grad_queries[-1:], *grad_keys[-1:], *grad_values[-1:], *(before or ())]
        gradients = [tile_gradient(tile, done) for tile in tiles]
        a, b = tiles[-1][:2]
        own_keys, own_values = _key_gradients(gradients[-1], queries[..., a:b, :], grad[..., a:b, :])
        if before is not None:
            own_keys, own_values = own_keys + before[0][..., a:, :], own_values + before[1][..., a:, :]
        grad_keys.append(own_keys)
        grad_values.append(own_values)
        parts = [ds @ keys[..., c:d, :] for (_, ds), (_, _, c, d) in zip(gradients, tiles, strict=True)]
        grad_queries.append(_total(parts))
        if len(tiles) == 2:
            early = _key_gradients(gradients[0], queries[..., a:b, :], grad[..., a:b, :])
            before = (
                early
                if before is None
                else (early[0] + before[0][..., :a, :], early[1] + before[1][..., :a, :])
            )
    return _joined(grad_queries[::-1]), _joined(grad_keys[::-1]), _joined(grad_values[::-1])


def _key_gradients(
    gradient: tuple[mx.array, mx.array], queries: mx.array, grad: mx.array
) -> tuple[mx.array, mx.array]:
    weights, grad_scores = gradient
    return _transposed(grad_scores) @ queries, _transposed(weights) @ grad


@mx.custom_function
def _fused_forward(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
    return mx.fast.scaled_dot_product_attention(q, k, v, scale=q.shape[-1] ** -0.5, mask="causal")


@_fused_forward.vjp
def _fused_forward_vjp(
    primals: tuple[mx.array, mx.array, mx.array], cotangent: mx.array, out: mx.array
) -> tuple[mx.array, mx.array, mx.array]:
    q, k, v = held_back(primals, cotangent)
    scale = q.shape[-1] ** -0.5
    scaled = q * scale
    dot = (cotangent.astype(mx.float32) * out.astype(mx.float32)).sum(axis=-1, keepdims=True)

    log_sums: list[mx.array] = []
    for tiles in _tiles(q.shape[-2], GPU_QUERY_BLOCK):
        start, end = tiles[-1][:2]
        block = _after(scaled[..., start:end, :], log_sums[-1:])
        scores = [_masked(_scores(block, k[..., c:d, :]), (a, b, c, d)) for a, b, c, d in tiles]
        log_sums.append(reduce(mx.logaddexp, [mx.logsumexp(tile, axis=-1, keepdims=True) for tile in scores]))
    log_sum = _joined(log_sums)

    def tile_gradient(tile: Tile, before: list[mx.array]) -> tuple[mx.array, mx.array]:
        a, b, c, d = tile
        scores = _scores(_after(scaled[..., a:b, :], before), k[..., c:d, :])
        weights = mx.exp(_masked(scores, tile) - log_sum[..., a:b, :])
        grad_weights = (cotangent[..., a:b, :] @ _transposed(v[..., c:d, :])).astype(mx.float32)
        return weights.astype(q.dtype), (weights * (grad_weights - dot[..., a:b, :])).astype(q.dtype)

    grad_q, grad_k, grad_v = _gradients(tile_gradient, scaled, k, cotangent, GPU_QUERY_BLOCK)
    return (grad_q * scale).astype(q.dtype), grad_k.astype(k.dtype), grad_v.astype(v.dtype)


def _scores(queries: mx.array, keys: mx.array) -> mx.array:
    return (queries @ _transposed(keys)).astype(mx.float32)
