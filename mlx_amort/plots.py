"""Every figure, drawn from records on disk: a profile's rows and fit, a run's metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
_BLUE, _RED, _GREEN, _AMBER, _PURPLE, _GREY = "#0072B2", "#D55E00", "#009E73", "#E69F00", "#AA4499", "#8A8A8A"
_OPTIMIZER_COLOURS = {"muon": _BLUE, "adamw": _RED}
_INK = "#222222"


def _figure(width: float, height: float, panels: int = 1) -> tuple[Figure, list[Axes]]:
    # A Figure of one's own leaves matplotlib's global state, and so the caller's backend, untouched.
    figure = Figure(figsize=(width, height), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(np.atleast_1d(figure.subplots(1, panels)))
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=9, colors=_INK)
        axis.grid(True, color="#E6E6E6", linewidth=0.7)
        axis.set_axisbelow(True)
    return figure, axes


def _save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _label(axis: Axes, title: str, x: str, y: str) -> None:
    axis.set_title(title, fontsize=11, loc="left", color=_INK)
    axis.set_xlabel(x, fontsize=10, color=_INK)
    axis.set_ylabel(y, fontsize=10, color=_INK)


def _thousands(value: float, _: int | None = None) -> str:
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:g}{unit}"
    return f"{value:g}"


def _log_bytes(axis: Axes, sizes: Sequence[float]) -> None:
    """A logarithmic axis of bytes a step, with ticks at powers of two times 1000."""
    axis.set_xscale("log")
    low, high = min(sizes) / 1.35, max(sizes) * 1.6
    ticks = sorted({2.0**n * 1000 for n in range(-7, 10)} | {2.0**n * 1.024e6 for n in range(0, 11)})
    ticks = [tick for tick in ticks if low <= tick <= high]
    ticks = ticks[:: max(1, len(ticks) // 6)]
    axis.set_xlim(low, high)
    axis.xaxis.set_major_locator(FixedLocator(ticks))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(_thousands))


def _name(row: Record, with_seq: bool = False) -> str:
    accum = f"A {row['accum']} " if row.get("accum", 1) not in (None, 1) else ""
    seq = f" S {row['seq']}" if with_seq else ""
    return f"{accum}B {row['batch']} K {row['chunks']}{seq}"


def _colour(optimizer: str) -> str:
    return _OPTIMIZER_COLOURS.get(optimizer, _PURPLE)


def cost_curve(record: Record, path: Path) -> None:
    """Two panels against bytes a step: step time with the fitted lines, and rate with the ceiling.

    record: profile.json with its fit; its `chosen` configuration, when there is one, is ringed; its
    `held_out` rows are drawn as diamonds.
    """
    fit, points = record["fit"], record["fit"]["points"]
    figure, (times, rates) = _figure(11.0, 4.8, panels=2)
    sizes = [point["bytes_per_step"] for point in points]
    extent = (min(sizes), max(sizes))
    for optimizer, c0_s in fit["c0_s"].items():
        own = [point for point in points if point["optimizer"] == optimizer]
        _draw_law(times, rates, optimizer, own, c0_s, fit["third_term"], fit["c1_us_per_byte"] * 1e-6, extent)
    _draw_others(times, rates, record)
    _draw_chosen(times, rates, record)
    times.set_xlim(0, max(sizes) * 1.1)
    times.set_ylim(0, 1.12 * max(point["measured_s"] for point in points))
    times.xaxis.set_major_formatter(FuncFormatter(_thousands))
    doubt = ": the law is in doubt" if fit["is_doubtful"] else ""
    doubt = ": the law is rejected" if fit["law"] == "rejected" else doubt
    _label(times, f"What a step costs{doubt}", "bytes a step, T", "step time (s)")
    _log_bytes(rates, sizes)
    rates.yaxis.set_major_formatter(FuncFormatter(_thousands))
    top = max(p["bytes_per_step"] / p["measured_s"] for p in points)
    ceiling = fit["ceiling_bytes_per_s"]
    if ceiling:
        text = f"ceiling 1/c1 = {ceiling:,.0f} bytes/s"
        # A ceiling far above all points would press them flat against the axis: it is then named, not drawn.
        if ceiling > 2.5 * top:
            text = f"{text}, far above"
        else:
            text = f"dashed: {text}"
            top = max(top, ceiling)
            rates.axhline(ceiling, color=_INK, linewidth=1.0, linestyle=(0, (5, 3)))
        # Curves rise to the ceiling from below, or fall to it where c0 is negative: the side far from them is free.
        left, side = (0.98, "right") if min(fit["c0_s"].values()) < 0 else (0.02, "left")
        rates.text(left, 0.98, text, fontsize=9, color=_INK, ha=side, va="top", transform=rates.transAxes)
    rates.set_ylim(0, top * 1.2)
    _label(rates, "What it buys", "bytes a step, T (log scale)", "rate (bytes/s)")
    figure.legend(
        *times.get_legend_handles_labels(), fontsize=9, frameon=False, loc="outside lower center", ncols=3
    )
    _save(figure, path)


def _draw_law(
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
    colour = _colour(optimizer)
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
    held_out = [row for row in record.get("held_out") or [] if row.get("measured_s")]
    kept_out = {_key(row) for row in record["fit"]["kept_out"] if "status" not in row["reason"]}
    others = [row for row in record["rows"] if _key(row) in kept_out and _measured_s(row)]
    diamond = {"marker": "D", "color": "none", "markeredgecolor": _INK, "markersize": 6.5}
    cross = {"marker": "x", "color": _GREY, "markersize": 5.5}
    dot = {"marker": ".", "color": _GREY, "markersize": 3.5, "zorder": 1}
    kinds: tuple[tuple[list[Record], dict[str, Any], str], ...] = (
        (held_out, diamond, "held out"),
        (others, cross, "not fitted (other setting)"),
        (record["fit"].get("slower_visits", []), dot, "a slower visit"),
    )
    for rows, style, label in kinds:
        if rows:
            x = np.array([_bytes_per_step(row) for row in rows])
            y = np.array([row.get("measured_s") or _measured_s(row) for row in rows])
            times.plot(x, y, linestyle="none", label=label, **style)
            rates.plot(x, x / y, linestyle="none", label=label, **style)


def _draw_chosen(times: Axes, rates: Axes, record: Record) -> None:
    chosen = record.get("chosen")
    if not chosen:
        return
    match = [point for point in record["fit"]["points"] if _key(point) == _key(chosen)]
    step_s = match[0]["measured_s"] if match else chosen.get("step_s")
    if not step_s:
        return
    x, ceiling = _bytes_per_step(chosen), record["fit"]["ceiling_bytes_per_s"]
    share = f"\n{x / step_s / ceiling:.0%} of the ceiling" if ceiling else ""
    name = f"chosen: {_name(chosen)} {chosen['optimizer']}"
    # Both curves rise to the right: the line leaves the upper left corner free, the rate the lower right one.
    for axis, y, note, corner, side in (
        (times, step_s, f"{step_s:.3g} s", (0.03, 0.96), ("left", "top")),
        (rates, x / step_s, f"{x / step_s:,.0f} bytes/s{share}", (0.97, 0.04), ("right", "bottom")),
    ):
        axis.scatter([x], [y], facecolors="none", edgecolors=_INK, s=130, linewidths=1.4, zorder=5)
        axis.annotate(
            f"{name}\n{note}",
            (x, y),
            corner,
            textcoords="axes fraction",
            fontsize=9,
            color=_INK,
            ha=side[0],
            va=side[1],
            arrowprops={"arrowstyle": "-", "color": _INK, "linewidth": 0.7, "shrinkA": 4, "shrinkB": 6},
        )


def _is_checkpointed(row: Record) -> bool:
    value = row.get("activation_checkpointing", row.get("checkpoint", False))
    return str(value).lower() in ("true", "yes", "on", "1")


def _key(row: Record) -> tuple[Any, ...]:
    """All that makes a row's configuration; a CSV has texts, and may leave window and precision out."""
    counts = (int(row[name]) for name in ("batch", "chunks", "seq"))
    window, precision = int(row.get("window") or 0), str(row.get("precision") or "").strip()
    optimizer = str(row["optimizer"]).strip().lower()
    return (*counts, int(row.get("accum") or 1), window, optimizer, precision, _is_checkpointed(row))


