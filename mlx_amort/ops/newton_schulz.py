"""The polynomials of Newton-Schulz, the form a matrix takes and what it costs; for those who run it or count it.

A step is an odd polynomial p(x) = x (a + b x² + c x⁴ [+ d x⁶ + e x⁸]) of every singular value. No mlx here.
"""

from __future__ import annotations

from typing import Final, Literal

from mlx_amort.errors import assert_never

Coefficients = Literal["polar_express", "polar_express_nonic", "jordan"]
Polynomial = tuple[float, ...]

# Jordan 2024: one quintic five times over; slope 3.4 at zero, ends anywhere in [0.68, 1.21].
_JORDAN: Final[tuple[Polynomial, ...]] = ((3.4445, -4.7750, 2.0315),) * 5
# Amsel et al. 2025 (arXiv 2505.16932): each step the best quintic for the interval the step before leaves.
_POLAR_EXPRESS: Final[tuple[Polynomial, ...]] = (
    (8.28721, -23.59589, 17.30039),
    (4.10706, -2.94785, 0.54484),
    (3.94869, -2.90890, 0.55182),
    (3.31842, -2.48849, 0.51005),
    (2.30065, -1.66890, 0.41881),
)
# The same construction with degree 9, for singular values from 0.002 to 1: tools/fit_newton_schulz.py makes it.
_POLAR_EXPRESS_NONIC: Final[tuple[Polynomial, ...]] = (
    (14.9373, -146.249, 486.661, -625.53, 272.151),
    (6.75962, -16.3497, 13.8421, -4.55616, 0.508882),
    (4.18824, -8.77688, 7.94461, -2.95883, 0.38272),
)
# Rounding can push a singular value past 1, where these polynomials climb steeply; the factor keeps it inside.
SAFETY: Final = 1.01

# Long side over short from which the Gram form is cheaper.
_GRAM_RATIO: Final = 1.5


def polynomials(coefficients: Coefficients) -> tuple[Polynomial, ...]:
    """The steps' polynomials, one after the other; those of Polar Express as p(x / SAFETY)."""
    match coefficients:
        case "jordan":
            return _JORDAN
        case "polar_express":
            steps = _POLAR_EXPRESS
        case "polar_express_nonic":
            steps = _POLAR_EXPRESS_NONIC
        case unknown:
            assert_never(unknown)
    return tuple(tuple(value / SAFETY ** (2 * k + 1) for k, value in enumerate(step)) for step in steps)


def takes_gram_form(m: int, n: int, is_float32: bool) -> bool:
    """Whether a matrix [m, n], in either order, is stepped on its Gram matrix; in bfloat16 that drifts off."""
    return is_float32 and max(m, n) >= _GRAM_RATIO * min(m, n)


def count_flops(m: int, n: int, is_float32: bool, coefficients: Coefficients) -> tuple[float, float]:
    """FLOPs of one matrix, m the shorter side: in products [m, m] [m, n], and in products [m, m] [m, m].

    A step takes one product for a polynomial of degree 5 and two for degree 9; beside them the plain form forms
    X Xᵀ and multiplies X, and the Gram form multiplies Q (but for the first step) and, twice, R (but for the last).
    """
    steps = polynomials(coefficients)
    inner = sum((len(step) - 1) // 2 for step in steps)
    if takes_gram_form(m, n, is_float32):
        return 4.0 * m * m * n, 2.0 * (inner + 3 * (len(steps) - 1)) * m**3
    return 4.0 * len(steps) * m * m * n, 2.0 * inner * m**3
