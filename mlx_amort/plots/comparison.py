"""Runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from mlx_amort.plots.figure import COLOURS, DASHED, INK, add_legend, drawing, running, set_labels
from mlx_amort.plots.lettering import PrefixFormatter, drawable


@dataclass(frozen=True)
class RunCurve:
    """One run as it is drawn: its validations, and its training loss where it is known.

    Units: bytes seen, bits per byte, seconds of training (empty: unknown).
    """

    name: str
    bytes: Sequence[float]
    val_bits: Sequence[float]
    seconds: Sequence[float] = ()
    training_bytes: Sequence[float] = ()
    training_bits: Sequence[float] = ()
    training_seconds: Sequence[float] = ()


def compare(runs: Sequence[RunCurve], path: Path, quality_bits: float | None, unit: str = "byte") -> None:
    """Validation curves of runs against bytes seen and, where they are known, against seconds of training.

    Behind them, faintly, the training loss. A run that was validated once has its value in the legend and a line at its
    level. quality_bits: the best quality that all of them reach, drawn across; None where they cannot be compared.
    """
    timed = [run for run in runs if len(run.seconds)]
    with drawing(path, 11.0 if timed else 6.4, 4.9, panels=2 if timed else 1) as (figure, axes):
        for index, run in enumerate(runs):
            _draw_run(axes[0], run, index, run.bytes, run.training_bytes)
            if len(run.seconds):
                _draw_run(axes[1], run, index, run.seconds, run.training_seconds)
        for axis in axes:
            if quality_bits is not None:
                label = f"reached by all: {quality_bits:.3f}"
                axis.axhline(quality_bits, color=INK, linewidth=1.0, linestyle=DASHED, label=label)
            axis.set_xlim(0, None)
            axis.xaxis.set_major_formatter(PrefixFormatter())
            axis.set_ylim(*_limits(runs, quality_bits))
        set_labels(axes[0], f"At equal {unit}s", f"{unit}s seen", f"validation, bits per {unit}")
        if timed:
            set_labels(axes[1], "At equal seconds", "seconds of training", f"validation, bits per {unit}")
        add_legend(figure, axes, columns=3 if timed else 2)


def _draw_run(axis: Axes, run: RunCurve, index: int, x: Sequence[float], training_x: Sequence[float]) -> None:
    colour, line = COLOURS[index % len(COLOURS)], "-" if index < len(COLOURS) else "--"
    name = drawable(run.name)
    if len(training_x):
        x_smooth, smooth = running(np.asarray(training_x), np.asarray(run.training_bits), np.nanmean)
        axis.plot(x_smooth, smooth, color=colour, linewidth=0.9, alpha=0.3)
        axis.plot([], [], color=INK, linewidth=0.9, alpha=0.3, label="training, smoothed")
    if len(x) > 1:
        axis.plot(x, run.val_bits, f"o{line}", color=colour, markersize=4, linewidth=1.5, label=name)
        return
    bits = run.val_bits[0]
    axis.axhline(bits, color=colour, linewidth=0.8, linestyle=(0, (1, 3)))
    label = f"{name}: one validation, {bits:.3f}"
    axis.plot(x, run.val_bits, "D", color=colour, markersize=7, linestyle="none", label=label)


def _limits(runs: Sequence[RunCurve], quality_bits: float | None) -> tuple[float, float]:
    """All validations, and of the training loss what lies after the fall of its first tenth."""
    shown = [bits for run in runs for bits in run.val_bits]
    shown += [] if quality_bits is None else [quality_bits]
    for run in runs:
        _, smooth = running(np.asarray(run.training_bytes), np.asarray(run.training_bits), np.nanmean)
        shown += [bits for bits in smooth[len(smooth) // 10 :] if np.isfinite(bits)]
    low, high = min(shown), max(shown)
    room = max(0.08 * (high - low), 0.02)
    return max(0.0, low - room), high + room
