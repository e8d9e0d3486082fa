"""The points (bytes seen, or seconds) at which runs are compared, and how they stand there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mlx_amort.compare.curves import Curve

MOST_POINTS = 6
TRAINING_WINDOW = 0.05
"""A training loss is the mean of the steps within this share of the shared range on either side of a point."""

Figures = tuple[float | None, ...]
"""One figure for each run; None for a run that has none there."""


@dataclass(frozen=True)
class ComparisonPoint:
    """Every run's bits per byte at one point, and its relative difference to the first run's."""

    at: float
    bits: Figures
    relative: Figures


def shared_points(curves: Sequence[Curve], by: str) -> list[float]:
    """At most six validations of any run, spread over the range that all runs share; none without one."""
    axes = [curve.axis(by) for curve in curves]
    if not all(axes):
        return []
    low, high = max(axis[0] for axis in axes), min(axis[-1] for axis in axes)
    inside = sorted({point for axis in axes for point in axis if low <= point <= high})
    if len(inside) <= MOST_POINTS:
        return inside
    wanted = np.linspace(low, high, MOST_POINTS)
    return sorted({min(inside, key=lambda point: abs(point - near)) for near in wanted})


def compare_at(curves: Sequence[Curve], by: str, at: float, is_comparable: Sequence[bool]) -> ComparisonPoint:
    """How runs' validations stand at one point; no difference to the first where a run is of other corpora."""
    return _point(at, tuple(curve.at(by, at) for curve in curves), is_comparable)


def compare_training(curves: Sequence[Curve], is_comparable: Sequence[bool]) -> tuple[ComparisonPoint, ...]:
    """How runs' training losses stand at even steps through the bytes that all have seen; none where one is unknown."""
    if not all(curve.training.bytes for curve in curves):
        return ()
    low = max(curve.training.bytes[0] for curve in curves)
    high = min(curve.training.bytes[-1] for curve in curves)
    if low > high:
        return ()
    # At least as far as from one step to the next, so that a short run has a step there.
    gaps = (curve.training.bytes[-1] / len(curve.training.bytes) for curve in curves)
    reach = max(TRAINING_WINDOW * (high - low), *gaps)
    wanted = np.linspace(low, high, MOST_POINTS + 1)[1:] if low < high else np.array([low])
    return tuple(
        _point(
            float(at), tuple(curve.training.mean(at - reach, at + reach) for curve in curves), is_comparable
        )
        for at in wanted
    )


def _point(at: float, bits: Figures, is_comparable: Sequence[bool]) -> ComparisonPoint:
    first = bits[0]
    relative = tuple(
        own / first - 1 if own is not None and first and has_same else None
        for own, has_same in zip(bits, is_comparable, strict=True)
    )
    return ComparisonPoint(at, bits, relative)
