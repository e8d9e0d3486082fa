"""The learning rate of a step: a pure function of its number, so that a resumed run needs nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from mlx_amort.config.values import ScheduleConfig, ScheduleName
from mlx_amort.errors import assert_never


class Phases(NamedTuple):
    """How many steps warm up, stay at the base rate, and decay; together the whole run."""

    warmup_steps: int
    stable_steps: int
    decay_steps: int


class Course(NamedTuple):
    """What makes a schedule: how long it decays, and along which shape.

    decay_steps: of a run of so many steps, of which so many follow the warm-up; at most the latter.
    shape: from 1 at q = 0, the last step at the base rate, to 0 at q = 1, the last of the run.
    """

    decay_steps: Callable[[ScheduleConfig, int, int], int]
    shape: Callable[[float], float]


def course_of(name: ScheduleName) -> Course:
    """A schedule by its name."""
    match name:
        case "wsd":
            return Course(_last_fraction, lambda q: 1 - math.sqrt(q))
        case "cosine":
            return Course(_all_after_warmup, lambda q: (1 + math.cos(math.pi * q)) / 2)
        case "linear":
            return Course(_all_after_warmup, lambda q: 1 - q)
        case "constant":
            return Course(_never, lambda q: 1.0)
        case unknown:
            assert_never(unknown)


def _last_fraction(config: ScheduleConfig, total_steps: int, rest: int) -> int:
    return min(round(config.decay_fraction * total_steps), rest)


def _all_after_warmup(config: ScheduleConfig, total_steps: int, rest: int) -> int:
    return rest


def _never(config: ScheduleConfig, total_steps: int, rest: int) -> int:
    return 0


def phases(total_steps: int, config: ScheduleConfig) -> Phases:
    """Return the length of each phase; a warm-up longer than half the run is cut to that.

    Raises: ValueError for a run of no steps.
    """
    if total_steps < 1:
        raise ValueError(f"a run of {total_steps} steps has no learning rate")
    warmup_steps = min(config.warmup_steps, total_steps // 2)
    rest = total_steps - warmup_steps
    decay_steps = course_of(config.name).decay_steps(config, total_steps, rest)
    return Phases(warmup_steps, rest - decay_steps, decay_steps)


def learning_rate(step: int, total_steps: int, config: ScheduleConfig) -> float:
    """Return the learning rate of the update that follows `step` completed ones, step in [0, total_steps).

        warm-up  base (step + 1) / warmup_steps     the first step already moves, the last is at base
        stable   base
        decay    min + (base - min) shape(q)        q is 0 at the last step at base, 1 at the last of the run

    A run that decays from its first step on starts at base; steps past the last keep the last one's rate.

    Source: Hägele et al. 2024 (arXiv 2405.18392), for the square root.
    Raises: ValueError for a negative step or a run of no steps.
    """
    if step < 0:
        raise ValueError(f"step {step} is negative")
    warmup_steps, _, decay_steps = phases(total_steps, config)
    base = config.base_lr
    if step < warmup_steps:
        return base * (step + 1) / warmup_steps
    last_at_base = max(total_steps - decay_steps - 1, 0)
    last = total_steps - 1
    if step <= last_at_base or last == last_at_base:
        return base
    q = min((step - last_at_base) / (last - last_at_base), 1.0)
    return config.final_lr + (base - config.final_lr) * course_of(config.name).shape(q)
