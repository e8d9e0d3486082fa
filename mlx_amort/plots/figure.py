"""What all figures share: a figure of our own, its labels, its axes and colours."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from numpy.typing import NDArray

from mlx_amort.plots.lettering import binary_bytes, drawable
from mlx_amort.plots.settings import own_settings

Floats = NDArray[np.float64]
Side = Literal["outside lower center", "outside right upper"]

# Okabe and Ito's colours stay apart for every kind of colour vision and in grey.
BLUE, RED, GREEN, AMBER, PURPLE, GREY = "#0072B2", "#D55E00", "#009E73", "#E69F00", "#AA4499", "#8A8A8A"
INK = "#222222"
COLOURS = (BLUE, RED, GREEN, AMBER, PURPLE, GREY)
DASHED, DOTTED = (0, (5, 3)), (0, (1.5, 1.8))
MOST_TICKS = 8
SMOOTHED_POINTS, SMOOTHED_SHARE = 400, 30
TICK_DIGITS = (
    (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8),
    (1, 1.5, 2, 3, 4, 6),
    (1, 2, 3, 5),
    (1, 2, 5),
    (1, 3),
    (1,),
)


@contextmanager
def drawing(
    path: Path, width: float, height: float, panels: int = 1, title: str = ""
) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure with panels side by side, under our own settings; it is saved when the block ends.

    Units: inches. Raises: OSError when the file cannot be written, ValueError for a kind of file that is unknown.
    """
    with own_settings():
        # A Figure of our own leaves pyplot's state, and so the caller's backend, untouched.
        figure = Figure(figsize=(width, height), dpi=160, layout="constrained")
        FigureCanvasAgg(figure)
        axes = list(np.atleast_1d(figure.subplots(1, panels)))
        for axis in axes:
            axis.spines[["top", "right"]].set_visible(False)
            axis.tick_params(labelsize=9, colors=INK)
            axis.grid(True, color="#E6E6E6", linewidth=0.7)
            axis.set_axisbelow(True)
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontsize=10, color=INK)
        yield figure, axes
        save_figure(figure, path)


def save_figure(figure: Figure, path: Path) -> None:
    """Draw in memory, then write: a figure that cannot be drawn leaves no file."""
    image = io.BytesIO()
    figure.savefig(image, format=path.suffix[1:].lower() or "png")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(image.getvalue())


def set_labels(axis: Axes, title: str, x: str, y: str) -> None:
    """Title and axis labels of a panel."""
    axis.set_title(title, fontsize=11, loc="left", color=INK)
    axis.set_xlabel(x, fontsize=10, color=INK)
    axis.set_ylabel(y, fontsize=10, color=INK)


def add_legend(
    figure: Figure, axes: Sequence[Axes], columns: int = 3, side: Side = "outside lower center"
) -> None:
    """One legend outside the panels, where it can lie on nothing; each label once."""
    entries: dict[str, Artist] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    if entries:
        figure.legend(
            list(entries.values()),
            list(entries),
            frameon=False,
            loc=side,
            ncols=columns,
            fontsize=9,
        )


def describe_origin(model: str, machine: str) -> str:
    """The title of a figure: what was run, and on what machine; what is empty is left out."""
    return "  ·  ".join(drawable(part) for part in (model, machine) if part)


def log_bytes(axis: Axes, sizes: Sequence[float]) -> None:
    """A logarithmic axis of bytes per step with ticks at powers of two."""
    axis.set_xscale("log", base=2)
    low, high = min(sizes) / 1.5, max(sizes) * 1.5
    axis.set_xlim(low, high)
    powers = range(int(np.ceil(np.log2(low))), int(np.floor(np.log2(high))) + 1)
    every = -(-len(powers) // MOST_TICKS)
    axis.xaxis.set_major_locator(FixedLocator([2.0**power for power in powers if power % every == 0]))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: binary_bytes(value)))


def log_values(axis: Axes, low: float, high: float) -> None:
    """A logarithmic y axis from low to high with round ticks, as many of each decade as fit."""
    axis.set_yscale("log")
    axis.set_ylim(low, high)
    decades = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    for digits in TICK_DIGITS:
        ticks = [digit * 10.0**decade for decade, digit in itertools.product(decades, digits)]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) <= MOST_TICKS:
            break
    axis.yaxis.set_major_locator(FixedLocator(ticks))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def running(x: Floats, values: Floats, summary: Callable[[Floats], Any]) -> tuple[Floats, Floats]:
    """A summary of a thirtieth of the values around at most SMOOTHED_POINTS of them: centred, it does not lag."""
    if not len(values):
        return x, values
    reach = max(1, len(values) // (2 * SMOOTHED_SHARE))
    places = np.unique(np.linspace(0, len(values) - 1, SMOOTHED_POINTS).astype(int))
    found = []
    for place in places:
        window = values[max(0, place - reach) : place + reach + 1]
        window = window[np.isfinite(window)]
        found.append(float(summary(window)) if len(window) else np.nan)
    return x[places], np.array(found, dtype=np.float64)
