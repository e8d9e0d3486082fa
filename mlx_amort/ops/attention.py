"""Causal attention within a chunk.

    out = softmax(q kᵀ / sqrt(d)) v
    dv += pᵀ do      ds = p ∘ (do vᵀ - rowsum(do ∘ out))      dq += ds k      dk += dsᵀ q

cuda   MLX's fused kernels in both directions
metal  MLX's fused kernel forward; backward, where MLX has none, p is recomputed in tiles (ops/attention_tiles.py)
cpu    tiles in both directions (ops/cpu/attention.py)

Neither direction holds [S, S] scores on any of them.
"""

from __future__ import annotations

from functools import reduce
from typing import cast

import mlx.core as mx

from mlx_amort.errors import assert_never
from mlx_amort.ops.attention_tiles import Tile, after, gather_gradients, joined, masked, tiles_of, transposed
from mlx_amort.ops.constants import GPU_QUERY_BLOCK
from mlx_amort.ops.cpu import attention as cpu
from mlx_amort.ops.paths import active_path
from mlx_amort.ops.recompute import held_back


def causal_attention(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
    """softmax(q kᵀ / sqrt(d)) v, each position seeing itself and what came before it.

    Shapes: q, k, v [B, h, S, d] -> [B, h, S, d]. Dtypes: result as `q`; softmax in float32.
    """
    match active_path():
        case "cpu":
            return cpu.causal_attention(q, k, v)
        case "metal":
            return cast(mx.array, _fused_forward(q, k, v))
        case "cuda":
            return mx.fast.scaled_dot_product_attention(q, k, v, scale=q.shape[-1] ** -0.5, mask="causal")
        case unknown:
            assert_never(unknown)


def scores_dominate(length: int, head_width: int) -> bool:
    """Whether a forward pass peaks at what is allocated around one tile of scores; only on the CPU."""
    return active_path() == "cpu" and cpu.scores_dominate(length, head_width)


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
    for tiles in tiles_of(q.shape[-2], GPU_QUERY_BLOCK):
        start, end = tiles[-1][:2]
        block = after(scaled[..., start:end, :], log_sums[-1:])
        scores = [masked(_scores(block, k[..., c:d, :]), (a, b, c, d)) for a, b, c, d in tiles]
        log_sums.append(reduce(mx.logaddexp, [mx.logsumexp(tile, axis=-1, keepdims=True) for tile in scores]))
    log_sum = joined(log_sums)

    def tile_gradient(tile: Tile, before: list[mx.array]) -> tuple[mx.array, mx.array]:
        a, b, c, d = tile
        scores = _scores(after(scaled[..., a:b, :], before), k[..., c:d, :])
        weights = mx.exp(masked(scores, tile) - log_sum[..., a:b, :])
        grad_weights = (cotangent[..., a:b, :] @ transposed(v[..., c:d, :])).astype(mx.float32)
        return weights.astype(q.dtype), (weights * (grad_weights - dot[..., a:b, :])).astype(q.dtype)

    grad_q, grad_k, grad_v = gather_gradients(tile_gradient, scaled, k, cotangent, GPU_QUERY_BLOCK)
    return (grad_q * scale).astype(q.dtype), grad_k.astype(k.dtype), grad_v.astype(v.dtype)


def _scores(queries: mx.array, keys: mx.array) -> mx.array:
    return (queries @ transposed(keys)).astype(mx.float32)
