"""Boundaries against patch slots: a boundary without a slot starts no patch of its own.

In UTF-8 every character outside ASCII begins with a boundary byte, so scripts without spaces have one for each
character, where a slot is meant for a word. Such a text loses slots whatever its rule.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from mlx_amort.config.model import BoundaryRule, ModelConfig
from mlx_amort.data.corpus import Corpus
from mlx_amort.data.parts import Units
from mlx_amort.ops.boundary_class import BOUNDARY_CLASS

# From here on a note says so: Chinese has a quarter of its boundaries without a slot, English and code next to none.
LARGE_SHARE = 0.1
SMALL_SHARE = 0.05
# What is looked at to tell it before a run, in some tens of milliseconds.
LOOKS = 8
LOOK_UNITS = 1 << 17


class Shares(TypedDict):
    """How the boundaries of a text meet the slots of its chunks."""

    chunks: int
    density: float
    overflow_share: float
    unslotted_share: float


class Tally:
    """Boundaries against slots, summed over chunks."""

    def __init__(self) -> None:
        self.chunks = self.overflowing = self.boundaries = self.unslotted = 0

    def add(self, boundaries: npt.NDArray[np.int64], slots: int) -> None:
        """Count chunks with so many boundaries each. Shapes: [chunks]."""
        self.chunks += len(boundaries)
        self.overflowing += int((boundaries > slots).sum())
        self.boundaries += int(boundaries.sum())
        self.unslotted += int(np.maximum(boundaries - slots, 0).sum())

    def shares(self, seq: int) -> Shares:
        """Return density = boundaries / bytes, and the shares of chunks and boundaries that find no slot."""
        return {
            "chunks": self.chunks,
            "density": self.boundaries / (self.chunks * seq),
            "overflow_share": self.overflowing / self.chunks,
            "unslotted_share": self.unslotted / self.boundaries,
        }


def is_boundary(chunks: Units, rule: str) -> npt.NDArray[np.bool_]:
    """Mark every boundary of each chunk, or by rule `first` only the first of a run; byte 0 is always one.

    Shapes: [chunks, S] -> [chunks, S].
    """
    in_class: npt.NDArray[np.bool_] = BOUNDARY_CLASS[chunks]
    marked: npt.NDArray[np.bool_] = in_class.copy()
    if rule == "first":
        marked[:, 1:] &= ~in_class[:, :-1]
    marked[:, :1] = True
    return marked


def warn_of_slots(corpus: Corpus, model: ModelConfig) -> str | None:
    """Say what share of a corpus's boundaries has no slot in this model, and what helps; None below LARGE_SHARE."""
    if not model.is_patched or corpus.dtype != "uint8" or corpus.units < model.seq:
        return None
    chunks = np.concatenate(list(_looks(corpus, model.seq)))
    found = _unslotted_share(chunks, model)
    if found < LARGE_SHARE:
        return None
    helps = " or ".join([*_settings_that_help(chunks, model), "model.trunk=recurrent, which has no slots"])
    return f"{found:.0%} of the boundaries of {corpus.name} get no slot; {helps}"


def _settings_that_help(chunks: Units, model: ModelConfig) -> Iterator[str]:
    first = replace(model, boundary_rule="first")
    if model.boundary_rule != "first" and (left := _unslotted_share(chunks, first)) < LARGE_SHARE:
        yield f"model.boundary_rule=first leaves {left:.0%}"
    strides = (stride for stride in range(model.patch_stride - 1, 0, -1) if model.seq % stride == 0)
    for stride in strides:
        left = _unslotted_share(chunks, replace(model, patch_stride=stride))
        if left < SMALL_SHARE or stride == 1:
            yield f"model.patch_stride={stride} leaves {left:.0%}"
            return


def _unslotted_share(chunks: Units, model: ModelConfig) -> float:
    tally = Tally()
    rule: BoundaryRule = model.boundary_rule
    tally.add(is_boundary(chunks, rule).sum(axis=1), model.slots)
    return tally.shares(model.seq)["unslotted_share"]


def _looks(corpus: Corpus, seq: int) -> Iterator[Units]:
    look_units = min(max(1, LOOK_UNITS // seq), corpus.units // seq) * seq
    for start in np.unique(np.linspace(0, corpus.units - look_units, LOOKS).astype(np.int64)):
        yield corpus.read_as_filed(int(start), look_units).reshape(-1, seq)