def _bytes_per_step(row: Record) -> int:
    batch, chunks, seq, accum, *_ = _key(row)
    return int(batch * chunks * seq * accum)


def _measured_s(row: Record) -> float | None:
    if row.get("step_s") not in (None, ""):
        return float(row["step_s"])
    return float(row["step_ms"]) * 1e-3 if row.get("step_ms") not in (None, "") else None


def residuals(record: Record, path: Path) -> None:
    """Every point's error, fitted and left out, one line a configuration; held-out predictions below them.

    record: profile.json with its fit.
    """
    fit = record["fit"]
    points = sorted(
        fit["points"], key=lambda p: (p["optimizer"], p["bytes_per_step"], p["batch"]), reverse=True
    )
    held_out = [row for row in record.get("held_out") or [] if row.get("measured_s")]
    names = [f"{_name(row)} {row['optimizer']}" for row in held_out] + [
        f"{_name(p)} {p['optimizer']}" for p in points
    ]
    figure, (axis,) = _figure(7.2, 1.5 + 0.27 * len(names))
    axis.axvline(0, color=_INK, linewidth=1.0)
    for place, point in enumerate(points, start=len(held_out)):
        colour, fitted = _colour(point["optimizer"]), 100 * point["relative_error"]
        without = point["leave_one_out_error"]
        if without is not None:
            axis.plot([fitted, 100 * without], [place, place], color=colour, linewidth=1.0)
            axis.plot(100 * without, place, "o", color="white", markeredgecolor=colour, markersize=6.5)
        axis.plot(fitted, place, "o", color=colour, markersize=5)
    for place, row in enumerate(held_out):
        error = row["predicted_s"] / row["measured_s"] - 1.0
        axis.plot(100 * error, place, "D", color="none", markeredgecolor=_INK, markersize=6.5)
    axis.plot([], [], "o", color=_INK, markersize=5, label="fitted")
    axis.plot([], [], "o", color="white", markeredgecolor=_INK, markersize=6.5, label="left out of the fit")
    if held_out:
        axis.plot(
            [], [], "D", color="none", markeredgecolor=_INK, markersize=6.5, label="held out, predicted first"
        )
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(-0.6, len(names) - 0.4)
    reach = max(1.0, 1.15 * max(abs(bound) for bound in axis.get_xlim()))
    axis.set_xlim(-reach, reach)
    axis.grid(True, axis="y", color="#F0F0F0")
    fitted, without = fit["max_relative_error"], fit["leave_one_out_error"]
    title = f"How far the law is off: at most {fitted:.1%} fitted, {without:.1%} left out"
    _label(axis, title, "(predicted − measured) / measured, %", "")
    figure.legend(fontsize=9, frameon=False, loc="outside lower center", ncols=3)
    _save(figure, path)


