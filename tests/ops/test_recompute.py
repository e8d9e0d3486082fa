"""Recomputation: the gradients of the plain function, whole and in pieces, and less memory than keeping all."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlx_amort.ops.accumulation import adding_to
from mlx_amort.ops.paths import forced_path
from mlx_amort.ops.pieces import count_pieces
from mlx_amort.ops.recompute import held_far_back, recomputed
from tests.tolerances import assert_close

Arrays = dict[str, mx.array]


def half(
    weights: Arrays, x: mx.array, valid: mx.array | None, state: tuple[mx.array]
) -> tuple[mx.array, tuple[mx.array]]:
    """Something with all the shapes of a half block: weights, rows, an empty place, a state it returns anew."""
    y = mx.tanh(x @ weights["a"]) @ weights["b"] + state[0][:, None]
    y = y if valid is None else y * valid[..., None]
    return x + y, (state[0] + y.sum(axis=1),)


def arguments(rows: int) -> tuple[Any, ...]:
    draw = np.random.default_rng(3)
    weights = {name: mx.array(draw.normal(size=(6, 6)).astype(np.float32)) for name in "ab"}
    x = mx.array(draw.normal(size=(rows, 5, 6)).astype(np.float32))
    return weights, x, (mx.array(draw.normal(size=(rows, 6)).astype(np.float32)),)


@pytest.mark.parametrize("pieces", [1, 2, 4])
@pytest.mark.parametrize("with_valid", [False, True])
@pytest.mark.parametrize("is_compiled", [False, True])
def test_gradients_are_those_of_the_plain_function(pieces: int, with_valid: bool, is_compiled: bool) -> None:
    weights, x, state = arguments(4)
    valid = mx.arange(5)[None] < mx.array([5, 0, 2, 4])[:, None] if with_valid else None

    def gradients(function: Any) -> Any:
        def loss(weights: Arrays, x: mx.array, state: tuple[mx.array]) -> mx.array:
            y, after = function(weights, x, valid, state)
            total: mx.array = (y**2).mean() + (after[0] * mx.arange(6)).mean()
            return total

        gradient = mx.value_and_grad(loss, argnums=(0, 1, 2))
        return (mx.compile(gradient) if is_compiled else gradient)(weights, x, state)

    expected, found = gradients(half), gradients(recomputed(half, pieces))
    assert_close(found[0], np.array(expected[0]), "reordered", "value")
    for name in weights:
        assert_close(found[1][0][name], np.array(expected[1][0][name]), "reordered", name)
    assert_close(found[1][1], np.array(expected[1][1]), "reordered", "x")
    assert_close(found[1][2][0], np.array(expected[1][2][0]), "reordered", "state")


def wide(weights: Arrays, x: mx.array) -> mx.array:
    return x + mx.tanh(x @ weights["a"]) @ weights["b"]


def window_peak(function: Any) -> int:
    """Peak of a compiled gradient through eight of them, beyond what is there before."""
    draw = np.random.default_rng(5)
    shapes = {"a": (32, 1024), "b": (1024, 32)}
    blocks = [
        {name: mx.array(draw.normal(size=shape).astype(np.float32)) for name, shape in shapes.items()}
        for _ in range(8)
    ]
    sums = [{name: mx.zeros(shape) for name, shape in shapes.items()} for _ in range(8)]
    x = mx.array(draw.normal(size=(512, 32)).astype(np.float32))

    def loss(blocks: list[Arrays], sums: list[Arrays], x: mx.array) -> mx.array:
        for own, total in zip(blocks, sums, strict=True):
            own, x = adding_to(total, own, x)
            x = function(own, x)
        return x.mean(axis=-1).mean()

    gradient = mx.compile(mx.value_and_grad(loss))
    mx.eval(gradient(blocks, sums, x))
    before = mx.get_active_memory()
    # At its limit MLX allocates for no operation before those under way are done.
    limit = mx.set_memory_limit(1)
    mx.reset_peak_memory()
    mx.eval(gradient(blocks, sums, x))
    mx.set_memory_limit(limit)
    return mx.get_peak_memory() - before


def test_recomputing_saves_memory_and_pieces_save_more() -> None:
    plain, whole, cut = (window_peak(each) for each in (wide, recomputed(wide), recomputed(wide, 4)))
    assert whole < 0.6 * plain
    assert cut < 0.8 * whole


def test_pieces_divide_the_rows_and_stay_large_enough() -> None:
    assert count_pieces(8, 8192) == 4 and count_pieces(6, 8192) == 3 and count_pieces(7, 8192) == 1
    assert count_pieces(8, 2048) == 2 and count_pieces(8, 100) == 1
    assert count_pieces(1, 10**6) == 1


@pytest.mark.parametrize("is_compiled", [False, True])
def test_sums_are_added_to_the_weights_gradient_and_to_nothing_else(is_compiled: bool) -> None:
    weights, x, _ = arguments(2)
    sums = {name: mx.full(value.shape, 3.0) for name, value in weights.items()}

    def gradients(sums: Arrays) -> Any:
        def loss(weights: Arrays, x: mx.array, sums: Arrays) -> mx.array:
            own, x = adding_to(sums, weights, x)
            return (mx.tanh(x @ own["a"]) @ own["b"]).square().mean()

        gradient = mx.value_and_grad(loss, argnums=(0, 1))
        return (mx.compile(gradient) if is_compiled else gradient)(weights, x, sums)

    (value, (plain, plain_x)), (same_value, (summed, summed_x)) = gradients({}), gradients(sums)
    assert float(np.array(value)) == float(np.array(same_value))
    for name in weights:
        assert_close(summed[name], np.array(plain[name]) + 3.0, "reordered", name)
    assert_close(summed_x, np.array(plain_x), "reordered", "x")


def test_no_gradient_is_sought_through_a_wait() -> None:
    x = mx.random.normal((512, 512))

    def waiting(x: mx.array) -> mx.array:
        return mx.exp(held_far_back([x], [x])[0]).sum()

    with forced_path("cpu"):
        gradient = mx.compile(mx.grad(waiting))
        mx.eval(x, gradient(x))
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        found = gradient(x)
        mx.eval(found)
    # exp(x) and what it is multiplied with, not an array of zeros for each of the empty operations.
    assert mx.get_peak_memory() - before < 4 * x.nbytes
    assert mx.allclose(found, mx.exp(x)).item()
