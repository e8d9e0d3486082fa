"""Orthogonalise stacks of matrices by Newton-Schulz: products only, no decomposition.

Axes: m rows, n columns; any axes before them are a stack of independent matrices.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import mlx.core as mx

from mlx_amort.ops.cpu.fusion import fence
from mlx_amort.ops.cpu.products import operand
from mlx_amort.ops.newton_schulz import SAFETY, Coefficients, Polynomial, polynomials, takes_gram_form

ScaleOf = Callable[[mx.array], mx.array]

# Below any gradient worth a step; yet a matrix whose squares underflow is still nothing divided by it.
_SMALLEST_NORM: Final = 1e-12


def orthogonalize(x: mx.array, coefficients: Coefficients, dtype: mx.Dtype = mx.float32) -> mx.array:
    """Return nearly U Vᵀ of x = U Σ Vᵀ: the singular vectors of `x` with every singular value near one.

    X = x / ‖x‖_F, then step by step  X <- (aI + Z) X  with Z = bR + cR² [+ dR³ + eR⁴] and R = X Xᵀ. A tall matrix is
    multiplied from the right, R = Xᵀ X, so that R is small and nothing is transposed in memory. A zero matrix
    stays zero. `polar_express_nonic` divides once more by ‖R‖_F^(1/2), which no singular value exceeds either and
    which leaves them up to m^(1/4) times larger; in bfloat16 its large coefficients lose their digits.
    With a long side of at least 1.5 short ones the Gram form is used: every factor is a polynomial in the first
    R, so the steps run on [m, m] alone and X is met twice. Only in float32: in bfloat16 it drifts off.

    Source: Jordan 2024 (Muon); Amsel et al. 2025 (Polar Express); Gram form: Gram Newton-Schulz, Dao-AILab.
    Shapes: [..., m, n] -> [..., m, n], each matrix by itself.
    Dtypes: the norm in float32, the products in `dtype`, the result in that of `x`.
    Raises: ValueError for `polar_express_nonic` in another dtype than float32.
    """
    is_nonic = coefficients == "polar_express_nonic"
    if is_nonic and dtype != mx.float32:
        raise ValueError(f"polar_express_nonic needs float32 products, not {dtype}")
    steps, margin = polynomials(coefficients), 1.0 if coefficients == "jordan" else SAFETY
    m, n = x.shape[-2:]
    wide = x.astype(mx.float32)
    if dtype != mx.float32:
        # The norm before the cast: half precision would lose the sum.
        unit = wide / mx.maximum(margin * _norm(wide), _SMALLEST_NORM)
        return _iterate(unit.astype(dtype), steps, None).astype(x.dtype)
    iterate = _iterate_gram if takes_gram_form(m, n, is_float32=True) else _iterate
    return iterate(wide, steps, partial(_scale_of, margin=margin, is_tight=is_nonic)).astype(x.dtype)


def _norm(x: mx.array) -> mx.array:
    # The last axis first: a whole-array float32 sum on the CPU adds one by one and loses percents.
    return mx.sqrt(mx.square(x).sum(axis=-1, keepdims=True).sum(axis=-2, keepdims=True))


def _scale_of(square: mx.array, margin: float, is_tight: bool) -> mx.array:
    """What X is to be multiplied by, from R = X Xᵀ: one over ‖X‖_F = sqrt(tr R), or over ‖R‖_F^(1/2)."""
    trace = mx.maximum(mx.diagonal(square, axis1=-2, axis2=-1).sum(axis=-1), _SMALLEST_NORM**2)[
        ..., None, None
    ]
    if is_tight:
        # By the trace first: squares of R would leave float32's range.
        trace = trace * mx.maximum(_norm(square / fence(trace)), _SMALLEST_NORM)
    # Fenced: the compiler would take the root again for every element that is multiplied.
    return fence(1.0 / (margin * mx.sqrt(trace)))


def _iterate(x: mx.array, steps: tuple[Polynomial, ...], scale_of: ScaleOf | None) -> mx.array:
    """Take the steps on X itself."""
    is_tall = x.shape[-2] > x.shape[-1]
    for index, step in enumerate(steps):
        square = _gram(x, is_tall)
        if index == 0 and scale_of is not None:
            scale = scale_of(square)
            square, x = square * (scale * scale), x * scale
        factor = _polynomial(square, step)
        left, right = (x, factor) if is_tall else (factor, x)
        x = _multiply_add(x, left, right, alpha=1.0, beta=step[0])
    return x


def _iterate_gram(x: mx.array, steps: tuple[Polynomial, ...], scale_of: ScaleOf) -> mx.array:
    """Take the steps on R = X Xᵀ and Q, the product of the factors so far: X_k = Q X, R_k = Q R Qᵀ."""
    is_tall = x.shape[-2] > x.shape[-1]
    square = _gram(x, is_tall)
    scale = scale_of(square)
    square = square * (scale * scale)
    identity = mx.eye(square.shape[-1], dtype=x.dtype)
    product: mx.array | None = None
    for index, step in enumerate(steps):
        factor = _polynomial(square, step)
        if product is None:
            product = scale * (factor + step[0] * identity)
        else:
            product = _multiply_add(product, product, factor, alpha=1.0, beta=step[0])
        if index + 1 < len(steps):  # (aI + Z) R (aI + Z); all of these commute
            square = _multiply_add(square, factor, square, alpha=1.0, beta=step[0])
            square = _multiply_add(square, square, factor, alpha=1.0, beta=step[0])
    assert product is not None
    return _multiply(x, product) if is_tall else _multiply(product, x)


def _polynomial(square: mx.array, step: Polynomial) -> mx.array:
    """Z = bR + cR² [+ dR³ + eR⁴] in one product, or in two: with T = dR + eR² it is bR + cR² + R² T."""
    if len(step) == 3:
        return _multiply_add(square, square, square, alpha=step[2], beta=step[1])
    _, b, c, d, e = step
    fourth = _multiply(square, square)
    return _multiply_add(b * square + c * fourth, fourth, d * square + e * fourth, alpha=1.0, beta=1.0)


def _gram(x: mx.array, is_tall: bool) -> mx.array:
    transposed = x.swapaxes(-1, -2)
    return _multiply(transposed, x) if is_tall else _multiply(x, transposed)


def _multiply(a: mx.array, b: mx.array) -> mx.array:
    return (operand(a) @ operand(b)).astype(a.dtype)


def _multiply_add(c: mx.array, a: mx.array, b: mx.array, *, alpha: float, beta: float) -> mx.array:
    """Return alpha a b + beta c without writing the scaled parts to memory."""
    return mx.addmm(operand(c), operand(a), operand(b), alpha=alpha, beta=beta).astype(c.dtype)
