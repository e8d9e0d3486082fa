"""Relative least squares and what a fit needs to doubt itself: left-out errors, variances, spoiled points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlx_amort.cost.time.student_t import t_quantile
from mlx_amort.errors import UserError

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Solution:
    """A fitted linear law.

    Shapes: coefficients and standard_errors [p], relative_errors (predicted / measured - 1) [n] and
    left_out_errors [n], which are NaN for a point without whose configuration the law is not determined.
    """

    coefficients: Floats
    standard_errors: Floats
    relative_errors: Floats
    left_out_errors: Floats
    degrees: int

    @property
    def cross_validated_error(self) -> float:
        """Root mean square of the left-out errors."""
        return float(np.sqrt(np.nanmean(self.left_out_errors**2)))

    def interval(self, index: int, confidence: float = 0.95) -> tuple[float, float]:
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


def _solve(columns: Floats, step_s: Floats) -> Floats:
    # Columns span ten decades (1 beside T²); scaled to one length they lose no digits.
    weighted = columns / step_s[:, None]
    lengths = np.linalg.norm(weighted, axis=0)
    solution = np.linalg.lstsq(weighted / lengths, np.ones(len(step_s)), rcond=None)[0]
    return np.asarray(solution / lengths, dtype=np.float64)


def fit_relative(
    columns: Floats, step_s: Floats, configurations: list[Any], alone_s: Sequence[float] = ()
) -> Solution:
    """Minimise the sum of ((columns · coefficients - t) / t)².

    Repeats of one configuration are left out together, or each would vouch for the other. alone_s: times of what the
    first coefficients stand for, measured alone; each is one more observation, and none of the errors returned.
    Shapes: columns [n, p], step_s [n], configurations n hashable names.
    Requires n > p and is_determined(columns).
    Raises: UserError where the times differ by so much that the law is not determined.
    """
    count = len(columns)
    columns = np.vstack([columns, np.eye(len(alone_s), columns.shape[1])])
    step_s = np.concatenate([step_s, np.asarray(alone_s, dtype=np.float64)])
    rows, terms = columns.shape
    weighted = columns / step_s[:, None]
    if not is_determined(weighted):
        # The columns differ; the times hide it, by so many decades that only one of them counts.
        raise UserError(
            "fit",
            f"times from {step_s.min():g} to {step_s.max():g} s hide each other, so c0 and c1 cannot be told apart",
            "leave out the rows of another machine, or correct them",
        )
    coefficients = _solve(columns, step_s)
    relative_errors = columns @ coefficients / step_s - 1.0
    lengths = np.linalg.norm(weighted, axis=0)
    covariance = np.linalg.inv((weighted / lengths).T @ (weighted / lengths)) / np.outer(lengths, lengths)
    variance = float(relative_errors @ relative_errors) / (rows - terms)
    left_out = np.full(rows, np.nan)
    for configuration in dict.fromkeys(configurations):
        out = np.array([name == configuration for name in configurations] + [False] * len(alone_s))
        if is_determined(columns[~out]):
            left_out[out] = columns[out] @ _solve(columns[~out], step_s[~out]) / step_s[out] - 1.0
    return Solution(
        coefficients=coefficients,
        standard_errors=np.sqrt(variance * np.diag(covariance)),
        relative_errors=relative_errors[:count],
        left_out_errors=left_out[:count],
        degrees=rows - terms,
    )


def spoiled_points(columns: Floats, step_s: Floats, solution: Solution) -> list[int]:
    """Indices of points that a busy or throttling machine has probably spoiled.

    A point is named when its externally studentised residual r / (s_without · sqrt(1 - h)) would be seen by
    chance once in a hundred fits (Bonferroni over the points) and it lies more than 3 % off.
    Source: Cook and Weisberg 1982, section 2.2.2.
    """
    rows = len(step_s)
    if solution.degrees < 2:
        return []
    basis = np.linalg.qr(columns / step_s[:, None])[0]
    spare = 1.0 - np.sum(basis**2, axis=1)
    total = float(solution.relative_errors @ solution.relative_errors)
    limit = t_quantile(1.0 - 0.01 / rows, solution.degrees - 1)
    spoiled = []
    for index in range(rows):
        if spare[index] < 1e-9 or abs(solution.relative_errors[index]) < 0.03:
            continue
        without = (total - solution.relative_errors[index] ** 2 / spare[index]) / (solution.degrees - 1)
        studentised = abs(solution.relative_errors[index]) / np.sqrt(max(without, 1e-300) * spare[index])
        if studentised > limit:
            spoiled.append(index)
    return spoiled
