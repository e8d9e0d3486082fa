"""Whether measurements agree: samples of one row, and rows of one configuration."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

from mlx_amort.cost.configuration import Configuration, Measurement

# Width of the middle half of the samples over their median, above which the median is not to be trusted.
LARGEST_SPREAD = 0.2
# So many configurations have a median.
_FEW = 3


def spread_of(samples_s: Sequence[float]) -> float:
    """Interquartile range over median; 0 for a single sample."""
    if len(samples_s) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(samples_s, n=4, method="inclusive")
    return (high - low) / middle


def visits_of(rows: Sequence[Measurement]) -> list[list[Measurement]]:
    """The measured rows of each configuration, in their order."""
    visits: dict[Configuration, list[Measurement]] = {}
    for row in rows:
        if row.step_s is not None:
            visits.setdefault(row.configuration, []).append(row)
    return list(visits.values())


def fastest_of(visits: Sequence[Measurement]) -> Measurement:
    """Other programs make a step slower and never faster: the fastest visit is the machine's own time."""
    return min(visits, key=_step_s)


def slower_visits(rows: Sequence[Measurement]) -> list[tuple[Measurement, float]]:
    """Every row that is not the fastest of its configuration, with how much slower it was, relatively."""
    slower = []
    for visits in visits_of(rows):
        fastest = fastest_of(visits)
        slower += [(row, _step_s(row) / _step_s(fastest) - 1) for row in visits if row is not fastest]
    return slower


def scatter_of(rows: Sequence[Measurement]) -> float | None:
    """How far measuring again differs, relatively: what is larger of two, None where neither is known.

    The median row's spread of samples, and by how much the slowest visit of a configuration exceeds its fastest, the
    median over configurations where three or more were visited again.
    """
    spreads = [spread_of(row.samples_s) for row in rows if len(row.samples_s) > 1]
    excesses = [max(times) / min(times) - 1 for times in _times_of_repeats(rows)]
    found = [statistics.median(spreads)] if spreads else []
    if excesses:
        found.append(statistics.median(excesses) if len(excesses) >= _FEW else max(excesses))
    return max(found, default=None)


def drift_of(rows: Sequence[Measurement]) -> float | None:
    """How far the machine has changed while `rows`, in their order, were measured; None without repeats.

    The median of last visit over first, where three or more configurations were visited again: a machine that is
    slow for a while does not move it. With fewer, how far the slowest visit is from the fastest.
    """
    repeats = _times_of_repeats(rows)
    if len(repeats) >= _FEW:
        return abs(statistics.median(times[-1] / times[0] for times in repeats) - 1)
    return max((max(times) / min(times) - 1 for times in repeats), default=None)


def disturbance_of(rows: Sequence[Measurement]) -> float:
    """What other programs cost on average: mean sample over the fastest visit, the mean over configurations.

    Of those visited again, which show it; 1 without any. A long run meets what the visits met.
    """
    shares = []
    for visits in visits_of(rows):
        samples = [statistics.fmean(row.samples_s or [_step_s(row)]) for row in visits]
        if len(visits) > 1:
            shares.append(statistics.fmean(samples) / _step_s(fastest_of(visits)))
    return statistics.fmean(shares) if shares else 1.0


def _times_of_repeats(rows: Sequence[Measurement]) -> list[list[float]]:
    return [[_step_s(row) for row in visits] for visits in visits_of(rows) if len(visits) > 1]


def _step_s(row: Measurement) -> float:
    assert row.step_s is not None
    return row.step_s


def measure_settled(measure: Callable[[], Measurement], on_spread: Callable[[float], None]) -> Measurement:
    """What `measure` gives, measured once more if its samples spread; of two that do the steadier, flagged.

    The samples of the one that is not taken are kept as `discarded_samples_s`.
    """
    first = measure()
    if first.step_s is None or spread_of(first.samples_s) <= LARGEST_SPREAD:
        return first
    on_spread(spread_of(first.samples_s))
    again = measure()
    if again.step_s is None:
        return replace(first, status="scattered")
    steadier, other = sorted((again, first), key=lambda one: spread_of(one.samples_s))
    status = "scattered" if spread_of(steadier.samples_s) > LARGEST_SPREAD else "ok"
    return replace(steadier, status=status, discarded_samples_s=other.samples_s)
