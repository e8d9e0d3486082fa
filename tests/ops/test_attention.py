"""Causal attention against the float64 formula, on every backend's path, and what it may not see."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_amort.ops.attention import causal_attention, scores_dominate
from mlx_amort.ops.constants import Backend
from mlx_amort.ops.paths import forced_path
from tests.reference import formulas
from tests.reference.autodiff import Array, differentiate
from tests.tolerances import assert_close


@pytest.fixture(params=get_args(Backend), autouse=True)
def _on_path(request: pytest.FixtureRequest) -> Iterator[None]:
    with forced_path(request.param):
        yield


def _draw(B: int, h: int, S: int, d: int, seed: int = 0) -> list[Array]:
    generator = np.random.default_rng([seed, B, h, S, d])
    return [generator.normal(size=(B, h, S, d)).astype(np.float32).astype(np.float64) for _ in range(3)]


def _to_mlx(inputs: list[Array]) -> list[mx.array]:
    return [mx.array(value.astype(np.float32)) for value in inputs]


@pytest.mark.parametrize(
    ("B", "h", "S", "d"), [(1, 1, 1, 1), (1, 2, 2, 4), (2, 2, 7, 4), (1, 1, 65, 8), (1, 1, 300, 4)], ids=str
)
def test_attention_matches_oracle(B: int, h: int, S: int, d: int) -> None:
    inputs = _draw(B, h, S, d)
    weighting = np.random.default_rng(1).normal(size=(B, h, S, d)).astype(np.float32)
    expected, expected_gradients = differentiate(formulas.attend_causally, inputs, weighting)

    def objective(*arrays: mx.array) -> mx.array:
        return mx.sum(causal_attention(*arrays) * mx.array(weighting))

    arrays = _to_mlx(inputs)
    assert_close(causal_attention(*arrays), expected, "softmax", "out")
    gradients = mx.grad(objective, argnums=(0, 1, 2))(*arrays)
    for name, gradient, reference in zip("qkv", gradients, expected_gradients, strict=True):
        # with one position the softmax is constant: q and k have no slope, and rounding is on the scale of 1
        assert_close(gradient, reference, "softmax", f"gradient of {name}", floor=0.1)


def test_scores_in_the_hundreds_stay_finite() -> None:
    q, k, v = (x * scale for x, scale in zip(_draw(1, 1, 9, 4), (60.0, 60.0, 1.0), strict=True))
    expected, _ = differentiate(formulas.attend_causally, [q, k, v])
    assert np.abs(q @ np.swapaxes(k, -1, -2)).max() / 2 > 1000
    # where the largest score leads by tens its share is 1 whatever the rounding
    assert_close(causal_attention(*_to_mlx([q, k, v])), expected, "large_exponents", "out")


@settings(deadline=None, max_examples=20)
@given(S=st.integers(2, 12), data=st.data(), seed=st.integers(0, 99))
def test_a_position_does_not_see_later_ones(S: int, data: st.DataObject, seed: int) -> None:
    t = data.draw(st.integers(1, S - 1))
    before, other = _to_mlx(_draw(1, 2, S, 4, seed)), _to_mlx(_draw(1, 2, S, 4, seed + 100))
    changed = [mx.concatenate([x[:, :, :t], y[:, :, t:]], axis=2) for x, y in zip(before, other, strict=True)]
    kept, moved = causal_attention(*before), causal_attention(*changed)
    assert_close(moved[:, :, :t], np.array(kept[:, :, :t]), "reordered", "positions before the change")
    assert not np.allclose(np.array(moved[:, :, t]), np.array(kept[:, :, t])), "the changed position itself"


@pytest.mark.parametrize(
    ("length", "head_width", "dominates"),
    [(128, 32, True), (128, 33, False), (129, 8, False), (15, 4, False)],
)
def test_scores_dominate_a_single_tile_of_narrow_heads_on_the_cpu(
    length: int, head_width: int, dominates: bool
) -> None:
    with forced_path("cpu"):
        assert scores_dominate(length, head_width) is dominates
    with forced_path("metal"):
        assert not scores_dominate(length, head_width)
