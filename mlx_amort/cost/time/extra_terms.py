"""Whether the data ask for more than a line: a cost per chunk or window, T², or a cost of B or K alone."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from mlx_amort.cost.configuration import Measurement
from mlx_amort.cost.time.regression import Floats, Solution, fit_relative, is_determined
from mlx_amort.cost.time.student_t import t_probability

PER_CHUNK = "A·K"
PER_WINDOW = "A·⌈K/W⌉"
SQUARE = "T²"
BATCH_ALONE = "B"
CHUNKS_ALONE = "K"

_PHRASES = {
    PER_CHUNK: "a cost per chunk",
    PER_WINDOW: "a cost per window",
    SQUARE: "a T² term: the law is curved",
    BATCH_ALONE: "a term in B alone, apart from its bytes",
    CHUNKS_ALONE: "a term in K alone, apart from its bytes",
}
# A term must halve the cross-validated error and be seen by chance less than once in a hundred fits. Noise
# meets either alone too often: the first with four points, the second with four terms tried on every fit.
_ERROR_SHARE = 0.5
_CHANCE = 0.01
# What a step is known to pay more than once for, and what it is paid for; these may join the law.
UNITS = {PER_CHUNK: "chunk", PER_WINDOW: "window"}
# Of a step, what a cost per window must make to be told from nothing.
_NEGLIGIBLE = 0.01
# A two-sided interval of this share has a twentieth of chance below it.
_ONE_SIDED = 0.90
# Terms that explain equally well are told apart by physics: a chunk or a window is known to cost something.
_PREFERENCE = 1.25


@dataclass(frozen=True)
class TermTest:
    """One term tried beside the law; errors are root mean square relative errors of left-out points.

    coefficient_s is in seconds a unit of the term; it, error_with and chance are None where `note` says why
    the term could not be tried.
    """

    name: str
    beside: str | None
    error_without: float
    error_with: float | None
    coefficient_s: float | None
    chance: float | None
    is_asked_for: bool
    note: str

    @property
    def phrase(self) -> str:
        return _PHRASES[self.name]

    def to_record(self) -> dict[str, Any]:
        return asdict(self)


def term_column(rows: Sequence[Measurement], name: str) -> Floats:
    """The values [n] of a term for every row."""
    configurations = [row.configuration for row in rows]
    values = {
        PER_CHUNK: [each.chunks_per_step for each in configurations],
        PER_WINDOW: [each.windows_per_step for each in configurations],
        SQUARE: [each.bytes_per_step**2 for each in configurations],
        BATCH_ALONE: [each.batch for each in configurations],
        CHUNKS_ALONE: [each.chunks for each in configurations],
    }[name]
    return np.array(values, dtype=np.float64)


def design(rows: Sequence[Measurement], optimizers: Sequence[str], *terms: str) -> Floats:
    """Columns [n, optimizers + 1 + terms]: one per optimizer, bytes a step, then the named terms."""
    own = [[float(row.configuration.optimizer == name) for row in rows] for name in optimizers]
    sizes = np.array([row.configuration.bytes_per_step for row in rows], dtype=np.float64)
    further = [term_column(rows, name) for name in terms]
    return np.stack([*np.array(own, dtype=np.float64), sizes, *further], axis=1)


def _is_multiple(first: Floats, second: Floats) -> bool:
    ratio = first / second
    return bool(np.all(ratio == ratio[0]))


def examine_terms(
    rows: Sequence[Measurement],
    columns: Floats,
    step_s: Floats,
    configurations: list[Any],
    solution: Solution,
    beside: str | None = None,
    alone_s: Sequence[float] = (),
) -> list[TermTest]:
    """Try each further term beside the law given by columns [n, p] and its solution. alone_s: as for `fit_relative`."""
    tests = []
    without = solution.cross_validated_error
    for name in (PER_CHUNK, PER_WINDOW, SQUARE, BATCH_ALONE, CHUNKS_ALONE):
        if name == beside:
            continue
        column = term_column(rows, name)
        note = ""
        if name == CHUNKS_ALONE and _is_multiple(column, term_column(rows, PER_CHUNK)):
            note = "the same as A·K here: accumulation does not vary"
        if name == PER_WINDOW and _is_multiple(column, term_column(rows, PER_CHUNK)):
            note = "the same as A·K here: a window is one chunk, or was not told"
        wider = np.concatenate([columns, column[:, None]], axis=1)
        if not note and not is_determined(wider / step_s[:, None]):
            note = "cannot be told from the other terms in these rows"
        if not note and len(rows) <= wider.shape[1]:
            note = "too few rows"
        if note:
            tests.append(TermTest(name, beside, without, None, None, None, False, note))
            continue
        extended = fit_relative(wider, step_s, configurations, alone_s)
        common = ~np.isnan(solution.left_out_errors) & ~np.isnan(extended.left_out_errors)
        if not common.any():
            tests.append(TermTest(name, beside, without, None, None, None, False, "too few rows"))
            continue
        error_without = float(np.sqrt(np.mean(solution.left_out_errors[common] ** 2)))
        error_with = float(np.sqrt(np.mean(extended.left_out_errors[common] ** 2)))
        coefficient, deviation = float(extended.coefficients[-1]), float(extended.standard_errors[-1])
        chance = t_probability(coefficient / deviation, extended.degrees) if deviation > 0 else 0.0
        # Rounding alone differs by ratios; below a part in a million there is nothing to explain.
        is_asked_for = error_without > 1e-6 and error_with < _ERROR_SHARE * error_without and chance < _CHANCE
        tests.append(TermTest(name, beside, error_without, error_with, coefficient, chance, is_asked_for, ""))
    return tests


def asked_for(tests: Sequence[TermTest]) -> TermTest | None:
    """The term that the data ask for most, or None; a known cost wins where it explains about as well."""
    asked = [(test.error_with, test) for test in tests if test.is_asked_for and test.error_with is not None]
    if not asked:
        return None
    least = min(error for error, _ in asked)
    known = [(error, test) for error, test in asked if test.name in UNITS]
    known = [(error, test) for error, test in known if error <= _PREFERENCE * least + 1e-6]
    return min(known or asked, key=lambda pair: pair[0])[1]


def updates_alone(rows: Sequence[Measurement], optimizers: Sequence[str]) -> list[float]:
    """The median of each optimizer's update timed alone, in seconds; empty unless all of them were."""
    times = [
        [row.update_s for row in rows if row.configuration.optimizer == name and row.update_s]
        for name in optimizers
    ]
    return [statistics.median(own) for own in times] if all(times) else []


