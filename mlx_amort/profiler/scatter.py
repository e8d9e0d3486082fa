"""Whether measurements agree: samples of one row, and rows of one configuration."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from mlx_amort.profiler.rows import Row

# Width of the middle half of the samples over their median, above which the median is not to be trusted.
LARGEST_SPREAD = 0.2


def spread_of(samples_s: Sequence[float]) -> float:
    """Interquartile range over median; 0 for a single sample."""
    if len(samples_s) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(samples_s, n=4, method="inclusive")
    return (high - low) / middle


def scatter_of(rows: Sequence[Row]) -> float | None:
    """How far measuring again differs, relatively: what is larger of two, None where neither is known.

    The median row's spread of samples, and how far the slowest repeat of a configuration is from its fastest.
    """
    known = [spread_of(row.samples_s) for row in rows if len(row.samples_s) > 1]
    drift = drift_of(rows)
    found = ([statistics.median(known)] if known else []) + ([] if drift is None else [drift])
    return max(found, default=None)


def drift_of(rows: Sequence[Row]) -> float | None:
    """How far the slowest repeat of a configuration is from its fastest, relatively; None without repeats."""
    repeats: dict[Row, list[float]] = {}
    for row in rows:
        if row.step_s is not None:
            bare = Row(row.batch, row.chunks, row.seq, row.optimizer, None, row.window, row.accum)
            repeats.setdefault(bare, []).append(row.step_s)
    return max((max(times) / min(times) - 1 for times in repeats.values() if len(times) > 1), default=None)


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
