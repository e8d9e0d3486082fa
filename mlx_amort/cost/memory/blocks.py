"""What half a block keeps for the backward pass and works with in it, in bytes; arithmetic only (docs/memory.md).

A block is a mixer and a feed-forward. The forward pass leaves what each keeps; the backward pass takes the halves
from the last to the first, and a half's workspace is gone before the next one's begins (ops/accumulation.py).

Legend: R = B·W rows of a window, L = S bytes or N slots, H width, F feed-forward width, h heads, d = H/h, V vocabulary.
An array is R·L·H float32 numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from mlx_amort.config.model import BlockKind
from mlx_amort.config.values import Config
from mlx_amort.cost.memory.counts import (
    AttentionCounts,
    Counts,
    FeedForwardCounts,
    HeadCounts,
    RecurrenceCounts,
    WindowCounts,
)
from mlx_amort.errors import assert_never
from mlx_amort.ops.constants import (
    CONVOLUTION_TAIL,
    CPU_QUERY_BLOCK,
    FLOAT32_BYTES,
    FOLD,
    GPU_QUERY_BLOCK,
    SUB_CHUNK,
    WIDTHS,
    Backend,
)
from mlx_amort.ops.pieces import count_pieces

WIDE: Final = FLOAT32_BYTES
# Tiles and scores that live together: s, p and their gradient; with the decays' in the recurrence.
_TILES: Final = 3
_SCORES: Final = 7
_LEAST_LATE_LOGITS: Final = 2.0
# 0: fused in both directions.
QUERY_BLOCK: Final[Mapping[Backend, int]] = {"cpu": CPU_QUERY_BLOCK, "metal": GPU_QUERY_BLOCK, "cuda": 0}


@dataclass(frozen=True)
class Half:
    """One half of a block, in bytes.

    entry: its input, all that is kept of it when it is recomputed. kept: what is kept when it is not, the input too.
    workspace: what its own gradient holds at most, beside what is kept; recomputed_workspace: the same when what is
    kept is recomputed. matrices: gradients of its matrices before they are added up, and on the CPU the matrices in
    float32.
    pieces: into how many it is cut when it is recomputed, one after the other. Beside the piece at work, except in
    a model's last half, undivided: what waits or is done; sums: of its matrices' gradients, by other pieces.
    """

    block: BlockKind
    entry: int
    kept: int
    workspace: int
    recomputed_workspace: int
    matrices: int
    pieces: int
    undivided: int
    sums: int

    def at_work(self, recomputes: bool, is_last: bool) -> int:
        """Bytes while its gradient is computed, its input among them."""
        if not recomputes:
            return self.kept + self.workspace + self.matrices
        piece = (self.kept - self.entry + self.recomputed_workspace) // self.pieces
        return self.entry + piece + self.matrices + (0 if is_last else self.undivided + self.sums)


def halves_of(config: Config, backend: Backend, counts: Counts) -> list[Half]:
    """Both halves of every block, in the order of the forward pass."""
    model = config.model
    rows = config.step.batch * config.step.effective_window
    lengths = {"bytes": model.seq, "slots": model.slots}
    blocks = list(zip(model.block_kinds, model.block_lengths, strict=True))
    own = counts.of_compute(WIDTHS[config.step.precision].compute)
    # Blocks of a kind are alike.
    halves = {
        (kind, along): _halves_of_block(config, backend, own, kind, rows, lengths[along])
        for kind, along in set(blocks)
    }
    return [half for block in blocks for half in halves[block]]


def _halves_of_block(
    config: Config, backend: Backend, counts: WindowCounts, kind: BlockKind, rows: int, length: int
) -> list[Half]:
    feed_forward = _feed_forward(config, backend, counts.feed_forward, kind, rows, length)
    match kind:
        case "attention":
            mixer = _attention(config, backend, counts.attention, rows, length)
        case "recurrent":
            mixer = _recurrence(config, counts.recurrence, rows, length)
        case unknown:
            assert_never(unknown)
    return [mixer, feed_forward]


def _attention(config: Config, backend: Backend, counts: AttentionCounts, rows: int, length: int) -> Half:
    """Kept: x, u = rms(x), q k v, out, out with its heads joined; row statistics in float32."""
    model, compute = config.model, WIDTHS[config.step.precision].compute
    positions, width = rows * length, model.hidden
    one, wide = positions * width * compute, positions * width * WIDE
    kept = 7 * one + positions * (1 + model.heads) * WIDE
    block = QUERY_BLOCK[backend]
    tile = _TILES * rows * model.heads * min(block, length) * WIDE
    # Two blocks of queries are allocated at a time.
    first, last = tile * (length + max(0, length - block)), tile * min(length, block)
    workspace: float
    if length > 2 * block:
        workspace = max(counts.first_tiles * wide + first, counts.last_tile * wide + last)
    else:
        workspace = (counts.one_tile if length <= block else counts.two_blocks) * wide + first
    is_one = 0 < length <= block
    recomputed = counts.one_tile_recomputed * wide + 2 * first if is_one else workspace
    pieces = count_pieces(rows, positions)
    matrices = _matrix_bytes(config, backend, 4 * width * width, pieces)
    return _half("attention", one, kept, workspace, recomputed, matrices, pieces)


def _recurrence(config: Config, counts: RecurrenceCounts, rows: int, length: int) -> Half:
    """Kept: x, u, the convolution's input and output (3 H each; k and v are parts of it), q, out, its norm, the gate,
    their product; on slots k once more, without what is not valid. Most is there with the sub-chunks."""
    model, compute = config.model, WIDTHS[config.step.precision].compute
    positions, width = rows * length, model.hidden
    one, wide = positions * width * compute, positions * width * WIDE
    arrays = 14 if model.is_patched else 13
    kept = (
        arrays * one
        + rows * CONVOLUTION_TAIL * 3 * width * compute
        + positions * (1 + 4 * model.heads) * WIDE
    )
    is_one = config.step.effective_window == 1
    sub_chunk = min(SUB_CHUNK, length * config.step.effective_window)
    scores = positions * model.heads * sub_chunk * WIDE
    states = positions * width * model.head_width / sub_chunk * WIDE
    at_once = (counts.arrays_of_one if is_one else counts.arrays) * wide
    workspace = round(at_once + _SCORES * scores + counts.states * states)
    pieces = count_pieces(config.step.batch, positions)
    recomputed = counts.recomputed_of_one if is_one else counts.recomputed
    return Half(
        block="recurrent",
        entry=one,
        kept=kept,
        workspace=workspace,
        recomputed_workspace=workspace,
        matrices=round(counts.matrices * width * width * WIDE),
        pieces=pieces,
        undivided=round((recomputed + counts.pieces * (1 - 1 / pieces)) * wide),
        sums=round(counts.sums * width * width * WIDE) if pieces > 1 else 0,
    )


def _feed_forward(
    config: Config, backend: Backend, counts: FeedForwardCounts, block: BlockKind, rows: int, length: int
) -> Half:
    """Kept: x, n = rms(x), and up n, of which GELU is computed again."""
    model, compute, positions = config.model, WIDTHS[config.step.precision].compute, rows * length
    one, wide = positions * model.hidden * compute, positions * model.hidden * WIDE
    hidden = positions * model.ffn * compute
    kept = 2 * one + hidden + positions * WIDE
    # A GPU multiplies bfloat16 as it is.
    workspace = counts.hidden * (positions * model.ffn * WIDE if backend == "cpu" else hidden)
    workspace += counts.arrays * wide
    pieces = count_pieces(rows, positions)
    matrices = _matrix_bytes(config, backend, 2 * model.hidden * model.ffn, pieces)
    return _half(block, one, kept, workspace, workspace + counts.recomputed * wide, matrices, pieces)


def _half(
    block: BlockKind, entry: int, kept: int, workspace: float, recomputed: float, matrices: int, pieces: int
) -> Half:
    """A half whose other pieces add two of its input, cotangents that wait or are done, and its matrices' sums."""
    undivided, sums = 2 * entry * (pieces - 1) // pieces, matrices if pieces > 1 else 0
    return Half(block, entry, kept, round(workspace), round(recomputed), matrices, pieces, undivided, sums)


