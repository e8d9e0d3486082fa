"""Fits a cost model to measurements, so that it can fail."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mlx_amort.cost.configuration import Measurement
from mlx_amort.cost.profile import Profile
from mlx_amort.cost.time.cost_model import CostModel, FittedPoint
from mlx_amort.cost.time.diagnostics import (
    CONFIDENCE,
    THRESHOLDS,
    Evidence,
    Thresholds,
    describe_outlier,
    reason_to_reject,
    reasons_to_doubt,
)
from mlx_amort.cost.time.extra_terms import (
    UNITS,
    Observations,
    TermTest,
    examine_terms,
    join_with_updates,
    most_asked_for,
)
from mlx_amort.cost.time.regression import Solution, outliers_of
from mlx_amort.cost.time.selection import Setting, refuse_what_cannot_fail, select
from mlx_amort.cost.time.spread import (
    disturbance_of,
    drift_of,
    lone_visits,
    slower_visits,
    undisturbed_of,
    visits_of,
)
from mlx_amort.errors import UserError


def fit_rows(
    rows: Sequence[Measurement], held_out: Sequence[Measurement] = (), thresholds: Thresholds = THRESHOLDS
) -> CostModel:
    """Fit step_s = c0[optimizer] + c1 · T by least squares of relative errors, and say whether it holds.

    Optimizers share c1. Of a configuration measured several times the fastest visit is fitted, unless it is an outlier.
    Where updates were timed alone they are observations of c0, and a cost per window or chunk joins the model if its
    interval is above zero; without them it joins where cross-validation asks for it. A further term that is asked for
    rejects the model. Intervals are from Student's t with n - p degrees of freedom. Outliers that alone would reject
    the model are kept out, and it is in doubt. held_out: measurements that may only lower the verdict.
    Source: docs/cost_model.md. Raises: UserError when the rows are too few or too equal for the model to fail.
    """
    model = _fit_all(rows, held_out, thresholds)
    outliers = {point.measurement.configuration: point for point in model.points if point.is_outlier}
    if not (model.is_rejected and outliers):
        return model
    try:
        rest = _fit_all([row for row in rows if row.configuration not in outliers], held_out, thresholds)
    except UserError:
        return model
    if rest.is_rejected:
        return model
    labels = ", ".join(each.label for each in outliers)
    off = [(point.measurement, _predicted(rest, point.measurement)) for point in outliers.values()]
    verdict = (
        f"The cost model is in doubt: {labels} would reject it, and is an outlier among measurements that agree. "
        "Measure it again before it is forecast with."
    )
    return replace(
        rest,
        is_doubtful=True,
        verdict=verdict,
        outliers=tuple(outliers),
        kept_out=(*rest.kept_out, *((row, f"outlier, predicted {error:+.1%}") for row, error in off)),
        warnings=(*rest.warnings, *(describe_outlier(row.configuration.label, error) for row, error in off)),
    )


def _predicted(model: CostModel, row: Measurement) -> float:
    """predicted / measured - 1."""
    assert row.step_s is not None
    return model.predict_s(row.configuration) / row.step_s - 1


def _fit_all(
    rows: Sequence[Measurement], held_out: Sequence[Measurement], thresholds: Thresholds
) -> CostModel:
    """The cost model with its verdict, the outliers fitted like all others."""
    setting, visits, kept_out = select(rows)
    fitted = [undisturbed_of(each, thresholds) for each in visits_of(visits)]
    refuse_what_cannot_fail(fitted, kept_out, thresholds)
    observations = Observations.of(fitted, thresholds)
    solved = _solve(observations)
    solution, optimizers, count = solved.solution, observations.optimizers, len(observations.optimizers)
    points = _points(observations, solved)
    unjudged = CostModel(
        c0_s={name: float(solution.coefficients[index]) for index, name in enumerate(optimizers)},
        c1_s_per_byte=float(solution.coefficients[count]),
        third_unit=solved.third_unit,
        third_cost_s=float(solution.coefficients[count + 1]) if solved.third_unit else 0.0,
        c0_interval_s={name: solution.interval(index, CONFIDENCE) for index, name in enumerate(optimizers)},
        c1_interval_s_per_byte=solution.interval(count, CONFIDENCE),
        third_cost_interval_s=solution.interval(count + 1, CONFIDENCE) if solved.third_unit else None,
        points=points,
        cross_validated_error=solution.cross_validated_error,
        terms=solved.terms,
        warnings=(),
        setting=setting,
        kept_out=tuple(kept_out),
        slower_visits=tuple(slower_visits(visits)),
        drift=drift_of(visits),
        disturbance=disturbance_of(visits),
        holdout_error=None,
        form="affine",
        is_doubtful=False,
        verdict="",
    )
    told = replace(
        unjudged,
        holdout_error=_holdout_error(unjudged, held_out),
        warnings=tuple([*_setting_warnings(setting, points, kept_out), *_warnings(unjudged, visits)]),
    )
    return _judged(told, solved.further, thresholds)


def fit_profile(profile: Profile) -> CostModel:
    """The cost model of a profile's measurements, judged by what it held out too. Raises: as `fit_rows`."""
    try:
        return fit_rows(profile.measurements, profile.held_out)
    except UserError as refusal:
        if profile.is_complete:
            raise
        done = len(profile.measurements)
        planned = (
            "" if profile.plan is None else f" of {profile.plan.measured_before + len(profile.plan.visits)}"
        )
        raise UserError(
            refusal.what,
            f"{refusal.why}; its sweep is not complete, {done}{planned} measurements are done",
            "wait for it, or resume it with the same `mlx-amort profile`",
        ) from None


