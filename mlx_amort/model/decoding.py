"""One stream, byte after byte, in constant time and memory: the training forward cut into single steps.

What a byte needs of the bytes before it is held in arrays of fixed shape: the recurrent blocks' state and
convolution tail, and keys and values of at most one chunk for blocks of attention. As in training, attention,
positions and slots start anew every S bytes; only the recurrence continues. A byte that owns no slot does not
touch the trunk, and the host knows which bytes do before the device is asked, so there are two compiled
functions: a step with the trunk and one without.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from mlx_amort.config.model import BYTE_VALUES, BoundaryRule
from mlx_amort.errors import assert_never
from mlx_amort.model.blocks import (
    BlockState,
    feed_forward,
    log_decay_of,
    mixer_output,
    split_heads,
)
from mlx_amort.model.byte_lm import ByteLM, StreamState, Weights, block_weights
from mlx_amort.ops.convolution import causal_convolution
from mlx_amort.ops.linear_attention import gla_step
from mlx_amort.ops.normalization import rms_norm
from mlx_amort.ops.patching import is_boundary
from mlx_amort.ops.precision import linear, policy_of

BlockCache = tuple[mx.array, mx.array]
"""Attention: keys and values [1, h, L, d] of one chunk, L its bytes or slots. Recurrence: a `BlockState`."""

# Used only as operands of a product or as rows of a table, so rounding them beforehand changes no number.
_ROUNDED_BEFORE_USE = ("tok", "pos", "slot", "qkv", "gate", "proj", "up", "down", "decay_w")


@dataclass
class DecodeState:
    """Where one stream stands. `position` and `slots_used` count what this chunk has read and opened so far.

    The caches are replaced, not kept, so that a step can reuse their buffers; `copy.copy` takes a snapshot.
    """

    local: list[BlockCache]
    trunk: list[BlockCache]
    position: int = 0
    slots_used: int = 0
    last_byte: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes all caches take: the same at any byte of the stream."""
        return sum(array.nbytes for cache in (*self.local, *self.trunk) for array in cache)


def attention_step(
    weights: Weights, x: mx.array, cache: BlockCache, position: mx.array, heads: int
) -> tuple[mx.array, BlockCache]:
    """An attention block (mixer, then feed-forward) for the one byte or slot at `position` of its chunk.

    What the cache holds beyond `position` is left from the chunk before and not looked at.
    Shapes: x [1, 1, H], position [1] int32 -> x [1, 1, H].
    """
    qkv = linear(rms_norm(x, weights["n1"]), weights["qkv"])
    q, k, v = (split_heads(part, heads) for part in mx.split(qkv, 3, axis=-1))
    keys = mx.slice_update(cache[0], k, position, axes=(2,))
    values = mx.slice_update(cache[1], v, position, axes=(2,))
    visible = (mx.arange(keys.shape[2]) <= position)[None, None, None]
    out = mx.fast.scaled_dot_product_attention(q, keys, values, scale=q.shape[-1] ** -0.5, mask=visible)
    x = x + linear(out.reshape(x.shape), weights["proj"])
    return feed_forward(weights, x), (keys, values)


def recurrent_step(
    weights: Weights, g: mx.array, state: BlockState, heads: int
) -> tuple[mx.array, BlockState]:
    """A recurrent block, both halves, for the next byte or valid slot. Shapes: g [1, 1, H] -> [1, 1, H]."""
    memory, tail = state
    head_width = g.shape[-1] // heads
    u = rms_norm(g, weights["n1"])
    joined = mx.concatenate([tail, linear(u, weights["qkv"])], axis=1)
    mixed = causal_convolution(joined, weights["conv"])
    q, k, v = (part.reshape(1, heads, head_width) for part in mx.split(mixed, 3, axis=-1))
    out, memory = gla_step(q * head_width**-0.5, k, v, log_decay_of(weights, u)[:, 0], memory)
    g = g + mixer_output(weights, u, out[:, None])
    return feed_forward(weights, g), (memory, joined[:, 1:])


