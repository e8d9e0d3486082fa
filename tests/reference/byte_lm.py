"""The byte model in float64, one row at a time.

A row runs only the slots it has: nothing stands in for slots without a boundary,
so they cannot touch the carried state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tests.reference.autodiff import Array, Tensor, backward, concatenate, stack
from tests.reference.formulas import (
    attend_causally,
    cross_entropy,
    gelu,
    gla,
    linear,
    rms_norm,
    silu,
    softplus,
)
from tests.reference.patching import owning_positions

Weights = Mapping[str, Tensor]
LOCAL_BLOCKS = 2


@dataclass(frozen=True)
class Shape:
    """The sizes of one case; everything the forward needs besides weights and bytes."""

    trunk: str
    hidden: int
    layers: int
    ffn: int
    heads: int
    seq: int
    batch: int
    chunks: int
    patch_stride: int = 4
    boundary_rule: str = "every"
    vocabulary: int = 256

    @property
    def is_patched(self) -> bool:
        return self.trunk in ("patched", "hybrid")

    @property
    def is_recurrent(self) -> bool:
        return self.trunk in ("recurrent", "hybrid")

    @property
    def slots(self) -> int:
        return self.seq // self.patch_stride

    @property
    def global_blocks(self) -> range:
        first = LOCAL_BLOCKS if self.is_patched else 0
        return range(first, first + self.layers)

    @property
    def blocks(self) -> int:
        return self.layers + (2 * LOCAL_BLOCKS if self.is_patched else 0)

    def of_parameters(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape, as in the golden files."""
        H, F = self.hidden, self.ffn
        shapes: dict[str, tuple[int, ...]] = {
            "tok": (self.vocabulary, H),
            "pos": (self.seq, H),
            "n_out": (H,),
        }
        if self.is_patched:
            shapes["slot"] = (self.slots, H)
        for index in range(self.blocks):
            block: dict[str, tuple[int, ...]] = {
                "n1": (H,), "qkv": (3 * H, H), "proj": (H, H), "n2": (H,), "up": (F, H), "down": (H, F)
            }  # fmt: skip
            if self.is_recurrent and index in self.global_blocks:
                block |= {
                    "conv": (3 * H, 4),
                    "decay_w": (self.heads, H),
                    "decay_b": (self.heads,),
                    "o_norm": (H // self.heads,),
                    "gate": (H, H),
                }
            shapes |= {f"blocks.{index}.{name}": shape for name, shape in block.items()}
        return shapes


@dataclass(frozen=True)
class RowState:
    """What one row carries into its next chunk: a recurrent block's S [h, d, d] and last three z [3, 3H]."""

    S: Tensor
    conv: Tensor


@dataclass(frozen=True)
class Result:
    """Loss in nats, logits [B, K, S, V], gradient by name, final S and conv [layers, B, ...] (or None)."""

    loss_nats: float
    logits: Array
    gradients: dict[str, Array]
    state_S: Array | None
    state_conv: Array | None


def run(shape: Shape, parameters: Mapping[str, Array], tokens: NDArray[np.uint8]) -> Result:
    """All chunks of tokens [B, S·K + 1], state carried, gradient of the mean loss through all of them."""
    weights = {name: Tensor(np.array(value, dtype=np.float64)) for name, value in parameters.items()}
    losses, logits, finals = [], [], []
    for row in tokens.astype(np.int64):
        states = zero_states(shape)
        for chunk in range(shape.chunks):
            start = chunk * shape.seq
            chunk_logits, states = forward_row(shape, weights, row[start : start + shape.seq], states)
            losses.append(cross_entropy(chunk_logits, row[start + 1 : start + shape.seq + 1]))
            logits.append(chunk_logits.value)
        finals.append(states)
    loss = concatenate([one.reshape(1, 1) for one in losses], axis=1).mean_last().sum()
    backward(loss)
    return Result(
        loss_nats=float(loss.value),
        logits=np.array(logits).reshape(shape.batch, shape.chunks, shape.seq, shape.vocabulary),
        gradients={name: weight.gradient for name, weight in weights.items()},
        state_S=_gather([[state.S for state in row] for row in finals]),
        state_conv=_gather([[state.conv for state in row] for row in finals]),
    )


def zero_states(shape: Shape) -> list[RowState]:
    d = shape.hidden // shape.heads
    S, conv = np.zeros((shape.heads, d, d)), np.zeros((3, 3 * shape.hidden))
    return [RowState(Tensor(S), Tensor(conv)) for _ in shape.global_blocks if shape.is_recurrent]


def forward_row(
    shape: Shape, weights: Weights, chunk: NDArray[np.int64], states: list[RowState]
) -> tuple[Tensor, list[RowState]]:
    """Logits [S, V] of one row's chunk and the states after it."""
    x = weights["tok"][chunk] + weights["pos"][: len(chunk)]
    if not shape.is_patched:
        x, states = _run_global_blocks(shape, weights, x, states)
    else:
        for index in range(LOCAL_BLOCKS):
            x = _run_attention_block(shape, weights, f"blocks.{index}.", x)
        positions = owning_positions([int(byte) for byte in chunk], shape.slots, shape.boundary_rule)
        g = concatenate(
            [(x[position] + weights["slot"][j]).reshape(1, -1) for j, position in enumerate(positions)]
        )
        g, states = _run_global_blocks(shape, weights, g, states)
        slot_of = {position: j for j, position in enumerate(positions)}
        x = stack([x[t] + g[slot_of[t]] if t in slot_of else x[t] for t in range(len(chunk))])
        for index in range(LOCAL_BLOCKS + shape.layers, shape.blocks):
            x = _run_attention_block(shape, weights, f"blocks.{index}.", x)
    return linear(rms_norm(x, weights["n_out"]), weights["tok"]), states


def _run_global_blocks(
    shape: Shape, weights: Weights, x: Tensor, states: list[RowState]
) -> tuple[Tensor, list[RowState]]:
    after = []
    for layer, index in enumerate(shape.global_blocks):
        if shape.is_recurrent:
            x, state = _run_recurrent_block(shape, weights, f"blocks.{index}.", x, states[layer])
            after.append(state)
        else:
            x = _run_attention_block(shape, weights, f"blocks.{index}.", x)
    return x, after


def _run_attention_block(shape: Shape, weights: Weights, block: str, x: Tensor) -> Tensor:
    q, k, v = _split_qkv(shape, linear(rms_norm(x, weights[block + "n1"]), weights[block + "qkv"]))
    heads = [attend_causally(q[head], k[head], v[head]) for head in range(shape.heads)]
    x = x + linear(concatenate(heads, axis=1), weights[block + "proj"])
    return _run_feed_forward(weights, block, x)


def _run_recurrent_block(
    shape: Shape, weights: Weights, block: str, x: Tensor, state: RowState
) -> tuple[Tensor, RowState]:
    n, H = x.shape
    d = H // shape.heads
    u = rms_norm(x, weights[block + "n1"])
    z = concatenate([state.conv, linear(u, weights[block + "qkv"])])
    c = z[0:n] * weights[block + "conv"][:, 0]
    for i in (1, 2, 3):
        c = c + z[i : i + n] * weights[block + "conv"][:, i]
    q, k, v = _split_qkv(shape, c)
    log_decay = softplus(linear(u, weights[block + "decay_w"]) + weights[block + "decay_b"]) * -1.0
    out, S = gla(
        *((q * d**-0.5).reshape(1, *q.shape), k.reshape(1, *k.shape), v.reshape(1, *v.shape)),
        log_decay.transposed().reshape(1, shape.heads, n),
        state.S.reshape(1, *state.S.shape),
    )
    heads = [rms_norm(out[0, head], weights[block + "o_norm"]) for head in range(shape.heads)]
    gated = concatenate(heads, axis=1) * silu(linear(u, weights[block + "gate"]))
    x = x + linear(gated, weights[block + "proj"])
    return _run_feed_forward(weights, block, x), RowState(S[0], z[n:])


def _run_feed_forward(weights: Weights, block: str, x: Tensor) -> Tensor:
    widened = gelu(linear(rms_norm(x, weights[block + "n2"]), weights[block + "up"]))
    return x + linear(widened, weights[block + "down"])


def _split_qkv(shape: Shape, qkv: Tensor) -> list[Tensor]:
    """[n, 3H] -> q, k, v, each [h, n, d]."""
    H, d = shape.hidden, shape.hidden // shape.heads
    columns = [[part * H + head * d for head in range(shape.heads)] for part in range(3)]
    return [stack([qkv[:, start : start + d] for start in starts]) for starts in columns]


def _gather(rows: list[list[Tensor]]) -> Array | None:
    """Rows of layers -> [layers, B, ...]."""
    layers = len(rows[0])
    return np.array([[row[layer].value for row in rows] for layer in range(layers)]) if layers else None
