"""What a figure reads from a row of a profile, whether it comes from profile.json or a CSV."""

from __future__ import annotations

from typing import Any

from mlx_amort.plots.figure import BLUE, PURPLE, RED, Record

_OPTIMIZER_COLOURS = {"muon": BLUE, "adamw": RED}


def short_name(row: Record, with_seq: bool = False) -> str:
    accum = f"A {row['accum']} " if row.get("accum", 1) not in (None, 1) else ""
    seq = f" S {row['seq']}" if with_seq else ""
    return f"{accum}B {row['batch']} K {row['chunks']}{seq}"


def colour_of(optimizer: str) -> str:
    return _OPTIMIZER_COLOURS.get(optimizer, PURPLE)


def is_checkpointed(row: Record) -> bool:
    value = row.get("activation_checkpointing", row.get("checkpoint", False))
    return str(value).lower() in ("true", "yes", "on", "1")


def key_of(row: Record) -> tuple[Any, ...]:
    """All that makes a row's configuration; a CSV has texts, and may leave window and precision out."""
    counts = (int(row[name]) for name in ("batch", "chunks", "seq"))
    window, precision = int(row.get("window") or 0), str(row.get("precision") or "").strip()
    optimizer = str(row["optimizer"]).strip().lower()
    return (*counts, int(row.get("accum") or 1), window, optimizer, precision, is_checkpointed(row))


def bytes_per_step_of(row: Record) -> int:
    batch, chunks, seq, accum, *_ = key_of(row)
    return int(batch * chunks * seq * accum)


def measured_s_of(row: Record) -> float | None:
    if row.get("step_s") not in (None, ""):
        return float(row["step_s"])
    return float(row["step_ms"]) * 1e-3 if row.get("step_ms") not in (None, "") else None


def peak_bytes_of(row: Record) -> float | None:
    if row.get("peak_bytes") not in (None, ""):
        return float(row["peak_bytes"])
    return float(row["memory_gb"]) * 1e9 if row.get("memory_gb") not in (None, "") else None
