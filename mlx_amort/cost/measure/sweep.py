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
from typing import Any

from mlx_amort.amounts import format_duration
from mlx_amort.cost.configuration import Point, point_of, point_of_record
from mlx_amort.cost.measure.grid import (
    ANCHOR_VISITS,
    Cut,
    Visit,
    affordable_base,
    cut_to_budget,
    default_grid,
    doublings,
    floor_seconds,
    grown_base,
    mixed_order,
    product_grid,
    push_to_limit,
    repeats_within,
    row_seconds,
)
from mlx_amort.cost.measure.holdout import LEAST, VISITS, choose_held_out, prediction, with_measurement
from mlx_amort.cost.measure.request import Request, open_record
from mlx_amort.cost.measure.roofline import best_of, compare_with_floors, floors_of
from mlx_amort.cost.measure.sweep_record import Ledger, Measurer, Progress
from mlx_amort.cost.profile_file import rows_from_records
from mlx_amort.cost.profile_store import FILE_NAME, LATEST_FILE_NAME, has_law, put_previous_aside
from mlx_amort.cost.sentences import describe_held_out
from mlx_amort.cost.time.cost_model import Fit, fit_record, fit_rows
from mlx_amort.errors import UserError

# Of the time left for the grid, at most so much is kept for what comes after it.
_MOST_RESERVED = 0.5


