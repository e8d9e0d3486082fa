"""The causal convolution against a float64 loop over slots and taps."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from mlx_amort.ops.convolution import causal_convolution
from mlx_amort.ops.cpu.convolution import gradient_tiles
from mlx_amort.ops.paths import forced_path
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


@pytest.mark.parametrize(
    ("B", "N", "tile"),
    [(1, 1, 1), (1, 2, 2), (2, 3, 3), (3, 9, 9), (3, 9, 3), (2, 10, 4), (1, 9, 4)],
    ids=str,
)
def test_convolution_matches_oracle(B: int, N: int, tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tiles = [(start, min(start + tile, N)) for start in range(0, N, tile)]
    monkeypatch.setattr("mlx_amort.ops.convolution.gradient_tiles", lambda *_: tiles)
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


@pytest.mark.parametrize("rows", [1, 5, 700])
@pytest.mark.parametrize("slots", [1, 3, 4, 300, 1021])
def test_tiles_cover_every_slot_once(rows: int, slots: int) -> None:
    with forced_path("cpu"):
        tiles = gradient_tiles(rows, slots, mx.bfloat16)
        assert gradient_tiles(rows, slots, mx.float32) == [(0, slots)]
    assert [slot for start, end in tiles for slot in range(start, end)] == list(range(slots))
    assert len(tiles) <= 4
    # A tile's inputs reach 3 slots back, so no tile but the last is shorter.
    assert all(end - start >= 3 for start, end in tiles[:-1])


def test_gradient_under_bfloat16_is_that_of_float32_whatever_the_tiles() -> None:
    generator = np.random.default_rng(1)
    joined, weight, cotangent = (
        mx.array(generator.normal(size=size)).astype(mx.bfloat16)
        for size in ((2, 603, 4), (4, 4), (2, 600, 4))
    )
    with forced_path("cpu"):
        assert len(gradient_tiles(2, 600, mx.bfloat16)) == 4

        @mx.compile
        def gradients(joined: mx.array, weight: mx.array) -> list[mx.array]:
            return mx.vjp(causal_convolution, [joined, weight], [cotangent])[1]

        grad_joined, grad_weight = gradients(joined, weight)
    wide = [x.astype(mx.float32) for x in (joined, weight)]
    _, exact = mx.vjp(causal_convolution, wide, [cotangent.astype(mx.float32)])
    assert mx.array_equal(grad_joined, exact[0].astype(mx.bfloat16)).item()
    error = mx.abs(grad_weight.astype(mx.float32) - exact[1]).max()
    assert (error <= 2**-7 * mx.abs(exact[1]).max()).item()
