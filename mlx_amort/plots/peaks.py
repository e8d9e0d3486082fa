"""Peak memory of a profile's rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from mlx_amort.plots.configurations import Peak, Record, origin_of, peaks_of
from mlx_amort.plots.figure import COLOURS, INK, add_legend, drawing, log_values, set_labels

# Muon round, AdamW square, and with checkpointing a triangle that stands on its tip.
_MARKERS = {"muon": "o", "adamw": "s", "muon, checkpointed": "v", "adamw, checkpointed": "<"}
_OTHER_MARKER = "D"
Fill = Literal["none", "left", "right", "bottom", "top", "full"]
_FILLS: tuple[Fill, ...] = ("none", "left", "right", "bottom", "top", "full")
MOST_BATCHES = 14
LOG_FROM = 8.0


def memory(record: Record, path: Path, estimates: Sequence[float | None] = ()) -> None:
    """Peak memory against rows B, a colour for each K, what did not fit, and the estimate beside the measured.

    record: a profile's. estimates: bytes by the memory estimate, one for each of its measurements, None where it has
    none. Points of one B and another K lie around each other: the peak of a window does not know K.
    """
    peaks = peaks_of(record, estimates)
    measured = [peak.measured_bytes for peak in peaks if peak.measured_bytes is not None]
    unit, unit_bytes = ("MB", 1e6) if max(measured, default=0.0) < 1e9 else ("GB", 1e9)
    with drawing(path, 7.4, 4.6, title=origin_of(record)) as (figure, (axis,)):
        chunk_counts = sorted({peak.chunks for peak in peaks})
        fills = _fills(peaks)
        for peak in peaks:
            _draw_measured(axis, peak, chunk_counts.index(peak.chunks), fills[peak.seq], unit_bytes)
        for seq, fill in fills.items():
            label = f"S = {seq}{' (open)' if fill == 'none' else ''}"
            _draw_mark(axis, np.nan, np.nan, INK, "o", 6, fill, label)
        for peak in peaks:
            _draw_estimate(axis, peak, unit_bytes)
        low, high = _limits(peaks, unit_bytes)
        if high > LOG_FROM * low:
            log_values(axis, low / 1.4, high * 1.9)
        else:
            axis.set_ylim(0, high * 1.2)
        _draw_refused(axis, [peak for peak in peaks if peak.measured_bytes is None])
        for index, chunks in enumerate(chunk_counts):
            axis.plot([], [], "o", color=COLOURS[index % len(COLOURS)], label=f"K = {chunks}")
        _set_rows_axis(axis, sorted({peak.batch for peak in peaks}))
        scale = ", log scale" if axis.get_yscale() == "log" else ""
        set_labels(axis, "Peak memory of a step", "rows, B (log scale)", f"peak memory ({unit}){scale}")
        add_legend(figure, [axis], columns=1, side="outside right upper")


def _fills(peaks: Sequence[Peak]) -> dict[int, Fill]:
    """How markers are filled by S: those of the S that most have are open."""
    lengths = [peak.seq for peak in peaks]
    ordered = sorted(set(lengths), key=lambda seq: (-lengths.count(seq), seq))
    return {seq: _FILLS[min(place, len(_FILLS) - 1)] for place, seq in enumerate(ordered)}


def _draw_measured(axis: Axes, peak: Peak, place: int, fill: Fill, unit_bytes: float) -> None:
    """A ring, the wider the larger K is: rings of equal peaks lie around each other."""
    if peak.measured_bytes is None:
        return
    marker, y = _MARKERS.get(peak.kind, _OTHER_MARKER), peak.measured_bytes / unit_bytes
    _draw_mark(axis, peak.batch, y, COLOURS[place % len(COLOURS)], marker, 4.5 + 2.5 * place, fill, "_")
    _draw_mark(axis, np.nan, np.nan, INK, marker, 6, "none", peak.kind)


def _draw_mark(
    axis: Axes, x: float, y: float, colour: str, marker: str, size: float, fill: Fill, label: str
) -> None:
    axis.plot(
        [x],
        [y],
        marker,
        color=colour,
        markersize=size,
        markeredgewidth=1.1,
        fillstyle=fill,
        markerfacecoloralt="none",
        linestyle="none",
        label=label,
    )


def _draw_estimate(axis: Axes, peak: Peak, unit_bytes: float) -> None:
    if peak.estimated_bytes is not None:
        y, label = peak.estimated_bytes / unit_bytes, "the estimate"
        axis.plot(
            peak.batch, y, "_", color=INK, markersize=15, markeredgewidth=0.8, linestyle="none", label=label
        )


def _limits(peaks: Sequence[Peak], unit_bytes: float) -> tuple[float, float]:
    found = [bytes_ for peak in peaks for bytes_ in (peak.measured_bytes, peak.estimated_bytes) if bytes_]
    return min(found, default=unit_bytes) / unit_bytes, max(found, default=unit_bytes) / unit_bytes


def _draw_refused(axis: Axes, refused: Sequence[Peak]) -> None:
    """A cross near the top of the panel for each B that did not fit, with its K beside it."""
    for batch in dict.fromkeys(peak.batch for peak in refused):
        chunks = ", ".join(str(count) for count in sorted({p.chunks for p in refused if p.batch == batch}))
        axis.plot(
            batch,
            0.94,
            "x",
            color=INK,
            markersize=8,
            markeredgewidth=1.8,
            linestyle="none",
            transform=axis.get_xaxis_transform(),
            label="did not fit",
        )
        axis.annotate(
            f"K {chunks}",
            (batch, 0.94),
            (0, -8),
            xycoords=axis.get_xaxis_transform(),
            textcoords="offset points",
            fontsize=8,
            color=INK,
            ha="center",
            va="top",
        )


def _set_rows_axis(axis: Axes, batches: Sequence[int]) -> None:
    axis.set_xscale("log")
    if batches:
        axis.set_xlim(batches[0] / 1.4, batches[-1] * 1.4)
    # Those that are far enough apart for their ticks to be read.
    shown: list[int] = []
    for batch in batches:
        if not shown or batch >= shown[-1] * (batches[-1] / batches[0]) ** (1 / MOST_BATCHES):
            shown.append(batch)
    axis.xaxis.set_major_locator(FixedLocator([float(batch) for batch in shown]))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
