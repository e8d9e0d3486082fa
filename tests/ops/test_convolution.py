"""The causal convolution against a float64 loop over slots and taps."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from mlx_amort.config import CONVOLUTION_WIDTH
from mlx_amort.ops.convolution import TAPS, causal_convolution
from tests.reference.autodiff import Tensor, differentiate, stack
from tests.tolerances import assert_close


def _convolve(joined: Tensor, weight: Tensor) -> Tensor:
    """c_t[j] = Σ_i weight[j, i] z_{t-3+i}[j]; row t of `joined` is z_{t-3}."""
    rows = []
    for row in range(joined.shape[0]):
        slots = []
        for t in range(joined.shape[1] - 3):
            total = joined[row, t] * weight[:, 0]
            for i in (1, 2, 3):
                total = total + joined[row, t + i] * weight[:, i]
            slots.append(total)
        rows.append(stack(slots))
    return stack(rows)


def test_the_weights_are_as_wide_as_the_convolution() -> None:
    assert CONVOLUTION_WIDTH == TAPS


@pytest.mark.parametrize(("B", "N"), [(1, 1), (1, 2), (2, 3), (3, 9)], ids=str)
def test_convolution_matches_oracle(B: int, N: int) -> None:
    generator = np.random.default_rng([B, N])
    joined, weight = generator.normal(size=(B, N + 3, 5)), generator.normal(size=(5, 4))
    inputs = [joined.astype(np.float32), weight.astype(np.float32)]
    weighting = generator.normal(size=(B, N, 5)).astype(np.float32)
    expected, expected_gradients = differentiate(_convolve, inputs, weighting)

    def objective(joined: mx.array, weight: mx.array) -> mx.array:
        return mx.sum(causal_convolution(joined, weight) * mx.array(weighting))

    arrays = [mx.array(value) for value in inputs]
    assert_close(causal_convolution(*arrays), expected, "elementwise", "out")
    gradients = mx.grad(objective, argnums=(0, 1))(*arrays)
    for name, gradient, reference in zip(("input", "weight"), gradients, expected_gradients, strict=True):
        assert_close(gradient, reference, "elementwise", f"gradient of the {name}")


def test_sums_are_float32_under_bfloat16() -> None:
    generator = np.random.default_rng(0)
    joined, weight = (
        mx.array(generator.normal(size=size)).astype(mx.bfloat16) for size in ((2, 9, 5), (5, 4))
    )
    exact = [Tensor(np.array(x.astype(mx.float32))) for x in (joined, weight)]
    out = causal_convolution(joined, weight)
    assert out.dtype == mx.bfloat16
    rounded_once = mx.array(_convolve(*exact).value.astype(np.float32)).astype(mx.bfloat16)
    assert_close(out.astype(mx.float32), np.array(rounded_once.astype(mx.float32)), "reordered")
