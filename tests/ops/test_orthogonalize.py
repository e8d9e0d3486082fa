"""Newton-Schulz against the float64 singular value decomposition."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from mlx_amort.ops.newton_schulz import Coefficients
from mlx_amort.ops.orthogonalize import orthogonalize
from tests.reference import optim as reference

# Of the Frobenius norm: the smallest singular value promised to end near one, and where it ends.
PROMISES: dict[Coefficients, tuple[float, float, float]] = {
    "jordan": (0.002, 0.68, 1.21),
    "polar_express": (0.001, 0.84, 1.13),
    "polar_express_nonic": (0.0021, 0.76, 1.24),
}
# Square, wide and tall in the plain form, in the Gram form, and the thinnest there are.
SHAPES = [(48, 48), (48, 60), (60, 48), (32, 128), (128, 32), (1, 40), (40, 1), (1, 1)]
# Float32 rounding of the norm's tail grows by the slope of five steps, about 500 times.
ERROR_OF_FLOAT32 = 2e-4
# At the end of the interval the first polynomial of degree 9 climbs 80 times as fast as its argument.
ERROR_OF_NONIC = 4e-4


def matrix(rows: int, columns: int, values: NDArray[np.float64], seed: int = 0) -> NDArray[np.float64]:
    draw = np.random.default_rng(seed)
    left = np.linalg.qr(draw.normal(size=(rows, len(values))))[0]
    right = np.linalg.qr(draw.normal(size=(columns, len(values))))[0]
    return np.asarray((left * values) @ right.T)


def relative_error(result: NDArray[np.float64], expected: NDArray[np.float64]) -> float:
    return float(np.linalg.norm(result - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("coefficients", PROMISES)
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_the_polynomials_of_the_singular_values(
    shape: tuple[int, int], coefficients: Coefficients
) -> None:
    x = np.random.default_rng(1).normal(size=shape)
    result = np.array(orthogonalize(mx.array(x, dtype=mx.float32), coefficients), dtype=np.float64)
    allowed = ERROR_OF_NONIC if coefficients == "polar_express_nonic" else ERROR_OF_FLOAT32
    assert relative_error(result, reference.orthogonalize(x, coefficients)) < allowed


@pytest.mark.parametrize("coefficients", PROMISES)
@pytest.mark.parametrize(("rows", "columns"), [(64, 64), (64, 256), (256, 64), (64, 80)])
def test_promised_singular_values_end_near_one(rows: int, columns: int, coefficients: Coefficients) -> None:
    smallest, low, high = PROMISES[coefficients]
    values = np.geomspace(1.0, 1e-4, min(rows, columns))
    values /= np.linalg.norm(values)
    x = matrix(rows, columns, values)
    result = np.array(orthogonalize(mx.array(x, dtype=mx.float32), coefficients), dtype=np.float64)
    left, _, right = np.linalg.svd(x, full_matrices=False)
    in_the_basis_of_x = left.T @ result @ right.T
    ends = np.diagonal(in_the_basis_of_x)[values >= smallest]
    assert ends.min() >= low
    assert ends.max() <= high
    # The singular vectors are still those of x: nothing off the diagonal.
    off = in_the_basis_of_x - np.diag(np.diagonal(in_the_basis_of_x))
    assert np.abs(off).max() < 5e-3


def test_the_nonic_is_no_farther_than_jordan_s_quintics_on_any_spectrum() -> None:
    random = np.random.default_rng(4)
    gaussian = np.asarray(np.linalg.svd(random.normal(size=(128, 128)), compute_uv=False), dtype=np.float64)
    counted = np.arange(1, 129, dtype=np.float64)
    spectra: list[NDArray[np.float64]] = [counted**-1.0, counted**-0.5, gaussian]
    for values in spectra:
        x = matrix(128, 128, values)
        left, _, right = np.linalg.svd(x)
        names: tuple[Coefficients, ...] = ("polar_express_nonic", "jordan")
        nonic, jordan = (
            relative_error(np.array(orthogonalize(mx.array(x, dtype=mx.float32), name)), left @ right)
            for name in names
        )
        assert nonic < jordan


def test_the_nonic_is_refused_in_bfloat16() -> None:
    with pytest.raises(ValueError, match="needs float32"):
        orthogonalize(mx.ones((4, 4)), "polar_express_nonic", mx.bfloat16)


def test_polar_express_is_nearer_than_jordan_on_a_decaying_spectrum() -> None:
    values = 1.0 / np.arange(1, 129)
    x = matrix(128, 128, values)
    left, _, right = np.linalg.svd(x)
    error = {
        name: relative_error(np.array(orthogonalize(mx.array(x, dtype=mx.float32), name)), left @ right)
        for name in PROMISES
    }
    assert error["polar_express"] < 0.5 * error["jordan"]


@pytest.mark.parametrize("coefficients", PROMISES)
@pytest.mark.parametrize("shape", [(24, 24), (24, 96), (96, 24)])
def test_a_stack_equals_its_matrices_one_by_one(shape: tuple[int, int], coefficients: Coefficients) -> None:
    scales = mx.array([1e-6, 1.0, 1e4]).reshape(3, 1, 1)
    stack = mx.random.normal((3, *shape), key=mx.random.key(2)) * scales
    together = orthogonalize(stack, coefficients)
    for index in range(3):
        alone = orthogonalize(stack[index], coefficients)
        np.testing.assert_allclose(np.array(together[index]), np.array(alone), rtol=0, atol=1e-5)


@pytest.mark.parametrize("coefficients", PROMISES)
@pytest.mark.parametrize("scale", [1e-30, 1e-9, 1e9])
def test_the_scale_of_the_input_is_no_danger(scale: float, coefficients: Coefficients) -> None:
    x = mx.random.normal((16, 40), key=mx.random.key(3))
    result = np.array(orthogonalize(x * scale, coefficients))
    assert np.isfinite(result).all()
    if scale > 1e-12:
        allowed = 5e-5 if coefficients == "polar_express_nonic" else 1e-5
        np.testing.assert_allclose(result, np.array(orthogonalize(x, coefficients)), rtol=0, atol=allowed)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize("shape", [(16, 16), (16, 40), (40, 16)])
def test_zero_stays_zero(shape: tuple[int, int], dtype: mx.Dtype) -> None:
    names: list[Coefficients] = [*PROMISES] if dtype == mx.float32 else ["polar_express", "jordan"]
    for name in names:
        assert not np.array(orthogonalize(mx.zeros(shape), name, dtype)).any()


@pytest.mark.parametrize("shape", [(64, 64), (64, 256), (256, 64)])
def test_bfloat16_products_stay_near(shape: tuple[int, int]) -> None:
    x = matrix(*shape, np.geomspace(1.0, 1e-2, 64))
    result = orthogonalize(mx.array(x, dtype=mx.float32), "polar_express", mx.bfloat16)
    assert result.dtype == mx.float32
    # Five steps of 8-bit mantissas lose 1 to 3 percent; the Gram form in bfloat16 is off 13 to 67 times over.
    assert relative_error(np.array(result), reference.orthogonalize(x, "polar_express")) < 0.05


def test_keeps_the_dtype_it_was_given() -> None:
    assert orthogonalize(mx.ones((4, 4), dtype=mx.bfloat16), "jordan").dtype == mx.bfloat16
