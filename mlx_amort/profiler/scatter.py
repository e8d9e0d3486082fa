"""Whether measurements agree: samples of one row, and rows of one configuration."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from mlx_amort.profiler.rows import Row

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


def scatter_of(rows: Sequence[Row]) -> float | None:
    """How far measuring again differs, relatively: what is larger of two, None where neither is known.

    The median row's spread of samples, and by how much the slowest visit of a configuration exceeds its fastest, the
    median over configurations where three or more were visited again.
    """
    spreads = [spread_of(row.samples_s) for row in rows if len(row.samples_s) > 1]
    excesses = [max(times) / min(times) - 1 for times in _visits(rows).values() if len(times) > 1]
    found = [statistics.median(spreads)] if spreads else []
    if excesses:
        found.append(statistics.median(excesses) if len(excesses) >= _FEW else max(excesses))
    return max(found, default=None)


def drift_of(rows: Sequence[Row]) -> float | None:
    """How far the machine has changed while `rows`, in their order, were measured; None without repeats.

    The median of last visit over first, where three or more configurations were visited again: a machine that is
    slow for a while does not move it. With fewer, how far the slowest visit is from the fastest.
    """
    visits = [times for times in _visits(rows).values() if len(times) > 1]
    if len(visits) >= _FEW:
        return abs(statistics.median(times[-1] / times[0] for times in visits) - 1)
    return max((max(times) / min(times) - 1 for times in visits), default=None)


def fastest_visits(rows: Sequence[Row]) -> tuple[list[Row], list[tuple[Row, float]]]:
    """The fastest row of every configuration, and the others with how much slower they were, relatively.

    Other programs make a step slower and never faster: the fastest of several visits is the machine's own time.
    """
    best: dict[Row, int] = {}
    for index, row in enumerate(rows):
        known = rows[best.setdefault(row.bare, index)]
        if (row.step_s or 0) < (known.step_s or 0):
            best[row.bare] = index
    chosen, slower = [], []
    for index, row in enumerate(rows):
        fastest = best[row.bare]
        if fastest == index:
            chosen.append(row)
        else:
            slower.append((row, (row.step_s or 0) / (rows[fastest].step_s or 1) - 1))
    return chosen, slower


def _visits(rows: Sequence[Row]) -> dict[Row, list[float]]:
    visits: dict[Row, list[float]] = {}
    for row in rows:
        if row.step_s is not None:
            visits.setdefault(row.bare, []).append(row.step_s)
    return visits


def measure_settled(
    measure: Callable[[], dict[str, Any]], on_scatter: Callable[[float], None]
) -> dict[str, Any]:
    """A row of `measure`, measured once more if its samples scatter; of two that do the steadier, flagged.

    The samples of the row that was not taken are kept as `discarded_samples_s`.
    """
    row = measure()
    if row["step_s"] is None or spread_of(row["samples_s"]) <= LARGEST_SPREAD:
        return row
    on_scatter(spread_of(row["samples_s"]))
    again = measure()
    if again["step_s"] is None:
        return {**row, "status": "scattered"}
    steadier, other = sorted((again, row), key=lambda one: spread_of(one["samples_s"]))
    status = "scattered" if spread_of(steadier["samples_s"]) > LARGEST_SPREAD else "ok"
    return {**steadier, "status": status, "discarded_samples_s": other["samples_s"]}
