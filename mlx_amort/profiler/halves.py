"""What half a block keeps for the backward pass and works with in it, in bytes; arithmetic only (docs/memory.md).

A block is a mixer and a feed-forward. The forward pass leaves what each keeps; the backward pass takes the halves
from the last to the first, and a half's workspace is gone before the next one's begins (ops/accumulation.py).

Legend: R = B·W rows of a window, L = S bytes or N slots, H width, F feed-forward width, h heads, d = H/h.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from mlx_amort.config import Config

Backend = Literal["cpu", "metal", "cuda"]
BlockKind = Literal["attention", "recurrent"]

WIDE: Final = 4
"""Bytes of float32."""
# As in ops/attention.py and ops/linear_attention.py, which load mlx.
QUERY_BLOCK: Final = {"cpu": 128, "metal": 256, "cuda": 0}
SUB_CHUNK: Final = 64
_TAIL: Final = 3


@dataclass(frozen=True)
class Half:
    """One half of a block, in bytes.

    entry: its input, all that is kept of it when it is recomputed. kept: what is kept when it is not, the input too.
    workspace: what its own gradient holds at most, beside what is kept. again: what recomputing adds to that.
    """

    block: BlockKind
    entry: int
    kept: int
    workspace: int
    again: int = 0


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
    return [mixer(config, backend, rows, length), _feed_forward(config, backend, kind, rows * length)]


def _attention(config: Config, backend: Backend, rows: int, length: int) -> Half:
    """Kept: x, u = rms(x), q k v, out, out with its heads joined; row statistics in float32."""
    model, compute = config.model, widths_of(config.step.precision).compute
    positions, width = rows * length, model.hidden
    one, wide = positions * width * compute, positions * width * WIDE
    kept = 7 * one + positions * (1 + model.heads) * WIDE
    # q, k, v and their shifted copies, the cotangents, dq dk dv: 14 arrays while the first tiles are at work, 23
    # once the last is. Two blocks of queries are allocated at a time, so of two the first is the last as well.
    block = QUERY_BLOCK[backend]
    tile = rows * model.heads * block * WIDE
    first = 3 * tile * (length + max(0, length - block))
    last = 3 * tile * min(length, block)
    workspace = 23 * wide + first if length <= 2 * block else max(14 * wide + first, 23 * wide + last)
    return Half("attention", one, kept, workspace + _matrix_bytes(config, backend, 4 * width * width))


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
    arrays = 28.5 if compute == WIDE else 30.5
    workspace = round(arrays * wide) + 7 * scores + 5 * states
    matrices = _matrix_bytes(config, backend, (5 * width + model.heads) * width)
    return Half("recurrent", one, kept, workspace + matrices, round(4.5 * wide))


def _feed_forward(config: Config, backend: Backend, block: BlockKind, positions: int) -> Half:
    """Kept: x, n = rms(x), and up n, of which GELU is computed again."""
    model, compute = config.model, widths_of(config.step.precision).compute
    one, wide = positions * model.hidden * compute, positions * model.hidden * WIDE
    hidden = positions * model.ffn * compute
    kept = 2 * one + hidden + positions * WIDE
    if compute == WIDE or backend != "cpu":
        workspace, again = 3 * hidden + 4.5 * wide, 0.0
    else:
        # Every operand and result of a product also in float32, for the CPU multiplies nothing else fast.
        workspace, again = 7 * positions * model.ffn * WIDE + 7.5 * wide, 2.5 * wide
    matrices = _matrix_bytes(config, backend, 2 * model.hidden * model.ffn)
    return Half(block, one, kept, round(workspace) + matrices, round(again))


def head_workspace(config: Config, backend: Backend) -> int:
    """Final norm, logits and cross-entropy in both directions, before the last block's gradient is through."""
    model, widths = config.model, widths_of(config.step.precision)
    positions = config.step.batch * config.step.effective_window * model.seq
    logits = 6 * WIDE + (2 * widths.compute if widths.compute < WIDE else 0)
    hidden = 4 * WIDE + (widths.compute if widths.compute < WIDE else 0)
    return positions * (logits * model.vocabulary + hidden * model.hidden)


def _matrix_bytes(config: Config, backend: Backend, numbers: int) -> int:
    """Gradients of a half's matrices before they are added up, and the matrices in the compute dtype."""
    widths = widths_of(config.step.precision)
    if widths.compute == WIDE:
        return numbers * widths.gradients
    return numbers * (2 * WIDE if backend == "cpu" else widths.compute + widths.gradients)
