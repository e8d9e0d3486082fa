"""Loss and rate of a run, and runs side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from mlx_amort.plots.figure import (
    AMBER,
    BLUE,
    GREEN,
    GREY,
    INK,
    PURPLE,
    RED,
    Floats,
    Record,
    new_figure,
    save_figure,
    set_labels,
    thousands,
)


def loss_and_rate(
    rows: Sequence[Record],
    path: Path,
    zlib_bits: float | None = None,
    predicted_step_s: float | None = None,
    unit: str = "byte",
) -> None:
    """Two panels of a run: bits per byte (training, validation) and rate, both against bytes seen.

    rows: lines of metrics.jsonl; a training row has step, bytes (seen so far), loss_bits and step_s, a
    validation row bytes and val_bits. zlib_bits is drawn as the yardstick a user knows, predicted_step_s as
    the rate that was promised; unit is what they all count, byte or id.
    """
    training = [row for row in rows if row.get("loss_bits") is not None]
    validation = [row for row in rows if row.get("val_bits") is not None]
    figure, (losses, rates) = new_figure(11.0, 4.3, panels=2)
    seen = np.array([row["bytes"] for row in training], dtype=np.float64)
    bits = np.array([row["loss_bits"] for row in training], dtype=np.float64)
    losses.plot(seen, bits, color=BLUE, alpha=0.25, linewidth=0.8, label="training, each step")
    losses.plot(seen, _smooth(bits), color=BLUE, linewidth=1.6, label="training, smoothed")
    if validation:
        x, y = [row["bytes"] for row in validation], [row["val_bits"] for row in validation]
        losses.plot(x, y, "o", color=RED, markersize=5, label="validation", zorder=4)
        losses.annotate(
            f"{y[-1]:.3f}",
            (x[-1], y[-1]),
            (0, -15),
            textcoords="offset points",
            fontsize=9,
            color=RED,
            ha="center",
        )
    if zlib_bits is not None:
        losses.axhline(
            zlib_bits, color=GREY, linewidth=1.1, linestyle=(0, (5, 3)), label=f"zlib -9: {zlib_bits:.2f}"
        )
    lowest = min([*bits[np.isfinite(bits)], *(row["val_bits"] for row in validation)], default=0.0)
    losses.set_ylim(max(0.0, min([lowest, zlib_bits or lowest]) - 0.35), None)
    set_labels(losses, "What it learned", f"{unit}s seen", f"bits per {unit}")
    losses.legend(fontsize=9, frameon=False, loc="upper right")

    step_s = np.array([row["step_s"] for row in training], dtype=np.float64)
    # The difference needs two rows; a resumed or pruned log may skip steps, so it is divided by them.
    steps = np.array([row["step"] for row in training], dtype=np.float64)
    per_step = float(np.median(np.diff(seen) / np.diff(steps))) if len(seen) > 1 else float(seen.sum())
    speed = per_step / step_s
    rates.plot(seen, speed, color=GREEN, alpha=0.3, linewidth=0.8, label="each step")
    rates.plot(seen, per_step / _running_median(step_s), color=GREEN, linewidth=1.6, label="running median")
    if predicted_step_s is not None:
        promised = per_step / predicted_step_s
        label = f"predicted: {promised:,.0f} {unit}s/s"
        rates.axhline(promised, color=INK, linewidth=1.1, linestyle=(0, (5, 3)), label=label)
    rates.set_ylim(0, 1.25 * float(np.percentile(speed, 98)) if len(speed) else None)
    rates.yaxis.set_major_formatter(FuncFormatter(thousands))
    set_labels(rates, "How fast", f"{unit}s seen", f"rate ({unit}s/s)")
    rates.legend(fontsize=9, frameon=False, loc="lower right")
    for axis in (losses, rates):
        axis.xaxis.set_major_formatter(FuncFormatter(thousands))
        axis.set_xlim(0, 1.04 * float(seen[-1]) if len(seen) else 1)
    save_figure(figure, path)


def compare(runs: Sequence[Record], path: Path, quality_bits: float, unit: str = "byte") -> None:
    """Validation curves of runs against bytes seen and, where they are known, against seconds of training.

    runs: name, bytes, val_bits and seconds (None: unknown) of each, the first the one the others are held
    against. quality_bits: the best quality that all of them reach, drawn across.
    """
    timed = [run for run in runs if run["seconds"]]
    figure, axes = new_figure(11.0 if timed else 6.4, 4.5, panels=2 if timed else 1)
    colours = (BLUE, RED, GREEN, AMBER, PURPLE, GREY)
    panels: list[tuple[Axes, str, Sequence[Record]]] = [(axes[0], "bytes", runs)]
    if timed:
        panels.append((axes[1], "seconds", timed))
    for axis, by, drawn in panels:
        for run in drawn:
            place = list(runs).index(run)
            style = "-" if place < len(colours) else "--"
            colour, label = colours[place % len(colours)], run["name"] if by == "bytes" else None
            axis.plot(
                run[by], run["val_bits"], f"o{style}", color=colour, markersize=4, linewidth=1.5, label=label
            )
        axis.axhline(
            quality_bits,
            color=INK,
            linewidth=1.0,
            linestyle=(0, (5, 3)),
            label=f"reached by all: {quality_bits:.3f}" if by == "bytes" else None,
        )
        axis.set_xlim(0, 1.04 * max(run[by][-1] for run in drawn) or 1)
        axis.xaxis.set_major_formatter(FuncFormatter(thousands))
    set_labels(axes[0], f"At equal {unit}s", f"{unit}s seen", f"validation, bits per {unit}")
    if timed:
        set_labels(axes[1], "At equal seconds", "seconds of training", f"validation, bits per {unit}")
    figure.legend(fontsize=9, frameon=False, loc="outside lower center", ncols=3)
    save_figure(figure, path)


def _smooth(values: Floats) -> Floats:
    """Mean of a thirtieth of the run around each step, of what is finite: centred, it does not lag."""
    return _slide(np.where(np.isfinite(values), values, np.nan), np.nanmean)


def _running_median(values: Floats) -> Floats:
    return _slide(values, np.median)


def _slide(values: Floats, summary: Callable[[Floats], Any]) -> Floats:
    reach = max(1, len(values) // 60)
    windows = (values[max(0, i - reach) : i + reach + 1] for i in range(len(values)))
    return np.array([summary(window) if np.isfinite(window).any() else np.nan for window in windows])
