"""A sweep from beginning to end: roofline, anchor, grid, fit, held-out configurations.

The profile is the whole state of a sweep and goes to disk after every measurement, so a killed sweep
is resumed from its file: what was planned stays planned, what was measured is not measured again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from mlx_amort.cost.configuration import Configuration, Measurement
from mlx_amort.cost.measure.holdout import VISITS, choose_holdout
from mlx_amort.cost.measure.request import SweepRequest, open_profile
from mlx_amort.cost.measure.roofline import roofline_of
from mlx_amort.cost.measure.sweep_plan import configurations_around, holdout_seconds, middle_of, plan_sweep
from mlx_amort.cost.measure.sweep_record import Measurer, SweepProgress, SweepRecord
from mlx_amort.cost.measure.time_budget import affordable_base, grown_base
from mlx_amort.cost.profile import Cut, Drift, Fact, Prediction, Profile, Visit
from mlx_amort.cost.profile_file import FILE_NAME
from mlx_amort.cost.profile_store import LATEST_FILE_NAME, put_previous_aside
from mlx_amort.cost.sentences import describe_prediction
from mlx_amort.cost.time.diagnostics import SUSPECT_ROUNDS
from mlx_amort.cost.time.fitting import refit


def run_sweep(
    request: SweepRequest,
    folder: Path,
    machine: Mapping[str, Fact],
    measurer: Measurer,
    progress: SweepProgress,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Profile, Path]:
    """Measure what is requested into a file of `folder`, profile.json if it may; return the profile and its file.

    A profile there that is incomplete and of the same request is resumed; a complete one is kept as
    profile.previous.json, but one with a cost model stays where it is until there is another.
    Raises: UserError when the folder holds the profile of another model or machine.
    """
    profile, path, told = open_profile(request, folder, machine)
    if told:
        progress.line(told)
    sweep = Sweep(SweepRecord(profile, path, request, measurer, progress, clock))
    sweep.measure_roofline()
    if sweep.measure_anchor():
        plan_sweep(sweep.record)
        sweep.measure_grid()
    sweep.visit_suspects()
    sweep.measure_holdout()
    sweep.measure_roofline_again()
    sweep.finish()
    return profile, sweep.record.path


class Sweep:
    """The stages of a sweep over one profile; each does only what the profile lacks."""

    def __init__(self, record: SweepRecord) -> None:
        self.record = record
        self.profile = record.profile
        self.request = record.request
        self.measurer = record.measurer
        self.progress = record.progress

    def measure_roofline(self) -> None:
        """What the machine can do, before anything else: it also tells what the grid will cost."""
        profile = self.profile
        if profile.rates is None or profile.roofline is None:
            self.progress.doing("measuring the roofline: products and copies of this model's shapes")
            profile.rates = self.measurer.rates(Configuration.of(self.request.base))
            profile.roofline = roofline_of(self.request.base, profile.rates)
            self.record.save()
        self.progress.line(
            f"roofline: best product {profile.roofline.best_flops_per_s / 1e9:,.0f} GFLOP/s, "
            f"copy {profile.roofline.copy_bytes_per_s / 1e9:.3g} GB/s, "
            f"so c1 is at least {profile.roofline.c1_us_per_byte:.3g} µs/byte"
        )

    def measure_roofline_again(self) -> None:
        """The roofline of what was fitted.

        The rates are measured once more after the grid and the better of both counts: the machine may have
        been busy before. Where the fit is of another seq, precision or window, its own are the only ones.
        """
        profile, base, fitted = self.profile, Configuration.of(self.request.base), self._fitted_setting()
        if profile.rates_at_end is None:
            self.progress.doing("measuring the roofline again")
            profile.rates_at_end = self.measurer.rates(fitted)
        rates = profile.rates_at_end
        is_same = (fitted.seq, fitted.precision, fitted.window) == (base.seq, base.precision, base.window)
        if is_same and profile.rates is not None:
            rates = profile.rates.better(rates)
        profile.roofline = roofline_of(fitted.configure(self.request.base), rates)
        self.record.save()

    def _fitted_setting(self) -> Configuration:
        """The base with the setting that the fitted measurements have in common."""
        base, model = Configuration.of(self.request.base), self.profile.cost_model
        if model is None:
            return base
        return replace(
            base,
            seq=model.setting.seq,
            window=model.setting.window or base.window,
            precision=model.setting.precision or base.precision,
            activation_checkpointing=model.setting.activation_checkpointing,
        )

    def measure_anchor(self) -> bool:
        """The first measurement, which tells what every other will take; a smaller one where it does not fit.

        False where nothing can be measured.
        """
        profile, request = self.profile, self.request
        if profile.anchor is not None:
            return True
        wanted = base = Configuration.of(request.base)
        if request.is_grid:
            assert profile.roofline is not None
            c1_us = profile.roofline.c1_us_per_byte
            base = affordable_base(base, request.lists, c1_us, request.steps, request.budget_s)
        has_grown = base == wanted
        while True:
            around = configurations_around(self.record, base)
            anchor = around[0] if request.is_grid else middle_of(self.record, around)
            if anchor is None:
                return False
            found = profile.first_of(anchor) or self.record.measure(anchor, is_anchor=True)
            if found.status == "failed":
                raise RuntimeError(f"{anchor.label}: {found.note}")
            if found.step_s is None:
                left_s = self.record.left_s()
                if left_s is not None and left_s <= 0:
                    return False
                if request.is_grid:
                    if base.batch == 1:
                        return False
                    base, has_grown = replace(base, batch=base.batch // 2), True
                continue
            if request.is_grid and not has_grown:
                # The guess from the roofline is careful: a measured step may bring the base back up.
                seconds_of = partial(self.record.seconds_of, anchor=anchor)
                grown = grown_base(base, wanted, seconds_of, request.budget_s)
                has_grown = True
                if grown != base:
                    base = grown
                    self._unmark(found)
                    continue
            self._keep_anchor(anchor, base, wanted)
            return True

    def _unmark(self, anchor: Measurement) -> None:
        """Make an anchor that another replaces a measurement like others."""
        index = self.profile.measurements.index(anchor)
        self.profile.measurements[index] = replace(anchor, is_anchor=False)

    def _keep_anchor(self, anchor: Configuration, base: Configuration, wanted: Configuration) -> None:
        if base.batch != wanted.batch:
            why = "as much as fits the time budget and the memory"
            self.progress.line(f"the grid is centred on B {anchor.batch}, not {wanted.batch}: {why}")
        self.profile.anchor, self.profile.base = anchor, base
        self.record.save()

    def measure_grid(self) -> None:
        """Every visit of the plan that was not made yet, as long as the budget lasts."""
        plan = self.profile.plan
        assert plan is not None
        while (done := len(self.profile.measurements) - plan.measured_before) < len(plan.visits):
            visit = plan.visits[done]
            earlier = self.profile.first_of(visit.configuration)
            if earlier is not None and earlier.step_s is None:
                del plan.visits[done]
            elif reason := self._reason_against(visit, is_again=earlier is not None):
                del plan.visits[done]
                self.record.note_cut(Cut(visit.configuration, reason))
            else:
                count = f"{done + 1}/{len(plan.visits)} "
                self.record.measure(visit.configuration, visit.is_anchor, count)

    def _reason_against(self, visit: Visit, is_again: bool) -> str:
        """Why a visit is not made; empty where it is."""
        left_s = self.record.left_s()
        if left_s is not None and self.record.seconds_of(visit.configuration) > left_s:
            again = "the anchor again" if visit.is_anchor else "a second time"
            return f"{again if is_again else 'not measured'}: the time budget is used up"
        smaller = self.record.smaller_that_did_not_fit(visit.configuration)
        return "" if smaller is None else f"{smaller.label} did not fit"

    def visit_suspects(self) -> None:
        """Fit, and visit again what does not agree with the rest, in either direction, before anything is judged.

        Not once configurations are held out: the cost model that predicted them stays.
        """
        profile = self.profile
        refit(profile)
        for _ in range(SUSPECT_ROUNDS):
            if profile.cost_model is None or profile.holdout or profile.anchor is None:
                return
            for suspect in profile.cost_model.suspects:
                left_s = self.record.left_s()
                needed_s = self.record.seconds_of(suspect) + holdout_seconds(self.record)
                if left_s is not None and needed_s > left_s:
                    self.progress.line(
                        f"{suspect.label} does not agree with the rest; no time to visit it again"
                    )
                else:
                    self.record.measure(suspect, count="visited again: ")
            refit(profile)

    def measure_holdout(self) -> None:
        """Predict configurations that were not measured, write the predictions down, measure them, judge again.

        A cost model that is rejected already predicts nothing.
        """
        profile, model = self.profile, self.profile.cost_model
        if model is None or (model.is_rejected and not profile.holdout):
            return
        if not profile.holdout:
            assert profile.base is not None
            taken = {each.configuration for each in profile.measurements}
            left_s = self.record.left_s()
            chosen = choose_holdout(model, profile.base, taken, self.record.seconds_of, left_s)
            profile.holdout = [Prediction(each, model.predict_s(each)) for each in chosen]
            self.record.save()
        for prediction in profile.holdout:
            if prediction.best is None:
                self.progress.line(describe_prediction(prediction))
        for visit in range(VISITS):
            for index, prediction in enumerate(profile.holdout):
                has_failed = prediction.best is not None and prediction.best.step_s is None
                if len(prediction.visits_s) > visit or has_failed:
                    continue
                found = self.record.measure_apart(prediction.configuration)
                profile.holdout[index] = prediction.visited(found)
                self.record.save()
                self.progress.line(describe_prediction(profile.holdout[index]))
        refit(profile)

    def finish(self) -> None:
        """The anchor's drift, the ringed configuration, the mark that the sweep is complete, its last place."""
        profile = self.profile
        anchors_s = [each.step_s for each in profile.measurements if each.is_anchor and each.step_s]
        if len(anchors_s) > 1:
            change, spread = anchors_s[-1] / anchors_s[0] - 1, max(anchors_s) / min(anchors_s) - 1
            profile.drift = Drift(len(anchors_s), change, spread)
        profile.chosen = self._chosen()
        profile.status = "complete"
        self.record.save()
        path = self.record.path
        if path.name == LATEST_FILE_NAME and profile.usable_cost_model is not None:
            self.record.path = path.with_name(FILE_NAME)
            put_previous_aside(self.record.path)
            path.replace(self.record.path)

    def _chosen(self) -> Measurement | None:
        """The first that was measured of: the configuration, the grid's base and the anchor."""
        for configuration in (Configuration.of(self.request.base), self.profile.base, self.profile.anchor):
            found = None if configuration is None else self.profile.first_of(configuration)
            if found is not None and found.step_s:
                return Measurement(found.configuration, found.step_s)
        return None
