"""Table look-up whose gradient is a product, and the cross-entropy of logits."""

from __future__ import annotations

from typing import cast

import mlx.core as mx

from mlx_amort.ops.cpu.fusion import fence
from mlx_amort.ops.elementary import exp_nonpositive, row_max, row_sum
from mlx_amort.ops.recompute import held_back

# Up to here a one-hot product costs less than a scattered sum, and it is deterministic on every backend.
_LARGEST_ONE_HOT = 512


def embed(table: mx.array, tokens: mx.array) -> mx.array:
    """Row `tokens[...]` of `table`. Shapes: table [V, H], tokens [...] -> [..., H]. Dtypes: as `table`."""
    return cast(mx.array, _embed(table, tokens))


@mx.custom_function
def _embed(table: mx.array, tokens: mx.array) -> mx.array:
    return mx.take(table, tokens.astype(mx.uint32), axis=0)


@_embed.vjp
def _embed_vjp(
    primals: tuple[mx.array, mx.array], cotangent: mx.array, output: mx.array
) -> tuple[mx.array, mx.array]:
    table, tokens = held_back(primals, cotangent)
    ids = tokens.reshape(-1)
    grad = cotangent.reshape(-1, table.shape[1]).astype(mx.float32)
    if table.shape[0] <= _LARGEST_ONE_HOT:
        ids = ids.astype(mx.uint16)
        chosen = mx.arange(table.shape[0], dtype=mx.uint16)[:, None] == ids[None, :]
        grad_table = fence(chosen.astype(mx.float32)) @ grad
    else:
        grad_table = mx.zeros(table.shape, dtype=mx.float32).at[ids.astype(mx.uint32)].add(grad)
    return grad_table.astype(table.dtype), mx.zeros_like(tokens)


@mx.custom_function
def _cross_entropy(logits: mx.array, targets: mx.array) -> tuple[mx.array, mx.array]:
    largest = fence(row_max(logits))
    total = fence(row_sum(exp_nonpositive(logits - largest)))
    log_sum = largest + mx.log(total)
    chosen = mx.take_along_axis(logits, targets[..., None].astype(mx.uint32), axis=-1)
    return (log_sum - chosen)[..., 0], log_sum


@_cross_entropy.vjp
def _cross_entropy_vjp(
    primals: tuple[mx.array, mx.array],
    cotangents: tuple[mx.array, mx.array],
    outputs: tuple[mx.array, mx.array],
) -> tuple[mx.array, mx.array]:
    # d/dlogits = softmax(logits) - onehot(target), times the cotangent of the row.
    logits, targets = primals
    weights = fence(exp_nonpositive(logits - outputs[1]))
    ids = mx.arange(logits.shape[-1], dtype=mx.uint32)
    chosen = fence((ids == targets[..., None].astype(mx.uint32)).astype(logits.dtype))
    return fence(weights - chosen) * cotangents[0][..., None], mx.zeros_like(targets)


def cross_entropy(logits: mx.array, targets: mx.array) -> mx.array:
    """-log softmax(logits)[target] of every position, in nats.

    Shapes: logits [..., V], targets [...] -> [...]. Dtypes: logits float32, targets any integer.
    """
    nats, _ = cast(tuple[mx.array, mx.array], _cross_entropy(logits, targets))
    return nats
