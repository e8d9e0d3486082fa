"""Orthogonalise stacks of matrices by Newton-Schulz: products only, no decomposition.

Axes: m rows, n columns; any axes before them are a stack of independent matrices.
"""

from __future__ import annotations

from typing import Final, Literal

import mlx.core as mx

from mlx_amort.ops.newton_schulz import STEPS, takes_gram_form

Triple = tuple[float, float, float]

# Jordan 2024: one quintic five times over; slope 3.4 at zero, ends anywhere in [0.68, 1.21].
_JORDAN: Final[tuple[Triple, ...]] = ((3.4445, -4.7750, 2.0315),) * STEPS
# Amsel et al. 2025 (arXiv 2505.16932): each step the best quintic for the interval the step before leaves.
_POLAR_EXPRESS: Final[tuple[Triple, ...]] = (
    (8.28721, -23.59589, 17.30039),
    (4.10706, -2.94785, 0.54484),
    (3.94869, -2.90890, 0.55182),
    (3.31842, -2.48849, 0.51005),
    (2.30065, -1.66890, 0.41881),
)
# Rounding can push a singular value past 1, where these quintics climb steeply; the factor keeps it inside.
_SAFETY: Final = 1.01

# Below any gradient worth a step; yet a matrix whose squares underflow is still nothing divided by it.
_SMALLEST_NORM: Final = 1e-12


def orthogonalize(
    x: mx.array,
    coefficients: Literal["polar_express", "jordan"] = "polar_express",
    dtype: mx.Dtype = mx.float32,
) -> mx.array:
    """Return nearly U Vᵀ of x = U Σ Vᵀ: the singular vectors of `x` with every singular value near one.

    X = x / ‖x‖_F, then five times  X <- aX + (bA + cA²) X  with A = X Xᵀ. A tall matrix is multiplied from
    the right, A = Xᵀ X, so that A is small and nothing is transposed in memory. A zero matrix stays zero.
    With a long side of at least 1.5 short ones the Gram form is used: every factor is a polynomial in
    R = X Xᵀ, so the steps run on [m, m] alone and X is met twice. Only in float32: in bfloat16 it drifts off.

    Source: Jordan 2024 (Muon); Amsel et al. 2025 (Polar Express); Gram form: Gram Newton-Schulz, Dao-AILab.
    Shapes: [..., m, n] -> [..., m, n], each matrix by itself.
    Dtypes: the norm in float32, the products in `dtype`, the result in that of `x`.
    """
    triples = _JORDAN if coefficients == "jordan" else _deflated(_POLAR_EXPRESS)
    margin = 1.0 if coefficients == "jordan" else _SAFETY
    m, n = x.shape[-2:]
    unit = _normalize(x.astype(mx.float32), margin).astype(dtype)
    iterate = _iterate_gram if takes_gram_form(m, n, dtype == mx.float32) else _iterate
    return iterate(unit, triples).astype(x.dtype)


def _deflated(triples: tuple[Triple, ...]) -> tuple[Triple, ...]:
    """Return the coefficients of p(x / safety) for p(x) = ax + bx³ + cx⁵."""
    return tuple((a / _SAFETY, b / _SAFETY**3, c / _SAFETY**5) for a, b, c in triples)


def _normalize(x: mx.array, margin: float) -> mx.array:
    # The last axis first: a whole-array float32 sum on the CPU adds one by one and loses percents.
    norm = mx.sqrt(mx.square(x).sum(axis=-1, keepdims=True).sum(axis=-2, keepdims=True))
    return x / mx.maximum(margin * norm, _SMALLEST_NORM)


def _iterate(x: mx.array, triples: tuple[Triple, ...]) -> mx.array:
    """Take the steps on X itself."""
    is_tall = x.shape[-2] > x.shape[-1]
    for a, b, c in triples:
        square = _gram(x, is_tall)
        polynomial = _multiply_add(square, square, square, alpha=c, beta=b)
        left, right = (x, polynomial) if is_tall else (polynomial, x)
        x = _multiply_add(x, left, right, alpha=1.0, beta=a)
    return x


def _iterate_gram(x: mx.array, triples: tuple[Triple, ...]) -> mx.array:
    """Take the steps on R = X Xᵀ and Q, the product of the factors so far: X_k = Q X, R_k = Q R Qᵀ."""
    is_tall = x.shape[-2] > x.shape[-1]
    square = _gram(x, is_tall)
    identity = mx.eye(square.shape[-1], dtype=x.dtype)
    product: mx.array | None = None
    for step, (a, b, c) in enumerate(triples):
        polynomial = _multiply_add(square, square, square, alpha=c, beta=b)
        if product is None:
            product = polynomial + a * identity
        else:
            product = _multiply_add(product, product, polynomial, alpha=1.0, beta=a)
        if step + 1 < len(triples):  # (aI + Z) R (aI + Z); all of these commute
            square = _multiply_add(square, polynomial, square, alpha=1.0, beta=a)
            square = _multiply_add(square, square, polynomial, alpha=1.0, beta=a)
    assert product is not None
    return _multiply(x, product) if is_tall else _multiply(product, x)


def _gram(x: mx.array, is_tall: bool) -> mx.array:
    transposed = x.swapaxes(-1, -2)
    return _multiply(transposed, x) if is_tall else _multiply(x, transposed)


def _multiply(a: mx.array, b: mx.array) -> mx.array:
    if _is_slow_here(a.dtype):
        return (a.astype(mx.float32) @ b.astype(mx.float32)).astype(a.dtype)
    return a @ b


def _multiply_add(c: mx.array, a: mx.array, b: mx.array, *, alpha: float, beta: float) -> mx.array:
    """Return alpha a b + beta c without writing the scaled parts to memory."""
    if _is_slow_here(c.dtype):
        wide_c, wide_a, wide_b = (matrix.astype(mx.float32) for matrix in (c, a, b))
        return mx.addmm(wide_c, wide_a, wide_b, alpha=alpha, beta=beta).astype(c.dtype)
    return mx.addmm(c, a, b, alpha=alpha, beta=beta)


def _is_slow_here(dtype: mx.Dtype) -> bool:
    # MLX's 16-bit products on the CPU do not use the BLAS; a float32 one, rounded, is the same number sooner.
    return bool(dtype != mx.float32 and mx.default_device() == mx.Device(mx.cpu))
