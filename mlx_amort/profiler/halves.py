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
    beside, totals: what of the input's size is there beside the one piece at work, and sums of the matrices' gradients.
    """

    block: BlockKind
    entry: int
    kept: int
    workspace: int
    again: int
    matrices: int
    pieces: int
    beside: int
    totals: int

    def at_work(self, recomputes: bool, is_last: bool) -> int:
        """Bytes while its gradient is computed, its input among them."""
        if not recomputes:
            return self.kept + self.workspace + self.matrices
        piece = (self.kept - self.entry + self.workspace + self.again) // self.pieces
        return self.entry + piece + self.matrices + (0 if is_last else self.beside + self.totals)


@dataclass(frozen=True)
class Counts:
    """Arrays of x's size, in float32, that live together at a half's worst moment; counted in measured steps.

    one_tile, one_tile_recomputed: attention over a single tile; two_blocks: over two, of which the first is the last
    as well; first_tile, last_tile: over more, while the first tiles are at work and once the last is.
    sub_chunks, and for a window of one chunk: the recurrence, beside scores [C, C] and states [d, d], of which states
    are so many of theirs. recomputed, and for one chunk: what recomputing it adds; others: what its other pieces do.
    """

    one_tile: float
    one_tile_recomputed: float
    two_blocks: float
    first_tile: float
    last_tile: float
    sub_chunks: float
    sub_chunks_of_one: float
    states: float
    recomputed: float
    recomputed_of_one: float
    others: float


_COUNTS: Final = {
    4: Counts(
        one_tile=23.5,
        one_tile_recomputed=17.5,
        two_blocks=17.5,
        first_tile=12.0,
        last_tile=19.5,
        sub_chunks=27.2,
        sub_chunks_of_one=25.9,
        states=5.4,
        recomputed=1.1,
        recomputed_of_one=2.8,
        others=2.7,
    ),
    2: Counts(
        one_tile=27.5,
        one_tile_recomputed=16.0,
        two_blocks=21.0,
        first_tile=12.0,
        last_tile=21.0,
        sub_chunks=23.0,
        sub_chunks_of_one=24.7,
        states=6.1,
        recomputed=0.4,
        recomputed_of_one=1.2,
        others=2.3,
    ),
}
"""By the bytes of the compute dtype."""
# Tiles and scores that live together: s, p and their gradient; with the decays' in the recurrence.
_TILES: Final = 3
_SCORES: Final = 7


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
    counts, block = _COUNTS[compute], QUERY_BLOCK[backend]
    tile = _TILES * rows * model.heads * block * WIDE
    # Two blocks of queries are allocated at a time.
    first, last = tile * (length + max(0, length - block)), tile * min(length, block)
    workspace: float
    if length > 2 * block:
        workspace = max(counts.first_tile * wide + first, counts.last_tile * wide + last)
    else:
        workspace = (counts.one_tile if length <= block else counts.two_blocks) * wide + first
    # A single tile has nothing to wait for: recomputing it overlaps with differentiating it.
    overlapping = counts.one_tile_recomputed * wide + 2 * first
    again = overlapping - workspace if length <= block else 0.0
    pieces = count_pieces(rows, positions)
    matrices = _matrix_bytes(config, backend, 4 * width * width, pieces)
    return _half("attention", one, kept, workspace, again, matrices, pieces)


def _recurrence(config: Config, backend: Backend, rows: int, length: int) -> Half:
    """Kept: x, u, the convolution's input and output (3 H each; k and v are parts of it), q, out, its norm, the gate,
    their product; on slots k once more, without what is not valid."""
    model, compute = config.model, widths_of(config.step.precision).compute
    positions, width = rows * length, model.hidden
    one, wide = positions * width * compute, positions * width * WIDE
    kept = (
        (14 if model.is_patched else 13) * one
        + rows * _TAIL * 3 * width * compute
        + positions * (1 + 4 * model.heads) * WIDE
    )
    # Most is there while the sub-chunks are differentiated.
    counts, is_one = _COUNTS[compute], config.step.effective_window == 1
    sub_chunk = min(SUB_CHUNK, length * config.step.effective_window)
    scores = positions * model.heads * sub_chunk * WIDE
    states = positions * width * model.head_width / sub_chunk * WIDE
    arrays = counts.sub_chunks_of_one if is_one else counts.sub_chunks
    pieces = count_pieces(config.step.batch, positions)
    again = counts.recomputed_of_one if is_one else counts.recomputed
    # Of the matrices' gradients proj's and gate's are there; of pieces that went before, all of them.
    return Half(
        block="recurrent",
        entry=one,
        kept=kept,
        workspace=round(arrays * wide + _SCORES * scores + counts.states * states),
        again=0,
        matrices=round(2.6 * width * width * WIDE),
        pieces=pieces,
        beside=round((again + counts.others * (1 - 1 / pieces)) * wide),
        totals=round(4.4 * width * width * WIDE) if pieces > 1 else 0,
    )


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
    pieces = count_pieces(rows, positions)
    matrices = _matrix_bytes(config, backend, 2 * model.hidden * model.ffn, pieces)
    return _half(block, one, kept, workspace, again, matrices, pieces)


def _half(
    block: BlockKind, entry: int, kept: int, workspace: float, again: float, matrices: int, pieces: int
) -> Half:
    """A half whose other pieces add two of its input, cotangents that wait or are done, and its matrices' sums."""
    beside, totals = 2 * entry * (pieces - 1) // pieces, matrices if pieces > 1 else 0
    return Half(block, entry, kept, round(workspace), round(again), matrices, pieces, beside, totals)


