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
    chunk_s = fit["third_term"]["s"] if fit["third_term"] else 0.0
    extent = (min(sizes), max(sizes))
    for optimizer, c0_s in fit["c0_s"].items():
        own = [point for point in points if point["optimizer"] == optimizer]
        _draw_law(times, rates, optimizer, own, c0_s, chunk_s, fit["c1_us_per_byte"] * 1e-6, extent)
    _draw_others(times, rates, record)
    _draw_chosen(times, rates, record)
    times.set_xlim(0, max(sizes) * 1.1)
    times.set_ylim(0, 1.12 * max(point["measured_s"] for point in points))
    times.xaxis.set_major_formatter(FuncFormatter(_thousands))
    _label(times, "What a step costs", "bytes a step, T", "step time (s)")
    _log_bytes(rates, sizes)
    rates.yaxis.set_major_formatter(FuncFormatter(_thousands))
    top = max(p["bytes_per_step"] / p["measured_s"] for p in points)
    ceiling = fit["ceiling_bytes_per_s"]
    if ceiling:
        text, height = f"ceiling 1/c1 = {ceiling:,.0f} bytes/s", ceiling
        # A ceiling far above all points would press them flat against the axis: it is then named, not drawn.
        if ceiling > 2.5 * top:
            text, height = f"{text}, far above", top * 1.12
        else:
            top = max(top, ceiling)
            rates.axhline(ceiling, color=_INK, linewidth=1.0, linestyle=(0, (5, 3)))
        place: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
        rates.annotate(text, (0.02, height), (0, 4), fontsize=9, color=_INK, **place)
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
    chunk_s: float,
    c1_s_per_byte: float,
    extent: tuple[float, float],
) -> None:
    """One optimizer's points and line in both panels; with a cost per chunk, a line for each K measured."""
    colour = _colour(optimizer)
    per_chunk = f" + {chunk_s * 1e3:.3g} ms · K" if chunk_s else ""
    label = f"{optimizer}: {c0_s:.3g} s{per_chunk} + {c1_s_per_byte * 1e6:.3g} µs · T"
    counts = sorted({point["chunks"] * (point["accum"] or 1) for point in points}) if chunk_s else [0]
    smallest, largest = extent
    sizes = np.geomspace(smallest / 2, largest * 1.6, 300)
    straight = np.array([0.0, largest * 1.1])
    for count in counts:
        own_s = c0_s + count * chunk_s
        style: dict[str, Any] = {"color": colour, "linewidth": 1.4 if len(counts) == 1 else 0.9}
        times.plot(
            straight, own_s + c1_s_per_byte * straight, **style, label=label if count == counts[-1] else None
        )
        modelled = own_s + c1_s_per_byte * sizes
        rates.plot(sizes[modelled > 0], (sizes / modelled)[modelled > 0], **style)
        if len(counts) > 1 and count in (counts[0], counts[-1]):
            above = 4 if count == counts[-1] else -11
            at = (largest * 1.02, own_s + c1_s_per_byte * largest * 1.02)
            times.annotate(
                f"K = {count}", at, (0, above), textcoords="offset points", fontsize=8, color=colour
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
    """Held-out configurations as diamonds, rows kept out of the fit as grey crosses."""
    held_out = [row for row in record.get("held_out") or [] if row.get("measured_s")]
    kept_out = {_key(row) for row in record["fit"]["kept_out"] if "status" not in row["reason"]}
    others = [row for row in record["rows"] if _key(row) in kept_out and _measured_s(row)]
    diamond = {"marker": "D", "color": "none", "markeredgecolor": _INK, "markersize": 6.5}
    cross = {"marker": "x", "color": _GREY, "markersize": 5.5}
    kinds: tuple[tuple[list[Record], dict[str, Any], str], ...] = (
        (held_out, diamond, "held out"),
        (others, cross, "not fitted (other setting)"),
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
    # Both curves rise to the right, so the upper left corner is free, in the right panel below the ceiling.
    for axis, y, note, height in (
        (times, step_s, f"{step_s:.3g} s", 0.96),
        (rates, x / step_s, f"{x / step_s:,.0f} bytes/s{share}", 0.78),
    ):
        axis.scatter([x], [y], facecolors="none", edgecolors=_INK, s=130, linewidths=1.4, zorder=5)
        axis.annotate(
            f"{name}\n{note}",
            (x, y),
            (0.03, height),
            textcoords="axes fraction",
            fontsize=9,
            color=_INK,
            va="top",
            arrowprops={"arrowstyle": "-", "color": _INK, "linewidth": 0.7, "shrinkA": 4, "shrinkB": 6},
        )


def _is_checkpointed(row: Record) -> bool:
    value = row.get("activation_checkpointing", row.get("checkpoint", False))
    return str(value).lower() in ("true", "yes", "on", "1")


def _key(row: Record) -> tuple[Any, ...]:
    counts = (int(row[name]) for name in ("batch", "chunks", "seq"))
    return (*counts, int(row.get("accum") or 1), str(row["optimizer"]), _is_checkpointed(row))


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
    _label(axis, title, "predicted - measured, % of measured", "")
    figure.legend(fontsize=9, frameon=False, loc="outside lower center", ncols=3)
    _save(figure, path)


def memory(record: Record, path: Path) -> None:
    """Peak memory against rows a step, a colour for each K, and what did not fit; record: profile.json."""
    measured = [(row, peak) for row in record["rows"] if (peak := _peak_gb(row)) is not None]
    refused = [row for row in record["rows"] if "not fit" in str(row.get("status", ""))]
    figure, (axis,) = _figure(6.8, 4.2)
    chunk_counts = sorted({int(row["chunks"]) for row, _ in measured})
    lengths = [int(row["seq"]) for row, _ in measured]
    usual = max(set(lengths), key=lengths.count, default=0)
    colours = [_BLUE, _AMBER, _GREEN, _PURPLE, _RED, _GREY]
    kinds = {(False, "muon"): "o", (False, "adamw"): "s", (True, "muon"): "^", (True, "adamw"): "v"}
    seen = set()
    for row, peak in measured:
        kind, place = (_is_checkpointed(row), str(row["optimizer"])), chunk_counts.index(int(row["chunks"]))
        seen.add(kind)
        # Set apart by K: with a fixed window the points of one B lie on top of each other.
        x = int(row["batch"]) * 1.06 ** (place - (len(chunk_counts) - 1) / 2)
        style: dict[str, Any] = {
            "color": colours[place % len(colours)],
            "markeredgecolor": "white",
            "markeredgewidth": 0.7,
        }
        axis.plot(x, peak, kinds.get(kind, "P"), markersize=7.5, **style)
        if int(row["seq"]) != usual:
            note = f"S {row['seq']}"
            axis.annotate(note, (x, peak), (0, -12), textcoords="offset points", fontsize=8, ha="center")
    for index, chunks in enumerate(chunk_counts):
        axis.plot([], [], "o", color=colours[index % len(colours)], label=f"K = {chunks}")
    for kind in sorted(seen, key=lambda kind: (kind[0], kind[1] != "muon")):
        name = f"{kind[1]}{', checkpointed' if kind[0] else ''}"
        axis.plot([], [], kinds.get(kind, "P"), color="white", markeredgecolor=_INK, label=name)
    top = 1.15 * max((peak for _, peak in measured), default=1.0)
    for row in refused:
        axis.plot(int(row["batch"]), top, "x", color=_INK, markersize=8, markeredgewidth=1.8)
        note = f"S {row['seq']}" if int(row["seq"]) != usual else f"K {row['chunks']}"
        axis.annotate(
            note, (int(row["batch"]), top), (7, -3), textcoords="offset points", fontsize=8, color=_INK
        )
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
    _label(axis, "Peak memory of a step", "rows at a time, B (log scale)", "peak memory (GB)")
    figure.legend(fontsize=9, frameon=False, loc="outside right upper")
    _save(figure, path)


def _peak_gb(row: Record) -> float | None:
    if row.get("peak_bytes") not in (None, ""):
        return float(row["peak_bytes"]) / 1e9
    return float(row["memory_gb"]) if row.get("memory_gb") not in (None, "") else None


def loss_and_rate(
    rows: Sequence[Record], path: Path, zlib_bits: float | None = None, predicted_step_s: float | None = None
) -> None:
    """Two panels of a run: bits per byte (training, validation) and rate, both against bytes seen.

    rows: lines of metrics.jsonl; a training row has step, bytes (seen so far), loss_bits and step_s, a
    validation row bytes and val_bits. zlib_bits is drawn as the yardstick a user knows, predicted_step_s as
    the rate that was promised.
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
            (0, 8),
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
    _label(losses, "What it learned", "bytes seen", "bits per byte")
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
        label = f"predicted: {promised:,.0f} bytes/s"
        rates.axhline(promised, color=_INK, linewidth=1.1, linestyle=(0, (5, 3)), label=label)
    rates.set_ylim(0, 1.25 * float(np.percentile(speed, 98)) if len(speed) else None)
    rates.yaxis.set_major_formatter(FuncFormatter(_thousands))
    _label(rates, "How fast", "bytes seen", "rate (bytes/s)")
    rates.legend(fontsize=9, frameon=False, loc="lower right")
    for axis in (losses, rates):
        axis.xaxis.set_major_formatter(FuncFormatter(_thousands))
        axis.set_xlim(0, 1.04 * float(seen[-1]) if len(seen) else 1)
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