class Decoder:
    """The compiled steps of one model. `traces` counts how often each was traced: once, whatever is read."""

    def __init__(self, model: ByteLM) -> None:
        self.model = model
        self.traces: Counter[str] = Counter()
        config = model.config
        self._opens_slot = _boundary_table(config.boundary_rule) if config.is_patched else None
        outside = len(config.block_kinds) - config.layers
        self._before = range(outside // 2)
        self._trunk = range(outside // 2, outside // 2 + config.layers)
        self._after = range(outside // 2 + config.layers, len(config.block_kinds))
        self._step_without_trunk = mx.compile(self._trace_without_trunk)
        self._step_with_trunk = mx.compile(self._trace_with_trunk)
        self._advance_chunk = mx.compile(self._trace_chunk)

    def prepare(self, weights: Weights) -> Weights:
        """The weights as the steps multiply them, so that they are rounded once and not at every byte."""
        dtype = policy_of(self.model.precision).compute
        return {
            name: weight.astype(dtype) if name.split(".")[-1] in _ROUNDED_BEFORE_USE else weight
            for name, weight in weights.items()
        }

    def start(self) -> DecodeState:
        """The state before the first byte of a stream."""
        return self._state_of(self.model.zero_state(1))

    def read(self, weights: Weights, text: Sequence[int]) -> tuple[mx.array, DecodeState]:
        """Start a stream with `text` (at least one byte): the logits after its last byte, and the state.

        Whole chunks go through the training forward, the last one (never empty) byte by byte.
        Shapes: logits [V].
        """
        assert len(text) > 0
        config = self.model.config
        whole = (len(text) - 1) // config.seq * config.seq
        state = self.start()
        # Without recurrence nothing of an earlier chunk is ever looked at.
        if config.is_recurrent:
            stream = self.model.zero_state(1)
            for start in range(0, whole, config.seq):
                stream = self._advance_chunk(
                    weights, mx.array([list(text[start : start + config.seq])]), stream
                )
                mx.eval(stream)
            state = self._state_of(stream)
        for byte in text[whole:]:
            logits = self.step(weights, byte, state)
        return logits, state

    def step(self, weights: Weights, byte: int, state: DecodeState) -> mx.array:
        """Read one byte (or token id): the logits of the next; `state` stands behind it afterwards.

        Shapes: logits [V]. Dtypes: float32.
        """
        assert 0 <= byte < self.model.config.vocabulary
        if state.position == self.model.config.seq:
            state.position = state.slots_used = 0
        token, position = mx.array([[byte]]), mx.array([state.position])
        # The state lets go of its caches, so that the step may write into them instead of copying.
        local, state.local = state.local, []
        if self._owns_slot(byte, state):
            trunk, state.trunk = state.trunk, []
            slot = mx.array([state.slots_used])
            logits, state.local, state.trunk = self._step_with_trunk(
                weights, token, position, slot, local, trunk
            )
            del trunk
            state.slots_used += 1
        else:
            logits, state.local = self._step_without_trunk(weights, token, position, local)
        del local
        mx.eval(logits, state.local, state.trunk)
        state.position += 1
        state.last_byte = byte
        return logits

    def _state_of(self, stream: StreamState) -> DecodeState:
        """A state at the start of a chunk, whose recurrence continues from `stream`."""
        config = self.model.config
        local = [self._empty_cache(config.seq) for _ in (*self._before, *self._after)]
        slots = config.slots if config.is_patched else config.seq
        return DecodeState(local, stream or [self._empty_cache(slots) for _ in self._trunk])

    def _empty_cache(self, length: int) -> BlockCache:
        config = self.model.config
        shape = (1, config.heads, length, config.head_width)
        dtype = policy_of(self.model.precision).compute
        return mx.zeros(shape, dtype), mx.zeros(shape, dtype)

    def _owns_slot(self, byte: int, state: DecodeState) -> bool:
        """Whether the byte runs the trunk: every byte where there are no patches."""
        if self._opens_slot is None:
            return True
        is_opening = state.position == 0 or self._opens_slot[state.last_byte, byte]
        return bool(is_opening) and state.slots_used < self.model.config.slots

    def _trace_without_trunk(
        self, weights: Weights, token: mx.array, position: mx.array, local: list[BlockCache]
    ) -> tuple[mx.array, list[BlockCache]]:
        self.traces["without trunk"] += 1
        x, before = self._run(weights, self._embed(weights, token, position), position, self._before, local)
        x, after = self._run(weights, x, position, self._after, local[len(before) :])
        return self._logits(weights, x), before + after

    def _trace_with_trunk(
        self,
        weights: Weights,
        token: mx.array,
        position: mx.array,
        slot: mx.array,
        local: list[BlockCache],
        trunk: list[BlockCache],
    ) -> tuple[mx.array, list[BlockCache], list[BlockCache]]:
        self.traces["with trunk"] += 1
        x, before = self._run(weights, self._embed(weights, token, position), position, self._before, local)
        if self.model.config.is_patched:
            g = x + mx.take(weights["slot"], slot, axis=0).astype(x.dtype)
            g, trunk = self._run(weights, g, slot, self._trunk, trunk)
            x = x + g
        else:
            x, trunk = self._run(weights, x, position, self._trunk, trunk)
        x, after = self._run(weights, x, position, self._after, local[len(before) :])
        return self._logits(weights, x), before + after, trunk

    def _trace_chunk(self, weights: Weights, tokens: mx.array, stream: StreamState) -> StreamState:
        self.traces["chunk"] += 1
        return self.model.hidden(weights, tokens, stream)[1]

    def _embed(self, weights: Weights, token: mx.array, position: mx.array) -> mx.array:
        dtype = policy_of(self.model.precision).compute
        byte, place = mx.take(weights["tok"], token, axis=0), mx.take(weights["pos"], position, axis=0)
        return byte.astype(dtype) + place.astype(dtype)

    def _run(
        self, weights: Weights, x: mx.array, place: mx.array, indices: range, caches: list[BlockCache]
    ) -> tuple[mx.array, list[BlockCache]]:
        after = []
        for index, cache in zip(indices, caches, strict=False):
            own = block_weights(weights, index)
            match self.model.config.block_kinds[index]:
                case "recurrent":
                    x, cache = recurrent_step(own, x, cache, self.model.config.heads)
                case "attention":
                    x, cache = attention_step(own, x, cache, place, self.model.config.heads)
                case unknown:
                    assert_never(unknown)
            after.append(cache)
        return x, after

    def _logits(self, weights: Weights, x: mx.array) -> mx.array:
        return linear(rms_norm(x, weights["n_out"]), weights["tok"]).astype(mx.float32)[0, 0]


def _boundary_table(rule: BoundaryRule) -> NDArray[np.bool_]:
    """Whether a byte (column) after another of its chunk (row) is a boundary. Shapes: [256, 256]."""
    last, byte = np.divmod(np.arange(BYTE_VALUES**2), BYTE_VALUES)
    pairs = mx.array(np.stack([last, byte], axis=1).astype(np.uint8))
    return np.array(is_boundary(pairs, rule))[:, 1].reshape(BYTE_VALUES, BYTE_VALUES)
