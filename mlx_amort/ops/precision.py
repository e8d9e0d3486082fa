"""The precision policy and the matrix product it implies.

| policy    | weights  | compute  | gradients and optimizer state |
|-----------|----------|----------|-------------------------------|
| fp32      | float32  | float32  | float32  |
| bf16      | float32  | bfloat16 | float32  |
| bf16-pure | bfloat16 | bfloat16 | bfloat16 |

Activations carry the compute dtype; a product casts its weight to it. MLX's CPU backend multiplies bfloat16 about
30 times slower than float32, so there operands are rounded to bfloat16, multiplied in float32 and the result rounded:
the numbers of a GPU that accumulates in float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from mlx_amort.ops.paths import active_path

POLICIES = ("fp32", "bf16", "bf16-pure")


@dataclass(frozen=True)
class Policy:
    """The dtypes of one precision policy."""

    weights: mx.Dtype
    compute: mx.Dtype
    gradients: mx.Dtype


def policy_of(name: str) -> Policy:
    """The policy called `name`: fp32, bf16 or bf16-pure. Raises: KeyError for another name."""
    return {
        "fp32": Policy(mx.float32, mx.float32, mx.float32),
        "bf16": Policy(mx.float32, mx.bfloat16, mx.float32),
        "bf16-pure": Policy(mx.bfloat16, mx.bfloat16, mx.bfloat16),
    }[name]


def operand(x: mx.array) -> mx.array:
    """`x` in the dtype the backend multiplies: float32 for bfloat16 on the CPU, else itself."""
    return x.astype(mx.float32) if active_path() == "cpu" else x


def _flat(x: mx.array) -> mx.array:
    return x.reshape(-1, x.shape[-1])


@mx.custom_function
def linear(x: mx.array, weight: mx.array) -> mx.array:
    """x Wᵀ, the product of the policy: the weight is rounded to `x`'s dtype, sums are float32.

    The gradient of the weight comes out in its own [out, in] order, so that adding it to an accumulator is
    contiguous, and in float32 before it is rounded to the weight's dtype.

    Shapes: x [..., in], weight [out, in] -> [..., out]. Dtypes: result as `x`.
    """
    rounded = operand(weight.astype(x.dtype))
    return (operand(_flat(x)) @ rounded.T).astype(x.dtype).reshape(*x.shape[:-1], weight.shape[0])


@linear.vjp
def _linear_vjp(
    primals: tuple[mx.array, mx.array], cotangent: mx.array, output: mx.array
) -> tuple[mx.array, mx.array]:
    x, weight = primals
    grad = operand(_flat(cotangent))
    grad_x = (grad @ operand(weight.astype(x.dtype))).astype(x.dtype).reshape(x.shape)
    grad_weight = (grad.T @ operand(_flat(x))).astype(x.dtype).astype(weight.dtype)
    return grad_x, grad_weight
