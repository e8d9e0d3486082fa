"""Schedules: right at both ends, continuous, and defined for the shortest run."""

from __future__ import annotations

import itertools
import math
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_amort.config.values import ScheduleConfig, ScheduleName
from mlx_amort.optim.schedules import course_of, learning_rate, phases

NAMES: tuple[ScheduleName, ...] = get_args(ScheduleName)
configs = st.builds(
    ScheduleConfig,
    name=st.sampled_from(NAMES),
    base_lr=st.just(1.0),
    min_lr=st.sampled_from([None, 0.0, 0.3, 1.0]),
    warmup_steps=st.integers(0, 300),
    decay_fraction=st.floats(0, 1),
)


def rates(total_steps: int, config: ScheduleConfig) -> list[float]:
    return [learning_rate(step, total_steps, config) for step in range(total_steps)]


@given(st.integers(1, 300), configs)
def test_right_at_both_ends(total_steps: int, config: ScheduleConfig) -> None:
    values = rates(total_steps, config)
    warmup_steps, stable_steps, decay_steps = phases(total_steps, config)
    assert warmup_steps + stable_steps + decay_steps == total_steps
    assert values[0] == pytest.approx(1 / max(warmup_steps, 1))
    assert max(values) == 1.0
    if total_steps > 1 and decay_steps:
        assert values[-1] == pytest.approx(config.final_lr)
    assert learning_rate(total_steps + 5, total_steps, config) == values[-1]


@given(st.integers(1, 300), configs)
def test_continuous_and_single_peaked(total_steps: int, config: ScheduleConfig) -> None:
    values = rates(total_steps, config)
    warmup_steps, _, decay_steps = phases(total_steps, config)
    peak = values.index(1.0)
    assert values[: peak + 1] == sorted(values[: peak + 1])
    assert values[peak:] == sorted(values[peak:], reverse=True)
    # No step is larger than the steepest part of the shape it belongs to: the phases meet without a jump.
    intervals, shape = max(1, min(decay_steps, total_steps - 1)), course_of(config.name).shape
    steepest = max(shape(n / intervals) - shape((n + 1) / intervals) for n in range(intervals))
    for step in range(1, total_steps):
        limit = 1 / warmup_steps if step < warmup_steps else (1 - config.final_lr) * steepest
        assert abs(values[step] - values[step - 1]) <= limit + 1e-12


@pytest.mark.parametrize("name", NAMES)
def test_a_shape_falls_from_one_to_nothing_without_a_jump(name: ScheduleName) -> None:
    shape = course_of(name).shape
    values = [shape(n / 10_000) for n in range(10_001)]
    assert values[0] == 1.0 and values == sorted(values, reverse=True)
    assert values[-1] == pytest.approx(1.0 if name == "constant" else 0.0, abs=1e-15)
    assert max(a - b for a, b in itertools.pairwise(values)) <= 0.011


def test_published_recipe() -> None:
    config = ScheduleConfig(name="wsd", base_lr=3e-4, min_lr=3e-5, warmup_steps=100, decay_fraction=0.2)
    assert learning_rate(0, 20_400, config) == pytest.approx(3e-6)
    assert learning_rate(99, 20_400, config) == 3e-4
    assert learning_rate(16_319, 20_400, config) == 3e-4
    assert learning_rate(16_319 + 1_020, 20_400, config) == pytest.approx(
        3e-5 + 2.7e-4 * (1 - math.sqrt(0.25))
    )
    assert learning_rate(20_399, 20_400, config) == pytest.approx(3e-5)


@pytest.mark.parametrize(("name", "half"), [("cosine", 0.55), ("linear", 0.55)])
def test_half_way(name: ScheduleName, half: float) -> None:
    config = ScheduleConfig(name=name, base_lr=1.0, warmup_steps=0)
    assert learning_rate(50, 101, config) == pytest.approx(half)


def test_a_quarter_of_a_cosine() -> None:
    config = ScheduleConfig(name="cosine", base_lr=1.0, min_lr=0.0, warmup_steps=0)
    assert learning_rate(25, 101, config) == pytest.approx((1 + math.sqrt(0.5)) / 2)


def test_a_warm_up_takes_at_most_half_the_run() -> None:
    assert phases(6, ScheduleConfig(warmup_steps=100)) == (3, 2, 1)


def test_a_run_of_one_step_is_at_base() -> None:
    for name in NAMES:
        assert rates(1, ScheduleConfig(name=name, base_lr=1.0)) == [1.0]


def test_refuses_what_is_no_step() -> None:
    with pytest.raises(ValueError, match="negative"):
        learning_rate(-1, 10, ScheduleConfig())
    with pytest.raises(ValueError, match="no learning rate"):
        learning_rate(0, 0, ScheduleConfig())
