"""Relative least squares and what a fit needs to doubt itself: leave-one-out residuals, variances, outliers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlx_amort.cost.time.diagnostics import Thresholds
from mlx_amort.cost.time.student_t import t_quantile
from mlx_amort.errors import UserError

Floats = NDArray[np.float64]
# A leverage this close to 1 is 1: without the point the coefficients are not determined.
_SPARE = 1e-9


@dataclass(frozen=True)
class Solution:
    """A fitted linear model.

    Shapes: coefficients and standard_errors [p]; relative_errors (predicted / measured - 1), left_out_errors and
    studentized_errors [n], of which the last two are NaN for a point without which the model is not determined.
    """

    coefficients: Floats
    standard_errors: Floats
    relative_errors: Floats
    left_out_errors: Floats
    studentized_errors: Floats
    degrees: int

    @property
    def cross_validated_error(self) -> float:
        """Root mean square of the leave-one-out residuals."""
        return float(np.sqrt(np.nanmean(self.left_out_errors**2)))

    def interval(self, index: int, confidence: float) -> tuple[float, float]:
        """coefficient ± t quantile · standard error."""
        half = t_quantile(confidence, self.degrees) * float(self.standard_errors[index])
        return float(self.coefficients[index]) - half, float(self.coefficients[index]) + half


def is_determined(columns: Floats) -> bool:
    """Whether the columns [n, p] are independent enough for each to have one coefficient."""
    rows, terms = columns.shape
    lengths = np.linalg.norm(columns, axis=0)
    if rows < terms or not np.all(lengths > 0):
        return False
    singular = np.linalg.svd(columns / lengths, compute_uv=False)
    return bool(singular[-1] > 1e-6 * singular[0])


def fit_relative(
    columns: Floats, step_s: Floats, updates_s: Sequence[float] = (), update_agreement: float = 0.0
) -> Solution:
    """Minimise the sum of ((columns · coefficients - t) / t)².

    updates_s: times of what the first coefficients stand for, measured alone; each is one more observation, and none
    of the errors returned. They agree with those coefficients within update_agreement, relatively, so against steps
    that the model misses by s (root mean square) they weigh s² / (s² + update_agreement²).
    A leave-one-out residual is e / (1 - h) at leverage h (Cook and Weisberg 1982, section 2.2.1).
    Shapes: columns [n, p], step_s [n]. Requires n > p, is_determined(columns) and one row per configuration.
    Raises: UserError where the times differ by so much that the model is not determined.
    """
    weighted = columns / step_s[:, None]
    if not is_determined(weighted):
        # The columns differ; the times hide it, by so many decades that only one of them counts.
        raise UserError(
            "fit",
            f"times from {step_s.min():g} to {step_s.max():g} s hide each other, so c0 and c1 cannot be told apart",
            "leave out the rows of another machine, or correct them",
        )
    alone = _solve(weighted, np.ones(len(step_s)), len(step_s))
    if not len(updates_s):
        return alone
    error = float(np.sqrt(np.sum(alone.relative_errors**2) / alone.degrees))
    weight = error / np.hypot(error, update_agreement) if error > 0 else 0.0
    updates = weight * np.eye(len(updates_s), columns.shape[1]) / np.asarray(updates_s)[:, None]
    targets = np.concatenate([np.ones(len(step_s)), np.full(len(updates_s), weight)])
    return _solve(np.vstack([weighted, updates]), targets, len(step_s))


def _solve(weighted: Floats, targets: Floats, count: int) -> Solution:
    """The least squares solution of weighted · coefficients = targets, with the errors of the first `count` rows."""
    rows, terms = weighted.shape
    # Columns span ten decades (1 beside T²); scaled to one length they lose no digits.
    lengths = np.linalg.norm(weighted, axis=0)
    basis, singular, turn = np.linalg.svd(weighted / lengths, full_matrices=False)
    coefficients = turn.T @ (basis.T @ targets / singular) / lengths
    inverse = (turn.T / singular**2) @ turn / np.outer(lengths, lengths)
    errors = weighted @ coefficients - targets
    total, degrees = float(errors @ errors), rows - terms
    errors = errors[:count]
    spare = 1.0 - np.sum(basis[:count] ** 2, axis=1)
    spare[spare < _SPARE] = np.nan
    studentized = np.full(count, np.nan)
    if degrees > 1:
        without = np.maximum((total - errors**2 / spare) / (degrees - 1), 1e-300)
        studentized = errors / np.sqrt(without * spare)
    return Solution(
        coefficients=coefficients,
        standard_errors=np.sqrt(total / degrees * np.diag(inverse)),
        relative_errors=errors,
        left_out_errors=errors / spare,
        studentized_errors=studentized,
        degrees=degrees,
    )


def outliers_of(solution: Solution, thresholds: Thresholds) -> list[int]:
    """Indices of points that noise like that of the others does not explain.

    A point is an outlier when its externally studentized residual would be seen by chance in less than
    `outlier_chance` of fits (Bonferroni over the points) and it lies more than `outlier_error` off.
    Source: Cook and Weisberg 1982, section 2.2.2.
    """
    if solution.degrees < 2:
        return []
    count = len(solution.relative_errors)
    limit = t_quantile(1.0 - thresholds.outlier_chance / count, solution.degrees - 1)
    is_outlier = np.abs(np.nan_to_num(solution.studentized_errors)) > limit
    is_outlier &= np.abs(solution.relative_errors) > thresholds.outlier_error
    return [int(index) for index in np.flatnonzero(is_outlier)]