def refit(profile: Profile) -> None:
    """Fit a profile, and keep in it the cost model or why there is none."""
    try:
        profile.cost_model = fit_rows(profile.measurements, profile.held_out)
        profile.why_no_cost_model = ""
    except UserError as refusal:
        profile.cost_model, profile.why_no_cost_model = None, f"{refusal.why}; {refusal.todo}"


@dataclass(frozen=True)
class _Solved:
    """The solution with the third cost that joined, the terms that were tried, and the one still asked for."""

    solution: Solution
    third_unit: str | None
    terms: tuple[TermTest, ...]
    further: TermTest | None


def _solve(observations: Observations) -> _Solved:
    solution = observations.solve()
    tests = examine_terms(observations, solution)
    winner = most_asked_for(tests, observations.thresholds)
    if winner is not None and winner.name not in UNITS:
        return _Solved(solution, None, tuple(tests), winner)
    told = join_with_updates(observations, tests)
    joined = told or winner
    if joined is None:
        return _Solved(solution, None, tuple(tests), None)
    tests = [joined if test.name == joined.name else test for test in tests]
    solution = observations.solve(joined.name, with_updates=told is not None)
    beside = examine_terms(observations, solution, joined.name, with_updates=told is not None)
    return _Solved(
        solution, UNITS[joined.name], (*tests, *beside), most_asked_for(beside, observations.thresholds)
    )


