"""GELU, SiLU and softplus, with gradients that keep only their inputs."""

from __future__ import annotations

import math
from typing import cast

import mlx.core as mx

from mlx_amort.ops.cpu import polynomials
from mlx_amort.ops.cpu.fusion import fence
from mlx_amort.ops.paths import active_path
from mlx_amort.ops.recompute import held_back


def _gelu_value(x: mx.array) -> mx.array:
    if active_path() == "cpu":
        return polynomials.gelu(x)
    return 0.5 * x * (1.0 + mx.erf(x * math.sqrt(0.5)))


def _gelu_slope(x: mx.array) -> mx.array:
    if active_path() == "cpu":
        return polynomials.gelu_slope(x)
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
    # The callers have gradients of their own.
    return polynomials.sigmoid(x) if active_path() == "cpu" else mx.sigmoid(x)


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
