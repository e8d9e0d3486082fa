"""Where runs are held against each other, and how they stand there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mlx_amort.compare.curves import Curve

MOST_PLACES = 6

Optional = tuple[float | None, ...]


@dataclass(frozen=True)
class Place:
    """Every run's quality at one place (bytes or seconds), and its relative difference to the first run's."""

    at: float
    val_bits: Optional
    relative: Optional


def shared_places(curves: Sequence[Curve], by: str) -> list[float]:
    """At most six validations of any run, spread over the range that all runs share; none without one."""
    axes = [curve.axis(by) for curve in curves]
    if not all(axes):
        return []
    low, high = max(axis[0] for axis in axes), min(axis[-1] for axis in axes)
    inside = sorted({place for axis in axes for place in axis if low <= place <= high})
    if len(inside) <= MOST_PLACES:
        return inside
    wanted = np.linspace(low, high, MOST_PLACES)
    return sorted({min(inside, key=lambda place: abs(place - near)) for near in wanted})


def place_of(curves: Sequence[Curve], by: str, at: float, is_comparable: Sequence[bool]) -> Place:
    """How runs stand at one place; no difference to the first where a run is of other corpora."""
    bits = tuple(curve.at(by, at) for curve in curves)
    first = bits[0]
    relative = tuple(
        own / first - 1 if own is not None and first and has_same else None
        for own, has_same in zip(bits, is_comparable, strict=True)
    )
    return Place(at, bits, relative)
