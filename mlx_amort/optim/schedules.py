"""The learning rate of a step: a pure function of its number, so that a resumed run needs nothing else."""

from __future__ import annotations

import math
from typing import NamedTuple

from mlx_amort.config.values import ScheduleConfig


class Phases(NamedTuple):
    """How many steps warm up, stay at the base rate, and decay; together the whole run."""

    warmup_steps: int
    stable_steps: int
    decay_steps: int


def phases(total_steps: int, config: ScheduleConfig) -> Phases:
    """Return the length of each phase; a warm-up longer than half the run is cut to that.

    `wsd` decays over the last `decay_fraction` of the steps, `cosine` and `linear` over all that follow the
    warm-up, `constant` never.
    Raises: ValueError for a run of no steps.
    """
    if total_steps < 1:
        raise ValueError(f"a run of {total_steps} steps has no learning rate")
    warmup_steps = min(config.warmup_steps, total_steps // 2)
    rest = total_steps - warmup_steps
    if config.name == "wsd":
        decay_steps = min(round(config.decay_fraction * total_steps), rest)
    else:
        decay_steps = 0 if config.name == "constant" else rest
    return Phases(warmup_steps, rest - decay_steps, decay_steps)


def learning_rate(step: int, total_steps: int, config: ScheduleConfig) -> float:
    """Return the learning rate of the update that follows `step` completed ones, step in [0, total_steps).

        warm-up  base (step + 1) / warmup_steps     the first step already moves, the last is at base
        stable   base
        decay    min + (base - min) shape(q)        q is 0 at the last step at base, 1 at the last of the run

    shape is 1 - sqrt(q) for `wsd`, (1 + cos(pi q)) / 2 for `cosine`, 1 - q for `linear`.
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
    return config.final_lr + (base - config.final_lr) * _shape(config.name, q)


def _shape(name: str, q: float) -> float:
    if name == "wsd":
        return 1 - math.sqrt(q)
    if name == "cosine":
        return (1 + math.cos(math.pi * q)) / 2
    return 1 - q