def head_at_work(config: Config, counts: HeadCounts, half: Half) -> int:
    """The final norm, the logits and their cross-entropy, with the gradient of the last half, in bytes."""
    model, step = config.model, config.step
    compute = WIDTHS[step.precision].compute
    positions = step.batch * step.effective_window * model.seq
    logits, array = positions * model.vocabulary * WIDE, positions * model.hidden * WIDE
    recomputes = step.activation_checkpointing
    pieces = half.pieces if recomputes else 1
    # Rows that do not fold in thirty-twos are copied once more.
    copies = 1.0 if compute != WIDE and model.vocabulary % FOLD else 0.0
    early = (counts.early_logits + copies) * logits + counts.early_arrays * array
    # Its first arrays, sums over the logits (folded), and the last half's output in pieces and joined.
    early += counts.early_hidden * positions * model.ffn * WIDE / pieces
    early += 3 * FOLD * positions * WIDE + (half.entry if pieces > 1 else 0)
    late = (_late_logits(counts, recomputes, pieces) + copies) * logits
    late += (counts.late_arrays_recomputed if recomputes else counts.late_arrays) * array
    # The gradient of the table, and in bfloat16 its float32 copies.
    table = model.vocabulary * model.hidden * WIDE * (1 if compute == WIDE else 3)
    own = half.entry if recomputes else half.kept
    return round(table + max(own + early, late + half.at_work(recomputes, is_last=True)))


def _late_logits(counts: HeadCounts, recomputes: bool, pieces: int) -> float:
    if not recomputes:
        return counts.late_logits
    return max(_LEAST_LATE_LOGITS, counts.late_logits_recomputed - counts.late_logits_per_piece * pieces)


def _matrix_bytes(config: Config, backend: Backend, numbers: int, pieces: int) -> int:
    widths = WIDTHS[config.step.precision]
    if widths.compute == WIDE:
        return numbers * widths.gradients
    if backend != "cpu":
        return numbers * (widths.compute + widths.gradients)
    # In float32 both; and the gradient once more in bfloat16, where a cast is not part of the sum's own kernel.
    is_cast_apart = widths.weights != WIDE or (config.step.activation_checkpointing and pieces == 1)
    return numbers * (2 * WIDE + (widths.compute if is_cast_apart else 0))
