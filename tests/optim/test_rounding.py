"""Rounding by chance keeps, on average, what plain rounding loses."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from mlx_amort.config.values import OptimizerConfig
from mlx_amort.optim.rounding import round_stochastic, store
from mlx_amort.optim.update import apply_update, init_optimizer_state

NEVER = 1e9  # a norm that no gradient here reaches


def test_lands_on_both_neighbours_with_the_right_mean() -> None:
    # 1 + 0.3 of the spacing, which is 2^-7 from 1 to 2.
    value = 1 + 0.3 * 2**-7
    draws = np.array(round_stochastic(mx.full((100_000,), value), mx.random.key(0)).astype(mx.float32))
    assert set(draws.tolist()) == {1.0, 1 + 2**-7}
    # Standard error of the mean: 0.46 spacings / sqrt(100,000) = 1.1e-5.
    assert draws.mean(dtype=np.float64) == pytest.approx(value, abs=6e-5)
    negative = np.array(round_stochastic(mx.full((100_000,), -value), mx.random.key(0)).astype(mx.float32))
    assert negative.mean(dtype=np.float64) == pytest.approx(-value, abs=6e-5)


def test_leaves_alone_what_bfloat16_holds() -> None:
    exact = mx.array([0.0, -0.0, 1.0, -2.5, 3e38, 1e-38, float("inf"), -float("inf")]).astype(mx.bfloat16)
    not_a_number = mx.array([0x7FFFFFFF], dtype=mx.uint32).view(mx.float32)  # one above it is -0
    rounded = round_stochastic(exact.astype(mx.float32), mx.random.key(1))
    assert mx.array_equal(rounded.view(mx.uint16), exact.view(mx.uint16))
    assert np.isnan(np.array(round_stochastic(not_a_number, mx.random.key(1)).astype(mx.float32))).all()


def test_keeps_small_updates_that_plain_rounding_loses() -> None:
    update = 2.0**-12  # a thirty-second of the spacing above 1
    by_chance = mx.ones((20_000,), dtype=mx.bfloat16)
    plainly = mx.ones((20_000,), dtype=mx.bfloat16)
    for step in range(64):
        by_chance = round_stochastic(by_chance.astype(mx.float32) + update, mx.random.key(step))
        plainly = (plainly.astype(mx.float32) + update).astype(mx.bfloat16)
    assert (np.array(plainly.astype(mx.float32)) == 1).all()
    # 64 draws of +1 spacing at 1/32: deviation 1.4 spacings an element, 8e-5 of the mean of 20,000.
    assert np.array(by_chance.astype(mx.float32)).mean(dtype=np.float64) == pytest.approx(
        1 + 64 * update, abs=4e-4
    )


def test_adamw_in_bfloat16_moves_and_forgets() -> None:
    config = OptimizerConfig(name="adamw", weight_decay=0.0, beta2=0.999, clip_norm=NEVER)
    weights = {"tok": mx.ones((64, 64), dtype=mx.bfloat16)}
    state = init_optimizer_state(weights, config)
    assert {array.dtype for name, array in state.items() if name != "updates"} == {mx.bfloat16}
    # As after a long time of gradients of one. Plainly rounded, 0.999 v is v for ever, and 1 - 1e-4 is 1.
    state |= {"second/tok": mx.ones((64, 64), dtype=mx.bfloat16), "updates": mx.array(100_000)}
    gradients = {"tok": mx.zeros((64, 64), dtype=mx.bfloat16)}
    for step in range(50):
        weights, state, _ = apply_update(
            weights, gradients, state, mx.array(1e-3), mx.array(True), config, mx.random.key(step)
        )
    assert float(state["second/tok"].astype(mx.float32).mean()) == pytest.approx(0.999**50, rel=2e-3)
    gradients = {"tok": mx.ones((64, 64), dtype=mx.bfloat16)}
    state |= {
        "first/tok": mx.ones((64, 64), dtype=mx.bfloat16),
        "second/tok": mx.ones((64, 64), dtype=mx.bfloat16),
    }
    for step in range(50):
        weights, state, _ = apply_update(
            weights, gradients, state, mx.array(1e-4), mx.array(True), config, mx.random.key(1000 + step)
        )
    assert weights["tok"].dtype == mx.bfloat16
    assert float(weights["tok"].astype(mx.float32).mean()) == pytest.approx(1 - 50 * 1e-4, abs=5e-4)


def test_bfloat16_needs_a_key() -> None:
    with pytest.raises(ValueError, match="random key"):
        store(mx.ones((2,)), mx.bfloat16, None)
    with pytest.raises(ValueError, match="float16"):
        store(mx.ones((2,)), mx.float16, None)
