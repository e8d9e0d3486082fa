"""The record of a sweep while it is being filled: measures into it, counts its time, saves it after each row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from mlx_amort.amounts import format_duration
from mlx_amort.cost.configuration import Point, point_of_record
from mlx_amort.cost.measure.grid import START_S, WARM_UP_STEPS, Cut, row_seconds
from mlx_amort.cost.measure.request import Request
from mlx_amort.cost.profile_store import write_record
from mlx_amort.cost.sentences import describe_row
from mlx_amort.cost.time.spread import measure_settled

# A small step still pays its c0: how a step's time is scaled from the anchor's before there is a fit.
_FIXED_SHARE = 0.3


class Measurer(Protocol):
    """Measures points in processes of their own (cost/measure/worker_process.py), or pretends to, in tests."""

    def step(self, point: Point, limit_s: float | None) -> dict[str, Any]: ...

    def is_hopeless(self, point: Point) -> bool: ...

    def rates(self, point: Point) -> dict[str, Any]: ...


class Progress(Protocol):
    """Tells the user what has happened (`line`) and what is being done (`doing`)."""

    def line(self, text: str) -> None: ...

    def doing(self, text: str) -> None: ...


class Ledger:
    """A record and its file, what fills it, and the time budget that filling it uses up."""

    def __init__(
        self,
        record: dict[str, Any],
        path: Path,
        request: Request,
        measurer: Measurer,
        progress: Progress,
        clock: Callable[[], float],
    ) -> None:
        self.record = record
        self.path = path
        self.request = request
        self.measurer = measurer
        self.progress = progress
        self._clock = clock
        self._seen_at = clock()

    @property
    def anchor(self) -> Point:
        """The point that is measured again and again, and that every estimate is scaled from."""
        return point_of_record(self.record["anchor"])

    def row_of(self, point: Point) -> dict[str, Any] | None:
        """The first row of a point, if there is one."""
        rows = [row for row in self.record["rows"] if point_of_record(row) == point]
        return rows[0] if rows else None

    def smaller_that_did_not_fit(self, point: Point) -> Point | None:
        """A point with fewer rows and no longer windows, else the same, that did not fit."""
        for row in self.record["rows"]:
            other = point_of_record(row)
            like = replace(other, batch=point.batch, chunks=point.chunks)
            if row["status"] != "did not fit" or like != point or other.batch >= point.batch:
                continue
            if min(other.window, other.chunks) <= min(point.window, point.chunks):
                return other
        return None

    def measure(self, point: Point, is_anchor: bool = False, count: str = "") -> dict[str, Any]:
        """Measure a point in what is left of the budget, and make a row of it."""
        self.progress.doing(f"{count}measuring {point.label}")
        row = measure_settled(lambda: self.measurer.step(point, self.left_s()), self._tell_scatter)
        row["is_anchor"] = is_anchor
        self.record["rows"].append(row)
        self.save()
        name = f"{point.label} (anchor)" if is_anchor else point.label
        self.progress.line(f"{count}{name}: {describe_row(row)}{self._time_left()}")
        return row

    def measure_apart(self, point: Point) -> dict[str, Any]:
        """Measure a point whatever is left of the budget; the caller keeps what comes of it."""
        self.progress.doing(f"measuring {point.label}")
        return measure_settled(lambda: self.measurer.step(point, None), self._tell_scatter)

    def note_cut(self, cut: Cut) -> None:
        """Keep and tell what is left out."""
        self.record["plan"]["cut"].append({**cut.point.to_record(), "reason": cut.reason})
        self.progress.line(f"left out {cut.point.label}: {cut.reason}")
        self.save()

    def seconds_of(self, point: Point, anchor: Point | None = None) -> float:
        """What measuring a point will take, scaled from the anchor's fastest row; 0 if it is not tried."""
        if self.measurer.is_hopeless(point):
            return 0.0
        anchor = anchor or self.anchor
        visits = [row for row in self.record["rows"] if point_of_record(row) == anchor and row["step_s"]]
        row = min(visits, key=lambda row: row["step_s"])
        spent_s = (WARM_UP_STEPS + len(row["samples_s"])) * row["step_s"]
        start_s = max(1.0, row.get("wall_s", START_S + spent_s) - spent_s)
        share = _FIXED_SHARE + (1 - _FIXED_SHARE) * point.bytes_per_step / anchor.bytes_per_step
        return row_seconds(share * row["step_s"], self.request.steps, start_s)

    def left_s(self) -> float | None:
        """What is left of the time budget, over all sessions; None without one."""
        self._count_time()
        budget_s = self.request.budget_s
        return None if budget_s is None else budget_s - self.record["elapsed_s"]

    def save(self) -> None:
        """Write the record to disk."""
        self._count_time()
        write_record(self.record, self.path)

    def _time_left(self) -> str:
        plan = self.record["plan"]
        if plan is None:
            return ""
        done = len(self.record["rows"]) - plan["rows_before"]
        left_s = sum(self.seconds_of(point_of_record(visit)) for visit in plan["visits"][done:])
        return f"; about {format_duration(left_s)} to go" if left_s else ""

    def _tell_scatter(self, spread: float) -> None:
        self.progress.line(f"samples scatter by {spread:.0%} of their median; measuring once more")

    def _count_time(self) -> None:
        now = self._clock()
        self.record["elapsed_s"] += now - self._seen_at
        self._seen_at = now
