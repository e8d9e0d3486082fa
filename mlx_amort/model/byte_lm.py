"""The byte language model: four trunks from two switches (docs/model.md).

dense      attention blocks on every byte
recurrent  gated linear recurrence on every byte
patched    2 local-attention blocks, attention blocks on patch slots, 2 local-attention blocks
hybrid     the same with the gated linear recurrence on the slots

Weights are one flat dictionary in the names of docs/model.md (`tok`, `blocks.3.qkv`, ...). A window of W chunks runs as
one batch of B·W rows; only the recurrence and its convolution look along the stream.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import mlx.core as mx

from mlx_amort.config.model import BlockKind, ModelConfig
from mlx_amort.errors import assert_never
from mlx_amort.model.blocks import BlockState, attention_mixer, feed_forward, recurrent_mixer
from mlx_amort.ops.accumulation import adding_to
from mlx_amort.ops.attention import scores_dominate
from mlx_amort.ops.constants import CONVOLUTION_TAIL, Precision
from mlx_amort.ops.embedding import cross_entropy, embed
from mlx_amort.ops.normalization import rms_norm
from mlx_amort.ops.patching import assign_slots, gather_slots, is_boundary, scatter_slots
from mlx_amort.ops.pieces import count_pieces
from mlx_amort.ops.precision import linear, policy_of
from mlx_amort.ops.recompute import held_far_back, recomputed

Result = TypeVar("Result")

Weights = dict[str, mx.array]

StreamState = list[BlockState]
"""One state per recurrent block, in block order; empty for trunks without recurrence."""

INIT_SCALE = 0.02
FEED_FORWARD_WEIGHTS = ("n2", "up", "down")
_SHORTEST_MEMORY, _LONGEST_MEMORY = -2.2, -6.9


def block_weights(weights: Weights, index: int) -> Weights:
    """The weights of block `index`, without the `blocks.index.` prefix."""
    prefix = f"blocks.{index}."
    return {name[len(prefix) :]: value for name, value in weights.items() if name.startswith(prefix)}


def _halves(own: Weights) -> tuple[Weights, Weights]:
    """The weights of a block's mixer and those of its feed-forward."""
    feeding = [name for name in own if name in FEED_FORWARD_WEIGHTS]
    return _pick(own, [name for name in own if name not in feeding]), _pick(own, feeding)


def _pick(weights: Weights, names: list[str]) -> Weights:
    return {name: weights[name] for name in names}


