"""Whether the data ask for more than a line: a cost per chunk or window, T², or a cost of B or K alone."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from mlx_amort.cost.configuration import Measurement
from mlx_amort.cost.time.diagnostics import CONFIDENCE, Thresholds
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
    SQUARE: "a T² term: the cost is curved",
    BATCH_ALONE: "a term in B alone, apart from its bytes",
    CHUNKS_ALONE: "a term in K alone, apart from its bytes",
}
# What a step is known to pay more than once for, and what it is paid for; one of these may join the model.
UNITS = {PER_WINDOW: "window", PER_CHUNK: "chunk"}
# Rounding alone differs by ratios; below a part in a million there is nothing to explain.
_ROUNDING = 1e-6
_WITH_UPDATES = "joined, with updates timed alone as observations of c0"


@dataclass(frozen=True)
class TermTest:
    """One term tried beside the model; errors are root mean squares of leave-one-out residuals.

    coefficient_s is in seconds per unit of the term; it, error_with and chance are None where `note` says why
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
        """That the data ask for the term, with both errors."""
        assert self.error_with is not None
        errors = f"{self.error_without:.1%} without it, {self.error_with:.1%} with it"
        return f"the data ask for {_PHRASES[self.name]} (cross-validated error {errors})"

    def to_record(self) -> dict[str, Any]:
        """The test as JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Observations:
    """One row per configuration, their optimizers, and each optimizer's update timed alone where all of them were."""

    rows: Sequence[Measurement]
    optimizers: Sequence[str]
    updates_s: tuple[float, ...]
    thresholds: Thresholds

    @classmethod
    def of(cls, rows: Sequence[Measurement], thresholds: Thresholds) -> Observations:
        """The observations of rows that were selected for one fit."""
        optimizers = sorted({row.configuration.optimizer for row in rows})
        times_s = [
            [row.update_s for row in rows if row.configuration.optimizer == name and row.update_s]
            for name in optimizers
        ]
        updates_s = tuple(statistics.median(own) for own in times_s) if all(times_s) else ()
        return cls(rows, optimizers, updates_s, thresholds)

    @property
    def step_s(self) -> Floats:
        """Step times [n]."""
        return np.array([row.step_s for row in self.rows], dtype=np.float64)

    def term(self, name: str) -> Floats:
        """The values [n] of a further term."""
        configurations = [row.configuration for row in self.rows]
        values = {
            PER_CHUNK: [each.chunks_per_step for each in configurations],
            PER_WINDOW: [each.windows_per_step for each in configurations],
            SQUARE: [each.bytes_per_step**2 for each in configurations],
            BATCH_ALONE: [each.batch for each in configurations],
            CHUNKS_ALONE: [each.chunks for each in configurations],
        }[name]
        return np.array(values, dtype=np.float64)

    def columns(self, *terms: str) -> Floats:
        """Columns [n, optimizers + 1 + terms]: one per optimizer, bytes per step, then the named terms."""
        own = [[float(row.configuration.optimizer == name) for row in self.rows] for name in self.optimizers]
        sizes = [float(row.configuration.bytes_per_step) for row in self.rows]
        return np.stack([*np.array(own), np.array(sizes), *map(self.term, terms)], axis=1)

    def solve(self, *terms: str, with_updates: bool = False) -> Solution:
        """The fit of the model with the named terms; with_updates: held by the updates timed alone."""
        updates_s = self.updates_s if with_updates else ()
        return fit_relative(self.columns(*terms), self.step_s, updates_s, self.thresholds.update_agreement)


def examine_terms(
    observations: Observations, solution: Solution, joined: str | None = None, with_updates: bool = False
) -> list[TermTest]:
    """Try each further term beside the model that `solution` fits, to which `joined` belongs."""
    tests = []
    for name in (PER_CHUNK, PER_WINDOW, SQUARE, BATCH_ALONE, CHUNKS_ALONE):
        if name != joined:
            tests.append(_examine(observations, solution, name, joined, with_updates))
    return tests


def _examine(
    observations: Observations, solution: Solution, name: str, joined: str | None, with_updates: bool
) -> TermTest:
    terms = (name,) if joined is None else (joined, name)
    extended = None
    note = _why_not_tried(observations, name, terms)
    without = solution.cross_validated_error
    if not note:
        extended = observations.solve(*terms, with_updates=with_updates)
        common = ~np.isnan(solution.left_out_errors) & ~np.isnan(extended.left_out_errors)
        note = "" if common.any() else "too few rows"
    if note or extended is None:
        return TermTest(name, joined, without, None, None, None, False, note)
    without = float(np.sqrt(np.mean(solution.left_out_errors[common] ** 2)))
    error = float(np.sqrt(np.mean(extended.left_out_errors[common] ** 2)))
    coefficient, deviation = float(extended.coefficients[-1]), float(extended.standard_errors[-1])
    chance = t_probability(coefficient / deviation, extended.degrees) if deviation > 0 else 0.0
    is_clear = without > _ROUNDING and error < observations.thresholds.term_error_share * without
    is_asked_for = is_clear and chance < observations.thresholds.term_chance
    return TermTest(name, joined, without, error, coefficient, chance, is_asked_for, "")


def _why_not_tried(observations: Observations, name: str, terms: tuple[str, ...]) -> str:
    """Why a term cannot be told from those beside it, empty where it can."""
    if name in (PER_WINDOW, CHUNKS_ALONE):
        ratio = observations.term(name) / observations.term(PER_CHUNK)
        if np.all(ratio == ratio[0]):
            if name == CHUNKS_ALONE:
                return "the same as A·K here: accumulation does not vary"
            return "the same as A·K here: a window is one chunk, or was not told"
    columns = observations.columns(*terms)
    if not is_determined(columns / observations.step_s[:, None]):
        return "cannot be told from the other terms in these rows"
    return "too few rows" if len(columns) <= columns.shape[1] else ""


def most_asked_for(tests: Sequence[TermTest], thresholds: Thresholds) -> TermTest | None:
    """Of the terms that the data ask for, the one that leaves the least error, or None.

    A known cost wins where it leaves about as little: two scans that cross do not tell B alone from a cost per chunk.
    """
    asked = [(test.error_with, test) for test in tests if test.is_asked_for and test.error_with is not None]
    if not asked:
        return None
    limit = thresholds.known_cost_preference * min(error for error, _ in asked) + _ROUNDING
    known = [(error, test) for error, test in asked if test.name in UNITS and error <= limit]
    return min(known or asked, key=lambda pair: pair[0])[1]


def join_with_updates(observations: Observations, tests: Sequence[TermTest]) -> TermTest | None:
    """The cost per window or chunk, whichever explains more, with c0 held by the updates timed alone.

    A window is known to cost something whatever it holds. c0 alone cannot tell that from an update in a few noisy rows;
    with updates timed alone it can. None where none were, or where the cost's interval holds zero.
    """
    if not observations.updates_s:
        return None
    found = []
    for test in tests:
        if test.name in UNITS and not test.note:
            solution = observations.solve(test.name, with_updates=True)
            found.append((solution.cross_validated_error, test, solution))
    if not found:
        return None
    error, test, solution = min(found, key=lambda each: each[0])
    if solution.interval(-1, CONFIDENCE)[0] <= 0:
        return None
    cost_s = float(solution.coefficients[-1])
    return TermTest(test.name, None, test.error_without, error, cost_s, test.chance, True, _WITH_UPDATES)
