"""What a backward pass computes again instead of keeping, and when it does so.

Everything here ties arrays to others that must be computed first. Without the tie mx.compile finds that an expression
of the backward pass was computed in the forward pass already, and keeps that one alive; and MLX's scheduler, which
walks the graph breadth-first, recomputes a block while the one after it is still being differentiated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten

from mlx_amort.ops.cpu.allocation import wait_for_allocations


def held_back(arrays: Sequence[mx.array], until: mx.array | Sequence[mx.array]) -> list[mx.array]:
    """`arrays`, to be had once `until` is computed; what a gradient recomputes starts from these."""
    return cast(list[mx.array], mx.depends(list(arrays), until))


def held_far_back(arrays: Sequence[mx.array], until: Sequence[mx.array]) -> list[mx.array]:
    """`arrays`, for which nothing is allocated before `until` is computed and its temporaries are gone."""
    # No gradient is sought through the wait: it would be an array of zeros for every empty operation.
    (token,) = held_back([mx.stop_gradient(until[0])], [mx.stop_gradient(array) for array in until])
    return held_back(arrays, wait_for_allocations(token))


def recomputed(function: Callable[..., Any], pieces: int = 1) -> Callable[..., Any]:
    """`function`, keeping only its arguments for the backward pass, which computes the rest again.

    As mx.checkpoint, but nothing is recomputed before the cotangents have arrived, and it is done in `pieces`, one
    after the other: the first argument (weights) belongs to all of them, every other array, and every result, is cut
    along its first axis. Arguments and results are trees of arrays, None included; every array that is to have a
    gradient must be among the arguments.
    """

    @mx.custom_function
    def keeping_arguments(weights: Any, *rest: Any) -> Any:
        results: list[Any] = []
        for piece in _cut(rest, pieces):
            if results:
                piece = _with_arrays(piece, held_far_back(_arrays(piece), _arrays(results[-1])))
            results.append(function(weights, *piece))
        return _joined(results)

    @keeping_arguments.vjp
    def recompute(arguments: Any, cotangents: Any, results: Any) -> Any:
        weights, *rest = arguments
        totals: list[mx.array] = []
        gradients: list[Any] = []
        for piece, cotangent in zip(_cut(tuple(rest), pieces), _cut(cotangents, pieces), strict=True):
            start = _arrays((weights, piece))
            incoming = _arrays(cotangent)
            start = held_back(start, incoming)
            if gradients:
                start = held_far_back(start, [*_arrays(gradients[-1]), *totals])
            own = _gradients(function, weights, piece, start, incoming)
            count = len(_arrays(weights))
            totals = [a + b for a, b in zip(totals, own[:count], strict=True)] if totals else own[:count]
            gradients.append(_with_arrays(piece, own[count:]))
        return (_with_arrays(weights, totals), *_joined(gradients))

    return cast(Callable[..., Any], keeping_arguments)


def _gradients(
    function: Callable[..., Any], weights: Any, piece: Any, start: list[mx.array], incoming: list[mx.array]
) -> list[mx.array]:
    def flat(*arrays: mx.array) -> list[mx.array]:
        own_weights, own_piece = _with_arrays((weights, piece), arrays)
        return _arrays(function(own_weights, *own_piece))

    return mx.vjp(flat, start, incoming)[1]


def _leaves(tree: Any) -> list[tuple[str, Any]]:
    return cast(list[tuple[str, Any]], tree_flatten(tree))


def _arrays(tree: Any) -> list[mx.array]:
    return [leaf for _, leaf in _leaves(tree) if leaf is not None]


def _with_arrays(tree: Any, arrays: Sequence[mx.array]) -> Any:
    """`tree` with its arrays replaced in order; its empty places stay empty."""
    rest = iter(arrays)
    return tree_unflatten([(path, None if leaf is None else next(rest)) for path, leaf in _leaves(tree)])


def _cut(tree: Any, pieces: int) -> list[Any]:
    """`tree` in pieces along the first axis of every array."""
    if pieces == 1:
        return [tree]
    # Sliced: mx.compile fails on two splits of one array of which some parts are unused.
    lengths = [len(array) // pieces for array in _arrays(tree)]
    return [
        _with_arrays(
            tree, [array[i * n : (i + 1) * n] for array, n in zip(_arrays(tree), lengths, strict=True)]
        )
        for i in range(pieces)
    ]


def _joined(trees: list[Any]) -> Any:
    if len(trees) == 1:
        return trees[0]
    arrays = [mx.concatenate(list(parts), axis=0) for parts in zip(*map(_arrays, trees), strict=True)]
    return _with_arrays(trees[0], arrays)
