"""The held-out bytes in a fixed layout: a few long streams per corpus, walked chunk by chunk.

The tail of a corpus is cut into `rows` contiguous streams that overlap by one unit: the last of a stream is
what the first target of the next is predicted from. So every held-out unit but the first of a corpus, which
has nothing held out before it, is a target exactly once, and a state can be carried along each stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mlx_amort.data.corpus import Corpus
from mlx_amort.data.parts import Units


class ValidationChunk(NamedTuple):
    """One chunk of every stream of a corpus.

    Shapes: tokens [B, S + 1], inputs and targets overlapping by one; is_counted [B, S], whether target
    tokens[:, 1:] is a held-out unit and not padding. Padding stands only at the end of a stream.
    `is_start`: every row begins a stream here, so its state is zero; else it continues from the chunk before.
    """

    tokens: Units
    is_counted: npt.NDArray[np.bool_]
    is_start: bool
    corpus_index: int


def validation_streams(corpora: Sequence[Corpus], rows: int, seq: int) -> Iterator[ValidationChunk]:
    """Walk the whole validation part of all corpora, one corpus after the other."""
    for corpus_index, corpus in enumerate(corpora):
        targets = validation_targets([corpus])
        row_targets = _ceil_divide(targets, rows)
        for offset in range(0, row_targets, seq):
            tokens: Units = np.zeros((rows, seq + 1), corpus.dtype)
            is_counted = np.zeros((rows, seq), np.bool_)
            for row in range(rows):
                start = row * row_targets + offset
                count = min(seq, row_targets - offset, targets - start)
                if count > 0:
                    tokens[row, : count + 1] = corpus.read(corpus.train_units + start, count + 1)
                    is_counted[row, :count] = True
            yield ValidationChunk(tokens, is_counted, offset == 0, corpus_index)


def validation_targets(corpora: Sequence[Corpus]) -> int:
    """Return how many units `validation_streams` counts: every held-out one but the first of each corpus."""
    return sum(corpus.validation_units - 1 for corpus in corpora)


def validation_chunks(corpora: Sequence[Corpus], rows: int, seq: int) -> int:
    """Return how many chunks `validation_streams` yields."""
    row_targets = (_ceil_divide(validation_targets([corpus]), rows) for corpus in corpora)
    return sum(_ceil_divide(targets, seq) for targets in row_targets)


def _ceil_divide(number: int, divisor: int) -> int:
    return -(-number // divisor)
