"""A profile from beginning to end: floors, anchor, grid, fit, held-out configurations.

The record is the whole state of a sweep and goes to disk after every measurement, so a sweep that is killed
goes on from its file: what was planned stays planned, what was measured is not measured again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from mlx_amort.errors import UserError
from mlx_amort.profiler.fit import Fit, fit_rows
from mlx_amort.profiler.floors import best_of, compare_with_floors, floors_of
from mlx_amort.profiler.grid import (
    ANCHOR_VISITS,
    START_S,
    WARM_UP_STEPS,
    Cut,
    Visit,
    affordable_base,
    cut_to_budget,
    default_grid,
    floor_seconds,
    grown_base,
    mixed_order,
    product_grid,
    row_seconds,
)
from mlx_amort.profiler.held_out import LEAST, choose_held_out, prediction, with_measurement
from mlx_amort.profiler.points import Point, point_of, point_of_record
from mlx_amort.profiler.request import Request, open_record
from mlx_amort.profiler.rows import rows_from_records
from mlx_amort.profiler.scatter import measure_settled
from mlx_amort.profiler.store import FILE_NAME, write_record
from mlx_amort.profiler.wording import describe_held_out, describe_row, format_seconds

# A small step still pays its c0: how a step's time is scaled from the anchor's before there is a fit.
_FIXED_SHARE = 0.3


class Measurer(Protocol):
    """Measures points in processes of their own (profiler/process.py), or pretends to, in tests."""

    def step(self, point: Point, limit_s: float | None) -> dict[str, Any]: ...

    def is_hopeless(self, point: Point) -> bool: ...

    def rates(self) -> dict[str, Any]: ...


class Progress(Protocol):
    """Tells the user what has happened (`line`) and what is being done (`doing`)."""

    def line(self, text: str) -> None: ...

    def doing(self, text: str) -> None: ...


def run_sweep(
    request: Request,
    folder: Path,
    machine: Mapping[str, Any],
    measurer: Measurer,
    progress: Progress,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Any]:
    """Measure what is requested into `folder`/profile.json, and return the record.

    A record there that is incomplete and of the same request is continued; a complete one is kept as
    profile.previous.json. Raises: UserError when the folder holds the profile of another model or machine.
    """
    record, told = open_record(request, folder, machine)
    if told:
        progress.line(told)
    sweep = Sweep(request, folder, record, measurer, progress, clock)
    sweep.measure_floors()
    if sweep.measure_anchor():
        sweep.plan()
        sweep.measure_grid()
    sweep.measure_floors_again()
    sweep.fit()
    sweep.measure_held_out()
    sweep.finish()
    return record


class Sweep:
    """The stages of a sweep over one record; each does only what the record lacks."""

    def __init__(
        self,
        request: Request,
        folder: Path,
        record: dict[str, Any],
        measurer: Measurer,
        progress: Progress,
        clock: Callable[[], float],
    ) -> None:
        self.request = request
        self.folder = folder
        self.record = record
        self.measurer = measurer
        self.progress = progress
        self._clock = clock
        self._seen_at = clock()
        self._fit: Fit | None = None

    def measure_floors(self) -> None:
        """What the machine can do, before anything else: it also tells what the grid will cost."""
        if self.record["rates"] is None:
            self.progress.doing("measuring the floors: products and copies of this model's shapes")
            rates = self.record["rates"] = self.measurer.rates()
            self.record["floors"] = floors_of(self.request.base, rates)
            self._save()
        floors = self.record["floors"]
        self.progress.line(
            f"floors: best product {floors['best_flops_per_s'] / 1e9:,.0f} GFLOP/s, "
            f"copy {floors['copy_bytes_per_s'] / 1e9:.3g} GB/s, "
            f"so c1 is at least {floors['c1_us_per_byte']:.3g} µs/byte"
        )

    def measure_floors_again(self) -> None:
        """The rates once more after the grid, the better of both: the machine may have been busy before."""
        if self.record["rates_at_end"] is None:
            self.progress.doing("measuring the floors again")
            again = self.record["rates_at_end"] = self.measurer.rates()
            rates = best_of(self.record["rates"], again)
            self.record["floors"] = floors_of(self.request.base, rates)
            self._save()

    def measure_anchor(self) -> bool:
        """The first row, which tells what every other will take; a smaller one where it does not fit."""
        if self.record["anchor"] is not None:
            return True
        wanted = base = point_of(self.request.base)
        if self.request.is_grid:
            floor_us = self.record["floors"]["c1_us_per_byte"]
            base = affordable_base(base, floor_us, self.request.steps, self.request.budget_s)
        has_grown = base == wanted
        while True:
            points = self._points(base)
            anchor = points[0] if self.request.is_grid else self._middle(points)
            if anchor is None:
                return False
            row = self._row_of(anchor) or self._measure(anchor, is_anchor=True)
            if row["status"] == "failed":
                raise RuntimeError(f"{anchor.label}: {row['note']}")
            if row["step_s"] is None:
                left_s = self._left_s()
                if left_s is not None and left_s <= 0:
                    return False
                if self.request.is_grid:
                    if base.batch == 1:
                        return False
                    base, has_grown = replace(base, batch=base.batch // 2), True
                continue
            if self.request.is_grid and not has_grown:
                # The guess from the floors is careful: a measured row may bring the base back up.
                grown = grown_base(base, wanted, partial(self._seconds, anchor=anchor), self.request.budget_s)
                has_grown = True
                if grown != base:
                    base, row["is_anchor"] = grown, False
                    continue
            if base.batch != wanted.batch:
                why = "as much as fits the time budget and the memory"
                self.progress.line(f"the grid is centred on B {base.batch}, not {wanted.batch}: {why}")
            self.record["anchor"], self.record["base"] = anchor.to_record(), base.to_record()
            self._save()
            return True

    def plan(self) -> None:
        """Fix what is measured, in which order, and what is left out; a continued sweep keeps its plan."""
        if self.record["plan"] is not None:
            return
        anchor = self._anchor
        base = point_of_record(self.record["base"])
        points = [point for point in self._points(base) if not self._row_of(point)]
        left_s = self._left_s()
        if left_s is not None:
            # The anchor's repeats and the held-out configurations are no less necessary than the grid.
            left_s -= (ANCHOR_VISITS - 1 + LEAST) * self._seconds(anchor)
        kept, cuts = cut_to_budget(points, self._seconds, left_s)
        visits = mixed_order(kept, anchor)
        self.record["plan"] = {
            "visits": [{**visit.point.to_record(), "is_anchor": visit.is_anchor} for visit in visits],
            "cut": [],
            "rows_before": len(self.record["rows"]),
        }
        total_s = sum(self._seconds(visit.point) for visit in visits)
        if visits:
            self.progress.line(f"{len(visits)} more rows are planned, about {format_seconds(total_s)}")
        for cut in cuts:
            self._note_cut(cut)
        self._save()

    def measure_grid(self) -> None:
        """Every visit of the plan that has no row yet, as long as the budget lasts."""
        plan = self.record["plan"]
        while (done := len(self.record["rows"]) - plan["rows_before"]) < len(plan["visits"]):
            planned = plan["visits"][done]
            visit = Visit(point_of_record(planned), planned["is_anchor"])
            left_s = self._left_s()
            if left_s is not None and self._seconds(visit.point) > left_s:
                del plan["visits"][done]
                name = "the anchor again" if visit.is_anchor else ""
                self._note_cut(Cut(visit.point, f"{name or 'not measured'}: the time budget is used up"))
                continue
            self._measure(visit.point, visit.is_anchor, f"{done + 1}/{len(plan['visits'])} ")

    def fit(self) -> None:
        """The cost model of the rows, beside its floors; without one the record says why."""
        try:
            self._fit = fit_rows(rows_from_records(self.record["rows"], str(self.folder / FILE_NAME)))
        except UserError as refusal:
            self.record["fit"], self.record["fit_refused"] = None, f"{refusal.why}; {refusal.todo}"
            return
        self.record["fit"] = self._fit.to_record()
        self.record["floors"] = compare_with_floors(self.record["floors"], self.record["fit"])

    def measure_held_out(self) -> None:
        """Predict configurations that were not measured, write the predictions down, then measure them."""
        fit = self._fit
        if fit is None:
            return
        if not self.record["held_out"]:
            taken = {point_of_record(row) for row in self.record["rows"]}
            base = point_of_record(self.record["base"])
            chosen = choose_held_out(fit, base, taken, self._seconds, self._left_s())
            self.record["held_out"] = [prediction(point, fit) for point in chosen]
            self._save()
        for entry in self.record["held_out"]:
            if "status" not in entry:
                self.progress.line(describe_held_out(entry))
        for index, entry in enumerate(self.record["held_out"]):
            if "status" in entry:
                continue
            point = point_of_record(entry)
            self.progress.doing(f"measuring {point.label}")
            row = measure_settled(partial(self.measurer.step, point, None), self._tell_scatter)
            entry = self.record["held_out"][index] = with_measurement(entry, row)
            self._save()
            self.progress.line(describe_held_out(entry))

    def finish(self) -> None:
        """The anchor's drift, the ringed configuration, and the mark that the sweep is complete."""
        anchors = [row["step_s"] for row in self.record["rows"] if row.get("is_anchor") and row["step_s"]]
        if len(anchors) > 1:
            drift, spread = anchors[-1] / anchors[0] - 1, max(anchors) / min(anchors) - 1
            self.record["drift"] = {"visits": len(anchors), "last_to_first": drift, "spread": spread}
        base = point_of(self.request.base)
        self.record["chosen"] = {**base.to_record(), "step_s": (self._row_of(base) or {}).get("step_s")}
        self.record["status"] = "complete"
        self._save()

    @property
    def _anchor(self) -> Point:
        return point_of_record(self.record["anchor"])

    def _points(self, base: Point) -> list[Point]:
        if self.request.is_grid:
            return default_grid(base, self.request.lists, self.request.base.model.patch_stride)
        return product_grid(base, self.request.lists)

    def _middle(self, points: list[Point]) -> Point | None:
        """The point of middling size that is neither known to be too large nor over the budget by itself."""
        budget_s = self.request.budget_s
        floor_us = self.record["floors"]["c1_us_per_byte"]
        too_large = [point_of_record(row) for row in self.record["rows"] if row["step_s"] is None]
        left = [
            point
            for point in sorted(points, key=lambda point: (point.bytes_per_step, point.label))
            if point not in too_large
        ]
        for point in reversed(left[: len(left) // 2 + 1]):
            guess_s = row_seconds(floor_seconds(point, floor_us), self.request.steps)
            if budget_s is None or guess_s <= budget_s:
                return point
        return left[0] if left else None

    def _row_of(self, point: Point) -> dict[str, Any] | None:
        rows = [row for row in self.record["rows"] if point_of_record(row) == point]
        return rows[0] if rows else None

    def _measure(self, point: Point, is_anchor: bool = False, count: str = "") -> dict[str, Any]:
        self.progress.doing(f"{count}measuring {point.label}")
        row = measure_settled(lambda: self.measurer.step(point, self._left_s()), self._tell_scatter)
        row["is_anchor"] = is_anchor
        self.record["rows"].append(row)
        self._save()
        name = f"{point.label} (anchor)" if is_anchor else point.label
        self.progress.line(f"{count}{name}: {describe_row(row)}{self._time_left()}")
        return row

    def _time_left(self) -> str:
        plan = self.record["plan"]
        if plan is None:
            return ""
        done = len(self.record["rows"]) - plan["rows_before"]
        left_s = sum(self._seconds(point_of_record(visit)) for visit in plan["visits"][done:])
        return f"; about {format_seconds(left_s)} to go" if left_s else ""

    def _tell_scatter(self, spread: float) -> None:
        self.progress.line(f"samples scatter by {spread:.0%} of their median; measuring once more")

    def _note_cut(self, cut: Cut) -> None:
        self.record["plan"]["cut"].append({**cut.point.to_record(), "reason": cut.reason})
        self.progress.line(f"left out {cut.point.label}: {cut.reason}")
        self._save()

    def _seconds(self, point: Point, anchor: Point | None = None) -> float:
        """What measuring a point will take, scaled from the anchor's fastest row; 0 if it is not tried."""
        if self.measurer.is_hopeless(point):
            return 0.0
        anchor = anchor or self._anchor
        visits = [row for row in self.record["rows"] if point_of_record(row) == anchor and row["step_s"]]
        row = min(visits, key=lambda row: row["step_s"])
        spent_s = (WARM_UP_STEPS + len(row["samples_s"])) * row["step_s"]
        start_s = max(1.0, row.get("wall_s", START_S + spent_s) - spent_s)
        share = _FIXED_SHARE + (1 - _FIXED_SHARE) * point.bytes_per_step / anchor.bytes_per_step
        return row_seconds(share * row["step_s"], self.request.steps, start_s)

    def _left_s(self) -> float | None:
        self._count_time()
        budget_s = self.request.budget_s
        return None if budget_s is None else budget_s - self.record["elapsed_s"]

    def _count_time(self) -> None:
        now = self._clock()
        self.record["elapsed_s"] += now - self._seen_at
        self._seen_at = now

    def _save(self) -> None:
        self._count_time()
        write_record(self.record, self.folder)
