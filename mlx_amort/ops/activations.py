"""GELU, SiLU and softplus, with gradients that keep only their inputs.

On the CPU path GELU is a rational function fitted to Phi(x) (and its derivative to Phi(x) + x phi(x)):
gelu(x) = x (1/2 + u P(u^2)/Q(u^2)) with u = x clipped to where the tail is below float32's resolution.
"""

from __future__ import annotations

import math
from typing import cast

import mlx.core as mx

from mlx_amort.ops.elementary import exp_nonpositive
from mlx_amort.ops.paths import active_path, fence
from mlx_amort.ops.recompute import held_back

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


def _gelu_value(x: mx.array) -> mx.array:
    if active_path() == "cpu":
        u, ratio = _odd_rational(x, _GELU_LIMIT, _GELU_P, _GELU_Q)
        return 0.5 * x + (x * u) * ratio
    return 0.5 * x * (1.0 + mx.erf(x * math.sqrt(0.5)))


def _gelu_slope(x: mx.array) -> mx.array:
    if active_path() == "cpu":
        u, ratio = _odd_rational(x, _SLOPE_LIMIT, _SLOPE_P, _SLOPE_Q)
        return 0.5 + u * ratio
    density = mx.exp(-0.5 * x * x) * (1.0 / math.sqrt(2.0 * math.pi))
    return 0.5 * (1.0 + mx.erf(x * math.sqrt(0.5))) + x * density


@mx.custom_function
def _gelu(x: mx.array) -> mx.array:
    return _gelu_value(x.astype(mx.float32)).astype(x.dtype)


@_gelu.vjp
def _gelu_vjp(x: mx.array, cotangent: mx.array, output: mx.array) -> mx.array:
    return gelu_gradient(x, cotangent)


def gelu(x: mx.array) -> mx.array:
    """Exact GELU, x Phi(x). Source: Hendrycks and Gimpel 2016.

    Shapes: any. Dtypes: as the input; computed in float32.
    """
    return cast(mx.array, _gelu(x))


def gelu_gradient(x: mx.array, cotangent: mx.array) -> mx.array:
    """The cotangent of GELU's input: cotangent · (Phi(x) + x phi(x)). Shapes: both alike. Dtypes: as `x`."""
    return (cotangent.astype(mx.float32) * _gelu_slope(x.astype(mx.float32))).astype(x.dtype)


def _sigmoid(x: mx.array) -> mx.array:
    # From exp of a non-positive number only; the callers have gradients of their own.
    if active_path() != "cpu":
        return mx.sigmoid(x)
    half = 1.0 / (1.0 + fence(exp_nonpositive(-mx.abs(x)))) - 0.5
    return 0.5 + mx.where(x > 0, 1.0, -1.0) * half


@mx.custom_function
def _silu_gate(x: mx.array, gate: mx.array) -> mx.array:
    wide = gate.astype(mx.float32)
    return (x.astype(mx.float32) * wide * fence(_sigmoid(wide))).astype(x.dtype)


@_silu_gate.vjp
def _silu_gate_vjp(
    primals: tuple[mx.array, mx.array], cotangent: mx.array, output: mx.array
) -> tuple[mx.array, mx.array]:
    x, gate = held_back(primals, cotangent)
    wide = gate.astype(mx.float32)
    grad = cotangent.astype(mx.float32)
    opening = fence(_sigmoid(wide))
    grad_x = grad * wide * opening
    grad_gate = grad * x.astype(mx.float32) * opening * (1.0 + wide * (1.0 - opening))
    return grad_x.astype(x.dtype), grad_gate.astype(gate.dtype)


def silu_gate(x: mx.array, gate: mx.array) -> mx.array:
    """x * silu(gate), the gated output of a recurrent mixer.

    Shapes: both [..., n]. Dtypes: as `x`; computed in float32.
    """
    return cast(mx.array, _silu_gate(x, gate))


def softplus(x: mx.array) -> mx.array:
    """log(1 + exp(x)) without overflow. Shapes: any. Dtypes: float32."""
    return mx.logaddexp(x, mx.zeros((), dtype=x.dtype))
