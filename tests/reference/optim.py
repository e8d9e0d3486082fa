"""The optimizers in float64 NumPy, from the formulas: one matrix, one tensor, one step at a time."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

JORDAN = [(3.4445, -4.7750, 2.0315)] * 5
POLAR_EXPRESS = [
    (a / 1.01, b / 1.01**3, c / 1.01**5)
    for a, b, c in (
        (8.28721, -23.59589, 17.30039),
        (4.10706, -2.94785, 0.54484),
        (3.94869, -2.90890, 0.55182),
        (3.31842, -2.48849, 0.51005),
        (2.30065, -1.66890, 0.41881),
    )
]

POLAR_EXPRESS_NONIC = [
    tuple(value / 1.01**power for value, power in zip(step, (1, 3, 5, 7, 9), strict=True))
    for step in (
        (14.9373, -146.249, 486.661, -625.53, 272.151),
        (6.75962, -16.3497, 13.8421, -4.55616, 0.508882),
        (4.18824, -8.77688, 7.94461, -2.95883, 0.38272),
    )
]


def orthogonalize(x: Array, coefficients: str) -> Array:
    """Apply the odd polynomials to each singular value of one matrix; its singular vectors stay."""
    left, values, right = np.linalg.svd(x, full_matrices=False)
    norm = math.sqrt(float(np.sum(values**2)))
    if norm == 0:
        return np.zeros_like(x)
    if coefficients == "polar_express_nonic":
        values = values / (1.01 * float(np.sum(values**4)) ** 0.25)
        for a, b, c, d, e in POLAR_EXPRESS_NONIC:
            values = a * values + b * values**3 + c * values**5 + d * values**7 + e * values**9
        return np.asarray((left * values) @ right)
    values = values / (norm * (1.01 if coefficients == "polar_express" else 1.0))
    for a, b, c in POLAR_EXPRESS if coefficients == "polar_express" else JORDAN:
        values = a * values + b * values**3 + c * values**5
    return np.asarray((left * values) @ right)


def muon_steps(
    weight: Array,
    gradients: list[Array],
    rates: list[float],
    *,
    decay: float,
    momentum: float,
    coefficients: str,
    scale: Callable[[int, int], float],
) -> tuple[Array, Array]:
    """Return one matrix and its momentum after several updates."""
    buffer = np.zeros_like(weight)
    for gradient, rate in zip(gradients, rates, strict=True):
        buffer = momentum * buffer + (1 - momentum) * gradient
        ahead = (1 - momentum) * gradient + momentum * buffer
        step = orthogonalize(ahead, coefficients)
        weight = (1 - rate * decay) * weight - rate * scale(*weight.shape) * step
    return weight, buffer


def adamw_steps(
    weight: Array,
    gradients: list[Array],
    rates: list[float],
    *,
    decay: float,
    beta1: float,
    beta2: float,
    eps: float,
) -> tuple[Array, Array, Array]:
    """Return one tensor and its two moments after several updates, element by element."""
    weight, first, second = weight.copy(), np.zeros_like(weight), np.zeros_like(weight)
    for index in np.ndindex(weight.shape):
        w, m, v = float(weight[index]), 0.0, 0.0
        for count, (gradient, rate) in enumerate(zip(gradients, rates, strict=True), start=1):
            g = float(gradient[index])
            m = beta1 * m + (1 - beta1) * g
            v = beta2 * v + (1 - beta2) * g * g
            w -= rate * decay * w
            w -= rate * (m / (1 - beta1**count)) / (math.sqrt(v / (1 - beta2**count)) + eps)
        weight[index], first[index], second[index] = w, m, v
    return weight, first, second


def global_norm(gradients: list[Array]) -> float:
    """Return the square root of the sum of the squares of every element."""
    return math.sqrt(sum(float(value) ** 2 for gradient in gradients for value in gradient.ravel()))
