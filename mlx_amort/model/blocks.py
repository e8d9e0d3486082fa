"""The two kinds of block: attention within a chunk, and the gated linear recurrence over a stream.

A block is a mixer and then a feed-forward, each a function of the block's own weights (names without the `blocks.i.`
prefix): everything it differentiates is an argument, so that either can be recomputed in the backward pass.
"""

from __future__ import annotations

import mlx.core as mx

from mlx_amort.ops.activations import silu_gate, softplus
from mlx_amort.ops.attention import causal_attention
from mlx_amort.ops.constants import CONVOLUTION_TAIL
from mlx_amort.ops.convolution import causal_convolution
from mlx_amort.ops.linear_attention import gla_chunkwise
from mlx_amort.ops.normalization import rms_norm
from mlx_amort.ops.patching import take_rows
from mlx_amort.ops.precision import gelu_linear, linear

Weights = dict[str, mx.array]

BlockState = tuple[mx.array, mx.array]
"""State of a recurrent block: S [B, h, d, d] float32 and the last 3 valid inputs of its convolution [B, 3, 3H]."""


def split_heads(x: mx.array, heads: int) -> mx.array:
    """[B, L, h·d] -> [B, h, L, d], a view."""
    rows, length, width = x.shape
    return x.reshape(rows, length, heads, width // heads).transpose(0, 2, 1, 3)


def feed_forward(weights: Weights, x: mx.array) -> mx.array:
    """x + down · gelu(up · rms(x, n2)). Shapes: x [B, L, H] -> [B, L, H]."""
    return x + gelu_linear(linear(rms_norm(x, weights["n2"]), weights["up"]), weights["down"])


def attention_mixer(weights: Weights, x: mx.array, heads: int) -> mx.array:
    """x + proj · attention(rms(x, n1)), causal within the chunk. Shapes: x [B, L, H] -> [B, L, H]."""
    rows, length, width = x.shape
    qkv = linear(rms_norm(x, weights["n1"]), weights["qkv"])
    q, k, v = (split_heads(part, heads) for part in mx.split(qkv, 3, axis=-1))
    out = causal_attention(q, k, v).transpose(0, 2, 1, 3).reshape(rows, length, width)
    return x + linear(out, weights["proj"])


def recurrent_mixer(
    weights: Weights, g: mx.array, valid: mx.array | None, state: BlockState, heads: int
) -> tuple[mx.array, BlockState]:
    """g + the gated linear recurrence of rms(g, n1) along each stream, and the streams' new state.

    The W chunks of a window stand one after another in the leading axis (row-major: all chunks of row 0 first). Slots
    that are not valid write nothing, decay nothing and do not shift the convolution, so the recurrence runs over
    the W·N slots of a stream at once and equals chunk after chunk.

    Shapes: g [B·W, N, H], valid [B·W, N] or None (all valid), state of B rows -> g [B·W, N, H], state of B rows.
    """
    memory, tail = state
    rows = memory.shape[0]
    count, slots, width = g.shape
    u = rms_norm(g, weights["n1"])
    z = linear(u, weights["qkv"])
    mixed, tail = _convolve_stream(z, weights["conv"], valid, tail)
    q, k, v = (split_heads(part.reshape(rows, -1, width), heads) for part in mx.split(mixed, 3, axis=-1))
    log_decay = log_decay_of(weights, u)
    if valid is not None:
        k = k * valid.reshape(rows, 1, -1, 1).astype(k.dtype)
        log_decay = log_decay * valid[..., None]
    log_decay = log_decay.reshape(rows, -1, heads).swapaxes(1, 2)
    out, memory = gla_chunkwise(q * (width // heads) ** -0.5, k, v, log_decay, memory)
    out = out.transpose(0, 2, 1, 3).reshape(count, slots, heads, width // heads)
    return g + mixer_output(weights, u, out), (memory, tail)


def log_decay_of(weights: Weights, u: mx.array) -> mx.array:
    """log a = -softplus(decay_w u + decay_b), float32. Shapes: u [..., H] -> [..., h]."""
    raw = linear(u, weights["decay_w"]).astype(mx.float32) + weights["decay_b"].astype(mx.float32)
    return -softplus(raw)


def mixer_output(weights: Weights, u: mx.array, out: mx.array) -> mx.array:
    """proj(concat_heads(rms(out, o_norm)) * silu(gate u)). Shapes: u [..., H], out [..., h, d] -> [..., H]."""
    normed = rms_norm(out, weights["o_norm"]).reshape(u.shape)
    return linear(silu_gate(normed, linear(u, weights["gate"])), weights["proj"])


def _convolve_stream(
    z: mx.array, weight: mx.array, valid: mx.array | None, tail: mx.array
) -> tuple[mx.array, mx.array]:
    """The causal convolution along each stream of valid slots, and the stream's new last three inputs."""
    count, slots, width = z.shape
    rows = tail.shape[0]
    chunks = count // rows
    mixed = []
    # Split, not sliced: the gradient of slices is a sum of arrays as large as z.
    for chunk, piece in enumerate(mx.split(z.reshape(rows, chunks * slots, width), chunks, axis=1)):
        joined = mx.concatenate([tail, piece], axis=1)
        mixed.append(causal_convolution(joined, weight))
        if valid is None:
            # Copied, or the carried state would hold the whole of `joined`.
            tail = mx.contiguous(joined[:, slots:])
        else:
            used = valid.reshape(rows, chunks, slots)[:, chunk].astype(mx.int32).sum(axis=1, keepdims=True)
            tail = take_rows(joined, used + mx.arange(CONVOLUTION_TAIL, dtype=mx.int32))
    return mx.stack(mixed, axis=1).reshape(count, slots, width), tail