def memory(record: Record, path: Path) -> None:
    """Peak memory against rows a step, a colour for each K, and what did not fit; record: profile.json."""
    peaks = [(row, peak) for row in record["rows"] if (peak := _peak_bytes(row)) is not None]
    unit, unit_bytes = ("MB", 1e6) if max((peak for _, peak in peaks), default=0.0) < 1e9 else ("GB", 1e9)
    measured = [(row, peak / unit_bytes) for row, peak in peaks]
    refused = [row for row in record["rows"] if "not fit" in str(row.get("status", ""))]
    figure, (axis,) = _figure(6.8, 4.2)
    chunk_counts = sorted({int(row["chunks"]) for row, _ in measured})
    lengths = [int(row["seq"]) for row, _ in measured]
    usual = max(set(lengths), key=lengths.count, default=0)
    colours = [_BLUE, _AMBER, _GREEN, _PURPLE, _RED, _GREY]
    seen = set()
    for row, peak in measured:
        kind, place = (_is_checkpointed(row), str(row["optimizer"])), chunk_counts.index(int(row["chunks"]))
        seen.add(kind)
        # Set apart by K: with a fixed window the points of one B lie on top of each other.
        x = int(row["batch"]) * 1.07 ** (place - (len(chunk_counts) - 1) / 2)
        axis.plot(x, peak, **_memory_marker(*kind, colours[place % len(colours)]))
        if int(row["seq"]) != usual:
            note = f"S {row['seq']}"
            axis.annotate(note, (x, peak), (9, -3), textcoords="offset points", fontsize=8, color=_INK)
    for index, chunks in enumerate(chunk_counts):
        axis.plot([], [], "o", color=colours[index % len(colours)], label=f"K = {chunks}")
    for kind in sorted(seen, key=lambda kind: (kind[0], kind[1] != "muon")):
        name = f"{kind[1]}{', checkpointed' if kind[0] else ''}"
        axis.plot([], [], **_memory_marker(*kind, _INK), label=name)
    top = 1.15 * max((peak for _, peak in measured), default=1.0)
    notes: dict[int, list[str]] = {}
    for row in refused:
        note = f"S {row['seq']}" if int(row["seq"]) != usual else f"K {row['chunks']}"
        notes.setdefault(int(row["batch"]), []).append(note)
    for batch, own in notes.items():
        axis.plot(batch, top, "x", color=_INK, markersize=8, markeredgewidth=1.8)
        note = ", ".join(dict.fromkeys(own))
        axis.annotate(note, (batch, top), (7, -3), textcoords="offset points", fontsize=8, color=_INK)
    if refused:
        axis.plot(
            [], [], "x", color=_INK, markersize=8, linestyle="none", markeredgewidth=1.8, label="did not fit"
        )
        top *= 1.08
    batches = sorted({int(row["batch"]) for row in [*refused, *(row for row, _ in measured)]})
    axis.set_xscale("log")
    axis.set_ylim(0, top)
    if batches:
        axis.set_xlim(batches[0] / 1.3, batches[-1] * 1.4)
    axis.xaxis.set_major_locator(FixedLocator([float(batch) for batch in batches]))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    _label(axis, "Peak memory of a step", "rows at a time, B (log scale)", f"peak memory ({unit})")
    figure.legend(fontsize=9, frameon=False, loc="outside right upper")
    _save(figure, path)


