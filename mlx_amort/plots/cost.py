"""The cost curve of a profile's fit: what a step costs, and what it buys."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from mlx_amort.plots.configurations import (
    CostPoint,
    FittedModel,
    Record,
    chosen_of,
    colour_of,
    fitted_model_of,
    held_out_of,
    not_fitted_of,
    origin_of,
    slower_visits_of,
)
from mlx_amort.plots.figure import (
    DASHED,
    DOTTED,
    GREY,
    INK,
    Floats,
    add_legend,
    drawing,
    log_bytes,
    log_values,
    set_labels,
)
from mlx_amort.plots.lettering import PrefixFormatter

# A ceiling this far above every point would press them flat against the axis: it is named, not drawn.
FAR_CEILING = 2.5


def cost_curve(record: Record, path: Path) -> None:
    """Two panels against bytes per step: step time with the fitted lines and their interval, and rate.

    record: a profile's, with its cost model; its `chosen` configuration, when there is one, is ringed; its `holdout` is
    drawn as open diamonds. A rejected cost model is drawn faintly, without interval and ceiling.
    """
    model = fitted_model_of(record)
    others = {
        "held out: predicted, then measured": held_out_of(record),
        "not fitted (other setting)": not_fitted_of(record),
        "a slower visit": slower_visits_of(record),
    }
    with drawing(path, 11.0, 5.2, panels=2, title=origin_of(record)) as (figure, (times, rates)):
        unit_s, unit = (1.0, "s") if _median_s(model) >= 1.0 else (1e-3, "ms")
        everything = [*model.points, *(point for points in others.values() for point in points)]
        extent, _ = _coordinates(everything)
        sizes = np.geomspace(extent.min() / 1.5, extent.max() * 1.5, 300)
        for optimizer in model.c0_s:
            _draw_model(times, rates, model, optimizer, sizes, unit_s, unit)
        _draw_points(times, rates, model.points, unit_s)
        _draw_others(times, rates, others, unit_s)
        for optimizer in model.c0_s:
            _draw_interval(times, rates, model, optimizer, sizes, unit_s)
        _draw_ceiling(rates, model)
        _draw_chosen(times, rates, chosen_of(record), model, unit_s, unit)
        _set_axes(times, rates, model, everything, unit_s)
        verdict = ": the cost model is in doubt" if model.is_doubtful else ""
        verdict = ": the cost model is rejected" if model.is_rejected else verdict
        set_labels(
            times,
            f"What a step costs{verdict}",
            "bytes per step, T (Ki = 1,024)",
            f"step time ({unit}), log scale",
        )
        set_labels(rates, "What it buys", "bytes per step, T (Ki = 1,024)", "rate (bytes/s)")
        add_legend(figure, (times, rates))


def _median_s(model: FittedModel) -> float:
    return float(np.median([point.measured_s for point in model.points]))


def _predicted_s(model: FittedModel, optimizer: str, units: int, sizes: Floats) -> Floats:
    own_s = model.c0_s[optimizer].value + units * model.unit_s.value
    return np.asarray(own_s + model.c1_s_per_byte.value * sizes, dtype=np.float64)


def _draw_model(
    times: Axes, rates: Axes, model: FittedModel, optimizer: str, sizes: Floats, unit_s: float, unit: str
) -> None:
    """One optimizer's line in both panels; with a third term, lines for its fewest and its most units per step."""
    weight, opacity = (1.0, 0.4) if model.is_rejected else (1.6, 0.65 if model.is_doubtful else 1.0)
    counts = _counts(model, optimizer)
    for units in dict.fromkeys((counts[0], counts[-1])):
        is_first = units == counts[0]
        label = _formula(model, optimizer, unit_s, unit)
        if model.unit:
            per_step = f"{units:,} {model.unit}{'' if units == 1 else 's'} per step"
            kind = "dashed" if model.is_rejected else "solid"
            label = f"{label}\n({kind}: {per_step})" if is_first else f"{optimizer} (dotted: {per_step})"
        modelled = _predicted_s(model, optimizer, units, sizes)
        modelled[modelled <= 0] = np.nan
        first = DASHED if model.is_rejected else "-"
        for axis, values in ((times, modelled / unit_s), (rates, sizes / modelled)):
            axis.plot(
                sizes,
                values,
                color=colour_of(optimizer),
                linewidth=weight,
                alpha=opacity,
                linestyle=first if is_first else DOTTED,
                label=label,
            )


