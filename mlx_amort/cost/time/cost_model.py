"""The cost model: step_s = c0[optimizer] + c1 * bytes_per_step, fitted so that it can fail."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from mlx_amort.cost.profile_file import Row, held_out_rows, rows_from_records
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
from mlx_amort.cost.time.selection import Setting, select
from mlx_amort.cost.time.spread import disturbance_of, drift_of, fastest_of, slower_visits, visits_of
from mlx_amort.errors import UserError, did_you_mean

CONFIDENCE = 0.95
# Below this spread of bytes a step, c0 and c1 cannot be told apart: the line is steeper or flatter at will.
SMALLEST_SPREAD = 1.25


class Stepped(Protocol):
    """What a law needs to know of a configuration: a Row, a Point or a Candidate."""

    @property
    def optimizer(self) -> str: ...

    @property
    def bytes_per_step(self) -> int: ...

    @property
    def chunks_per_step(self) -> int: ...

    @property
    def windows_per_step(self) -> int: ...


@dataclass(frozen=True)
class FitPoint:
    """A fitted row; errors are predicted / measured - 1, left out None where the law needs the row."""

    row: Row
    predicted_s: float
    relative_error: float
    leave_one_out_error: float | None


@dataclass(frozen=True)
class Fit:
    """A fitted law with its doubts.

    Units: c0_s and third_cost_s in seconds, c1_s_per_byte in seconds a byte. `third_unit` is "chunk" or
    "window" where the data ask for a cost of it, else None and its cost 0. held_out_error: median error of
    configurations that were predicted first, None without any. `law` is "affine", "affine with a cost per
    chunk" (or window), or "rejected" where the line must not be used to forecast; is_doubtful where it may,
    within `uncertainty`.
    """

    c0_s: dict[str, float]
    c1_s_per_byte: float
    third_unit: str | None
    third_cost_s: float
    c0_interval_s: dict[str, tuple[float, float]]
    c1_interval_s_per_byte: tuple[float, float]
    third_cost_interval_s: tuple[float, float] | None
    points: tuple[FitPoint, ...]
    cross_validated_error: float
    held_out_error: float | None
    terms: tuple[TermTest, ...]
    law: str
    is_doubtful: bool
    verdict: str
    warnings: tuple[str, ...]
    setting: Setting
    kept_out: tuple[tuple[Row, str], ...]
    slower_visits: tuple[tuple[Row, float], ...]
    drift: float | None
    disturbance: float

    @property
    def is_rejected(self) -> bool:
        return self.law == "rejected"

    @property
    def describe_visits(self) -> str:
        """How much slower the visits were that were not fitted; empty without repeats."""
        if not self.slower_visits:
            return ""
        excesses = [excess for _, excess in self.slower_visits]
        visits = (
            f"of configurations visited again the fastest visit is fitted: {len(excesses)} others were "
            f"{min(excesses):.1%} to {max(excesses):.1%} slower, {statistics.median(excesses):.1%} in the median"
        )
        if self.is_rejected:
            return visits
        more = f"{self.disturbance - 1:.1%} more than the law, the mean of all visits"
        return f"{visits}; a run is expected to take {more}"

    @property
    def ceiling_bytes_per_s(self) -> float | None:
        """1 / c1, or None where c1 is not positive or the law is rejected."""
        return 1.0 / self.c1_s_per_byte if self.c1_s_per_byte > 0 and not self.is_rejected else None

    @property
    def max_relative_error(self) -> float:
        return max(abs(point.relative_error) for point in self.points)

    @property
    def leave_one_out_error(self) -> float:
        """The largest error of a point predicted from the other configurations alone."""
        return max(abs(p.leave_one_out_error) for p in self.points if p.leave_one_out_error is not None)

    @property
    def uncertainty(self) -> float:
        """How far a forecast may be off: what the law missed of points that it had not seen."""
        return max(self.leave_one_out_error, self.held_out_error or 0.0)

    def predict_s(self, configuration: Stepped) -> float:
        """Step time c0 + n · third_cost + c1 · T in seconds; n is A·K of a chunk's cost, A·⌈K/W⌉ of a window's.

        Raises: UserError for an optimizer that was not fitted.
        """
        optimizer = configuration.optimizer
        if optimizer not in self.c0_s:
            raise UserError(
                f"optimizer {optimizer!r}", "was not measured", did_you_mean(optimizer, self.c0_s)
            )
        counts = {"chunk": configuration.chunks_per_step, "window": configuration.windows_per_step, None: 0}
        own_s = self.c0_s[optimizer] + counts[self.third_unit] * self.third_cost_s
        return own_s + self.c1_s_per_byte * configuration.bytes_per_step

    def to_record(self) -> dict[str, Any]:
        """The fit as JSON: the `fit` of profile.json and what `mlx-amort fit --json` prints."""
        third = None
        if self.third_cost_interval_s is not None:
            interval_s = list(self.third_cost_interval_s)
            third = {"unit": self.third_unit, "s": self.third_cost_s, "interval_s": interval_s}
        return {
            "c0_s": self.c0_s,
            "c1_us_per_byte": self.c1_s_per_byte * 1e6,
            "third_term": third,
            "ceiling_bytes_per_s": self.ceiling_bytes_per_s,
            "max_relative_error": self.max_relative_error,
            "leave_one_out_error": self.leave_one_out_error,
            "cross_validated_error": self.cross_validated_error,
            "held_out_error": self.held_out_error,
            "confidence": CONFIDENCE,
            "intervals": {
                "c0_s": {name: list(interval) for name, interval in self.c0_interval_s.items()},
                "c1_us_per_byte": [bound * 1e6 for bound in self.c1_interval_s_per_byte],
            },
            "law": self.law,
            "is_doubtful": self.is_doubtful,
            "verdict": self.verdict,
            "warnings": list(self.warnings),
            "terms": [term.to_record() for term in self.terms],
            "setting": vars(self.setting),
            "points": [_point_record(point) for point in self.points],
            "drift": self.drift,
            "disturbance": self.disturbance,
            "slower_visits": [
                {**_configuration(row), "measured_s": row.step_s, "slower_by": excess}
                for row, excess in self.slower_visits
            ],
            "kept_out": [{**_configuration(row), "reason": reason} for row, reason in self.kept_out],
        }


def _configuration(row: Row) -> dict[str, Any]:
    return {
        "batch": row.batch,
        "chunks": row.chunks,
        "window": row.window,
        "accum": row.accum,
        "seq": row.seq,
        "optimizer": row.optimizer,
        "precision": row.precision,
        "activation_checkpointing": row.activation_checkpointing,
        "bytes_per_step": row.bytes_per_step,
        "chunks_per_step": row.chunks_per_step,
        "windows_per_step": row.windows_per_step,
    }


def _point_record(point: FitPoint) -> dict[str, Any]:
    return {
        **_configuration(point.row),
        "measured_s": point.row.step_s,
        "predicted_s": point.predicted_s,
        "relative_error": point.relative_error,
        "leave_one_out_error": point.leave_one_out_error,
    }


def _refuse_what_cannot_fail(rows: Sequence[Row], kept_out: Sequence[tuple[Row, str]]) -> None:
    """Refuse a line through as many places as it has coefficients: it fits anything and says nothing."""
    sizes: dict[str, set[int]] = {}
    for row in rows:
        sizes.setdefault(row.optimizer, set()).add(row.bytes_per_step)
    aside = f" ({len(kept_out)} rows were kept out: {kept_out[0][1]}, ...)" if kept_out else ""
    todo = "measure other batches or chunks, such as half and four times the bytes a step"
    spread = max(max(values) / min(values) for values in sizes.values())
    if len(rows) >= 3 and spread < SMALLEST_SPREAD:
        if spread == 1.0:
            where = " or ".join(f"{size:,}" for size in sorted({row.bytes_per_step for row in rows}))
            same = f"all {len(rows)} points have the same {where} bytes a step"
            raise UserError("fit", f"{same}, so c0 and c1 cannot be told apart{aside}", todo)
        why = f"bytes a step differ only by a factor of {spread:.2f} and {SMALLEST_SPREAD} is the least"
        raise UserError("fit", f"{why}, so c0 and c1 cannot be told apart{aside}", todo)
    spare = sum(len(values) - 1 for values in sizes.values()) - 1
    if spare < 1:
        counts = ", ".join(f"{name} {len(values)}" for name, values in sizes.items())
        why = f"too few different bytes a step ({counts}): a line through so few cannot be wrong"
        raise UserError(
            "fit", why + aside, "measure at least three different bytes a step with one optimizer"
        )


def fit_record(record: Mapping[str, Any], source: str) -> Fit:
    """The fit of a profile's rows, judged by what it held out too; `source` names the file in messages."""
    return fit_rows(rows_from_records(record["rows"], source), held_out_rows(record, source))


