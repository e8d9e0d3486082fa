"""exp, GELU and the sigmoid from sums, products and selects alone, which vectorise.

On x86 MLX computes exp and erf one element at a time (12 ns); the polynomial for exp takes 1 ns. GELU is a rational
function fitted to Phi(x), and its slope one fitted to Phi(x) + x phi(x):
gelu(x) = x (1/2 + u P(u^2)/Q(u^2)) with u = x clipped to where the tail is below float32's resolution.
tools/fit_elementary.py makes the coefficients. Dtypes: float32 in and out.
"""

from __future__ import annotations

import math
from typing import cast

import mlx.core as mx

from mlx_amort.ops.cpu.fusion import fence

# exp(x) = p(x)^8 with p of degree 7, fitted so that p^8 is exp to 4e-8 on [-40, 0] and 1e-20 at the clamp;
# tools/fit_elementary.py makes it. Taylor's series needs 32 for 8, and each squaring doubles the rounding error.
_EXP = (
    0.124999931,
    0.00781225508,
    0.0003252693,
    1.00686441e-05,
    2.34981388e-07,
    3.6248892e-09,
    2.58811911e-11,
)
_SMALLEST_EXPONENT = -40.0


@mx.custom_function
def _exp_polynomial(x: mx.array) -> mx.array:
    # Nine operations deep (Estrin's scheme), so that it stays one fused kernel; the clamp fuses with what computed x.
    x = fence(mx.maximum(x, _SMALLEST_EXPONENT))
    a1, a2, a3, a4, a5, a6, a7 = _EXP
    x2 = x * x
    x4 = x2 * x2
    root = ((1.0 + a1 * x) + x2 * (a2 + a3 * x)) + x4 * ((a4 + a5 * x) + x2 * (a6 + a7 * x))
    root = root * root
    root = root * root
    return root * root


@_exp_polynomial.vjp
def _exp_polynomial_vjp(primals: mx.array, cotangent: mx.array, output: mx.array) -> mx.array:
    return cotangent * output


def exp_nonpositive(x: mx.array) -> mx.array:
    """exp(x) for x <= 0 to an absolute error of 1e-6; anything under -40 counts as -40 (1e-20)."""
    return cast(mx.array, _exp_polynomial(x))


def gelu(x: mx.array) -> mx.array:
    """x Phi(x)."""
    u, ratio = _odd_rational(x, _GELU_LIMIT, _GELU_P, _GELU_Q)
    return 0.5 * x + (x * u) * ratio


def gelu_slope(x: mx.array) -> mx.array:
    """Phi(x) + x phi(x)."""
    u, ratio = _odd_rational(x, _SLOPE_LIMIT, _SLOPE_P, _SLOPE_Q)
    return 0.5 + u * ratio


def sigmoid(x: mx.array) -> mx.array:
    """1 / (1 + exp(-x)), from exp of a non-positive number only; not to be differentiated."""
    half = 1.0 / (1.0 + fence(exp_nonpositive(-mx.abs(x)))) - 0.5
    return 0.5 + mx.where(x > 0, 1.0, -1.0) * half


# Minimax fits on u^2 in [0, 30] and [0, 32]; tools/fit_elementary.py makes them and prints their errors.
_GELU_LIMIT = math.sqrt(30.0)
_GELU_P = [
    0.3989386553320959,
    0.07050902200752111,
    0.007011198455184743,
    0.0005535610740162129,
    9.990805113989047e-06,
]
_GELU_Q = [
    1.0,
    0.34336617256950197,
    0.04986005205536027,
    0.004049304144727437,
    0.00020246706904157905,
    8.039935953054226e-07,
]
_SLOPE_LIMIT = math.sqrt(32.0)
_SLOPE_P = [
    0.7978853507526212,
    -0.030983973143242124,
    0.014228199312484343,
    1.9510901619989617e-05,
    3.5929408112654336e-05,
    1.9256866429750633e-07,
]
_SLOPE_Q = [
    1.0,
    0.29450884082910966,
    0.040982694017596855,
    0.0035229356056594697,
    0.00019205772406530642,
    8.940910158162297e-06,
]


def _clip(x: mx.array, limit: float) -> mx.array:
    # Selects of constants vectorise; mx.clip's NaN test does not.
    return mx.where(x > limit, limit, mx.where(x < -limit, -limit, x))


def _estrin(c: list[float], z: mx.array, z2: mx.array, z4: mx.array) -> mx.array:
    # Shallower than Horner's rule: the whole expression stays one fused kernel (depth limit 11).
    pairs = [c[i] + c[i + 1] * z if i + 1 < len(c) else mx.array(c[i]) for i in range(0, len(c), 2)]
    return pairs[0] + pairs[1] * z2 + pairs[2] * z4


def _odd_rational(x: mx.array, limit: float, p: list[float], q: list[float]) -> tuple[mx.array, mx.array]:
    u = fence(_clip(x, limit))
    z = u * u
    z2 = z * z
    z4 = z2 * z2
    return u, _estrin(p, z, z2, z4) / _estrin(q, z, z2, z4)
