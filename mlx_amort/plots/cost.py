"""The cost curve and the residuals of a profile's fit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from mlx_amort.plots.configurations import colour_of, key_of, short_name
from mlx_amort.plots.figure import (
    GREY,
    INK,
    Record,
    log_bytes,
    new_figure,
    save_figure,
    set_labels,
    thousands,
)


def cost_curve(record: Record, path: Path) -> None:
    """Two panels against bytes per step: step time with the fitted lines, and rate with the ceiling.

    record: profile.json with its cost model; its `chosen` configuration, when there is one, is ringed; its
    `holdout` is drawn as diamonds.
    """
    model, points = record["cost_model"], record["cost_model"]["points"]
    figure, (times, rates) = new_figure(11.0, 4.8, panels=2)
    sizes = [point["bytes_per_step"] for point in points]
    extent = (min(sizes), max(sizes))
    third_term, c1_s_per_byte = model["third_term"], model["c1_us_per_byte"] * 1e-6
    for optimizer, c0_s in model["c0_s"].items():
        own = [point for point in points if point["optimizer"] == optimizer]
        _draw_model(times, rates, optimizer, own, c0_s, third_term, c1_s_per_byte, extent)
    _draw_others(times, rates, record)
    _draw_chosen(times, rates, record)
    times.set_xlim(0, max(sizes) * 1.1)
    times.set_ylim(0, 1.12 * max(point["measured_s"] for point in points))
    times.xaxis.set_major_formatter(FuncFormatter(thousands))
    doubt = ": the cost model is in doubt" if model["is_doubtful"] else ""
    doubt = ": the cost model is rejected" if model["form"] == "rejected" else doubt
    set_labels(times, f"What a step costs{doubt}", "bytes per step, T", "step time (s)")
    log_bytes(rates, sizes)
    rates.yaxis.set_major_formatter(FuncFormatter(thousands))
    top = max(p["bytes_per_step"] / p["measured_s"] for p in points)
    ceiling = model["ceiling_bytes_per_s"]
    if ceiling:
        text = f"ceiling 1/c1 = {ceiling:,.0f} bytes/s"
        # A ceiling far above all points would press them flat against the axis: it is then named, not drawn.
        if ceiling > 2.5 * top:
            text = f"{text}, far above"
        else:
            text = f"dashed: {text}"
            top = max(top, ceiling)
            rates.axhline(ceiling, color=INK, linewidth=1.0, linestyle=(0, (5, 3)))
        # Curves rise to the ceiling from below, or fall to it where c0 is negative: the side far from them is free.
        left, side = (0.98, "right") if min(model["c0_s"].values()) < 0 else (0.02, "left")
        rates.text(left, 0.98, text, fontsize=9, color=INK, ha=side, va="top", transform=rates.transAxes)
    rates.set_ylim(0, top * 1.2)
    set_labels(rates, "What it buys", "bytes per step, T (log scale)", "rate (bytes/s)")
    figure.legend(
        *times.get_legend_handles_labels(), fontsize=9, frameon=False, loc="outside lower center", ncols=3
    )
    save_figure(figure, path)


def _draw_model(
    times: Axes,
    rates: Axes,
    optimizer: str,
    points: Sequence[Record],
    c0_s: float,
    third_term: Record | None,
    c1_s_per_byte: float,
    extent: tuple[float, float],
) -> None:
    """One optimizer's points and line in both panels; with a third cost, a line each for its least and most units."""
    colour = colour_of(optimizer)
    third, unit, third_s, counts = "", "", 0.0, [0]
    if third_term:
        unit, third_s = third_term["unit"], third_term["s"]
        third = f" + {third_s * 1e3:.3g} ms/{unit}"
        counts = sorted({point[f"{unit}s_per_step"] for point in points})
    label = f"{optimizer}: {c0_s:.3g} s{third} + {c1_s_per_byte * 1e6:.3g} µs/byte · T"
    smallest, largest = extent
    sizes = np.geomspace(smallest / 2, largest * 1.6, 300)
    straight = np.array([0.0, largest * 1.1])
    # The least and the most: a line for each count between them hides the points.
    for count in dict.fromkeys((counts[0], counts[-1])):
        own_s = c0_s + count * third_s
        is_first = count == counts[0]
        style: dict[str, Any] = {
            "color": colour,
            "linewidth": 1.4,
            "linestyle": "-" if is_first else (0, (2, 2)),
        }
        times.plot(straight, own_s + c1_s_per_byte * straight, **style, label=label if is_first else None)
        modelled = own_s + c1_s_per_byte * sizes
        rates.plot(sizes[modelled > 0], (sizes / modelled)[modelled > 0], **style)
        if not is_first:
            middle = sizes[len(sizes) // 2]
            rates.annotate(
                f"{optimizer}, {count} {unit}s",
                (middle, middle / (own_s + c1_s_per_byte * middle)),
                (6, -12),
                textcoords="offset points",
                fontsize=8,
                color=colour,
            )
    x = np.array([point["bytes_per_step"] for point in points])
    y = np.array([point["measured_s"] for point in points])
    dots: dict[str, Any] = {
        "color": colour,
        "markersize": 5.5,
        "markeredgecolor": "white",
        "markeredgewidth": 0.7,
    }
    times.plot(x, y, "o", **dots)
    rates.plot(x, x / y, "o", **dots)


def _draw_others(times: Axes, rates: Axes, record: Record) -> None:
    """Held-out configurations as diamonds; rows of another setting as crosses and slower visits as dots, in grey."""
    model = record["cost_model"]
    held_out = [row for row in record["holdout"] if row["measured_s"]]
    kept_out = {key_of(row) for row in model["kept_out"] if "status" not in row["reason"]}
    measured: list[Record] = [
        {**row, "measured_s": row["step_s"]} for row in record["measurements"] if row["step_s"]
    ]
    others = [row for row in measured if key_of(row) in kept_out]
    diamond: dict[str, Any] = {"marker": "D", "color": "none", "markeredgecolor": INK, "markersize": 6.5}
    cross: dict[str, Any] = {"marker": "x", "color": GREY, "markersize": 5.5}
    dot: dict[str, Any] = {"marker": ".", "color": GREY, "markersize": 3.5, "zorder": 1}
    kinds: tuple[tuple[list[Record], dict[str, Any], str], ...] = (
        (held_out, diamond, "held out"),
        (others, cross, "not fitted (other setting)"),
        (model["slower_visits"], dot, "a slower visit"),
    )
    for rows, style, label in kinds:
        if rows:
            x = np.array([row["bytes_per_step"] for row in rows])
            y = np.array([row["measured_s"] for row in rows])
            times.plot(x, y, linestyle="none", label=label, **style)
            rates.plot(x, x / y, linestyle="none", label=label, **style)


def _draw_chosen(times: Axes, rates: Axes, record: Record) -> None:
    chosen = record["chosen"]
    if not chosen:
        return
    match = [point for point in record["cost_model"]["points"] if key_of(point) == key_of(chosen)]
    step_s = match[0]["measured_s"] if match else chosen["step_s"]
    if not step_s:
        return
    x, ceiling = chosen["bytes_per_step"], record["cost_model"]["ceiling_bytes_per_s"]
    share = f"\n{x / step_s / ceiling:.0%} of the ceiling" if ceiling else ""
    name = f"chosen: {short_name(chosen)} {chosen['optimizer']}"
    # Both curves rise to the right: the line leaves the upper left corner free, the rate the lower right one.
    for axis, y, note, corner, side in (
        (times, step_s, f"{step_s:.3g} s", (0.03, 0.96), ("left", "top")),
        (rates, x / step_s, f"{x / step_s:,.0f} bytes/s{share}", (0.97, 0.04), ("right", "bottom")),
    ):
        axis.scatter([x], [y], facecolors="none", edgecolors=INK, s=130, linewidths=1.4, zorder=5)
        axis.annotate(
            f"{name}\n{note}",
            (x, y),
            corner,
            textcoords="axes fraction",
            fontsize=9,
            color=INK,
            ha=side[0],
            va=side[1],
            arrowprops={"arrowstyle": "-", "color": INK, "linewidth": 0.7, "shrinkA": 4, "shrinkB": 6},
        )


def residuals(record: Record, path: Path) -> None:
    """Every point's error, fitted and left out, one line per configuration; held-out predictions below them.

    record: profile.json with its cost model.
    """
    model = record["cost_model"]
    points = sorted(
        model["points"], key=lambda p: (p["optimizer"], p["bytes_per_step"], p["batch"]), reverse=True
    )
    held_out = [row for row in record["holdout"] if row["measured_s"]]
    names = [f"{short_name(row)} {row['optimizer']}" for row in held_out] + [
        f"{short_name(p)} {p['optimizer']}" for p in points
    ]
    figure, (axis,) = new_figure(7.2, 1.5 + 0.27 * len(names))
    axis.axvline(0, color=INK, linewidth=1.0)
    for place, point in enumerate(points, start=len(held_out)):
        colour, fitted = colour_of(point["optimizer"]), 100 * point["relative_error"]
        without = point["leave_one_out_error"]
        if without is not None:
            axis.plot([fitted, 100 * without], [place, place], color=colour, linewidth=1.0)
            axis.plot(100 * without, place, "o", color="white", markeredgecolor=colour, markersize=6.5)
        axis.plot(fitted, place, "o", color=colour, markersize=5)
    for place, row in enumerate(held_out):
        error = row["predicted_s"] / row["measured_s"] - 1.0
        axis.plot(100 * error, place, "D", color="none", markeredgecolor=INK, markersize=6.5)
    axis.plot([], [], "o", color=INK, markersize=5, label="fitted")
    axis.plot([], [], "o", color="white", markeredgecolor=INK, markersize=6.5, label="left out of the fit")
    if held_out:
        axis.plot(
            [], [], "D", color="none", markeredgecolor=INK, markersize=6.5, label="held out, predicted first"
        )
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(-0.6, len(names) - 0.4)
    reach = max(1.0, 1.15 * max(abs(bound) for bound in axis.get_xlim()))
    axis.set_xlim(-reach, reach)
    axis.grid(True, axis="y", color="#F0F0F0")
    fitted, without = model["max_relative_error"], model["leave_one_out_error"]
    title = f"How far the cost model is off: at most {fitted:.1%} fitted, {without:.1%} left out"
    set_labels(axis, title, "(predicted − measured) / measured, %", "")
    figure.legend(fontsize=9, frameon=False, loc="outside lower center", ncols=3)
    save_figure(figure, path)
