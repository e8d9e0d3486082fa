"""The residuals of a profile's fit."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes

from mlx_amort.plots.configurations import (
    CostPoint,
    Record,
    colour_of,
    fitted_model_of,
    held_out_of,
    origin_of,
)
from mlx_amort.plots.figure import INK, add_legend, drawing, set_labels
from mlx_amort.plots.lettering import binary_bytes


def residuals(record: Record, path: Path) -> None:
    """Every point's error, fitted and left out, one line per configuration; held-out predictions below them.

    record: a profile's, with its cost model. Rows are ordered by optimizer, then by bytes per step.
    """
    model, held_out = fitted_model_of(record), held_out_of(record)
    fitted = sorted(model.points, key=lambda point: (point.optimizer, point.bytes_per_step, point.name))
    # The first row of the list stands at the top.
    rows = [*fitted, *sorted(held_out, key=lambda point: (point.optimizer, point.bytes_per_step))][::-1]
    with drawing(path, 7.2, 2.2 + 0.25 * len(rows), title=origin_of(record)) as (figure, (axis,)):
        axis.axvline(0, color=INK, linewidth=1.0)
        _add_labels(axis, bool(held_out))
        for place, point in enumerate(rows):
            if place < len(held_out):
                _draw(axis, 100 * (point.relative_error or 0.0), place, "D", INK, False)
            else:
                _draw_fitted(axis, point, place)
        axis.set_yticks(range(len(rows)), [_name(point) for point in rows])
        for tick, point in zip(axis.get_yticklabels(), rows, strict=True):
            tick.set_color(colour_of(point.optimizer))
        axis.set_ylim(-0.6, len(rows) - 0.4)
        if held_out:
            axis.axhline(len(held_out) - 0.5, color=INK, linewidth=0.6)
        reach = max(1.0, 1.15 * max(abs(bound) for bound in axis.get_xlim()))
        axis.set_xlim(-reach, reach)
        axis.grid(True, axis="y", color="#F0F0F0")
        title = (
            f"How far the cost model is off: at most {model.largest_error:.1%} fitted, "
            f"{model.left_out_error:.1%} left out"
        )
        set_labels(
            axis,
            title,
            "(predicted − measured) / measured, %",
            "ordered by optimizer, then by bytes per step T",
        )
        add_legend(figure, [axis])


def _draw_fitted(axis: Axes, point: CostPoint, place: int) -> None:
    colour, fitted = colour_of(point.optimizer), 100 * (point.relative_error or 0.0)
    if point.left_out_error is not None:
        left_out = 100 * point.left_out_error
        axis.plot([fitted, left_out], [place, place], color=colour, linewidth=1.0)
        _draw(axis, left_out, place, "o", colour, False)
    _draw(axis, fitted, place, "o", colour, True)


def _add_labels(axis: Axes, has_held_out: bool) -> None:
    marks = [("o", INK, "fitted"), ("o", "white", "left out of the fit")]
    for marker, face, label in [
        *marks,
        *([("D", "white", "held out: predicted, then measured")] * has_held_out),
    ]:
        axis.plot(
            [], [], marker, color=INK, markerfacecolor=face, markersize=6, linestyle="none", label=label
        )


def _draw(axis: Axes, x: float, place: int, marker: str, colour: str, is_filled: bool) -> None:
    face, size = (colour, 5.0) if is_filled else ("white", 6.5)
    axis.plot(x, place, marker, color=colour, markerfacecolor=face, markersize=size, linestyle="none")


def _name(point: CostPoint) -> str:
    return f"{point.optimizer}  {point.name}  T {binary_bytes(point.bytes_per_step)}"
