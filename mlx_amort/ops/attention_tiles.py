"""The tiles of causal attention, for the paths whose gradient is ours: queries in blocks that stop at the diagonal.

Each block of queries meets two tiles of keys: those before the block, all visible, and its own, under a triangular
mask. The blocks wait for one another: left to itself MLX's scheduler takes all of them side by side and holds every
tile at once. Source: Dao et al. 2022 (FlashAttention), algorithm 4, coarsely.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce

import mlx.core as mx

from mlx_amort.ops.cpu.fusion import fence
from mlx_amort.ops.recompute import held_back

Tile = tuple[int, int, int, int]
"""Queries [start, end) and keys [key_start, key_end); masked when both ranges are the same."""


def tiles_of(length: int, block: int) -> list[list[Tile]]:
    """The tiles of every block of queries: the keys before it (none for the first), then its own."""
    blocks = [(start, min(start + block, length)) for start in range(0, length, block)]
    return [[*([(a, b, 0, a)] if a else []), (a, b, a, b)] for a, b in blocks]


def masked(scores: mx.array, tile: Tile) -> mx.array:
    """The scores of a tile, -inf above the diagonal of a masked one."""
    start, end, key_start, _ = tile
    if key_start != start:
        return scores
    places = mx.arange(end - start)
    return scores + fence(mx.where(places[None, :] <= places[:, None], 0.0, -math.inf))


def after(x: mx.array, before: list[mx.array]) -> mx.array:
    """`x`, to be had once all of `before` is computed."""
    return held_back([x], before)[0] if before else x


def transposed(x: mx.array) -> mx.array:
    """The last two axes swapped."""
    return x.swapaxes(-1, -2)


def joined(parts: list[mx.array]) -> mx.array:
    """Blocks of queries, one after another."""
    return parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=-2)


def total(parts: list[mx.array]) -> mx.array:
    """The sum of the parts."""
    return reduce(mx.add, parts)


def gather_gradients(
    tile_gradient: Callable[[Tile, list[mx.array]], tuple[mx.array, mx.array]],
    queries: mx.array,
    keys: mx.array,
    grad: mx.array,
    block: int,
) -> tuple[mx.array, mx.array, mx.array]:
    """dq, dk, dv from p and ds of every tile; dk and dv gather what later blocks of queries add.

    `tile_gradient` gets a tile and what must be computed before it.
    """
    tiles_of_block = tiles_of(queries.shape[-2], block)
    grad_queries: list[mx.array] = []
    grad_keys: list[mx.array] = []
    grad_values: list[mx.array] = []
    before: tuple[mx.array, mx.array] | None = None
    # From the last block back: its early tile covers all keys of the blocks still to come.
    for tiles in reversed(tiles_of_block):
        done = [*grad_queries[-1:], *grad_keys[-1:], *grad_values[-1:], *(before or ())]
        gradients = [tile_gradient(tile, done) for tile in tiles]
        a, b = tiles[-1][:2]
        own_keys, own_values = _key_gradients(gradients[-1], queries[..., a:b, :], grad[..., a:b, :])
        if before is not None:
            own_keys, own_values = own_keys + before[0][..., a:, :], own_values + before[1][..., a:, :]
        grad_keys.append(own_keys)
        grad_values.append(own_values)
        parts = [ds @ keys[..., c:d, :] for (_, ds), (_, _, c, d) in zip(gradients, tiles, strict=True)]
        grad_queries.append(total(parts))
        if len(tiles) == 2:
            early = _key_gradients(gradients[0], queries[..., a:b, :], grad[..., a:b, :])
            before = (
                early
                if before is None
                else (early[0] + before[0][..., :a, :], early[1] + before[1][..., :a, :])
            )
    return joined(grad_queries[::-1]), joined(grad_keys[::-1]), joined(grad_values[::-1])


def _key_gradients(
    gradient: tuple[mx.array, mx.array], queries: mx.array, grad: mx.array
) -> tuple[mx.array, mx.array]:
    weights, grad_scores = gradient
    return transposed(grad_scores) @ queries, transposed(weights) @ grad