def _memory_marker(is_checkpointed: bool, optimizer: str, colour: str) -> dict[str, Any]:
    """Muon's small and full, AdamW's larger and hollow: where both lie on one place, both are seen."""
    style: dict[str, Any] = {"linestyle": "none", "color": colour, "marker": "v" if is_checkpointed else "o"}
    if optimizer == "muon":
        return {**style, "markersize": 5.5}
    return {**style, "markersize": 9.5, "markerfacecolor": "none", "markeredgewidth": 1.4}


def _peak_bytes(row: Record) -> float | None:
    if row.get("peak_bytes") not in (None, ""):
        return float(row["peak_bytes"])
    return float(row["memory_gb"]) * 1e9 if row.get("memory_gb") not in (None, "") else None


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
    figure, (losses, rates) = _figure(11.0, 4.3, panels=2)
    seen = np.array([row["bytes"] for row in training], dtype=np.float64)
    bits = np.array([row["loss_bits"] for row in training], dtype=np.float64)
    losses.plot(seen, bits, color=_BLUE, alpha=0.25, linewidth=0.8, label="training, each step")
    losses.plot(seen, _smooth(bits), color=_BLUE, linewidth=1.6, label="training, smoothed")
    if validation:
        x, y = [row["bytes"] for row in validation], [row["val_bits"] for row in validation]
        losses.plot(x, y, "o", color=_RED, markersize=5, label="validation", zorder=4)
        losses.annotate(
            f"{y[-1]:.3f}",
            (x[-1], y[-1]),
            (0, -15),
            textcoords="offset points",
            fontsize=9,
            color=_RED,
            ha="center",
        )
    if zlib_bits is not None:
        losses.axhline(
            zlib_bits, color=_GREY, linewidth=1.1, linestyle=(0, (5, 3)), label=f"zlib -9: {zlib_bits:.2f}"
        )
    lowest = min([*bits[np.isfinite(bits)], *(row["val_bits"] for row in validation)], default=0.0)
    losses.set_ylim(max(0.0, min([lowest, zlib_bits or lowest]) - 0.35), None)
    _label(losses, "What it learned", f"{unit}s seen", f"bits per {unit}")
    losses.legend(fontsize=9, frameon=False, loc="upper right")

    step_s = np.array([row["step_s"] for row in training], dtype=np.float64)
    # The difference needs two rows; a resumed or pruned log may skip steps, so it is divided by them.
    steps = np.array([row["step"] for row in training], dtype=np.float64)
    per_step = float(np.median(np.diff(seen) / np.diff(steps))) if len(seen) > 1 else float(seen.sum())
    speed = per_step / step_s
    rates.plot(seen, speed, color=_GREEN, alpha=0.3, linewidth=0.8, label="each step")
    rates.plot(seen, per_step / _running_median(step_s), color=_GREEN, linewidth=1.6, label="running median")
    if predicted_step_s is not None:
        promised = per_step / predicted_step_s
        label = f"predicted: {promised:,.0f} {unit}s/s"
        rates.axhline(promised, color=_INK, linewidth=1.1, linestyle=(0, (5, 3)), label=label)
    rates.set_ylim(0, 1.25 * float(np.percentile(speed, 98)) if len(speed) else None)
    rates.yaxis.set_major_formatter(FuncFormatter(_thousands))
    _label(rates, "How fast", f"{unit}s seen", f"rate ({unit}s/s)")
    rates.legend(fontsize=9, frameon=False, loc="lower right")
    for axis in (losses, rates):
        axis.xaxis.set_major_formatter(FuncFormatter(_thousands))
        axis.set_xlim(0, 1.04 * float(seen[-1]) if len(seen) else 1)
    _save(figure, path)


