"""Fitting the counts: a table is recovered from the peaks it predicts, and what nothing depends on stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlx_amort.cost.memory import counts as tables
from mlx_amort.cost.memory.calibration import (
    Observation,
    choose_configurations,
    fit_counts,
    loss_of,
    ratios,
)
from mlx_amort.cost.memory.counts import Counts, read_counts, values_of, with_values
from mlx_amort.cost.memory.estimate import estimate_with

SHIPPED = read_counts(Path(tables.__file__).with_name("counts") / "cpu.json")


def observed(counts: Counts, seed: int, factor: float = 1.0) -> list[Observation]:
    """What a machine with these counts would measure."""
    found = []
    for config in choose_configurations(SHIPPED, seed, per_count=1)[:24]:
        phases = estimate_with(config, counts).phase_bytes
        found.append(Observation(config, round(factor * phases["window"]), round(factor * phases["update"])))
    return found


def test_the_same_seed_draws_the_same_configurations_of_each_kind() -> None:
    chosen = choose_configurations(SHIPPED, seed=3, per_count=1)
    assert chosen == choose_configurations(SHIPPED, seed=3, per_count=1)
    assert chosen != choose_configurations(SHIPPED, seed=4, per_count=1)
    assert {config.step.precision for config in chosen} == {"fp32", "bf16", "bf16-pure"}
    assert {config.step.activation_checkpointing for config in chosen} == {False, True}
    assert len({config.model.trunk for config in chosen}) >= 3


def test_counts_are_moved_towards_those_that_measured() -> None:
    other = with_values(
        SHIPPED,
        {
            name: value * (1.3 if index % 2 else 0.8)
            for index, (name, value) in enumerate(values_of(SHIPPED).items())
        },
    )
    observations = observed(other, seed=3)
    fitted = fit_counts(SHIPPED, observations)
    assert loss_of(fitted, observations) < 0.3 * loss_of(SHIPPED, observations)
    assert all(0.95 <= ratio <= 1.1 for ratio in ratios(fitted, observations))


def test_what_nothing_depends_on_stays() -> None:
    observations = [each for each in observed(SHIPPED, seed=3) if each.config.step.precision == "fp32"]
    fitted = values_of(fit_counts(SHIPPED, observations[:4]))
    before = values_of(SHIPPED)
    assert all(fitted[name] == before[name] for name in before if name.startswith("bfloat16."))


def test_estimates_too_low_weigh_more() -> None:
    config = choose_configurations(SHIPPED, seed=3, per_count=1)[0]
    phases = estimate_with(config, SHIPPED).phase_bytes

    def loss(factor: float) -> float:
        own = Observation(config, round(factor * phases["window"]), round(factor * phases["update"]))
        return loss_of(SHIPPED, [own])

    assert loss(1.06) > 2 * loss(0.94)
    assert loss(1.0) == pytest.approx(0, abs=1e-12)
