"""Fits a cost model to measurements, so that it can fail."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mlx_amort.cost.configuration import Measurement
from mlx_amort.cost.profile import Profile
from mlx_amort.cost.time.cost_model import CONFIDENCE, CostModel, FittedPoint
from mlx_amort.cost.time.diagnostics import doubt_of, judge
from mlx_amort.cost.time.extra_terms import (
    UNITS,
    TermTest,
    asked_for,
    cost_beside_updates,
    design,
    examine_terms,
    updates_alone,
)
from mlx_amort.cost.time.regression import Floats, Solution, fit_relative, spoiled_points
from mlx_amort.cost.time.selection import select
from mlx_amort.cost.time.spread import disturbance_of, drift_of, fastest_of, slower_visits, visits_of
from mlx_amort.errors import UserError

# Below this spread of bytes per step, c0 and c1 cannot be told apart: the line is steeper or flatter at will.
SMALLEST_SPREAD = 1.25


def fit_rows(rows: Sequence[Measurement], held_out: Sequence[Measurement] = ()) -> CostModel:
    """Fit step_s = c0[optimizer] + c1 · T by least squares of relative errors, and say whether it holds.

    Optimizers share c1. Of a configuration measured several times the fastest visit is fitted.
    A cost per window joins the model where updates were timed alone, which are then observations of c0. Without them a
    cost per chunk (A·K) or per window (A·⌈K/W⌉), whichever explains more, joins where cross-validation asks for it.
    Any term asked for beside it rejects the model.
    Intervals are 95 %, from Student's t with n - p degrees of freedom. held_out: measurements that may only lower
    the verdict.
    Source: docs/cost_model.md. Raises: UserError when the rows are too few or too equal for the model to fail.
    """
    setting, visits, kept_out = select(rows)
    fitted = [fastest_of(each) for each in visits_of(visits)]
    _refuse_what_cannot_fail(fitted, kept_out)
    optimizers = sorted({row.configuration.optimizer for row in fitted})
    step_s = np.array([row.step_s for row in fitted], dtype=np.float64)
    columns, solution, terms, winner, unit = _solve(fitted, optimizers, step_s)
    points = _points(fitted, columns, solution)
    count = len(optimizers)
    c0_interval_s = {name: solution.interval(i, CONFIDENCE) for i, name in enumerate(optimizers)}
    unjudged = CostModel(
        c0_s={name: float(solution.coefficients[i]) for i, name in enumerate(optimizers)},
        c1_s_per_byte=float(solution.coefficients[count]),
        third_unit=unit,
        third_cost_s=float(solution.coefficients[count + 1]) if unit else 0.0,
        c0_interval_s=c0_interval_s,
        c1_interval_s_per_byte=solution.interval(count, CONFIDENCE),
        third_cost_interval_s=solution.interval(count + 1, CONFIDENCE) if unit else None,
        points=points,
        cross_validated_error=solution.cross_validated_error,
        terms=tuple(terms),
        warnings=(*_warnings(points, solution, c0_interval_s), *_outliers(points, columns, step_s, solution)),
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
    holdout_error = _holdout_error(unjudged, held_out)
    form, verdict = judge(unjudged, solution, winner, holdout_error)
    doubt = None if form == "rejected" else doubt_of(unjudged, fitted, visits, solution, holdout_error)
    return replace(
        unjudged,
        form=form,
        verdict=doubt or verdict,
        is_doubtful=doubt is not None,
        holdout_error=holdout_error,
        # Of a rejected model nothing is used: what spreads there may as well be the model.
        disturbance=1.0 if form == "rejected" else unjudged.disturbance,
    )


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


def _solve(
    fitted: Sequence[Measurement], optimizers: Sequence[str], step_s: Floats
) -> tuple[Floats, Solution, list[TermTest], TermTest | None, str | None]:
    """Columns and solution, the terms that were tried, one still asked for, and the third cost's unit."""
    configurations = [_identity(row) for row in fitted]
    columns = design(fitted, optimizers)
    solution = fit_relative(columns, step_s, configurations)
    terms = examine_terms(fitted, columns, step_s, configurations, solution)
    winner = asked_for(terms)
    alone_s = updates_alone(fitted, optimizers)
    told = cost_beside_updates(terms, fitted, optimizers, step_s, configurations, alone_s)
    if told is not None and (winner is None or winner.name in UNITS):
        winner = told
        terms = [winner if term.name == winner.name else term for term in terms]
    else:
        alone_s = []
    unit = None if winner is None else UNITS.get(winner.name)
    if winner is not None and unit is not None:
        columns = design(fitted, optimizers, winner.name)
        solution = fit_relative(columns, step_s, configurations, alone_s)
        beside = examine_terms(fitted, columns, step_s, configurations, solution, winner.name, alone_s)
        terms, winner = terms + beside, asked_for(beside)
    return columns, solution, terms, winner, unit


