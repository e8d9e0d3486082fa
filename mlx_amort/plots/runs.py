"""Loss and rate of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from mlx_amort.plots.figure import (
    BLUE,
    DASHED,
    DOTTED,
    GREEN,
    GREY,
    INK,
    RED,
    Floats,
    add_legend,
    drawing,
    running,
    set_labels,
)
from mlx_amort.plots.lettering import PrefixFormatter

Row = Mapping[str, Any]

# The fall from 8 bits is left out of the loss's axis: it starts where this share of the run is over.
FALL_SHARE = 0.1


@dataclass(frozen=True)
class StepTimes:
    """Bytes seen after each step whose time counts, its rate and the predicted rate (NaN where none), by session."""

    seen: Floats
    rate: Floats
    predicted_rate: Floats
    session: Floats


def loss_and_rate(
    rows: Sequence[Row],
    path: Path,
    zlib_bits: float | None = None,
    predicted_step_s: float | None = None,
    unit: str = "byte",
    title: str = "",
    resumed_after: Sequence[int] = (),
) -> None:
    """Two panels of a run: bits per byte (training, validation) and rate, both against bytes seen.

    rows: lines of metrics.jsonl; a training row has step, bytes (seen so far), loss_bits and step_s, and may have
    predicted_s and `compiled` (then its time does not count); a validation row has bytes, val_bits, val_bytes, whole.
    zlib_bits is drawn as the yardstick a user knows; predicted_step_s is what the last session was promised, where its
    rows do not say; unit is what they all count, byte or id. resumed_after: steps after which the run was resumed.
    """
    steps = [row for row in rows if row.get("step_s") is not None]
    last_bytes = float(max((row["bytes"] for row in rows), default=1))
    starts = _session_starts(steps, resumed_after)
    with drawing(path, 11.0, 4.9, panels=2, title=title) as (figure, (losses, rates)):
        for axis in (losses, rates):
            axis.set_xlim(0, 1.03 * last_bytes)
            axis.xaxis.set_major_formatter(PrefixFormatter())
            _mark_resumes(axis, steps, starts)
        _draw_losses(losses, rows, zlib_bits, unit)
        _draw_rates(rates, _step_times(steps, starts, predicted_step_s), unit)
        set_labels(losses, "What it learned", f"{unit}s seen", f"bits per {unit}")
        set_labels(rates, "How fast", f"{unit}s seen", f"rate ({unit}s/s)")
        add_legend(figure, [losses, rates])


def _session_starts(steps: Sequence[Row], resumed_after: Sequence[int]) -> set[int]:
    """Indices of the first step of each session: the first of all, those after a resume, and where a forecast ends."""
    starts = {0}
    for index in range(1, len(steps)):
        before, own = steps[index - 1], steps[index]
        is_resumed = any(before["step"] <= step < own["step"] for step in resumed_after)
        # A session without a profile has no forecast until its first steps are over.
        has_lost_forecast = before.get("predicted_s") is not None and own.get("predicted_s") is None
        if is_resumed or has_lost_forecast:
            starts.add(index)
    return starts


def _mark_resumes(axis: Axes, steps: Sequence[Row], starts: set[int]) -> None:
    for index in sorted(starts - {0}):
        at = steps[index - 1]["bytes"]
        axis.axvline(at, color=INK, linewidth=0.9, linestyle=DOTTED, zorder=1, label="resumed")


def _draw_losses(axis: Axes, rows: Sequence[Row], zlib_bits: float | None, unit: str) -> None:
    training = [row for row in rows if row.get("loss_bits") is not None]
    seen = np.array([row["bytes"] for row in training], dtype=np.float64)
    bits = np.array([row["loss_bits"] for row in training], dtype=np.float64)
    bits[~np.isfinite(bits)] = np.nan
    axis.plot(seen, bits, color=BLUE, alpha=0.25, linewidth=0.8, label="training, each step")
    at, smooth = running(seen, bits, np.nanmean)
    axis.plot(at, smooth, color=BLUE, linewidth=1.6, label="training, smoothed")
    validation = [row for row in rows if row.get("val_bits") is not None]
    _draw_validations(axis, validation, unit)
    if zlib_bits is not None:
        label = f"zlib -9: {zlib_bits:.2f}"
        axis.axhline(zlib_bits, color=GREY, linewidth=1.1, linestyle=DASHED, label=label)
    values = np.array([row["val_bits"] for row in validation], dtype=np.float64)
    places = np.array([row["bytes"] for row in validation], dtype=np.float64)
    _limit_losses(axis, seen, bits, (places, values), (at, smooth), zlib_bits)


def _draw_validations(axis: Axes, validation: Sequence[Row], unit: str) -> None:
    """A curve for the text that was validated most often; rings for what else was validated, such as all of it."""
    by_text: dict[tuple[int, bool], list[Row]] = {}
    for row in validation:
        by_text.setdefault((row.get("val_bytes") or 0, bool(row.get("whole"))), []).append(row)
    ordered = sorted(by_text.items(), key=lambda item: (-len(item[1]), item[0]))
    for place, ((count, is_whole), own) in enumerate(ordered):
        over = f"{'all ' if is_whole else ''}{count:,} {unit}s" if count else f"held-out {unit}s"
        axis.plot(
            [row["bytes"] for row in own],
            [row["val_bits"] for row in own],
            "o-" if place == 0 else "o",
            color=RED,
            linewidth=1.0,
            markerfacecolor=RED if place == 0 else "none",
            markersize=4 if place == 0 else 6 + 3 * place,
            zorder=4,
            label=f"validation over {over}: {own[-1]['val_bits']:.3f}",
        )


def _limit_losses(
    axis: Axes,
    seen: Floats,
    bits: Floats,
    validation: tuple[Floats, Floats],
    smooth: tuple[Floats, Floats],
    zlib_bits: float | None,
) -> None:
    """From below the best figure to where the fall from 8 bits is over; what lies beyond is marked at the edge."""
    fall_ends_at = FALL_SHARE * max(seen, default=0.0)
    late = smooth[1][smooth[0] >= fall_ends_at]
    shown = np.concatenate([late, validation[1], [] if zlib_bits is None else [zlib_bits]])
    shown = shown[np.isfinite(shown)]
    if not len(shown):
        return
    low, high = float(np.nanmin([shown.min(), *bits[seen >= fall_ends_at]])), float(shown.max())
    room = max(0.12 * (high - low), 0.05)
    axis.set_ylim(max(0.0, low - room), high + 2 * room)
    _mark_beyond(axis, seen, bits, BLUE, "training")


def _mark_beyond(axis: Axes, x: Floats, y: Floats, colour: str, what: str) -> None:
    """Triangles at the upper edge for what lies above it, one for neighbours: no spike is cut off silently."""
    beyond = np.flatnonzero(y > axis.get_ylim()[1])
    if not len(beyond):
        return
    firsts = x[beyond[np.diff(beyond, prepend=-9) > 1]]
    largest = float(np.nanmax(y[beyond]))
    told = f"{largest:,.0f}" if largest >= 100 else f"{largest:.3g}"
    (line,) = axis.plot(
        firsts, np.full(len(firsts), 0.985), "^", color=colour, markersize=5, linestyle="none", zorder=5
    )
    line.set(transform=axis.get_xaxis_transform(), label=f"{what} above the panel, up to {told}")
    line.set_clip_on(False)


def _step_times(steps: Sequence[Row], starts: set[int], predicted_step_s: float | None) -> StepTimes:
    """The steps whose time counts: none that compiled, and not the first of a session, which always does."""
    seen = np.array([row["bytes"] for row in steps], dtype=np.float64)
    numbers = np.array([row["step"] for row in steps], dtype=np.float64)
    # A pruned log may leave steps out, so bytes are divided by steps.
    per_step = np.diff(seen, prepend=0.0) / np.maximum(np.diff(numbers, prepend=0.0), 1.0)
    session = np.array(
        [sum(start <= index for start in starts) for index in sorted(starts)], dtype=np.float64
    )
    session = np.repeat(session, np.diff([*sorted(starts), len(steps)])) if len(steps) else session[:0]
    predicted = np.array([row.get("predicted_s") or np.nan for row in steps], dtype=np.float64)
    if predicted_step_s is not None and len(steps):
        last = session == session[-1]
        predicted[last & np.isnan(predicted)] = predicted_step_s
    counts = [
        not row.get("compiled") and index not in starts and row["step_s"] > 0
        for index, row in enumerate(steps)
    ]
    kept = np.array(counts, dtype=bool)
    step_s = np.array([row["step_s"] for row in steps], dtype=np.float64)
    return StepTimes(seen[kept], (per_step / step_s)[kept], (per_step / predicted)[kept], session[kept])


def _draw_rates(axis: Axes, times: StepTimes, unit: str) -> None:
    axis.yaxis.set_major_formatter(PrefixFormatter())
    if not len(times.seen):
        axis.set_ylim(0, 1)
        axis.set_yticks([])
        axis.plot([], [], linestyle="none", label="no step yet that did not compile")
        return
    axis.plot(times.seen, times.rate, color=GREEN, alpha=0.3, linewidth=0.8, label="rate of each step")
    tops = []
    for number in np.unique(times.session):
        own = times.session == number
        at, median = running(times.seen[own], times.rate[own], np.median)
        axis.plot(at, median, color=GREEN, linewidth=1.6, label="rate, running median")
        tops.append(float(median.max()))
        promised = times.predicted_rate[own]
        if np.isfinite(promised).any():
            # A forecast from a session's first steps holds for these as well.
            rate = float(promised[np.isfinite(promised)][-1])
            ends = [times.seen[own][0], times.seen[own][-1]]
            which = f" in session {number:.0f}" if times.session[-1] > 1 else ""
            label = f"predicted{which}: {rate:,.0f} {unit}s/s"
            axis.plot(ends, [rate, rate], color=INK, linewidth=1.1, linestyle=DASHED, label=label)
            tops.append(rate)
    axis.set_ylim(0, 1.25 * max(tops))
    _mark_beyond(axis, times.seen, times.rate, GREEN, "rate")
