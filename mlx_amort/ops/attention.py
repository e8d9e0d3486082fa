"""Causal attention within a chunk, in blocks of queries that touch only the keys they may see.

Per block of queries [i, i + Q): s = q kᵀ over keys [0, i + Q), p = softmax(s), out = p v. The gradient keeps q, k, v,
out and (CPU path) the log-sum-exp of a row, and recomputes p block by block:

    dv += pᵀ do      ds = p ∘ (do vᵀ - rowsum(do ∘ out))      dq = ds k      dk += dsᵀ q

so neither direction holds [S, S] scores. Source: Dao et al. 2022 (FlashAttention), algorithm 4, in coarse blocks.
"""

from __future__ import annotations

import math

import mlx.core as mx

from mlx_amort.ops.elementary import exp_nonpositive, row_max, row_sum
from mlx_amort.ops.paths import active_path, fence

QUERY_BLOCK = 256


def causal_attention(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
    """softmax(q kᵀ / sqrt(d)) v, each position seeing itself and what came before it.

    Shapes: q, k, v [B, h, S, d] -> [B, h, S, d]. Dtypes: result as `q`; softmax in float32.
    """
    if active_path() == "cpu":
        return _blockwise(q, k, v)[0]
    if active_path() == "metal":
        return _fused_forward(q, k, v)
    return mx.fast.scaled_dot_product_attention(q, k, v, scale=q.shape[-1] ** -0.5, mask="causal")


def _blocks(length: int) -> list[tuple[int, int]]:
    return [(start, min(start + QUERY_BLOCK, length)) for start in range(0, length, QUERY_BLOCK)]


def _causal_mask(start: int, end: int) -> mx.array:
    """0 where key <= query, -inf elsewhere, for queries [start, end) and keys [0, end)."""
    visible = mx.arange(end)[None, :] <= mx.arange(start, end)[:, None]
    return fence(mx.where(visible, 0.0, -math.inf))


def _with_column(x: mx.array, column: mx.array) -> mx.array:
    return mx.concatenate([x, mx.broadcast_to(column, (*x.shape[:-1], 1))], axis=-1)


def _transposed(x: mx.array) -> mx.array:
    return x.swapaxes(-1, -2)


@mx.custom_function
def _blockwise(q: mx.array, k: mx.array, v: mx.array) -> tuple[mx.array, mx.array]:
    """Attention and the log-sum-exp of every row [B, h, S, 1], all products in float32."""
    scaled = fence(q.astype(mx.float32) * q.shape[-1] ** -0.5)
    keys = fence(k.astype(mx.float32))
    # A column of ones beside v turns the product p v into numerator and row sum at once.
    values = _with_column(v.astype(mx.float32), mx.ones(()))
    width = q.shape[-1]
    outputs, log_sums = [], []
    for start, end in _blocks(q.shape[-2]):
        scores = scaled[..., start:end, :] @ _transposed(keys[..., :end, :])
        scores = fence(scores + _causal_mask(start, end))
        largest = fence(row_max(scores))
        weighted = fence(exp_nonpositive(fence(scores - largest))) @ values[..., :end, :]
        total = fence(weighted[..., width:])
        outputs.append(weighted[..., :width] / total)
        log_sums.append(largest + mx.log(total))
    out = outputs[0] if len(outputs) == 1 else mx.concatenate(outputs, axis=-2)
    log_sum = log_sums[0] if len(log_sums) == 1 else mx.concatenate(log_sums, axis=-2)
    return out.astype(q.dtype), log_sum


@_blockwise.vjp
def _blockwise_vjp(
    primals: tuple[mx.array, mx.array, mx.array],
    cotangents: tuple[mx.array, mx.array],
    outputs: tuple[mx.array, mx.array],
) -> tuple[mx.array, mx.array, mx.array]:
    q, k, v = primals
    out, log_sum = outputs
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

    def block(start: int, end: int) -> tuple[mx.array, mx.array]:
        scores = queries_shifted[..., start:end, :] @ _transposed(keys_one[..., :end, :])
        weights = fence(exp_nonpositive(fence(scores + _causal_mask(start, end))))
        return weights, fence(weights * (grad_shifted[..., start:end, :] @ _transposed(values_one[..., :end, :])))

    grad_q, grad_k, grad_v = _gradients(block, scaled, keys, grad)
    return (grad_q * scale).astype(q.dtype), grad_k.astype(k.dtype), grad_v.astype(v.dtype)


def _gradients(block, queries: mx.array, keys: mx.array, grad: mx.array):  # type: ignore[no-untyped-def]
    grad_queries: list[mx.array] = []
    grad_keys: mx.array | None = None
    grad_values: mx.array | None = None
    # From the last block, whose keys are all keys, back: each earlier one adds to a prefix.
    for start, end in reversed(_blocks(queries.shape[-2])):
        weights, grad_scores = block(start, end)
        grad_queries.insert(0, grad_scores @ keys[..., :end, :])
        grad_keys = _add_prefix(grad_keys, _transposed(grad_scores) @ queries[..., start:end, :])
        grad_values = _add_prefix(grad_values, _transposed(weights) @ grad[..., start:end, :])
    whole = grad_queries[0] if len(grad_queries) == 1 else mx.concatenate(grad_queries, axis=-2)
    return whole, grad_keys, grad_values


def _add_prefix(total: mx.array | None, prefix: mx.array) -> mx.array:
    if total is None:
        return prefix
    length = prefix.shape[-2]
    return mx.concatenate([total[..., :length, :] + prefix, total[..., length:, :]], axis=-2)


@mx.custom_function
def _fused_forward(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
    return mx.fast.scaled_dot_product_attention(q, k, v, scale=q.shape[-1] ** -0.5, mask="causal")


@_fused_forward.vjp
def _fused_forward_vjp(
    primals: tuple[mx.array, mx.array, mx.array], cotangent: mx.array, out: mx.array
) -> tuple[mx.array, mx.array, mx.array]:
    q, k, v = primals
    scale = q.shape[-1] ** -0.5
    scaled = q * scale
    dot = (cotangent.astype(mx.float32) * out.astype(mx.float32)).sum(axis=-1, keepdims=True)

    def block(start: int, end: int) -> tuple[mx.array, mx.array]:
        scores = (scaled[..., start:end, :] @ _transposed(k[..., :end, :])).astype(mx.float32)
        weights = mx.softmax(scores + _causal_mask(start, end), axis=-1)
        grad_weights = cotangent[..., start:end, :] @ _transposed(v[..., :end, :])
        grad_scores = weights * (grad_weights.astype(mx.float32) - dot[..., start:end, :])
        return weights.astype(q.dtype), grad_scores.astype(q.dtype)

    grad_q, grad_k, grad_v = _gradients(block, scaled, k, cotangent)
    return (grad_q * scale).astype(q.dtype), grad_k.astype(k.dtype), grad_v.astype(v.dtype)
