"""What half a block keeps for the backward pass and works with in it, in bytes; arithmetic only (docs/memory.md).

A block is a mixer and a feed-forward. The forward pass leaves what each keeps; the backward pass takes the halves
from the last to the first, and a half's workspace is gone before the next one's begins (ops/accumulation.py).

Legend: R = B·W rows of a window, L = S bytes or N slots, H width, F feed-forward width, h heads, d = H/h.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from mlx_amort.config import Config
from mlx_amort.ops.pieces import count_pieces

Backend = Literal["cpu", "metal", "cuda"]
BlockKind = Literal["attention", "recurrent"]

WIDE: Final = 4
"""Bytes of float32."""
# As in ops/attention.py and ops/linear_attention.py, which load mlx.
QUERY_BLOCK: Final = {"cpu": 128, "metal": 256, "cuda": 0}
SUB_CHUNK: Final = 64
_TAIL: Final = 3
# As in ops/elementary.py: a row sum is first a sum of 32.
_FOLD: Final = 32


@dataclass(frozen=True)
class Half:
    """One half of a block, in bytes.

    entry: its input, all that is kept of it when it is recomputed. kept: what is kept when it is not, the input too.
    workspace: what its own gradient holds at most, beside what is kept; again: what recomputing adds to that.
    matrices: gradients of its matrices before they are added up, and the matrices in the compute dtype.
    pieces: into how many it is cut when it is recomputed, one after the other.
    """

    block: BlockKind
    entry: int
    kept: int
    workspace: int
    again: int
    matrices: int
    pieces: int

    def at_work(self, recomputes: bool, is_last: bool) -> int:
        """Bytes while its gradient is computed, its input among them."""
        if not recomputes:
            return self.kept + self.workspace + self.matrices
        piece = (self.kept - self.entry + self.workspace + self.again) // self.pieces
        # Of more than one piece the others' cotangents wait or are done, and the matrices' gradients are added up.
        others = 0 if is_last else 2 * self.entry * (self.pieces - 1) // self.pieces
        return self.entry + piece + others + self.matrices * min(2, self.pieces)


@dataclass(frozen=True)
class Widths:
    """Bytes of a number: weights, compute (activations), gradients."""

    weights: int
    compute: int
    gradients: int


def widths_of(precision: str) -> Widths:
    """The policy's widths (ops/precision.py)."""
    return {"fp32": Widths(4, 4, 4), "bf16": Widths(4, 2, 4), "bf16-pure": Widths(2, 2, 2)}[precision]


def halves_of(config: Config, backend: Backend) -> list[Half]:
    """Both halves of every block, in the order of the forward pass."""
    model = config.model
    rows = config.step.batch * config.step.effective_window
    lengths = {"bytes": model.seq, "slots": model.slots}
    blocks = list(zip(model.block_kinds, model.block_lengths, strict=True))
    # Blocks of a kind are alike.
    halves = {
        (kind, along): _halves_of_block(config, backend, kind, rows, lengths[along])
        for kind, along in set(blocks)
    }
    return [half for block in blocks for half in halves[block]]


def _halves_of_block(config: Config, backend: Backend, kind: BlockKind, rows: int, length: int) -> list[Half]:
    mixer = _attention if kind == "attention" else _recurrence
    return [mixer(config, backend, rows, length), _feed_forward(config, backend, kind, rows, length)]


def _attention(config: Config, backend: Backend, rows: int, length: int) -> Half:
    """Kept: x, u = rms(x), q k v, out, out with its heads joined; row statistics in float32."""
    model, compute = config.model, widths_of(config.step.precision).compute
    positions, width = rows * length, model.hidden
    one, wide = positions * width * compute, positions * width * WIDE
    kept = 7 * one + positions * (1 + model.heads) * WIDE
    # q, k, v and their shifted copies, the cotangents, dq dk dv: 12 arrays while the first tiles are at work, 21
    # once the last is. Two blocks of queries are allocated at a time, so of two the first is the last as well.
    block = QUERY_BLOCK[backend]
    tile = rows * model.heads * block * WIDE
    first = 3 * tile * (length + max(0, length - block))
    last = 3 * tile * min(length, block)
    workspace = 21 * wide + first if length <= 2 * block else max(12 * wide + first, 21 * wide + last)
    matrices = _matrix_bytes(config, backend, 4 * width * width)
    # A single tile has nothing to wait for: recomputing it overlaps with differentiating it.
    again = 3 * tile * length if length <= block else 0
    return Half("attention", one, kept, workspace, again, matrices, count_pieces(rows, positions))


