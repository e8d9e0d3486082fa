"""Which rows one law may be fitted to: measured, and of one sequence length, precision and window."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from mlx_amort.cost.configuration import Configuration, Measurement
from mlx_amort.errors import UserError

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Setting:
    """What all fitted rows have in common; None where the file does not tell it."""

    seq: int
    precision: str | None
    window: int | None
    activation_checkpointing: bool

    def differs(self, other: Configuration) -> str | None:
        """Why a configuration is not of this setting, or None when it is."""
        if other.activation_checkpointing != self.activation_checkpointing:
            return f"activation checkpointing is {'on' if other.activation_checkpointing else 'off'}"
        if other.seq != self.seq:
            return f"seq is {other.seq}, not {self.seq}"
        if other.precision != self.precision:
            return f"precision is {other.precision}, not {self.precision}"
        # A window longer than the step's chunks is that step's chunks: K = 1 has no other.
        ours = min(self.window or other.chunks, other.chunks)
        if other.chunks_per_window not in (None, ours):
            return f"window is {other.window}, not {self.window}"
        return None


def _most_common(rows: Sequence[Measurement], key: Callable[[Measurement], Key]) -> Key:
    counts = Counter(key(row) for row in rows)
    most = max(counts.values())
    # A tie is broken by value, not by place: rows are measured in a mixed order.
    tied = [value for value, count in counts.items() if count == most]
    return max(tied, key=lambda value: (value is not None, str(value).rjust(20)))


def _why_none(rows: Sequence[Measurement]) -> tuple[str, str]:
    """Why there is no measured row, and what to do about it."""
    statuses = {row.status for row in rows}
    if "did not fit" in statuses:
        return "no row fitted in memory", "try a smaller --batch"
    if "too slow" in statuses:
        return "no row ended within its time", "give a longer --time-budget or try a smaller --batch"
    if "scattered" in statuses:
        return "the samples of every row are too scattered", "measure again on an idle machine"
    return "no row has a step time", "name a file with measured rows"


def select(rows: Sequence[Measurement]) -> tuple[Setting, list[Measurement], list[tuple[Measurement, str]]]:
    """The common setting, the rows that have it, and the others each with the reason.

    Raises: UserError when no row was measured.
    """
    measured = [row for row in rows if row.is_measured]
    if not measured:
        raise UserError("fit", *_why_none(rows))
    activation_checkpointing = all(row.configuration.activation_checkpointing for row in measured)
    pool = [row for row in measured if row.configuration.activation_checkpointing == activation_checkpointing]
    seq = _most_common(pool, lambda row: row.configuration.seq)
    pool = [row for row in pool if row.configuration.seq == seq]
    precision: Any = _most_common(pool, lambda row: row.configuration.precision)
    pool = [row for row in pool if row.configuration.precision == precision]
    window: Any = _most_common(pool, lambda row: row.configuration.window)
    setting = Setting(seq, precision, window, activation_checkpointing)
    fitted, kept_out = [], []
    for row in rows:
        reason = setting.differs(row.configuration) if row.is_measured else f"status is {row.status!r}"
        if reason is None:
            fitted.append(row)
        else:
            kept_out.append((row, reason))
    return setting, fitted, kept_out
