"""Make the coefficients of mlx_amort/ops: exp as a polynomial to the eighth, GELU and its slope as rationals.

Run it without arguments; it prints each fit and its error in float64. The fits are weighted minimax by Lawson's
iteration (iteratively reweighted least squares); rational ones are linearised and reweighted by the last denominator.
"""

from __future__ import annotations

import argparse
import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_erf = np.vectorize(math.erf)


def fit_exp(degree: int = 7, squarings: int = 3, lowest: float = 40.0) -> tuple[Array, float]:
    """Coefficients a1..a_degree of p(x) = 1 + a1 x + ..., with p^(2^squarings) near exp on [-lowest, 0]."""
    power = 2**squarings
    reach = lowest / power
    x = np.concatenate([-(np.linspace(0, 1, 6001) ** 2) * reach, -np.linspace(0, reach, 2001)])
    # An error e of the root is 2^s exp((2^s - 1) x) e after the squarings, and far out only has to stay small.
    tolerance = np.minimum(np.exp(-(power - 1) * x) / power * 1e-7, 0.009)
    basis = (x / reach)[:, None] ** np.arange(1, degree + 1)
    weights, best = np.ones_like(x), math.inf
    coefficients: Array = np.zeros(degree)
    for _ in range(400):
        scale = np.sqrt(weights) / tolerance
        solution = np.linalg.lstsq(basis * scale[:, None], (np.exp(x) - 1) * scale, rcond=None)[0].astype(
            np.float64
        )
        error = np.abs(basis @ solution + 1 - np.exp(x)) / tolerance
        if error.max() < best:
            best, coefficients = error.max(), solution
        weights *= np.sqrt(0.02 + error / error.max())
        weights /= weights.mean()
    return coefficients / (power * reach) ** np.arange(1, degree + 1), best * 1e-7


def fit_odd_rational(
    values: Array, x: Array, weight: Array, top: int, bottom: int
) -> tuple[Array, Array, float]:
    """P and Q in z = x^2 with values near P(z)/Q(z), Q(0) = 1, minimax under `weight`."""
    largest = float((x * x).max())
    s = x * x / largest
    up, down = s[:, None] ** np.arange(top + 1), s[:, None] ** np.arange(1, bottom + 1)
    basis = np.concatenate([up, -values[:, None] * down], axis=1)
    weights, denominator, best = np.ones_like(x), np.ones_like(x), math.inf
    coefficients: Array = np.zeros(top + bottom + 1)
    for _ in range(60):
        scale = weight * np.sqrt(weights) / denominator
        solution: Array = np.linalg.lstsq(basis * scale[:, None], values * scale, rcond=None)[0].astype(
            np.float64
        )
        denominator = 1 + down @ solution[top + 1 :]
        error = np.abs(up @ solution[: top + 1] / denominator - values) * weight
        if error.max() < best:
            best, coefficients = error.max(), solution
        weights *= error / error.max() + 1e-3
        weights /= weights.mean()
    p = coefficients[: top + 1] / largest ** np.arange(top + 1)
    q = np.concatenate([[1.0], coefficients[top + 1 :] / largest ** np.arange(1, bottom + 1)])
    return p, q, best


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    """Print every fit."""
    coefficients, error = fit_exp()
    print(f"exp: error {error:.1e}\n  {[float(f'{c:.9g}') for c in coefficients]}")
    for name, limit, top, bottom in (("gelu", 30.0, 4, 5), ("slope", 32.0, 5, 5)):
        x = np.sqrt(limit) * np.sin(np.linspace(0, np.pi / 2, 4001))
        safe = np.maximum(x, 1e-4)
        value = 0.5 * _erf(safe / math.sqrt(2)) / safe
        if name == "slope":
            value = value + np.exp(-safe * safe / 2) / math.sqrt(2 * math.pi)
        weight = (x * x if name == "gelu" else x) + 1e-3
        p, q, error = fit_odd_rational(value, x, weight, top, bottom)
        print(f"{name}: error {error:.1e}\n  P {p.tolist()}\n  Q {q.tolist()}")


if __name__ == "__main__":
    main()
