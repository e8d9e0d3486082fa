"""Make the polynomials of degree 9 in mlx_amort/ops/newton_schulz.py, and show what all of them do to spectra.

    python tools/fit_newton_schulz.py

Amsel et al. 2025 (arXiv 2505.16932): of all compositions of odd polynomials the best approximation of 1 on
[smallest, 1] takes in each step the best polynomial for the interval that the step before leaves. It is found by Remez'
exchange: the error is equally large, and changes sign, at one point more than there are coefficients.

Printed for each choice: products per step, and ‖O - UVᵀ‖/√m for matrices with the singular values in the head.
"""

from __future__ import annotations

import argparse

import numpy as np
from numpy.typing import NDArray

from mlx_amort.ops.newton_schulz import SAFETY, Polynomial, polynomials

Array = NDArray[np.float64]

DEGREE, STEPS, SMALLEST = 9, 3, 0.002


def best_polynomial(low: float, high: float, degree: int) -> tuple[Array, float]:
    """The odd polynomial nearest to 1 on [low, high], lowest power first, and its largest error."""
    count = (degree + 1) // 2
    points = low + (high - low) * (1 - np.cos(np.pi * np.arange(count + 1) / count)) / 2
    for _ in range(100):
        powers = points[:, None] ** (2 * np.arange(count) + 1)
        signs = (-1.0) ** np.arange(count + 1)
        solution = np.linalg.solve(np.column_stack([powers, signs]), np.ones(count + 1))
        slopes = (2 * np.arange(count) + 1) * solution[:count]
        squares = np.roots(slopes[::-1])
        extrema = np.sort(np.sqrt(squares.real))
        moved = np.concatenate([[low], extrema, [high]])
        if np.abs(moved - points).max() < 1e-14:
            break
        points = moved
    return np.asarray(solution[:count], dtype=np.float64), abs(float(solution[count]))


def composition(smallest: float, steps: int, degree: int) -> list[Array]:
    """The best `steps` polynomials for singular values in [smallest, 1]."""
    low, high = smallest, 1.0
    found = []
    for _ in range(steps):
        step, error = best_polynomial(low, high, degree)
        low, high = 1 - error, 1 + error
        found.append(step)
    return found


def apply(steps: tuple[Polynomial, ...], values: Array) -> Array:
    """The steps' polynomials of singular values, one after the other."""
    for step in steps:
        values = sum(value * values ** (2 * k + 1) for k, value in enumerate(step))  # type: ignore[assignment]
    return values


def spectra() -> dict[str, Array]:
    """Singular values: decaying, and of Gaussian matrices."""
    random = np.random.default_rng(0)
    found = {f"1/i, {m}": _decaying(m, -1.0) for m in (256, 1024, 4096)}
    found["1/sqrt(i), 1024"] = _decaying(1024, -0.5)
    for m, n in ((1024, 1024), (256, 1024)):
        values = np.linalg.svd(random.normal(size=(m, n)), compute_uv=False)
        found[f"normal {m} × {n}"] = np.asarray(values, dtype=np.float64)
    return found


def _decaying(count: int, power: float) -> Array:
    return np.asarray(np.arange(1, count + 1, dtype=np.float64) ** power)


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    for step in composition(SMALLEST, STEPS, DEGREE):
        print("    (" + ", ".join(f"{value:.6g}" for value in step) + "),")
    print("\n" + " " * 30 + "".join(f"{name:>19}" for name in spectra()))
    for name in ("jordan", "polar_express", "polar_express_nonic"):
        steps = polynomials(name)
        products = sum(2 + (len(step) - 1) // 2 for step in steps)
        errors = []
        for values in spectra().values():
            # As in ops/orthogonalize.py: by the norm of X, or by that of X Xᵀ.
            norm = np.sum(values**4) ** 0.25 if name == "polar_express_nonic" else np.linalg.norm(values)
            margin = 1.0 if name == "jordan" else SAFETY
            errors.append(np.sqrt(np.mean((apply(steps, values / (margin * norm)) - 1) ** 2)))
        print(f"{name:20} {products:2} products" + "".join(f"{error:19.3f}" for error in errors))


if __name__ == "__main__":
    main()