def _counts(model: FittedModel, optimizer: str) -> list[int]:
    return sorted({point.units for point in model.points if point.optimizer == optimizer}) or [0]


def _draw_interval(
    times: Axes, rates: Axes, model: FittedModel, optimizer: str, sizes: Floats, unit_s: float
) -> None:
    units = _counts(model, optimizer)[0]
    half = interval_s(model, optimizer, units, sizes)
    if half is None or model.is_rejected:
        return
    modelled = _predicted_s(model, optimizer, units, sizes)
    # Where a line or its interval goes below zero there is no time to draw.
    low = np.maximum(modelled - half, 1e-3 * np.abs(modelled))
    high = np.maximum(modelled + half, low)
    label, colour = f"{model.confidence:.0%} interval of a solid line", colour_of(optimizer)
    for axis, one, other in (
        (times, low / unit_s, high / unit_s),
        (rates, sizes / high, sizes / low),
    ):
        axis.fill_between(sizes, one, other, color=colour, alpha=0.15, linewidth=0, zorder=0.5, label=label)


def _formula(model: FittedModel, optimizer: str, unit_s: float, unit: str) -> str:
    """An optimizer's line in one unit of time: 1 µs/byte is 1 ms/kB is 1 s/MB."""
    prefix, many = ("M", 1e6) if unit == "s" else ("k", 1e3)
    c0, per_bytes = model.c0_s[optimizer].value / unit_s, model.c1_s_per_byte.value / unit_s * many
    third = f" + {model.unit_s.value / unit_s:.3g} {unit}/{model.unit}" if model.unit else ""
    return f"{optimizer}: {c0:.3g} {unit}{third} + {per_bytes:.3g} {unit}/{prefix}B · T"


def interval_s(model: FittedModel, optimizer: str, units: int, sizes: Floats) -> Floats | None:
    """Half the width of a line's interval at `sizes`; None where the coefficients have no finite intervals.

    half² = xᵀ D R D x with x the line's columns, D the half widths of the coefficients, and R their correlations in
    relative least squares at the fitted points (columns / t).
    """
    optimizers = list(model.c0_s)
    halves = [
        *(c0.half_width for c0 in model.c0_s.values()),
        model.c1_s_per_byte.half_width,
        *([model.unit_s.half_width] if model.unit else []),
    ]
    if None in halves:
        return None

    def columns(name: str, sizes: Floats, units: Sequence[int] | Floats) -> Floats:
        shown = [np.full(len(sizes), float(name == each)) for each in optimizers]
        return np.column_stack(
            [*shown, sizes, *([np.asarray(units, dtype=np.float64)] if model.unit else [])]
        )

    fitted = [
        columns(point.optimizer, np.array([float(point.bytes_per_step)]), [point.units]) / point.measured_s
        for point in model.points
    ]
    design = np.concatenate(fitted)
    lengths = np.linalg.norm(design, axis=0)
    if not np.all(lengths > 0):
        return None
    covariance = np.linalg.pinv((design / lengths).T @ (design / lengths))
    scale = np.sqrt(np.diag(covariance))
    if not np.all(scale > 0):
        return None
    x = columns(optimizer, sizes, np.full(len(sizes), float(units))) * np.array(halves, dtype=np.float64)
    variance = np.einsum("ni,ij,nj->n", x, covariance / np.outer(scale, scale), x)
    return np.asarray(np.sqrt(np.maximum(variance, 0.0)), dtype=np.float64)


