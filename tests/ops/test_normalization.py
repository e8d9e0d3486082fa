"""RMS normalisation against float64, on every backend's path."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

import mlx.core as mx
import numpy as np
import pytest

from mlx_amort.ops.constants import Backend
from mlx_amort.ops.normalization import rms_norm
from mlx_amort.ops.paths import forced_path
from tests.reference import formulas
from tests.reference.autodiff import differentiate
from tests.tolerances import assert_close


@pytest.fixture(params=get_args(Backend), autouse=True)
def _on_path(request: pytest.FixtureRequest) -> Iterator[None]:
    with forced_path(request.param):
        yield


@pytest.mark.parametrize("shape", [(1,), (5,), (2, 3, 16)], ids=str)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_rms_norm_matches_oracle(shape: tuple[int, ...], scale: float) -> None:
    """Scale 1e-3 is where eps = 1e-5 outweighs the mean square."""
    generator = np.random.default_rng([len(shape), shape[-1]])
    x = (generator.normal(size=shape) * scale).astype(np.float32)
    weight, weighting = generator.normal(size=shape[-1]).astype(np.float32), generator.normal(size=shape)
    weighting = weighting.astype(np.float32)
    expected, (x_reference, weight_reference) = differentiate(formulas.rms_norm, [x, weight], weighting)

    def objective(x: mx.array, weight: mx.array) -> mx.array:
        return mx.sum(rms_norm(x, weight) * mx.array(weighting))

    assert_close(rms_norm(mx.array(x), mx.array(weight)), expected, "elementwise", "out")
    x_gradient, weight_gradient = mx.grad(objective, argnums=(0, 1))(mx.array(x), mx.array(weight))
    # with one element x / |x| is constant once eps is negligible: the slope is what is left of 1 / scale
    assert_close(x_gradient, x_reference, "sums", "gradient of x", floor=1.0 / scale)
    assert_close(weight_gradient, weight_reference, "sums", "gradient of weight")


def test_zeros_stay_zero_with_a_finite_slope() -> None:
    x = mx.zeros((2, 8))
    assert (np.array(rms_norm(x, mx.ones(8))) == 0).all()
    slope = np.array(mx.grad(lambda x: mx.sum(rms_norm(x, mx.ones(8))))(x))
    np.testing.assert_allclose(slope, 1e-5**-0.5, rtol=1e-5)


def test_statistics_are_float32_under_bfloat16() -> None:
    """Squares summed in bfloat16 would stall; the output differs from float64's only by its own rounding."""
    x = mx.array(np.random.default_rng(0).normal(size=(4, 4096))).astype(mx.bfloat16)
    weight = np.ones(4096)
    expected, _ = differentiate(formulas.rms_norm, [np.array(x.astype(mx.float32)), weight])
    out = rms_norm(x, mx.ones(4096))
    assert_close(out.astype(mx.float32), expected, "bf16_operation", "out")