def compare(runs: Sequence[Record], path: Path, quality_bits: float, unit: str = "byte") -> None:
    """Validation curves of runs against bytes seen and, where they are known, against seconds of training.

    runs: name, bytes, val_bits and seconds (None: unknown) of each, the first the one the others are held
    against. quality_bits: the best quality that all of them reach, drawn across.
    """
    timed = [run for run in runs if run["seconds"]]
    figure, axes = _figure(11.0 if timed else 6.4, 4.5, panels=2 if timed else 1)
    colours = (_BLUE, _RED, _GREEN, _AMBER, _PURPLE, _GREY)
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
            color=_INK,
            linewidth=1.0,
            linestyle=(0, (5, 3)),
            label=f"reached by all: {quality_bits:.3f}" if by == "bytes" else None,
        )
        axis.set_xlim(0, 1.04 * max(run[by][-1] for run in drawn) or 1)
        axis.xaxis.set_major_formatter(FuncFormatter(_thousands))
    _label(axes[0], f"At equal {unit}s", f"{unit}s seen", f"validation, bits per {unit}")
    if timed:
        _label(axes[1], "At equal seconds", "seconds of training", f"validation, bits per {unit}")
    figure.legend(fontsize=9, frameon=False, loc="outside lower center", ncols=3)
    _save(figure, path)


def _smooth(values: Floats) -> Floats:
    """Mean of a thirtieth of the run around each step, of what is finite: centred, it does not lag."""
    return _slide(np.where(np.isfinite(values), values, np.nan), np.nanmean)


def _running_median(values: Floats) -> Floats:
    return _slide(values, np.median)


def _slide(values: Floats, summary: Callable[[Floats], Any]) -> Floats:
    reach = max(1, len(values) // 60)
    windows = (values[max(0, i - reach) : i + reach + 1] for i in range(len(values)))
    return np.array([summary(window) if np.isfinite(window).any() else np.nan for window in windows])
