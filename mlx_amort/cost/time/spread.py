"""Whether measurements agree: samples of one row, and rows of one configuration."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

from mlx_amort.cost.configuration import Configuration, Measurement
from mlx_amort.cost.time.diagnostics import THRESHOLDS, Thresholds

# Of so many configurations that were visited again the median distinguishes a machine's drift from one busy visit.
_FEWEST_FOR_DRIFT = 3


def spread_of(samples_s: Sequence[float]) -> float:
    """Interquartile range over median; 0 for a single sample."""
    if len(samples_s) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(samples_s, n=4, method="inclusive")
    return (high - low) / middle


def visits_of(rows: Sequence[Measurement]) -> list[list[Measurement]]:
    """The measured rows of each configuration, in their order; windows longer than the step are the step's."""
    visits: dict[Configuration, list[Measurement]] = {}
    for row in rows:
        if row.step_s is not None:
            key = replace(row.configuration, window=row.configuration.chunks_per_window)
            visits.setdefault(key, []).append(row)
    return list(visits.values())


def undisturbed_of(visits: Sequence[Measurement], thresholds: Thresholds = THRESHOLDS) -> Measurement:
    """The visit that shows the machine's own time: the fastest, for other programs make a step only slower.

    Not where it is an outlier: the next two agree with each other, and are much slower.
    """
    first, *others = sorted(visits, key=_step_s)
    if len(others) < 2:
        return first
    gap = _step_s(others[0]) / _step_s(first) - 1
    disagreement = _step_s(others[1]) / _step_s(others[0]) - 1
    is_outlier = gap > thresholds.lone_visit_gap and disagreement < thresholds.lone_visit_agreement
    return others[0] if is_outlier else first


def slower_visits(rows: Sequence[Measurement]) -> list[tuple[Measurement, float]]:
    """Every row that is slower than the fitted one of its configuration, with how much, relatively."""
    return [(row, excess) for row, excess in _unfitted(rows) if excess >= 0]


def lone_visits(rows: Sequence[Measurement]) -> list[tuple[Measurement, float]]:
    """Every row that is an outlier among its configuration's, with how much faster it was, relatively."""
    return [(row, -excess) for row, excess in _unfitted(rows) if excess < 0]


def _unfitted(rows: Sequence[Measurement]) -> list[tuple[Measurement, float]]:
    others = []
    for visits in visits_of(rows):
        fitted = undisturbed_of(visits)
        others += [(row, _step_s(row) / _step_s(fitted) - 1) for row in visits if row is not fitted]
    return others


def drift_of(rows: Sequence[Measurement]) -> float | None:
    """How far the machine has changed while `rows`, in their order, were measured.

    The median of last visit over first: a machine that is slow for a while does not move it. None where fewer than
    three configurations were visited again: one visit while another program ran would pass for a change.
    """
    repeats = [visits for visits in visits_of(rows) if len(visits) > 1]
    if len(repeats) < _FEWEST_FOR_DRIFT:
        return None
    return abs(statistics.median(_step_s(visits[-1]) / _step_s(visits[0]) for visits in repeats) - 1)


def disturbance_of(rows: Sequence[Measurement]) -> float:
    """What other programs cost on average: mean sample over the fitted visit, the mean over configurations.

    Of those visited again, which show it; 1 without any. A long run meets what the visits met.
    """
    shares = []
    for visits in visits_of(rows):
        samples = [statistics.fmean(row.samples_s or [_step_s(row)]) for row in visits]
        if len(visits) > 1:
            shares.append(statistics.fmean(samples) / _step_s(undisturbed_of(visits)))
    return statistics.fmean(shares) if shares else 1.0


def _step_s(row: Measurement) -> float:
    assert row.step_s is not None
    return row.step_s


def measure_settled(measure: Callable[[], Measurement], on_spread: Callable[[float], None]) -> Measurement:
    """What `measure` gives, measured once more if its samples spread; of two that do the steadier, flagged.

    The samples of the one that is not taken are kept as `discarded_samples_s`.
    """
    first = measure()
    if first.step_s is None or spread_of(first.samples_s) <= THRESHOLDS.largest_sample_spread:
        return first
    on_spread(spread_of(first.samples_s))
    again = measure()
    if again.step_s is None:
        return replace(first, status="scattered")
    steadier, other = sorted((again, first), key=lambda one: spread_of(one.samples_s))
    status = "scattered" if spread_of(steadier.samples_s) > THRESHOLDS.largest_sample_spread else "ok"
    return replace(steadier, status=status, discarded_samples_s=other.samples_s)
