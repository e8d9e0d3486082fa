"""Peak memory of a profile's rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from mlx_amort.plots.figure import (
    AMBER,
    BLUE,
    GREEN,
    GREY,
    INK,
    PURPLE,
    RED,
    Record,
    new_figure,
    save_figure,
    set_labels,
)


def memory(record: Record, path: Path) -> None:
    """Peak memory against rows at a time, a colour for each K, and what did not fit; record: profile.json."""
    rows = record["measurements"]
    peaks = [(row, row["peak_bytes"]) for row in rows if row["peak_bytes"] is not None]
    unit, unit_bytes = ("MB", 1e6) if max((peak for _, peak in peaks), default=0.0) < 1e9 else ("GB", 1e9)
    measured = [(row, peak / unit_bytes) for row, peak in peaks]
    refused = [row for row in rows if row["status"] == "did not fit"]
    figure, (axis,) = new_figure(6.8, 4.2)
    chunk_counts = sorted({row["chunks"] for row, _ in measured})
    lengths = [row["seq"] for row, _ in measured]
    usual = max(set(lengths), key=lengths.count, default=0)
    colours = [BLUE, AMBER, GREEN, PURPLE, RED, GREY]
    seen = set()
    for row, peak in measured:
        kind, place = (row["activation_checkpointing"], row["optimizer"]), chunk_counts.index(row["chunks"])
        seen.add(kind)
        # Set apart by K: with a fixed window the points of one B lie on top of each other.
        x = row["batch"] * 1.07 ** (place - (len(chunk_counts) - 1) / 2)
        axis.plot(x, peak, **_memory_marker(*kind, colours[place % len(colours)]))
        if row["seq"] != usual:
            note = f"S {row['seq']}"
            axis.annotate(note, (x, peak), (9, -3), textcoords="offset points", fontsize=8, color=INK)
    for index, chunks in enumerate(chunk_counts):
        axis.plot([], [], "o", color=colours[index % len(colours)], label=f"K = {chunks}")
    for kind in sorted(seen, key=lambda kind: (kind[0], kind[1] != "muon")):
        name = f"{kind[1]}{', checkpointed' if kind[0] else ''}"
        axis.plot([], [], **_memory_marker(*kind, INK), label=name)
    top = 1.15 * max((peak for _, peak in measured), default=1.0)
    notes: dict[int, list[str]] = {}
    for row in refused:
        note = f"S {row['seq']}" if row["seq"] != usual else f"K {row['chunks']}"
        notes.setdefault(row["batch"], []).append(note)
    for batch, own in notes.items():
        axis.plot(batch, top, "x", color=INK, markersize=8, markeredgewidth=1.8)
        note = ", ".join(dict.fromkeys(own))
        axis.annotate(note, (batch, top), (7, -3), textcoords="offset points", fontsize=8, color=INK)
    if refused:
        axis.plot(
            [], [], "x", color=INK, markersize=8, linestyle="none", markeredgewidth=1.8, label="did not fit"
        )
        top *= 1.08
    batches = sorted({row["batch"] for row in [*refused, *(row for row, _ in measured)]})
    axis.set_xscale("log")
    axis.set_ylim(0, top)
    if batches:
        axis.set_xlim(batches[0] / 1.3, batches[-1] * 1.4)
    axis.xaxis.set_major_locator(FixedLocator([float(batch) for batch in batches]))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    set_labels(axis, "Peak memory of a step", "rows at a time, B (log scale)", f"peak memory ({unit})")
    figure.legend(fontsize=9, frameon=False, loc="outside right upper")
    save_figure(figure, path)


def _memory_marker(is_checkpointed: bool, optimizer: str, colour: str) -> dict[str, Any]:
    """Muon's small and full, AdamW's larger and hollow: where both lie on one place, both are seen."""
    style: dict[str, Any] = {"linestyle": "none", "color": colour, "marker": "v" if is_checkpointed else "o"}
    if optimizer == "muon":
        return {**style, "markersize": 5.5}
    return {**style, "markersize": 9.5, "markerfacecolor": "none", "markeredgewidth": 1.4}
