"""What all figures share: a figure of one's own, its labels, axes and colours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from numpy.typing import NDArray

Record = Mapping[str, Any]
Floats = NDArray[np.float64]

# Okabe and Ito's colours stay apart for every kind of colour vision and in grey.
BLUE, RED, GREEN, AMBER, PURPLE, GREY = "#0072B2", "#D55E00", "#009E73", "#E69F00", "#AA4499", "#8A8A8A"
INK = "#222222"


def new_figure(width: float, height: float, panels: int = 1) -> tuple[Figure, list[Axes]]:
    # A Figure of one's own leaves matplotlib's global state, and so the caller's backend, untouched.
    figure = Figure(figsize=(width, height), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(np.atleast_1d(figure.subplots(1, panels)))
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=9, colors=INK)
        axis.grid(True, color="#E6E6E6", linewidth=0.7)
        axis.set_axisbelow(True)
    return figure, axes


def save_figure(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def set_labels(axis: Axes, title: str, x: str, y: str) -> None:
    axis.set_title(title, fontsize=11, loc="left", color=INK)
    axis.set_xlabel(x, fontsize=10, color=INK)
    axis.set_ylabel(y, fontsize=10, color=INK)


def thousands(value: float, _: int | None = None) -> str:
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:g}{unit}"
    return f"{value:g}"


def log_bytes(axis: Axes, sizes: Sequence[float]) -> None:
    """A logarithmic axis of bytes a step, with ticks at powers of two times 1000."""
    axis.set_xscale("log")
    low, high = min(sizes) / 1.35, max(sizes) * 1.6
    ticks = sorted({2.0**n * 1000 for n in range(-7, 10)} | {2.0**n * 1.024e6 for n in range(0, 11)})
    ticks = [tick for tick in ticks if low <= tick <= high]
    ticks = ticks[:: max(1, len(ticks) // 6)]
    axis.set_xlim(low, high)
    axis.xaxis.set_major_locator(FixedLocator(ticks))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(thousands))
