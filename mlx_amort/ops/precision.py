"""The precision policy and the matrix product it implies.

| policy    | weights  | compute  | gradients and optimizer state |
|-----------|----------|----------|-------------------------------|
| fp32      | float32  | float32  | float32  |
| bf16      | float32  | bfloat16 | float32  |
| bf16-pure | bfloat16 | bfloat16 | bfloat16 |

Activations carry the compute dtype; a product casts its weight to it (on the CPU: ops/cpu/products.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import mlx.core as mx

from mlx_amort.ops.activations import gelu, gelu_gradient
from mlx_amort.ops.constants import BFLOAT16_BYTES, FLOAT32_BYTES, WIDTHS, Precision
from mlx_amort.ops.cpu.products import operand
from mlx_amort.ops.recompute import held_back

_DTYPES = {FLOAT32_BYTES: mx.float32, BFLOAT16_BYTES: mx.bfloat16}


@dataclass(frozen=True)
class Policy:
    """The dtypes of one precision policy."""

    weights: mx.Dtype
    compute: mx.Dtype
    gradients: mx.Dtype


def policy_of(name: Precision) -> Policy:
    """The policy called `name`, in the dtypes of its widths."""
    widths = WIDTHS[name]
    return Policy(_DTYPES[widths.weights], _DTYPES[widths.compute], _DTYPES[widths.gradients])


def _flat(x: mx.array) -> mx.array:
    return x.reshape(-1, x.shape[-1])


def _product(x: mx.array, weight: mx.array) -> mx.array:
    """x Wᵀ for the last axis of `x`, in `x`'s dtype."""
    rounded = operand(weight.astype(x.dtype))
    return (operand(_flat(x)) @ rounded.T).astype(x.dtype).reshape(*x.shape[:-1], weight.shape[0])


def _product_gradients(x: mx.array, weight: mx.array, cotangent: mx.array) -> tuple[mx.array, mx.array]:
    """Cotangents of `x` and of the weight; the latter in [out, in] order, so that adding it up is contiguous."""
    grad = operand(_flat(cotangent))
    grad_weight = (grad.T @ operand(_flat(x))).astype(x.dtype).astype(weight.dtype)
    # The weight's first: put off, it would hold `x` and the cotangent.
    (waiting,) = held_back([weight], grad_weight)
    return (grad @ operand(waiting.astype(x.dtype))).astype(x.dtype).reshape(x.shape), grad_weight


@mx.custom_function
def _linear(x: mx.array, weight: mx.array) -> mx.array:
    return _product(x, weight)


@_linear.vjp
def _linear_vjp(
    primals: tuple[mx.array, mx.array], cotangent: mx.array, output: mx.array
) -> tuple[mx.array, mx.array]:
    x, weight = held_back(primals, cotangent)
    return _product_gradients(x, weight, cotangent)


def linear(x: mx.array, weight: mx.array) -> mx.array:
    """x Wᵀ, the product of the policy: operands and result in `x`'s dtype, sums in float32.

    The weight's gradient is rounded to `x`'s dtype, as a GPU's product would, and then widened to the weight's.

    Shapes: x [..., in], weight [out, in] -> [..., out]. Dtypes: result as `x`.
    """
    return cast(mx.array, _linear(x, weight))


@mx.custom_function
def _gelu_linear(x: mx.array, weight: mx.array) -> mx.array:
    return _product(gelu(x), weight)


@_gelu_linear.vjp
def _gelu_linear_vjp(
    primals: tuple[mx.array, mx.array], cotangent: mx.array, output: mx.array
) -> tuple[mx.array, mx.array]:
    x, weight = held_back(primals, cotangent)
    grad_activation, grad_weight = _product_gradients(gelu(x), weight, cotangent)
    return gelu_gradient(x, grad_activation), grad_weight


def gelu_linear(x: mx.array, weight: mx.array) -> mx.array:
    """gelu(x) Wᵀ, keeping `x` alone for the backward pass: GELU is computed again there (2 % of a block's work).

    Shapes: x [..., in], weight [out, in] -> [..., out]. Dtypes: as `linear`.
    """
    return cast(mx.array, _gelu_linear(x, weight))