def run_sweep(
    request: Request,
    folder: Path,
    machine: Mapping[str, Any],
    measurer: Measurer,
    progress: Progress,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[dict[str, Any], Path]:
    """Measure what is requested into a file of `folder`, profile.json if it may; return the record and its file.

    A record there that is incomplete and of the same request is continued; a complete one is kept as
    profile.previous.json, but one with a law stays where it is until there is another.
    Raises: UserError when the folder holds the profile of another model or machine.
    """
    record, path, told = open_record(request, folder, machine)
    if told:
        progress.line(told)
    sweep = Sweep(Ledger(record, path, request, measurer, progress, clock))
    sweep.measure_floors()
    if sweep.measure_anchor():
        sweep.plan()
        sweep.measure_grid()
    sweep.fit()
    sweep.measure_held_out()
    sweep.measure_floors_again()
    sweep.finish()
    return record, sweep.ledger.path


class Sweep:
    """The stages of a sweep over one record; each does only what the record lacks."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.record = ledger.record
        self.request = ledger.request
        self.measurer = ledger.measurer
        self.progress = ledger.progress
        self._fit: Fit | None = None

    def measure_floors(self) -> None:
        """What the machine can do, before anything else: it also tells what the grid will cost."""
        if self.record["rates"] is None:
            self.progress.doing("measuring the floors: products and copies of this model's shapes")
            rates = self.record["rates"] = self.measurer.rates(point_of(self.request.base))
            self.record["floors"] = floors_of(self.request.base, rates)
            self.ledger.save()
        floors = self.record["floors"]
        self.progress.line(
            f"floors: best product {floors['best_flops_per_s'] / 1e9:,.0f} GFLOP/s, "
            f"copy {floors['copy_bytes_per_s'] / 1e9:.3g} GB/s, "
            f"so c1 is at least {floors['c1_us_per_byte']:.3g} µs/byte"
        )

    def measure_floors_again(self) -> None:
        """The floors of what was fitted, and how far from them the fitted costs are.

        The rates are measured once more after the grid and the better of both counts: the machine may have
        been busy before. Where the fit is of another seq, precision or window, its own are the only ones.
        """
        base, point = point_of(self.request.base), self._fitted_point()
        if self.record["rates_at_end"] is None:
            self.progress.doing("measuring the floors again")
            self.record["rates_at_end"] = self.measurer.rates(point)
        rates, fit = self.record["rates_at_end"], self.record["fit"]
        if (point.seq, point.precision, point.window) == (base.seq, base.precision, base.window):
            rates = best_of(self.record["rates"], rates)
        floors = floors_of(point.configure(self.request.base), rates)
        self.record["floors"] = compare_with_floors(floors, fit) if has_law(self.record) else floors
        self.ledger.save()

    def _fitted_point(self) -> Point:
        """The base with the setting that the fitted rows have in common."""
        base = point_of(self.request.base)
        if self._fit is None:
            return base
        setting = self._fit.setting
        return replace(
            base,
            seq=setting.seq,
            window=setting.window or base.window,
            precision=setting.precision or base.precision,
            activation_checkpointing=setting.activation_checkpointing,
        )

    def measure_anchor(self) -> bool:
        """The first row, which tells what every other will take; a smaller one where it does not fit."""
        if self.record["anchor"] is not None:
            return True
        wanted = base = point_of(self.request.base)
        if self.request.is_grid:
            floor_us = self.record["floors"]["c1_us_per_byte"]
            lists, steps = self.request.lists, self.request.steps
            base = affordable_base(base, lists, floor_us, steps, self.request.budget_s)
        has_grown = base == wanted
        while True:
            points = self._points(base)
            anchor = points[0] if self.request.is_grid else self._middle(points)
            if anchor is None:
                return False
            row = self.ledger.row_of(anchor) or self.ledger.measure(anchor, is_anchor=True)
            if row["status"] == "failed":
                raise RuntimeError(f"{anchor.label}: {row['note']}")
            if row["step_s"] is None:
                left_s = self.ledger.left_s()
                if left_s is not None and left_s <= 0:
                    return False
                if self.request.is_grid:
                    if base.batch == 1:
                        return False
                    base, has_grown = replace(base, batch=base.batch // 2), True
                continue
            if self.request.is_grid and not has_grown:
                # The guess from the floors is careful: a measured row may bring the base back up.
                seconds_of = partial(self.ledger.seconds_of, anchor=anchor)
                grown = grown_base(base, wanted, seconds_of, self.request.budget_s)
                has_grown = True
                if grown != base:
                    base, row["is_anchor"] = grown, False
                    continue
            if base.batch != wanted.batch:
                why = "as much as fits the time budget and the memory"
                self.progress.line(f"the grid is centred on B {anchor.batch}, not {wanted.batch}: {why}")
            self.record["anchor"], self.record["base"] = anchor.to_record(), base.to_record()
            self.ledger.save()
            return True

    def plan(self) -> None:
        """Fix what is measured, in which order, and what is left out; a continued sweep keeps its plan."""
        if self.record["plan"] is not None:
            return
        anchor = self.ledger.anchor
        base = point_of_record(self.record["base"])
        points = [point for point in self._points(base) if not self.ledger.row_of(point)]
        left_s = self.ledger.left_s()
        if left_s is not None:
            # The anchor's repeats and the held-out configurations are no less necessary than the grid; nor are they
            # more: without enough points there is no law to hold them against.
            reserved_s = (ANCHOR_VISITS - 1 + LEAST * VISITS) * self.ledger.seconds_of(anchor)
            left_s -= min(reserved_s, _MOST_RESERVED * max(0.0, left_s))
        kept, cuts = cut_to_budget(points, self.ledger.seconds_of, left_s)
        pushed: list[Point] = []
        again: list[Point] = []
        if self.request.is_grid:
            pushed, beyond = self._push(base, kept, left_s)
            cuts += beyond
            if left_s is not None:
                left_s -= sum(self.ledger.seconds_of(point) for point in kept + pushed)
            again = repeats_within(kept + pushed, self.ledger.seconds_of, left_s)
        visits = mixed_order(kept + pushed, anchor, ascending=pushed, again=again)
        self.record["plan"] = {
            "visits": [{**visit.point.to_record(), "is_anchor": visit.is_anchor} for visit in visits],
            "cut": [],
            "rows_before": len(self.record["rows"]),
        }
        total_s = sum(self.ledger.seconds_of(visit.point) for visit in visits)
        if visits:
            self.progress.line(f"{len(visits)} more rows are planned, about {format_duration(total_s)}")
        for cut in cuts:
            self.ledger.note_cut(cut)
        self.ledger.save()

    def _push(self, base: Point, kept: list[Point], left_s: float | None) -> tuple[list[Point], list[Cut]]:
        """Beyond the grid, both scans up to what time and memory allow, and what they do not."""
        if left_s is not None:
            left_s -= sum(self.ledger.seconds_of(point) for point in kept)
        wider, longer = doublings(base, self.request.lists)
        # More chunks need no more memory: without a budget nothing ends them.
        scans = [wider] if left_s is None else [wider, longer]
        limits = left_s, self.request.budget_s
        return push_to_limit(scans, self.measurer.is_hopeless, self.ledger.seconds_of, *limits)

    def measure_grid(self) -> None:
        """Every visit of the plan that has no row yet, as long as the budget lasts."""
        plan = self.record["plan"]
        while (done := len(self.record["rows"]) - plan["rows_before"]) < len(plan["visits"]):
            planned = plan["visits"][done]
            visit = Visit(point_of_record(planned), planned["is_anchor"])
            left_s = self.ledger.left_s()
            reason = ""
            earlier = self.ledger.row_of(visit.point)
            if earlier and earlier["step_s"] is None:
                del plan["visits"][done]
                continue
            if left_s is not None and self.ledger.seconds_of(visit.point) > left_s:
                again = "the anchor again" if visit.is_anchor else "a second time"
                name = again if earlier else "not measured"
                reason = f"{name}: the time budget is used up"
            elif smaller := self.ledger.smaller_that_did_not_fit(visit.point):
                reason = f"{smaller.label} did not fit"
            if reason:
                del plan["visits"][done]
                self.ledger.note_cut(Cut(visit.point, reason))
                continue
            self.ledger.measure(visit.point, visit.is_anchor, f"{done + 1}/{len(plan['visits'])} ")

    def fit(self) -> None:
        """The cost model of the rows, beside its floors; without one the record says why."""
        try:
            self._fit = fit_rows(rows_from_records(self.record["rows"], str(self.ledger.path)))
        except UserError as refusal:
            self.record["fit"], self.record["fit_refused"] = None, f"{refusal.why}; {refusal.todo}"
            return
        self.record["fit"] = self._fit.to_record()

    def measure_held_out(self) -> None:
        """Predict configurations that were not measured, write the predictions down, measure them, judge again.

        A law that is rejected already predicts nothing.
        """
        fit = self._fit
        if fit is None or (fit.is_rejected and not self.record["held_out"]):
            return
        if not self.record["held_out"]:
            taken = {point_of_record(row) for row in self.record["rows"]}
            base = point_of_record(self.record["base"])
            chosen = choose_held_out(fit, base, taken, self.ledger.seconds_of, self.ledger.left_s())
            self.record["held_out"] = [prediction(point, fit) for point in chosen]
            self.ledger.save()
        for entry in self.record["held_out"]:
            if "status" not in entry:
                self.progress.line(describe_held_out(entry))
        for visit in range(VISITS):
            for index, entry in enumerate(self.record["held_out"]):
                if len(entry.get("visits_s", [])) > visit or (visit and entry["measured_s"] is None):
                    continue
                row = self.ledger.measure_apart(point_of_record(entry))
                entry = self.record["held_out"][index] = with_measurement(entry, row)
                self.ledger.save()
                self.progress.line(describe_held_out(entry))
        self._fit = fit_record(self.record, str(self.ledger.path))
        self.record["fit"] = self._fit.to_record()

    def finish(self) -> None:
        """The anchor's drift, the ringed configuration, the mark that the sweep is complete, its last place."""
        anchors = [row["step_s"] for row in self.record["rows"] if row.get("is_anchor") and row["step_s"]]
        if len(anchors) > 1:
            drift, spread = anchors[-1] / anchors[0] - 1, max(anchors) / min(anchors) - 1
            self.record["drift"] = {
                "visits": len(anchors),
                "last_to_first": drift,
                "spread": spread,
            }
        self.record["chosen"] = self._chosen()
        self.record["status"] = "complete"
        self.ledger.save()
        if self.ledger.path.name == LATEST_FILE_NAME and has_law(self.record):
            latest, self.ledger.path = self.ledger.path, self.ledger.path.with_name(FILE_NAME)
            put_previous_aside(self.ledger.path)
            latest.replace(self.ledger.path)

    def _chosen(self) -> dict[str, Any] | None:
        """The first that was measured of: the configuration, the grid's base and the anchor."""
        kept = [self.record[name] for name in ("base", "anchor") if self.record[name]]
        for point in (point_of(self.request.base), *(point_of_record(entry) for entry in kept)):
            row = self.ledger.row_of(point)
            if row and row["step_s"]:
                return {**point.to_record(), "step_s": row["step_s"]}
        return None

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