def _recurrence(config: Config, backend: Backend, rows: int, length: int) -> Half:
    """Kept: x, u, the convolution's input and output (3 H each), q, k, out, its norm, the gate, their product."""
    model, compute = config.model, widths_of(config.step.precision).compute
    positions, width = rows * length, model.hidden
    one, wide = positions * width * compute, positions * width * WIDE
    kept = 14 * one + rows * _TAIL * 3 * width * compute + positions * (1 + 4 * model.heads) * WIDE
    # Beside arrays of x's size: scores of the sub-chunks [C, C] and their states [d, d].
    sub_chunk = min(SUB_CHUNK, length)
    scores = positions * model.heads * sub_chunk * WIDE
    states = positions * width * model.head_width // sub_chunk * WIDE
    arrays = 24.5 if compute == WIDE else 28.0
    workspace = round(arrays * wide) + 7 * scores + 5 * states
    matrices = _matrix_bytes(config, backend, (5 * width + model.heads) * width)
    pieces = count_pieces(config.step.batch, positions)
    return Half("recurrent", one, kept, workspace, round(7.5 * wide), matrices, pieces)


def _feed_forward(config: Config, backend: Backend, block: BlockKind, rows: int, length: int) -> Half:
    """Kept: x, n = rms(x), and up n, of which GELU is computed again."""
    model, compute, positions = config.model, widths_of(config.step.precision).compute, rows * length
    one, wide = positions * model.hidden * compute, positions * model.hidden * WIDE
    hidden = positions * model.ffn * compute
    kept = 2 * one + hidden + positions * WIDE
    if compute == WIDE or backend != "cpu":
        workspace, again = 3 * hidden + 4.5 * wide, 0.0
    else:
        # Every operand and result of a product also in float32, for the CPU multiplies nothing else fast.
        workspace, again = 7 * positions * model.ffn * WIDE + 7.5 * wide, 2.5 * wide
    matrices = _matrix_bytes(config, backend, 2 * model.hidden * model.ffn)
    pieces = count_pieces(rows, positions)
    return Half(block, one, kept, round(workspace), round(again), matrices, pieces)


def head_at_work(config: Config, half: Half) -> int:
    """The final norm, the logits and their cross-entropy, with the gradient of the last half, in bytes.

    Two moments: when the last half has allocated its first arrays and all of the logits' are still there, and when
    it has allocated its last. Of the logits' fewer are left then, the more operations lie between (casts, pieces).
    """
    model, step = config.model, config.step
    is_wide = widths_of(step.precision).compute == WIDE
    positions = step.batch * step.effective_window * model.seq
    logits, hidden = positions * model.vocabulary * WIDE, positions * model.hidden * WIDE
    pieces = half.pieces if step.activation_checkpointing else 1
    if is_wide:
        early = 6.0 * logits + 4.5 * hidden + 2 * positions * model.ffn * WIDE / pieces
        late = (7.0 - pieces) * logits + 4.5 * hidden
    else:
        early = 9.0 * logits + 7.5 * hidden
        late = (11.0 - 2.0 * pieces) / 3.0 * logits + 6.0 * hidden
    if is_wide and step.activation_checkpointing:
        # A recomputed half starts while the head's last array is still there.
        early, late = early + logits, late + logits
    # Sums over the logits, folded; and the last half's output, in pieces and joined.
    early += 3 * _FOLD * positions * WIDE + (half.entry if pieces > 1 else 0)
    own = half.entry if step.activation_checkpointing else half.kept
    return round(max(own + early, late + half.at_work(step.activation_checkpointing, is_last=True)))


def _matrix_bytes(config: Config, backend: Backend, numbers: int) -> int:
    widths = widths_of(config.step.precision)
    if widths.compute == WIDE:
        return numbers * widths.gradients
    return numbers * (2 * WIDE if backend == "cpu" else widths.compute + widths.gradients)
