"""Which units of a corpus are held out for validation: its tail, or blocks spread evenly over it.

The tail of a folder is whatever comes last in the alphabet, perhaps one sub-package. Blocks come from
everywhere: the corpus is cut into as many equal strata as there are blocks, and each holds out one block at a
place that is drawn with a fixed seed. That seed is not the run's, so runs that differ in seed alone validate
on the same text, as do a run and its resumption.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mlx_amort.config.values import ValidationSplit

SPLIT_SEED = 0
MOST_BLOCKS = 64
# Where a block begins, the text before it is another one's; a block this long makes little of that.
LEAST_BLOCK_UNITS = 4096


class Stretch(NamedTuple):
    """Units [start, start + units) of a corpus, counted as its files stand."""

    start: int
    units: int


def held_out_stretches(units: int, validation_units: int, split: ValidationSplit) -> list[Stretch]:
    """Return the stretches that hold `validation_units` of a corpus in all, in order.

    Too little for two blocks, or more than half of the corpus, is its tail.
    """
    blocks = min(MOST_BLOCKS, validation_units // LEAST_BLOCK_UNITS)
    if split == "tail" or blocks < 2 or 2 * validation_units > units:
        return [Stretch(units - validation_units, validation_units)] if validation_units else []
    words = np.random.Philox(key=SPLIT_SEED).random_raw(blocks)
    stretches = []
    for block, word in enumerate(words):
        begin, end = block * units // blocks, (block + 1) * units // blocks
        length = (block + 1) * validation_units // blocks - block * validation_units // blocks
        stretches.append(Stretch(begin + (int(word) * (end - begin - length + 1) >> 64), length))
    return stretches


def training_stretches(units: int, held_out: list[Stretch]) -> list[Stretch]:
    """Return what lies before, between and after the stretches held out, in order."""
    begins = [0, *(stretch.start + stretch.units for stretch in held_out)]
    ends = [*(stretch.start for stretch in held_out), units]
    return [Stretch(begin, end - begin) for begin, end in zip(begins, ends, strict=True) if end > begin]
