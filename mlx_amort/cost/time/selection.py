"""Which rows one law may be fitted to: measured, and of one sequence length, precision and window."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from mlx_amort.cost.profile_file import Row
from mlx_amort.errors import UserError

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Setting:
    """What all fitted rows have in common; None where the file does not tell it."""

    seq: int
    precision: str | None
    window: int | None
    activation_checkpointing: bool

    def differs(self, row: Row) -> str | None:
        """Why a row is not of this setting, or None when it is."""
        if row.activation_checkpointing != self.activation_checkpointing:
            return f"activation checkpointing is {'on' if row.activation_checkpointing else 'off'}"
        if row.seq != self.seq:
            return f"seq is {row.seq}, not {self.seq}"
        if row.precision != self.precision:
            return f"precision is {row.precision}, not {self.precision}"
        # A window longer than the step's chunks is that step's chunks: K = 1 has no other.
        theirs, ours = row.window or row.chunks, self.window or row.chunks
        if row.window is not None and min(theirs, row.chunks) != min(ours, row.chunks):
            return f"window is {row.window}, not {self.window}"
        return None


def _most_common(rows: Sequence[Row], key: Callable[[Row], Key]) -> Key:
    counts = Counter(key(row) for row in rows)
    most = max(counts.values())
    # A tie is broken by value, not by place: rows are measured in a mixed order.
    tied = [value for value, count in counts.items() if count == most]
    return max(tied, key=lambda value: (value is not None, str(value).rjust(20)))


def _why_none(rows: Sequence[Row]) -> tuple[str, str]:
    """Why there is no measured row, and what to do about it."""
    statuses = {row.status for row in rows}
    if "did not fit" in statuses:
        return "no row fitted in memory", "try a smaller --batch"
    if "too slow" in statuses:
        return "no row ended within its time", "give a longer --time-budget or try a smaller --batch"
    if "scattered" in statuses:
        return "the samples of every row are too scattered", "measure again on an idle machine"
    return "no row has a step time", "name a file with measured rows"


def select(rows: Sequence[Row]) -> tuple[Setting, list[Row], list[tuple[Row, str]]]:
    """The common setting, the rows that have it, and the others each with the reason.

    Raises: UserError when no row was measured.
    """
    measured = [row for row in rows if row.is_measured]
    if not measured:
        raise UserError("fit", *_why_none(rows))
    activation_checkpointing = all(row.activation_checkpointing for row in measured)
    pool = [row for row in measured if row.activation_checkpointing == activation_checkpointing]
    seq = _most_common(pool, lambda row: row.seq)
    pool = [row for row in pool if row.seq == seq]
    precision: Any = _most_common(pool, lambda row: row.precision)
    pool = [row for row in pool if row.precision == precision]
    window: Any = _most_common(pool, lambda row: row.window)
    setting = Setting(seq, precision, window, activation_checkpointing)
    fitted, kept_out = [], []
    for row in rows:
        reason = setting.differs(row) if row.is_measured else f"status is {row.status!r}"
        if reason is None:
            fitted.append(row)
        else:
            kept_out.append((row, reason))
    return setting, fitted, kept_out
