"""Seconds per step of the choices, measured by turns, and how many steps take equally long."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from mlx_amort.config.values import Config
from tools.bench.side import mlx_side
from tools.study.choices import Plan
from tools.study.runs import Results

ROUNDS, WARM_UP_ROUNDS = 40, 2
# Steps that differ by less are the same run.
NEGLIGIBLE = 0.02


def seconds_per_step(
    configs: Mapping[str, Config], rounds: int = ROUNDS, warm_up: int = WARM_UP_ROUNDS
) -> dict[str, list[float]]:
    """Seconds of each step of the trainer by configuration; all step by turns, round after round, after a warm-up."""
    samples_s: dict[str, list[float]] = {name: [] for name in configs}
    with tempfile.TemporaryDirectory() as parent:
        sides = {}
        for name, config in configs.items():
            # Weights of its own: a slot more or less is another shape.
            folder = Path(parent) / name
            folder.mkdir()
            sides[name] = mlx_side(config, folder, {})
        for turn in range(warm_up + rounds):
            for name, side in sides.items():
                step_s = sum(side.step())
                if turn >= warm_up:
                    samples_s[name].append(step_s)
    return samples_s


def parse_seconds(text: str, names: Sequence[str]) -> dict[str, list[float]]:
    """Seconds per step by choice from "name=0.19,name2=0.21".

    Raises: click.BadParameter unless each has one above 0.
    """
    found: dict[str, list[float]] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        try:
            found[name.strip()] = [float(value)]
        except ValueError:
            raise click.BadParameter(f"'{part}' is not NAME=SECONDS") from None
    if set(found) != set(names) or not all(0 < value < math.inf for (value,) in found.values()):
        raise click.BadParameter(f"give a time above 0 for each of {', '.join(names)}, and no other")
    return found


def equal_seconds_steps(steps: int, reference_s: float, choice_s: float) -> int:
    """Steps in the time that the reference takes for `steps`; `steps` itself where that is within 2 %."""
    found = max(1, round(steps * reference_s / choice_s))
    return steps if abs(found - steps) <= NEGLIGIBLE * steps else found


def samples_of(
    plan: Plan, configs: Mapping[str, Config], given: str | None, results: Results | None
) -> tuple[dict[str, list[float]], str]:
    """Seconds of steps by choice, and where they are from; without results they are measured anew."""
    if given is not None:
        found = parse_seconds(given, list(configs))
        return {name: found[name] for name in configs}, "given"
    choices = {name: plan.overrides(name) for name in configs}
    kept = None if results is None else results.times(choices)
    if kept is not None:
        return {name: kept[name] for name in configs}, "measured when this study began"
    samples_s = seconds_per_step(configs)
    if results is not None:
        results.keep_times(choices, samples_s)
    return samples_s, f"medians of {ROUNDS}"
