"""Which measurements one cost model is fitted to: those of the setting that most have, and enough of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlx_amort.cost.configuration import Configuration, Measurement
from mlx_amort.cost.time.diagnostics import Thresholds
from mlx_amort.errors import UserError


@dataclass(frozen=True)
class Setting:
    """What all fitted rows have in common; None where the file does not tell it."""

    seq: int
    precision: str | None
    window: int | None
    activation_checkpointing: bool

    @classmethod
    def of(cls, configuration: Configuration) -> Setting:
        """The setting of a configuration."""
        return cls(
            configuration.seq,
            configuration.precision,
            configuration.window,
            configuration.activation_checkpointing,
        )

    @property
    def label(self) -> str:
        """The setting in words."""
        parts = [f"S {self.seq}", *([] if self.precision is None else [self.precision])]
        parts += [] if self.window is None else [f"W {self.window}"]
        return f"{' '.join(parts)} {'with' if self.activation_checkpointing else 'without'} checkpointing"

    def rank(self, configurations: Sequence[Configuration]) -> tuple[int, bool, int, str, int]:
        """The more of `configurations` have it the higher; a tie is broken by value, as their order is a mixed one."""
        count = sum(self.differs(each) is None for each in configurations)
        return count, not self.activation_checkpointing, self.seq, self.precision or "", self.window or 0

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
    """The setting that most configurations have, the rows that have it, and the others each with the reason.

    Raises: UserError when no row was measured.
    """
    measured = [row for row in rows if row.is_measured]
    if not measured:
        raise UserError("fit", *_why_none(rows))
    configurations = list(dict.fromkeys(row.configuration for row in measured))
    settings = {Setting.of(each) for each in configurations}
    setting = max(settings, key=lambda each: each.rank(configurations))
    fitted, kept_out = [], []
    for row in rows:
        reason = setting.differs(row.configuration) if row.is_measured else f"status is {row.status!r}"
        if reason is None:
            fitted.append(row)
        else:
            kept_out.append((row, reason))
    return setting, fitted, kept_out


def refuse_what_cannot_fail(
    rows: Sequence[Measurement], kept_out: Sequence[tuple[Measurement, str]], thresholds: Thresholds
) -> None:
    """Refuse a line through as many places as it has coefficients: it fits anything and says nothing."""
    sizes: dict[str, set[int]] = {}
    for row in rows:
        sizes.setdefault(row.configuration.optimizer, set()).add(row.configuration.bytes_per_step)
    aside = f" ({len(kept_out)} rows were kept out: {kept_out[0][1]}, ...)" if kept_out else ""
    todo = "measure other batches or chunks, such as half and four times the bytes per step"
    widest = max(max(values) / min(values) for values in sizes.values())
    if len(rows) >= 3 and widest < thresholds.smallest_range:
        if widest == 1.0:
            where = " or ".join(f"{size:,}" for size in sorted(set().union(*sizes.values())))
            why = f"all {len(rows)} points have the same {where} bytes per step"
        else:
            least = f"{thresholds.smallest_range} is the least"
            why = f"bytes per step differ only by a factor of {widest:.2f} and {least}"
        raise UserError("fit", f"{why}, so c0 and c1 cannot be told apart{aside}", todo)
    spare = sum(len(values) - 1 for values in sizes.values()) - 1
    if spare < 1:
        counts = ", ".join(f"{name} {len(values)}" for name, values in sizes.items())
        why = f"too few different bytes per step ({counts}): a line through so few points fits them always"
        todo = "measure at least three different bytes per step with one optimizer"
        raise UserError("fit", why + aside, todo)
