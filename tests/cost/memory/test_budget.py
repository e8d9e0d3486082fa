"""What fits: the refusal, the configurations it names, and commands that say what they mean."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner

from mlx_amort.cli.options import RequestedConfig, config_options
from mlx_amort.command_line import train_command
from mlx_amort.config.reading import resolve
from mlx_amort.config.values import Config, SourceConfig
from mlx_amort.cost.memory import budget
from mlx_amort.cost.memory.budget import (
    budget_bytes,
    check_data,
    check_fits,
    largest_batch,
    nearest_fits,
    recommend,
    room_bytes,
    with_step,
)
from mlx_amort.cost.memory.estimate import Estimate, estimate
from mlx_amort.errors import UserError
from mlx_amort.ops.constants import Backend


def resolved(command: str) -> Config:
    """What `train` would resolve from a command."""
    import click

    found: list[Config] = []

    @click.command()
    @click.option("--memory-limit")
    @config_options(default_preset="demo")
    def verb(requested: RequestedConfig, memory_limit: str | None) -> None:
        found.append(requested.resolve())

    words = shlex.split(command)
    assert words[:2] == ["mlx-amort", "train"]
    result = CliRunner().invoke(verb, words[2:], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return found[0]


def test_what_fits_passes() -> None:
    config = resolve(preset="demo")
    check_fits(config, estimate(config).peak_bytes)


def test_the_refusal_names_estimate_budget_and_commands_that_fit() -> None:
    config = resolve(preset="veritate_200m", overrides=["step.batch=24"])
    limit = 16_000_000_000
    with pytest.raises(UserError) as refusal:
        check_fits(config, limit)
    first, *commands = str(refusal.value).split("\n")
    assert first.startswith("veritate_200m with 24 rows: a step needs about ")
    assert "this machine has 16.0 GB" in first and "--force goes ahead" in first
    assert commands
    for line in commands:
        fitting = resolved(line.partition("#")[0])
        assert estimate(fitting).peak_bytes <= limit
        assert fitting.bytes_per_step == config.bytes_per_step
        assert fitting.model == config.model and fitting.optimizer == config.optimizer


def test_a_step_whose_data_alone_exceed_the_limit_is_refused_whatever_the_window() -> None:
    config = resolve(preset="demo", overrides=["step.accum=1000000"])
    ids = 1_000_000 * config.step.batch * (config.model.seq * config.step.chunks + 1)
    check_fits(config, 1_000_000_000)
    check_data(config, 2 * ids)
    with pytest.raises(UserError, match=r"A 1,000,000 × B .* the data of a step alone take 1\.03 GB"):
        check_data(config, 2 * ids - 1)


def test_of_its_own_limit_it_is_said_that_it_was_given() -> None:
    with pytest.raises(UserError, match=r"the limit given is 60\.0 MB"):
        check_fits(resolve(preset="veritate_10m"), 60_000_000, is_given=True)


def test_where_nothing_fits_the_least_is_told() -> None:
    with pytest.raises(UserError, match=r"take a smaller preset: .* it still needs 1\d\.\d GB"):
        check_fits(resolve(preset="titan"), 4_000_000_000)


def test_the_nearest_change_least() -> None:
    config = resolve(preset="veritate_80m", overrides=["step.precision=fp32"])
    ways = nearest_fits(config, round(0.7 * estimate(config).peak_bytes))
    changed = [
        {key for key in vars(config.step) if getattr(way.config.step, key) != getattr(config.step, key)}
        for way in ways
    ]
    assert changed == [{"batch", "accum"}, {"activation_checkpointing"}, {"window"}]
    assert ways[0].config.step.batch == 6 and ways[0].config.step.accum == 2


def test_a_mix_of_changes_where_one_is_not_enough() -> None:
    config = resolve(preset="titan", overrides=["step.batch=64"])
    ways = nearest_fits(config, 14_000_000_000)
    assert ways and all(way.peak_bytes <= 14_000_000_000 for way in ways)
    assert all(way.config.step.precision == "bf16-pure" for way in ways)


@pytest.mark.parametrize("preset", ["demo", "veritate_200m", "titan"])
@pytest.mark.parametrize("gigabytes", [16, 24, 48, 128])
def test_the_largest_batch_fits_and_one_more_row_does_not(preset: str, gigabytes: int) -> None:
    config, limit = resolve(preset=preset), gigabytes * 10**9
    batch = largest_batch(config, limit)
    if batch:
        assert estimate(with_step(config, batch=batch)).peak_bytes <= limit
    assert estimate(with_step(config, batch=batch + 1)).peak_bytes > limit


def test_of_ragged_batches_that_are_recomputed_the_largest_that_fits_is_found() -> None:
    overrides = ["step.precision=fp32", "step.activation_checkpointing=true"]
    config, limit = resolve(preset="veritate_80m", overrides=overrides), 12 * 10**9

    def peak(batch: int) -> int:
        return estimate(with_step(config, batch=batch)).peak_bytes

    batch = largest_batch(config, limit)
    # One row fewer divides into fewer pieces and needs more.
    assert peak(batch) <= limit < peak(batch - 1)
    assert all(peak(larger) > limit for larger in range(batch + 1, batch + 20))


@pytest.mark.parametrize("window", [1, 2])
@pytest.mark.parametrize("precision", ["fp32", "bf16-pure"])
def test_the_largest_batch_is_that_of_trying_them_all(window: int, precision: str) -> None:
    # In windows of one chunk odd rows are not cut at all, and need many times more than one row more.
    overrides = [f"step.precision={precision}", "step.activation_checkpointing=true", f"step.window={window}"]
    config = resolve(preset="veritate_10m", overrides=overrides)
    peaks = {batch: estimate(with_step(config, batch=batch)).peak_bytes for batch in range(1, 120)}
    for limit in sorted(peaks.values())[:80:7]:
        assert largest_batch(config, limit) == max(batch for batch, peak in peaks.items() if peak <= limit)


def test_the_largest_batch_of_a_step_whose_update_needs_more_than_any_rows() -> None:
    overrides = ["model.trunk=dense", "model.hidden=2048", "model.heads=4", "model.ffn=64", "model.layers=1"]
    config = resolve(overrides=[*overrides, "model.seq=1", "step.window=1", "step.precision=fp32"])
    needed = estimate(config).peak_bytes
    assert estimate(with_step(config, batch=1024)).peak_bytes == needed, "rows must make no difference here"
    assert largest_batch(config, needed - 1) == 0
    batch = largest_batch(config, needed)
    assert estimate(with_step(config, batch=batch)).peak_bytes <= needed
    assert estimate(with_step(config, batch=batch + 1)).peak_bytes > needed


@pytest.mark.parametrize("gigabytes", [0.01, 1, 16])
def test_a_window_of_ten_thousand_chunks_takes_few_estimates(
    gigabytes: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = resolve(preset="demo", overrides=["step.window=10000", "step.chunks=10000", "step.batch=5040"])
    asked = 0

    def counted(*arguments: Any) -> Estimate:
        nonlocal asked
        asked += 1
        return estimate(*arguments)

    monkeypatch.setattr(budget, "estimate", counted)
    with pytest.raises(UserError, match="a step needs about"):
        check_fits(config, round(gigabytes * 1e9))
    # At a tenth of a millisecond each.
    assert asked < 1500


def test_what_is_recommended_is_the_configuration_itself_if_it_fits() -> None:
    config = resolve(preset="veritate_200m", overrides=["step.batch=24"])
    needed = estimate(config).peak_bytes
    own, less = recommend(config, needed), recommend(config, needed - 1)
    assert own is not None and own.config == config and own.peak_bytes == needed
    assert less is not None and less.config != config and less.peak_bytes < needed
    assert less.config.bytes_per_step == config.bytes_per_step
    assert recommend(config, 1_000_000) is None


@pytest.mark.parametrize("backend", ["cpu", "metal", "cuda"])
def test_room_is_left_on_every_backend(backend: Backend) -> None:
    assert 0.05 < room_bytes(16 * 10**9, backend) / 16e9 < 0.3


def test_a_command_says_all_that_differs_from_the_preset() -> None:
    config = resolve(
        preset="mega",
        overrides=[
            "model.vocabulary=1000",
            "data.dtype=uint16",
            "step.precision=bf16-pure",
            "step.activation_checkpointing=true",
            "schedule.base_lr=1e-3",
            "run.memory_limit_bytes=16000000000",
            "optimizer.momentum=0.9",
        ],
    )
    sources = (SourceConfig("a b.bin"), SourceConfig("c.bin", 2.5))
    config = replace(config, data=replace(config.data, sources=sources))
    again = resolved(train_command(config))
    assert replace(again, run=config.run) == config
    assert "--memory-limit 16000000000" in train_command(config)


def test_the_budget_is_the_limit_or_the_device_or_the_machine() -> None:
    machine = {"memory_bytes": 100, "device_memory_bytes": None}
    assert budget_bytes(machine, None) == 100
    assert budget_bytes({**machine, "device_memory_bytes": 75}, None) == 75
    assert budget_bytes(machine, 50) == 50