@dataclass(frozen=True)
class ByteLM:
    """A model's shape, precision and recomputation; its weights are passed in.

    precision: fp32, bf16 or bf16-pure (docs/training_step.md). activation_checkpointing: keep only the inputs of each
    block's mixer and feed-forward, and recompute both in the backward pass.
    """

    config: ModelConfig
    precision: Precision = "fp32"
    activation_checkpointing: bool = False

    def init_weights(self, seed: int) -> Weights:
        """Fresh weights: normal(0, 0.02), norms 1, decay_w 0, decay_b from -6.9 to -2.2 over the heads.

        A pure function of the configuration and the seed. Dtypes: the policy's weights.
        """
        config = self.config
        dtype = policy_of(self.precision).weights
        keys = mx.random.split(mx.random.key(seed), len(config.parameter_shapes()))
        residual_scale = (2 * len(config.block_kinds)) ** -0.5 if config.scale_residual_init else 1.0
        weights = {}
        for key, (name, shape) in zip(keys, config.parameter_shapes().items(), strict=True):
            kind = name.split(".")[-1]
            if kind in ("n1", "n2", "n_out", "o_norm"):
                value = mx.ones(shape)
            elif kind == "decay_w":
                value = mx.zeros(shape)
            elif kind == "decay_b":
                value = mx.linspace(_LONGEST_MEMORY, _SHORTEST_MEMORY, shape[0])
            else:
                scale = INIT_SCALE * (residual_scale if kind in ("proj", "down") else 1.0)
                value = mx.random.normal(shape, key=key) * scale
            weights[name] = value.astype(dtype)
        return weights

    def zero_state(self, rows: int) -> StreamState:
        """The state of `rows` streams that start at a new place."""
        return [state for kind in self.config.block_kinds if (state := self._zero_state_of(kind, rows))]

    def _zero_state_of(self, kind: BlockKind, rows: int) -> BlockState | None:
        """What a block carries from chunk to chunk, before the first; None for one that carries nothing."""
        config, compute = self.config, policy_of(self.precision).compute
        match kind:
            case "attention":
                return None
            case "recurrent":
                memory = mx.zeros((rows, config.heads, config.head_width, config.head_width))
                return memory, mx.zeros((rows, CONVOLUTION_TAIL, 3 * config.hidden), dtype=compute)
            case unknown:
                assert_never(unknown)

    def hidden(
        self, weights: Weights, tokens: mx.array, state: StreamState, sums: Weights | None = None
    ) -> tuple[mx.array, StreamState]:
        """The normalised last hidden vectors of W consecutive chunks of each row, and the state after them.

        Shapes: tokens [B, W·S] -> [B·W, S, H]. Dtypes: the policy's compute dtype. `sums`: see `loss`.
        """
        config = self.config
        dtype = policy_of(self.precision).compute
        tokens = tokens.reshape(-1, config.seq)
        x = embed(weights["tok"], tokens).astype(dtype) + weights["pos"].astype(dtype)
        if config.is_patched:
            outer = len(config.block_kinds) - config.layers
            first_trunk, after_trunk = outer // 2, outer // 2 + config.layers
            x, _ = self._run_blocks(weights, sums, x, None, [], range(first_trunk))
            slot_of_byte, position, valid = assign_slots(
                is_boundary(tokens, config.boundary_rule), config.slots
            )
            g = gather_slots(x, position, valid, slot_of_byte) + weights["slot"].astype(dtype)
            g, state = self._run_blocks(weights, sums, g, valid, state, range(first_trunk, after_trunk))
            x = scatter_slots(x, g, position, valid, slot_of_byte)
            after = range(after_trunk, len(config.block_kinds))
            x, _ = self._run_blocks(weights, sums, x, None, [], after)
        else:
            x, state = self._run_blocks(weights, sums, x, None, state, range(config.layers))
        return rms_norm(x, weights["n_out"]), state

    def forward(
        self, weights: Weights, tokens: mx.array, state: StreamState, sums: Weights | None = None
    ) -> tuple[mx.array, StreamState]:
        """Logits of every byte of W consecutive chunks, and the state after them.

        Shapes: tokens [B, W·S] integers, state of B rows -> logits [B, W·S, V]. Dtypes: logits float32.
        `sums`: see `loss`.
        """
        x, state = self.hidden(weights, tokens, state, sums)
        logits = linear(x, weights["tok"]).astype(mx.float32)
        return logits.reshape(*tokens.shape, self.config.vocabulary), state

    def loss(
        self, weights: Weights, tokens: mx.array, state: StreamState, sums: Weights | None = None
    ) -> tuple[mx.array, StreamState]:
        """Mean cross-entropy in nats over W consecutive chunks, and the state after them.

        Input and target overlap by one byte. With `sums`, an array for every weight, the gradient of a weight
        comes out added to its sum, and block by block (ops/accumulation.py).

        Shapes: tokens [B, W·S + 1] integers -> scalar float32.
        """
        if sums is not None:
            outer = [name for name in weights if not name.startswith("blocks.")]
            summed, _ = adding_to(_pick(sums, outer), _pick(weights, outer), mx.zeros(()))
            weights = weights | summed
        logits, state = self.forward(weights, tokens[:, :-1], state, sums)
        nats = cross_entropy(logits, tokens[:, 1:])
        # Row by row: the CPU sums a whole array in one float32 accumulator.
        return nats.mean(axis=-1).mean(), state

    def _run_blocks(
        self,
        weights: Weights,
        sums: Weights | None,
        x: mx.array,
        valid: mx.array | None,
        state: StreamState,
        indices: range,
    ) -> tuple[mx.array, StreamState]:
        # Half a block at a time: what one recomputation brings back is a block's larger half, not the whole.
        rows, positions = x.shape[0], x.shape[0] * x.shape[1]
        streams = state[0][0].shape[0] if state else rows
        attend = self._recomputed(partial(attention_mixer, heads=self.config.heads), rows, positions)
        recur = self._recomputed(partial(recurrent_mixer, heads=self.config.heads), streams, positions)
        feed = self._recomputed(feed_forward, rows, positions)
        # In training, where it matters, attention does not overlap in memory with what is before and after it.
        is_apart = sums is not None and scores_dominate(x.shape[1], self.config.head_width)
        apart = _apart if is_apart else _as_it_is
        after: StreamState = []
        for index in indices:
            mixing, feeding = _halves(block_weights(weights, index))
            mixing_sums, feeding_sums = _halves(block_weights(sums or {}, index))
            mixing, x = adding_to(mixing_sums, mixing, x)
            match self.config.block_kinds[index]:
                case "recurrent":
                    x, block_state = recur(mixing, x, valid, state[len(after)])
                    after.append(block_state)
                case "attention":
                    x = apart(attend(mixing, apart(x)))
                case unknown:
                    assert_never(unknown)
            feeding, x = adding_to(feeding_sums, feeding, x)
            x = feed(feeding, x)
        return x, after

    def _recomputed(
        self, half_block: Callable[..., Result], rows: int, positions: int
    ) -> Callable[..., Result]:
        if not self.activation_checkpointing:
            return half_block
        return recomputed(half_block, count_pieces(rows, positions))


def _apart(x: mx.array) -> mx.array:
    """`x`, before which nothing is allocated for what is computed from it."""
    return held_far_back([x], [x])[0]


def _as_it_is(x: mx.array) -> mx.array:
    return x
