"""What follows from a configuration by arithmetic: blocks, parameters, bytes of a step, steps of a run."""

from __future__ import annotations

import math
from typing import get_args, get_type_hints

import pytest

from mlx_amort.config.checks import choices
from mlx_amort.config.model import ModelConfig, Trunk
from mlx_amort.config.presets import preset_names
from mlx_amort.config.reading import (
    resolve,
)
from mlx_amort.config.values import (
    Coefficients,
    Config,
    RunConfig,
    ScheduleConfig,
    StepConfig,
)
from mlx_amort.errors import UserError
from mlx_amort.ops import newton_schulz


@pytest.mark.parametrize("trunk", get_args(Trunk))
def test_block_kinds_follow_the_two_switches(trunk: Trunk) -> None:
    model = ModelConfig(trunk=trunk, layers=3)
    mixer = "recurrent" if trunk in ("recurrent", "hybrid") else "attention"
    around, length = (2, "slots") if trunk in ("patched", "hybrid") else (0, "bytes")
    assert model.block_kinds == ("attention",) * around + (mixer,) * 3 + ("attention",) * around
    assert model.block_lengths == ("bytes",) * around + (length,) * 3 + ("bytes",) * around
    assert ("slot" in model.parameter_shapes()) == model.is_patched


def test_parameters_are_counted_without_listing_them() -> None:
    for name in preset_names():
        for trunk in choices(get_type_hints(ModelConfig)["trunk"]):
            model = resolve(name, overrides=[f"model.trunk={trunk}"]).model
            assert model.parameters == sum(math.prod(shape) for shape in model.parameter_shapes().values())


def test_sizes_by_arithmetic() -> None:
    config = Config(
        model=ModelConfig(seq=1024),
        step=StepConfig(batch=24, chunks=4, window=9, accum=2),
        run=RunConfig(bytes=2_006_000_000),
    )
    assert config.bytes_per_step == 2 * 24 * 4 * 1024
    assert config.total_steps == 2_006_000_000 // config.bytes_per_step
    assert (config.model.head_width, config.model.slots, config.step.effective_window) == (40, 256, 4)
    assert ScheduleConfig(base_lr=3e-4).final_lr == pytest.approx(3e-5)
    assert ScheduleConfig(min_lr=0.0).final_lr == 0.0


def test_a_run_needs_a_length_of_at_least_one_step() -> None:
    with pytest.raises(UserError, match="give --steps N or --bytes D"):
        _ = Config().total_steps
    with pytest.raises(UserError, match="less than one step"):
        _ = Config(run=RunConfig(bytes=10)).total_steps


def test_coefficients_are_those_that_there_are_polynomials_for() -> None:
    assert get_args(Coefficients) == get_args(newton_schulz.Coefficients)
