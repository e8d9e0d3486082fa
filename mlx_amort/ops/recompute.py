"""What a backward pass computes again instead of keeping, and when it does so.

Both functions tie arrays to the arrival of a cotangent. Without the tie mx.compile finds that an expression of
the backward pass was computed in the forward pass already, and keeps that one alive; and MLX's scheduler, which
walks the graph breadth-first, recomputes a block while the one after it is still being differentiated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten

Function = TypeVar("Function", bound=Callable[..., Any])


def held_back(arrays: Sequence[mx.array], until: mx.array | Sequence[mx.array]) -> list[mx.array]:
    """`arrays`, to be had once `until` is computed; what a gradient recomputes starts from these."""
    return cast(list[mx.array], mx.depends(list(arrays), until))


def recomputed(function: Function) -> Function:
    """`function`, keeping only its arguments for the backward pass, which computes the rest again.

    As mx.checkpoint, but nothing is recomputed before the cotangents have arrived. Arguments and results are
    trees of arrays, None included; every array that is to have a gradient must be among the arguments.
    """

    @mx.custom_function
    def keeping_arguments(*arguments: Any) -> Any:
        return function(*arguments)

    @keeping_arguments.vjp
    def recompute(arguments: Any, cotangents: Any, results: Any) -> Any:
        leaves = _leaves(arguments)
        incoming = _arrays(cotangents)

        def flat(*arrays: mx.array) -> list[mx.array]:
            return _arrays(function(*_with_arrays(leaves, arrays)))

        _, gradients = mx.vjp(flat, held_back(_arrays(arguments), incoming), incoming)
        return _with_arrays(leaves, gradients)

    return cast(Function, keeping_arguments)


def _leaves(tree: Any) -> list[tuple[str, Any]]:
    return cast(list[tuple[str, Any]], tree_flatten(tree))


def _arrays(tree: Any) -> list[mx.array]:
    return [leaf for _, leaf in _leaves(tree) if leaf is not None]


def _with_arrays(leaves: list[tuple[str, Any]], arrays: Sequence[mx.array]) -> Any:
    """The tree of `leaves` with its arrays replaced in order; its empty places stay empty."""
    rest = iter(arrays)
    return tree_unflatten([(path, None if leaf is None else next(rest)) for path, leaf in leaves])