def _draw_ceiling(rates: Axes, model: FittedModel) -> None:
    ceiling = model.ceiling_bytes_per_s
    if not ceiling or model.is_rejected:
        return
    label = f"ceiling 1/c1 = {ceiling:,.0f} bytes/s"
    if ceiling > FAR_CEILING * _fastest(model):
        rates.plot([], [], color=INK, linewidth=1.0, linestyle=DASHED, label=f"{label}, above the panel")
    else:
        rates.axhline(ceiling, color=INK, linewidth=1.0, linestyle=DASHED, label=label)


def _fastest(model: FittedModel) -> float:
    return max(point.bytes_per_step / point.measured_s for point in model.points)


def _draw_points(times: Axes, rates: Axes, points: Sequence[CostPoint], unit_s: float) -> None:
    for optimizer in dict.fromkeys(point.optimizer for point in points):
        own = [point for point in points if point.optimizer == optimizer]
        x, t = _coordinates(own)
        for axis, values in ((times, t / unit_s), (rates, x / t)):
            axis.plot(
                x,
                values,
                "o",
                color=colour_of(optimizer),
                markersize=5.5,
                markeredgecolor="white",
                markeredgewidth=0.7,
                label=f"{optimizer}, measured and fitted",
            )


def _draw_others(times: Axes, rates: Axes, others: dict[str, list[CostPoint]], unit_s: float) -> None:
    """What was not fitted: held out (open diamonds), of another setting (crosses), slower visits (dots)."""
    marks = (("D", INK, 6.0), ("x", GREY, 5.5), (".", GREY, 3.5))
    for (label, points), (marker, colour, size) in zip(others.items(), marks, strict=True):
        if not points:
            continue
        x, t = _coordinates(points)
        for axis, values in ((times, t / unit_s), (rates, x / t)):
            axis.plot(
                x,
                values,
                marker,
                color=colour,
                markerfacecolor="none",
                markersize=size,
                zorder=1 if marker == "." else 2.2,
                label=label,
            )


def _coordinates(points: Sequence[CostPoint]) -> tuple[Floats, Floats]:
    x = np.array([float(point.bytes_per_step) for point in points])
    return x, np.array([point.measured_s for point in points])


def _set_axes(
    times: Axes, rates: Axes, model: FittedModel, everything: Sequence[CostPoint], unit_s: float
) -> None:
    x, t = _coordinates(everything)
    for axis in (times, rates):
        log_bytes(axis, [float(x.min()), float(x.max())])
    spare = min(1.6, (t.max() / t.min()) ** 0.25 + 0.02)
    log_values(times, float(t.min()) / unit_s / spare, float(t.max()) / unit_s * spare)
    top = float((x / t).max())
    if model.ceiling_bytes_per_s and model.ceiling_bytes_per_s <= FAR_CEILING * _fastest(model):
        top = max(top, model.ceiling_bytes_per_s)
    rates.set_ylim(0, 1.12 * top)
    rates.yaxis.set_major_formatter(PrefixFormatter())


def _draw_chosen(
    times: Axes, rates: Axes, chosen: CostPoint | None, model: FittedModel, unit_s: float, unit: str
) -> None:
    """A ring, with its figures in the legend: a label in the panel would lie on something sooner or later."""
    if chosen is None:
        return
    rate = chosen.bytes_per_step / chosen.measured_s
    share = f", {rate / model.ceiling_bytes_per_s:.0%} of the ceiling" if model.ceiling_bytes_per_s else ""
    label = (
        f"configured: {chosen.optimizer} {chosen.name}, {chosen.measured_s / unit_s:.3g} {unit}\n"
        f"({rate:,.0f} bytes/s{share})"
    )
    for axis, y in ((times, chosen.measured_s / unit_s), (rates, rate)):
        axis.plot(
            chosen.bytes_per_step,
            y,
            "o",
            color="none",
            markeredgecolor=INK,
            markeredgewidth=1.3,
            markersize=12,
            zorder=5,
            linestyle="none",
            label=label,
        )
