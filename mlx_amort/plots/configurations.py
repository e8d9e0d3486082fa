"""What a figure reads from one configuration of a profile's record."""

from __future__ import annotations

from typing import Any

from mlx_amort.plots.figure import BLUE, PURPLE, RED, Record

_OPTIMIZER_COLOURS = {"muon": BLUE, "adamw": RED}
_KEYS = ("batch", "chunks", "seq", "accum", "window", "optimizer", "precision", "activation_checkpointing")


def short_name(row: Record) -> str:
    """A where it is not 1, B and K."""
    accum = "" if row["accum"] == 1 else f"A {row['accum']} "
    return f"{accum}B {row['batch']} K {row['chunks']}"


def colour_of(optimizer: str) -> str:
    return _OPTIMIZER_COLOURS.get(optimizer, PURPLE)


def key_of(row: Record) -> tuple[Any, ...]:
    """All that makes a configuration."""
    return tuple(row[name] for name in _KEYS)