def _judged(model: CostModel, further: TermTest | None, thresholds: Thresholds) -> CostModel:
    """The model with its verdict in one or two sentences."""
    configurations = [point.measurement.configuration for point in model.points]
    most_bytes = max(each.bytes_per_step for each in configurations)
    worst = max(model.points, key=lambda point: abs(point.leave_one_out_error or 0.0))
    error = worst.leave_one_out_error or 0.0
    evidence = Evidence(
        c0_s=model.c0_s,
        c1_s_per_byte=model.c1_s_per_byte,
        share_of_bytes=model.c1_s_per_byte * most_bytes / min(point.measured_s for point in model.points),
        cross_validated_error=model.cross_validated_error,
        worst=(
            f"the other points predict {worst.measurement.configuration.label} "
            f"{abs(error):.1%} too {'high' if error > 0 else 'low'}"
        ),
        further_term="" if further is None else further.phrase,
        holdout_error=model.holdout_error,
        drift=model.drift,
    )
    if reason := reason_to_reject(evidence, thresholds):
        # Of a rejected model nothing is used: what spreads there may as well be the model.
        verdict = f"The cost model is rejected: {reason}."
        return replace(model, form="rejected", verdict=verdict, disturbance=1.0)
    form = "affine" if model.third_unit is None else f"affine with a cost per {model.third_unit}"
    if reasons := reasons_to_doubt(evidence, thresholds):
        verdict = (
            f"The cost model is in doubt: {'; '.join(reasons)}. Measure again on an idle machine, with neighbours in "
            "B and K; if the error stays, a cost is missing and only measured configurations can be trusted."
        )
        return replace(model, form=form, verdict=verdict, is_doubtful=True)
    # A point alone with its optimizer lies on the line by construction and proves nothing.
    count = sum(point.leave_one_out_error is not None for point in model.points)
    errors = (
        f"each of {count} points lies within {model.max_relative_error:.1%} of it, "
        f"within {model.leave_one_out_error:.1%} when left out of the fit"
    )
    if model.third_unit is None:
        return replace(
            model, verdict=f"The affine cost model holds: {errors}, and no further term is asked for."
        )
    third = f"{model.third_cost_s * 1e3:.3g} ms per {model.third_unit}"
    return replace(model, form=form, verdict=f"The cost model holds with a third term, {third}: {errors}.")


def _holdout_error(model: CostModel, held_out: Sequence[Measurement]) -> float | None:
    """The median miss of configurations that were predicted before they were measured."""
    misses = [
        abs(_predicted(model, row))
        for row in held_out
        if row.step_s and row.configuration.optimizer in model.c0_s
    ]
    return statistics.median(misses) if misses else None


def _points(observations: Observations, solved: _Solved) -> tuple[FittedPoint, ...]:
    solution = solved.solution
    outliers = set(outliers_of(solution, observations.thresholds))
    points = []
    for index, row in enumerate(observations.rows):
        assert row.step_s is not None
        error, left_out = float(solution.relative_errors[index]), float(solution.left_out_errors[index])
        without = None if np.isnan(left_out) else left_out
        points.append(FittedPoint(row, row.step_s * (1 + error), error, without, index in outliers))
    return tuple(points)


def _setting_warnings(
    setting: Setting, points: Sequence[FittedPoint], kept_out: Sequence[tuple[Measurement, str]]
) -> list[str]:
    """Which setting is fitted, where there are others."""
    others = {row.configuration for row, _ in kept_out if row.is_measured}
    if not others:
        return []
    return [
        f"the {len(points)} configurations of {setting.label} are fitted, the setting of most; "
        f"{len(others)} of other settings are kept out"
    ]


def _warnings(model: CostModel, visits: Sequence[Measurement]) -> list[str]:
    """What is odd: a c0 that is negative, not told from zero, or rests on one point; and the outliers."""
    warnings = []
    for name, (low, high) in model.c0_interval_s.items():
        value = model.c0_s[name]
        interval = f"({value:.3g} s, interval {low:.3g} to {high:.3g} s)"
        if value < 0:
            doubt = "which noise can do" if high > 0 else "which no machine can do"
            warnings.append(f"c0 of {name} is negative {interval}, {doubt}")
        elif low < 0:
            warnings.append(f"c0 of {name} cannot be told from zero {interval}")
        if sum(point.measurement.configuration.optimizer == name for point in model.points) == 1:
            warnings.append(f"{name} has one point: its c0 rests on it and its own error says nothing")
    for point in model.points:
        if point.is_outlier:
            warnings.append(describe_outlier(point.measurement.configuration.label, point.relative_error))
    for visit, faster in lone_visits(visits):
        label = visit.configuration.label
        warnings.append(f"a visit of {label} was {faster:.1%} faster than two that agree: it is not fitted")
    return warnings
