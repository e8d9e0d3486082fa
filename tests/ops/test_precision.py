"""The policy's matrix product: exact roundings in bfloat16, gradients, and the dtypes it promises."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

import mlx.core as mx
import numpy as np
import pytest

from mlx_amort.ops.constants import Backend, Precision
from mlx_amort.ops.paths import forced_path
from mlx_amort.ops.precision import linear, policy_of
from tests.reference import formulas
from tests.reference.autodiff import differentiate
from tests.tolerances import assert_close


@pytest.fixture(params=get_args(Backend), autouse=True)
def _on_path(request: pytest.FixtureRequest) -> Iterator[None]:
    with forced_path(request.param):
        yield


@pytest.mark.parametrize("shape", [(4,), (1, 4), (2, 3, 4)], ids=str)
def test_product_and_gradients_match_oracle(shape: tuple[int, ...]) -> None:
    generator = np.random.default_rng(len(shape))
    inputs = [generator.normal(size=size).astype(np.float32) for size in (shape, (5, 4))]
    weighting = generator.normal(size=(*shape[:-1], 5)).astype(np.float32)
    # the oracle's product needs rows
    rows = [inputs[0].reshape(-1, 4), inputs[1]]
    expected, expected_gradients = differentiate(formulas.linear, rows, weighting.reshape(-1, 5))
    x, weight = map(mx.array, inputs)
    assert_close(linear(x, weight), expected.reshape(weighting.shape), "elementwise", "out")
    gradients = mx.grad(lambda x, w: mx.sum(linear(x, w) * mx.array(weighting)), argnums=(0, 1))(x, weight)
    assert_close(gradients[0], expected_gradients[0].reshape(shape), "elementwise", "gradient of x")
    assert_close(gradients[1], expected_gradients[1], "elementwise", "gradient of weight")


@pytest.mark.parametrize("weight_dtype", [mx.float32, mx.bfloat16], ids=str)
def test_bfloat16_rounds_the_operands_and_the_result_and_nothing_between(weight_dtype: mx.Dtype) -> None:
    """Summed in bfloat16, 128 products would miss most of the expected numbers."""
    x = mx.array(np.random.default_rng(0).normal(size=(6, 128))).astype(mx.bfloat16)
    weight = mx.array(np.random.default_rng(1).normal(size=(7, 128))).astype(weight_dtype)
    exact = np.array(x.astype(mx.float32), dtype=np.float64)
    rounded = np.array(weight.astype(mx.bfloat16).astype(mx.float32), dtype=np.float64)
    out = linear(x, weight)
    assert out.dtype == mx.bfloat16
    expected = np.array(
        mx.array((exact @ rounded.T).astype(np.float32)).astype(mx.bfloat16).astype(mx.float32)
    )
    # a sum that lies on the edge between two bfloat16 numbers may go either way
    assert (np.array(out.astype(mx.float32)) == expected).mean() > 0.9
    gradients = mx.grad(lambda x, w: mx.sum(linear(x, w).astype(mx.float32)), argnums=(0, 1))(x, weight)
    assert [gradient.dtype for gradient in gradients] == [mx.bfloat16, weight_dtype]


@pytest.mark.parametrize(
    ("name", "weights", "compute"),
    [
        ("fp32", mx.float32, mx.float32),
        ("bf16", mx.float32, mx.bfloat16),
        ("bf16-pure", mx.bfloat16, mx.bfloat16),
    ],
)
def test_policies(name: Precision, weights: mx.Dtype, compute: mx.Dtype) -> None:
    policy = policy_of(name)
    assert (policy.weights, policy.compute) == (weights, compute)
