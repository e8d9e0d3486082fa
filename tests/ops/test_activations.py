"""Activations against float64: values and slopes, in the bulk and far out, on every backend's path."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import get_args

import mlx.core as mx
import numpy as np
import pytest

from mlx_amort.ops.activations import gelu, silu_gate, softplus
from mlx_amort.ops.constants import Backend
from mlx_amort.ops.elementary import exp_nonpositive
from mlx_amort.ops.paths import forced_path
from tests.reference import formulas
from tests.reference.autodiff import Array, Tensor, differentiate
from tests.tolerances import assert_close

PAIRS: dict[str, tuple[Callable[[mx.array], mx.array], Callable[[Tensor], Tensor]]] = {
    "gelu": (gelu, formulas.gelu),
    "silu": (lambda x: silu_gate(mx.ones_like(x), x), formulas.silu),
    "softplus": (softplus, formulas.softplus),
}


@pytest.fixture(params=get_args(Backend), autouse=True)
def _on_path(request: pytest.FixtureRequest) -> Iterator[None]:
    with forced_path(request.param):
        yield


def _gate(x: Tensor, gate: Tensor) -> Tensor:
    return x * formulas.silu(gate)


@pytest.mark.parametrize("name", PAIRS)
def test_value_and_slope_match_oracle(name: str) -> None:
    function, oracle = PAIRS[name]
    x = np.linspace(-12.0, 12.0, 1001).astype(np.float32)
    weighting = np.cos(np.arange(1001)).astype(np.float32)
    expected, (expected_slope,) = differentiate(oracle, [x], weighting)
    slope = mx.grad(lambda x: mx.sum(function(x) * mx.array(weighting)))(mx.array(x))
    assert_close(function(mx.array(x)), expected, "elementwise", name)
    assert_close(slope, expected_slope, "elementwise", f"slope of {name}")
    # RMS forgives a single bad element; the largest error must be small too
    assert np.abs(np.array(function(mx.array(x))) - expected).max() < 1e-5
    assert np.abs(np.array(slope) - expected_slope).max() < 1e-5


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("size", [0.0, 1e-30, 20.0, 89.0, 1e4])
def test_far_out_values_and_slopes_are_right(name: str, size: float) -> None:
    function, oracle = PAIRS[name]
    x = np.array([-size, size], dtype=np.float32)
    expected, (expected_slope,) = differentiate(oracle, [x])
    slope = mx.grad(lambda x: mx.sum(function(x)))(mx.array(x))
    # x times a factor between 0 and 1: the rounding of the factor is seen on the scale of x
    np.testing.assert_allclose(
        np.array(function(mx.array(x))), expected, rtol=1e-6, atol=1e-6 * max(size, 1.0)
    )
    np.testing.assert_allclose(np.array(slope), expected_slope, rtol=1e-6, atol=2e-6)


def test_silu_gate_matches_oracle() -> None:
    generator = np.random.default_rng(0)
    inputs: list[Array] = [(3 * generator.normal(size=(2, 5, 7))).astype(np.float32) for _ in range(2)]
    weighting = generator.normal(size=(2, 5, 7)).astype(np.float32)
    expected, expected_gradients = differentiate(_gate, inputs, weighting)

    def objective(x: mx.array, gate: mx.array) -> mx.array:
        return mx.sum(silu_gate(x, gate) * mx.array(weighting))

    arrays = [mx.array(value) for value in inputs]
    assert_close(silu_gate(*arrays), expected, "elementwise")
    gradients = mx.grad(objective, argnums=(0, 1))(*arrays)
    for name, gradient, reference in zip(("x", "gate"), gradients, expected_gradients, strict=True):
        assert_close(gradient, reference, "elementwise", f"gradient of {name}")


@pytest.mark.parametrize("name", PAIRS)
def test_shape_and_bfloat16_are_kept(name: str) -> None:
    function, oracle = PAIRS[name]
    x = mx.array(np.linspace(-4, 4, 24).reshape(2, 3, 4)).astype(mx.bfloat16)
    if name == "softplus":
        x = x.astype(mx.float32)  # these two are float32 only: they feed the decay
    y = function(x)
    assert y.shape == (2, 3, 4) and y.dtype == x.dtype
    expected = oracle(Tensor(np.array(x.astype(mx.float32)))).value
    assert_close(y.astype(mx.float32), expected, "bf16_operation", name)


def test_gelu_is_the_exact_one() -> None:
    """The tanh approximation is 4.7e-4 off near 2; the rational one must not be."""
    np.testing.assert_allclose(gelu(mx.array([2.0, -2.0])), [1.954499736, -0.045500264], atol=2e-6)


def test_exp_of_non_positive_numbers() -> None:
    x = np.concatenate([np.linspace(-90.0, 0.0, 2001), [-1e4, -1e30, -0.0]]).astype(np.float32)
    value = np.array(exp_nonpositive(mx.array(x)))
    slope = np.array(mx.grad(lambda x: mx.sum(exp_nonpositive(x)))(mx.array(x)))
    assert np.abs(value - np.exp(x.astype(np.float64))).max() < 2e-6
    np.testing.assert_array_equal(slope, value)
    assert (value[x == 0] == 1).all(), "an open gate must not leak"
