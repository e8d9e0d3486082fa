"""What a block keeps for the backward pass: ours beside one that is written plainly, from peaks of stacks of blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import mlx.core as mx
import numpy as np

from mlx_amort.config.reading import resolve
from mlx_amort.model.blocks import Weights, attention_mixer, feed_forward, recurrent_mixer, split_heads
from mlx_amort.model.byte_lm import ByteLM, block_weights
from mlx_amort.ops.constants import SUB_CHUNK

Tell = Callable[[str], None]
Kind = Literal["attention", "recurrent"]
# Weights, inputs [B, S, H] and how many heads.
Block = Callable[[Weights, mx.array, int], mx.array]
EPS = 1e-5
LARGEST_DIFFERENCE = 1e-3


@dataclass(frozen=True)
class Stack:
    """Inputs [rows, length, hidden], and two depths at whose peaks the activations of all blocks are kept."""

    rows: int = 2
    length: int = 512
    hidden: int = 256
    heads: int = 4
    depths: tuple[int, int] = (4, 12)


def compare_retained(tell: Tell, stack: Stack = Stack()) -> None:
    """Print elements of H that a position of each kind of block keeps, plainly written and as they are."""
    few, many = stack.depths
    inputs = f"{stack.rows} rows of {stack.length} positions, H {stack.hidden}"
    tell(f"fp32, {inputs}, from the peaks of {few} and {many} blocks\n")
    tell("| block | written plainly | ours |\n|---|---|---|")
    kinds: dict[Kind, tuple[Block, Block]] = {
        "attention": (_plain_attention_block, _our_attention_block),
        "recurrent": (_plain_recurrent_block, _our_recurrent_block),
    }
    for kind, (plain, ours) in kinds.items():
        _check_equal(kind, plain, ours, stack)
        tell(f"| {kind} | {_kept(kind, plain, stack):.1f} H | {_kept(kind, ours, stack):.1f} H |")
    tell("")


def stacked(kind: Kind, depth: int, stack: Stack) -> tuple[Weights, mx.array]:
    """Weights of `depth` blocks, and random inputs [rows, length, hidden]."""
    trunk = {"attention": "dense", "recurrent": "recurrent"}[kind]
    values = {
        "trunk": trunk,
        "layers": depth,
        "hidden": stack.hidden,
        "heads": stack.heads,
        "ffn": 4 * stack.hidden,
        "seq": stack.length,
    }
    model = ByteLM(resolve(overrides=[f"model.{name}={value}" for name, value in values.items()]).model)
    weights = {name: w for name, w in model.init_weights(0).items() if name.startswith("blocks.")}
    x = mx.random.normal((stack.rows, stack.length, stack.hidden), key=mx.random.key(1))
    mx.eval(weights, x)
    return weights, x


def gradients_of(
    block: Block, depth: int, heads: int
) -> Callable[[Weights, mx.array], tuple[mx.array, Weights]]:
    """The compiled loss and gradients of a stack of `depth` blocks."""

    def loss(weights: Weights, x: mx.array) -> mx.array:
        for index in range(depth):
            x = block(block_weights(weights, index), x, heads)
        return mx.square(x).mean(axis=-1).mean(axis=-1).mean()

    return mx.compile(mx.value_and_grad(loss))


def _kept(kind: Kind, block: Block, stack: Stack) -> float:
    peaks = []
    for depth in stack.depths:
        weights, x = stacked(kind, depth, stack)
        run = gradients_of(block, depth, stack.heads)
        mx.eval(run(weights, x))
        mx.clear_cache()
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        mx.eval(run(weights, x))
        peaks.append(mx.get_peak_memory() - before)
        del weights, x, run
    # Gradients are complete only when the last block's activations are gone, so they are not in the peak's slope.
    few, many = stack.depths
    return (peaks[1] - peaks[0]) / (many - few) / (4 * stack.rows * stack.length * stack.hidden)


def _check_equal(kind: Kind, plain: Block, ours: Block, stack: Stack) -> None:
    weights, x = stacked(kind, 1, stack)
    (_, one), (_, other) = (gradients_of(block, 1, stack.heads)(weights, x) for block in (plain, ours))
    for name, gradient in one.items():
        difference = float(
            np.abs(np.array(gradient) - np.array(other[name])).max() / np.abs(np.array(gradient)).max()
        )
        if difference > LARGEST_DIFFERENCE:
            raise RuntimeError(f"{kind}: the plain block's gradient of {name} differs by {difference:.1e}")


def _our_attention_block(weights: Weights, x: mx.array, heads: int) -> mx.array:
    return feed_forward(weights, attention_mixer(weights, x, heads))


def _our_recurrent_block(weights: Weights, x: mx.array, heads: int) -> mx.array:
    rows, _, hidden = x.shape
    state = mx.zeros((rows, heads, hidden // heads, hidden // heads)), mx.zeros((rows, 3, 3 * hidden))
    return feed_forward(weights, recurrent_mixer(weights, x, None, state, heads)[0])


def _rms(x: mx.array, weight: mx.array) -> mx.array:
    return x * mx.rsqrt(mx.square(x).mean(axis=-1, keepdims=True) + EPS) * weight


def _plain_feed_forward(weights: Weights, x: mx.array) -> mx.array:
    inner = _rms(x, weights["n2"]) @ weights["up"].T
    return x + (inner * (1 + mx.erf(inner / 2**0.5)) / 2) @ weights["down"].T


def _plain_attention_block(weights: Weights, x: mx.array, heads: int) -> mx.array:
    qkv = _rms(x, weights["n1"]) @ weights["qkv"].T
    q, k, v = (split_heads(part, heads) for part in mx.split(qkv, 3, axis=-1))
    out = mx.fast.scaled_dot_product_attention(q, k, v, scale=q.shape[-1] ** -0.5, mask="causal")
    x = x + out.transpose(0, 2, 1, 3).reshape(x.shape) @ weights["proj"].T
    return _plain_feed_forward(weights, x)


def _plain_recurrent_block(weights: Weights, x: mx.array, heads: int) -> mx.array:
    length = x.shape[1]
    u = _rms(x, weights["n1"])
    joined = mx.pad(u @ weights["qkv"].T, [(0, 0), (3, 0), (0, 0)])
    mixed = sum(weights["conv"][:, i] * joined[:, i : i + length] for i in range(4))
    q, k, v = (split_heads(part, heads) for part in mx.split(mixed, 3, axis=-1))  # type: ignore[arg-type]
    log_decay = -mx.logaddexp(u @ weights["decay_w"].T + weights["decay_b"], 0.0).swapaxes(1, 2)
    out = _plain_recurrence(q * q.shape[-1] ** -0.5, k, v, log_decay)
    normed = _rms(out.transpose(0, 2, 1, 3), weights["o_norm"]).reshape(x.shape)
    gate = u @ weights["gate"].T
    x = x + (normed * gate * mx.sigmoid(gate)) @ weights["proj"].T
    return _plain_feed_forward(weights, x)


def _plain_recurrence(q: mx.array, k: mx.array, v: mx.array, log_decay: mx.array) -> mx.array:
    """In sub-chunks, states one after the other; everything left to autograd."""
    causal = mx.tril(mx.ones((SUB_CHUNK, SUB_CHUNK), dtype=mx.bool_))
    state, outs = mx.zeros((*q.shape[:2], q.shape[-1], q.shape[-1])), []
    for start in range(0, q.shape[2], SUB_CHUNK):
        own = slice(start, start + SUB_CHUNK)
        queries, keys, values = q[:, :, own], k[:, :, own], v[:, :, own]
        decay = mx.cumsum(log_decay[:, :, own], axis=-1)
        between = mx.where(causal, decay[..., :, None] - decay[..., None, :], 0.0)
        inside = mx.where(causal, mx.exp(between), 0.0)
        before = queries * mx.exp(decay)[..., None]
        outs.append((queries @ keys.swapaxes(-1, -2) * inside) @ values + before @ state)
        to_end = mx.exp(decay[..., -1:] - decay)[..., None]
        state = mx.exp(decay[..., -1])[..., None, None] * state + (keys * to_end).swapaxes(-1, -2) @ values
    return mx.concatenate(outs, axis=2)