def _identity(row: Measurement) -> tuple[int, int, int, int | None, str]:
    each = row.configuration
    return (each.batch, each.chunks, each.accum, each.window, each.optimizer)


def _refuse_what_cannot_fail(
    rows: Sequence[Measurement], kept_out: Sequence[tuple[Measurement, str]]
) -> None:
    """Refuse a line through as many places as it has coefficients: it fits anything and says nothing."""
    sizes: dict[str, set[int]] = {}
    for row in rows:
        sizes.setdefault(row.configuration.optimizer, set()).add(row.configuration.bytes_per_step)
    aside = f" ({len(kept_out)} rows were kept out: {kept_out[0][1]}, ...)" if kept_out else ""
    todo = "measure other batches or chunks, such as half and four times the bytes per step"
    spread = max(max(values) / min(values) for values in sizes.values())
    if len(rows) >= 3 and spread < SMALLEST_SPREAD:
        if spread == 1.0:
            all_sizes = sorted(set().union(*sizes.values()))
            where = " or ".join(f"{size:,}" for size in all_sizes)
            same = f"all {len(rows)} points have the same {where} bytes per step"
            raise UserError("fit", f"{same}, so c0 and c1 cannot be told apart{aside}", todo)
        why = f"bytes per step differ only by a factor of {spread:.2f} and {SMALLEST_SPREAD} is the least"
        raise UserError("fit", f"{why}, so c0 and c1 cannot be told apart{aside}", todo)
    spare = sum(len(values) - 1 for values in sizes.values()) - 1
    if spare < 1:
        counts = ", ".join(f"{name} {len(values)}" for name, values in sizes.items())
        why = f"too few different bytes per step ({counts}): a line through so few points fits them always"
        raise UserError(
            "fit", why + aside, "measure at least three different bytes per step with one optimizer"
        )


def _holdout_error(model: CostModel, held_out: Sequence[Measurement]) -> float | None:
    """The median miss of configurations that were predicted before they were measured."""
    misses = [
        abs(model.predict_s(row.configuration) / row.step_s - 1)
        for row in held_out
        if row.step_s and row.configuration.optimizer in model.c0_s
    ]
    return statistics.median(misses) if misses else None


def _points(rows: Sequence[Measurement], columns: Floats, solution: Solution) -> tuple[FittedPoint, ...]:
    predicted_s = columns @ solution.coefficients
    left_out = [None if np.isnan(error) else float(error) for error in solution.left_out_errors]
    return tuple(
        FittedPoint(row, float(predicted), float(error), without)
        for row, predicted, error, without in zip(
            rows, predicted_s, solution.relative_errors, left_out, strict=True
        )
    )


def _warnings(
    points: Sequence[FittedPoint], solution: Solution, c0_interval_s: dict[str, tuple[float, float]]
) -> list[str]:
    """What is odd about a c0: negative, not told from zero, or resting on one point."""
    warnings = []
    for index, (name, (low, high)) in enumerate(c0_interval_s.items()):
        value = float(solution.coefficients[index])
        if value < 0:
            doubt = "which noise can do" if high > 0 else "which no machine can do"
            warnings.append(
                f"c0 of {name} is negative ({value:.4g} s, interval {low:.3g} to {high:.3g} s), {doubt}"
            )
        elif low < 0:
            warnings.append(
                f"c0 of {name} cannot be told from zero ({value:.3g} s, interval {low:.3g} to {high:.3g} s)"
            )
    for name in c0_interval_s:
        if sum(point.measurement.configuration.optimizer == name for point in points) == 1:
            warnings.append(f"{name} has one point: its c0 rests on it and its own error says nothing")
    return warnings


def _outliers(
    points: Sequence[FittedPoint], columns: Floats, step_s: Floats, solution: Solution
) -> list[str]:
    warnings = []
    for index in spoiled_points(columns, step_s, solution):
        off = -float(solution.relative_errors[index])
        warnings.append(
            f"{points[index].measurement.configuration.label} took {abs(off):.1%} "
            f"{'more' if off > 0 else 'less'} than the cost model says: "
            "a busy or throttling machine, measure it again"
        )
    return warnings