def cost_beside_updates(
    tests: Sequence[TermTest],
    rows: Sequence[Measurement],
    optimizers: Sequence[str],
    step_s: Floats,
    configurations: list[Any],
    alone_s: Sequence[float],
) -> TermTest | None:
    """A cost per window (or chunk, where that halves the error), with c0 held to the updates timed alone.

    A window is known to cost something whatever it holds. c0 alone cannot tell that from an update in a few noisy rows;
    with c0 measured, it can. None where the cost is no more than noise makes (one-sided, 95 %), or less than a
    hundredth of every step.
    """
    if not alone_s:
        return None
    told: tuple[TermTest, Solution] | None = None
    for name in (PER_WINDOW, PER_CHUNK):
        (test,) = (test for test in tests if test.name == name)
        if test.note:
            continue
        solution = fit_relative(design(rows, optimizers, name), step_s, configurations, alone_s)
        cost_s, error_with = float(solution.coefficients[-1]), solution.cross_validated_error
        note = "c0 is held to the updates timed alone"
        found = replace(test, coefficient_s=cost_s, error_with=error_with, is_asked_for=True, note=note)
        # A window's is preferred: the other must halve its error.
        if told is None or error_with < _ERROR_SHARE * told[1].cross_validated_error:
            told = found, solution
    if told is None:
        return None
    test, solution = told
    share = float(np.max(term_column(rows, test.name) * solution.coefficients[-1] / step_s))
    if share < _NEGLIGIBLE or solution.interval(-1, _ONE_SIDED)[0] <= 0:
        return None
    return test