def fit_rows(rows: Sequence[Row], held_out: Sequence[Row] = ()) -> Fit:
    """Fit step_s = c0[optimizer] + c1 · T by least squares of relative errors, and say whether it holds.

    Optimizers share c1. Of a configuration measured several times the fastest row is fitted.
    A cost per window joins the law where updates were timed alone, which are then observations of c0. Without them a
    cost per chunk (A·K) or per window (A·⌈K/W⌉), whichever explains more, joins where cross-validation asks for it.
    Any term asked for beside it rejects the law.
    Intervals are 95 %, from Student's t with n - p degrees of freedom. held_out: measured rows that may only lower
    the verdict.
    Source: docs/cost_model.md. Raises: UserError when the rows are too few or too equal for the law to fail.
    """
    setting, visits, kept_out = select(rows)
    fitted = [fastest_of(each) for each in visits_of(visits)]
    _refuse_what_cannot_fail(fitted, kept_out)
    optimizers = sorted({row.optimizer for row in fitted})
    step_s = np.array([row.step_s for row in fitted], dtype=np.float64)
    configurations = [(row.batch, row.chunks, row.accum, row.window, row.optimizer) for row in fitted]
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
    fit = _assemble(fitted, optimizers, columns, step_s, solution, unit)
    fit |= {"terms": tuple(terms), "law": "affine", "is_doubtful": False, "verdict": "", "setting": setting}
    fit |= {"drift": drift_of(visits), "disturbance": disturbance_of(visits)}
    unjudged = Fit(
        **fit, held_out_error=None, kept_out=tuple(kept_out), slower_visits=tuple(slower_visits(visits))
    )
    misses = [
        abs(unjudged.predict_s(row) / row.step_s - 1)
        for row in held_out
        if row.step_s and row.optimizer in optimizers
    ]
    held_out_error = statistics.median(misses) if misses else None
    law, verdict = judge(fit, solution, winner, held_out_error)
    doubt = None if law == "rejected" else doubt_of(fit, fitted, visits, solution, held_out_error)
    is_doubtful = doubt is not None
    # Of a rejected law nothing is used: what scatters there may as well be the law.
    disturbance = 1.0 if law == "rejected" else unjudged.disturbance
    return replace(
        unjudged,
        law=law,
        verdict=doubt or verdict,
        is_doubtful=is_doubtful,
        held_out_error=held_out_error,
        disturbance=disturbance,
    )