def head_at_work(config: Config, backend: Backend, half: Half) -> int:
    """The final norm, the logits and their cross-entropy, with the gradient of the last half, in bytes.

    Two moments, counted in measured steps: when the last half has allocated its first arrays and all of the logits'
    are still there, and when it has allocated its last. Of the logits' fewer are left then, the more operations lie
    between (casts, pieces).
    """
    model, step = config.model, config.step
    is_wide = widths_of(step.precision).compute == WIDE
    positions = step.batch * step.effective_window * model.seq
    logits, hidden = positions * model.vocabulary * WIDE, positions * model.hidden * WIDE
    recomputes = step.activation_checkpointing
    pieces = half.pieces if recomputes else 1
    if is_wide:
        early = 6.0 * logits + 4.5 * hidden + 2 * positions * model.ffn * WIDE / pieces
        late = (5.0 - 0.5 * pieces) * logits + 4.5 * hidden if recomputes else 6.0 * logits + 2.5 * hidden
    else:
        table = _matrix_bytes(config, backend, model.vocabulary * model.hidden, pieces)
        early = 9.3 * logits + 7.5 * hidden + table
        late = max(2.0, (11.0 - 2.0 * pieces) / 3.0) * logits + 6.0 * hidden + table
    # Sums over the logits, folded; and the last half's output, in pieces and joined.
    early += 3 * _FOLD * positions * WIDE + (half.entry if pieces > 1 else 0)
    own = half.entry if recomputes else half.kept
    return round(max(own + early, late + half.at_work(recomputes, is_last=True)))


def _matrix_bytes(config: Config, backend: Backend, numbers: int, pieces: int) -> int:
    widths = widths_of(config.step.precision)
    if widths.compute == WIDE:
        return numbers * widths.gradients
    if backend != "cpu":
        return numbers * (widths.compute + widths.gradients)
    # In float32 both; and the gradient once more in bfloat16, where a cast is not part of the sum's own kernel.
    is_cast_apart = widths.weights != WIDE or (config.step.activation_checkpointing and pieces == 1)
    return numbers * (2 * WIDE + (widths.compute if is_cast_apart else 0))
