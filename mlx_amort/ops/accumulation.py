"""Adding a gradient to what was summed before, as soon as it is known."""

from __future__ import annotations

from typing import Any, cast

import mlx.core as mx

from mlx_amort.ops.recompute import held_far_back

Arrays = dict[str, mx.array]


def adding_to(sums: Arrays, weights: Arrays, x: mx.array) -> tuple[Arrays, mx.array]:
    """`weights` and `x` as they are; in the backward pass the weights' gradient becomes sum + gradient.

    Without sums nothing is added.
    The gradient of `x` waits for these sums. So a block's weight gradients, and all they are computed from, are
    gone before the block below is differentiated; left to itself MLX's scheduler puts off both the products
    and the sums of about twenty weights.

    Shapes: `sums` and `weights` have the same names and shapes. Dtypes: a sum has its weight's dtype.
    """
    return cast(tuple[Arrays, mx.array], _adding(sums, weights, x)) if sums else (weights, x)


@mx.custom_function
def _adding(sums: Arrays, weights: Arrays, x: mx.array) -> tuple[Arrays, mx.array]:
    return dict(weights), x


@_adding.vjp
def _adding_vjp(
    primals: Any, cotangents: tuple[Arrays, mx.array], output: Any
) -> tuple[Arrays, Arrays, mx.array]:
    sums, _, _ = primals
    gradients, grad_x = cotangents
    totals = {name: sums[name] + gradients[name] for name in sums}
    (grad_x,) = held_far_back([grad_x], [grad_x, *totals.values()])
    return {name: mx.zeros_like(value) for name, value in sums.items()}, totals, grad_x