def _assemble(
    rows: Sequence[Row],
    optimizers: list[str],
    columns: Floats,
    step_s: Floats,
    solution: Solution,
    third_unit: str | None,
) -> dict[str, Any]:
    count = len(optimizers)
    left_out = [None if np.isnan(error) else float(error) for error in solution.left_out_errors]
    predicted_s = columns @ solution.coefficients
    c0_s = {name: float(solution.coefficients[i]) for i, name in enumerate(optimizers)}
    c0_interval_s = {name: solution.interval(i, CONFIDENCE) for i, name in enumerate(optimizers)}
    warnings = []
    for name, value in c0_s.items():
        low, high = c0_interval_s[name]
        if value < 0:
            doubt = "which noise can do" if high > 0 else "which no machine can do"
            warnings.append(
                f"c0 of {name} is negative ({value:.4g} s, interval {low:.3g} to {high:.3g} s), {doubt}"
            )
        elif low < 0:
            warnings.append(
                f"c0 of {name} cannot be told from zero ({value:.3g} s, interval {low:.3g} to {high:.3g} s)"
            )
    for name in optimizers:
        if sum(row.optimizer == name for row in rows) == 1:
            warnings.append(f"{name} has one point: its c0 rests on it and its own error says nothing")
    for index in spoiled_points(columns, step_s, solution):
        off = -float(solution.relative_errors[index])
        warnings.append(
            f"{rows[index].label} took {abs(off):.1%} {'more' if off > 0 else 'less'} than the law says: "
            "a busy or throttling machine, measure it again"
        )
    return {
        "c0_s": c0_s,
        "c1_s_per_byte": float(solution.coefficients[count]),
        "third_unit": third_unit,
        "third_cost_s": float(solution.coefficients[count + 1]) if third_unit else 0.0,
        "c0_interval_s": c0_interval_s,
        "c1_interval_s_per_byte": solution.interval(count, CONFIDENCE),
        "third_cost_interval_s": solution.interval(count + 1, CONFIDENCE) if third_unit else None,
        "points": tuple(
            FitPoint(row, float(predicted), float(error), without)
            for row, predicted, error, without in zip(
                rows, predicted_s, solution.relative_errors, left_out, strict=True
            )
        ),
        "cross_validated_error": solution.cross_validated_error,
        "warnings": tuple(warnings),
    }
