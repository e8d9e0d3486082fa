"""Table look-up and cross-entropy against float64."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, get_args

import mlx.core as mx
import numpy as np
import pytest

from mlx_amort.ops.constants import Backend
from mlx_amort.ops.embedding import cross_entropy, embed
from mlx_amort.ops.paths import forced_path
from tests.reference import formulas
from tests.reference.autodiff import Tensor, concatenate, differentiate
from tests.tolerances import assert_close


@pytest.fixture(params=get_args(Backend), autouse=True)
def _on_path(request: pytest.FixtureRequest) -> Iterator[None]:
    with forced_path(request.param):
        yield


@pytest.mark.parametrize(
    ("vocabulary", "dtype"), [(256, np.uint8), (512, np.uint16), (1000, np.uint16)], ids=str
)
def test_rows_and_their_summed_gradients(vocabulary: int, dtype: Any) -> None:
    generator = np.random.default_rng(vocabulary)
    table = generator.normal(size=(vocabulary, 5)).astype(np.float32)
    tokens = generator.integers(0, vocabulary, size=(3, 40)).astype(dtype)
    tokens[0, :3] = vocabulary - 1  # one row many times, the last one
    weighting = generator.normal(size=(3, 40, 5)).astype(np.float32)
    expected, (expected_gradient,) = differentiate(
        lambda table: table[tokens.astype(np.int64)], [table], weighting
    )

    def objective(table: mx.array) -> mx.array:
        return mx.sum(embed(table, mx.array(tokens)) * mx.array(weighting))

    np.testing.assert_array_equal(
        np.array(embed(mx.array(table), mx.array(tokens))), expected.astype(np.float32)
    )
    assert_close(mx.grad(objective)(mx.array(table)), expected_gradient, "elementwise", "gradient")


@pytest.mark.parametrize(("vocabulary", "scale"), [(3, 1.0), (256, 1.0), (256, 30.0), (300, 5.0)], ids=str)
def test_cross_entropy_matches_oracle(vocabulary: int, scale: float) -> None:
    generator = np.random.default_rng(vocabulary)
    logits = (generator.normal(size=(7, vocabulary)) * scale).astype(np.float32)
    targets = generator.integers(0, vocabulary, size=7)

    def oracle(logits: Tensor) -> Tensor:
        rows = [formulas.cross_entropy(logits[t : t + 1], targets[t : t + 1]).reshape(1) for t in range(7)]
        return concatenate(rows)

    weighting = generator.normal(size=7).astype(np.float32)
    expected, (expected_gradient,) = differentiate(oracle, [logits], weighting)
    arrays = mx.array(logits), mx.array(targets.astype(np.uint16))
    assert_close(cross_entropy(*arrays), expected, "elementwise", "nats")
    gradient = mx.grad(lambda logits: mx.sum(cross_entropy(logits, arrays[1]) * mx.array(weighting)))(
        arrays[0]
    )
    assert_close(gradient, expected_gradient, "softmax", "gradient")


def test_certainty_and_surprise_far_out() -> None:
    """A sure right answer costs nothing, a sure wrong one its full distance."""
    logits = mx.array([[1000.0, 0.0, -1000.0]] * 3)
    nats = cross_entropy(logits, mx.array([0, 1, 2], dtype=mx.uint8))
    np.testing.assert_allclose(np.array(nats), [0.0, 1000.0, 2000.0], rtol=1e-6, atol=1e-6)
    gradient = mx.grad(lambda logits: mx.sum(cross_entropy(logits, mx.array([0, 1, 2]))))(logits)
    np.testing.assert_allclose(np.array(gradient), [[0, 0, 0], [1, -1, 0], [1, 0, -1]], atol=1e-6)


def test_equal_logits_cost_the_logarithm_of_their_number() -> None:
    nats = np.array(cross_entropy(mx.full((1, 256), 3.0), mx.array([200], dtype=mx.uint8)))
    assert nats[0] / math.log(2) == pytest.approx(8.0, abs=1e-5)
