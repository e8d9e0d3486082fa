"""Quantiles of Student's t, so that intervals from a handful of points are as wide as they must be."""

from __future__ import annotations

import functools
import math


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Regularised incomplete beta function I_x(a, b).

    Source: Lentz's continued fraction, Abramowitz and Stegun 26.5.8.
    """
    if x <= 0.0 or x >= 1.0:
        return float(x >= 1.0)
    # The fraction converges quickly only left of the mean; the other side is its mirror image.
    if x > (a + 1.0) / (a + b + 2.0):
        return 1.0 - _incomplete_beta(b, a, 1.0 - x)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    tiny = 1e-300
    c, d = 1.0, 1.0 / max(1.0 - (a + b) * x / (a + 1.0), tiny)
    value = d
    for m in range(1, 500):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1.0 + term * d
            c = 1.0 + term / c
            d = 1.0 / (d if abs(d) > tiny else tiny)
            c = c if abs(c) > tiny else tiny
            value *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return math.exp(log_front) * value / a


def t_probability(t: float, degrees: float) -> float:
    """P(|X| > |t|) of Student's t with the given degrees of freedom: I_{v/(v+t²)}(v/2, 1/2)."""
    return _incomplete_beta(degrees / 2.0, 0.5, degrees / (degrees + t * t))


@functools.lru_cache(maxsize=256)
def t_quantile(confidence: float, degrees: float) -> float:
    """The t with P(|X| <= t) = confidence, found by bisection; t_quantile(0.95, 8) = 2.306."""
    low, high = 0.0, 1.0
    while t_probability(high, degrees) > 1.0 - confidence:
        high *= 2.0
    for _ in range(200):
        middle = 0.5 * (low + high)
        if t_probability(middle, degrees) > 1.0 - confidence:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)
