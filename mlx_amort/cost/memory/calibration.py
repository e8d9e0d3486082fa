"""Fitting the counts of the memory model to measured peaks: which configurations to measure, and the fit.

A configuration tells about a count if its peak depends on it: s = ∂ ln peak / ∂ ln count. Those with the largest s are
measured, several of each count. The fit minimises, over the counts c from those before, c0,

    Σ loss(ln(estimated / measured)) + Σ PRIOR · ln(c / c0)²

one count after another, so the maxima of the estimate are respected: a count only moves where it decides a peak.
loss is Huber's, so that no outlier decides, and counts too low estimates more than too high ones. Arithmetic only.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from mlx_amort.config.reading import resolve
from mlx_amort.config.values import Config
from mlx_amort.cost.memory.counts import Counts, values_of, with_values
from mlx_amort.cost.memory.estimate import Phase, estimate_with

PHASES: Final[tuple[Phase, ...]] = ("window", "update")
# A killed run costs more than memory that is left over.
_TOO_LOW: Final = 3.0
_HUBER: Final = 0.03
_PRIOR: Final = 0.05
# A phase that does not set the peak counts less.
_BESIDE_THE_PEAK: Final = 0.2
_STEPS: Final = (0.7, 0.85, 0.93, 0.97, 0.99, 1.01, 1.03, 1.08, 1.18, 1.4)
_MOST_ROUNDS: Final = 30
# A count that is zero has no logarithm; it is tried at these.
_FROM_ZERO: Final = (0.25, 0.5, 1.0, 2.0)
_LEAST_COUNT: Final = 0.05

_DRAWN: Final = 1500
# Large enough that a buffer more or less does not matter, small enough for seconds.
_LEAST_PEAK_BYTES: Final = 40_000_000
_MOST_PEAK_BYTES: Final = 900_000_000
_MOST_WORK: Final = 4e9
_NUDGE: Final = 1.1
# Below, a peak does not depend on a count enough to tell it.
_LEAST_SENSITIVITY: Final = 0.03


@dataclass(frozen=True)
class Observation:
    """A configuration and the measured peak of each phase, in bytes."""

    config: Config
    window_bytes: int
    update_bytes: int

    def measured(self, phase: Phase) -> int:
        """The measured peak of a phase."""
        return self.window_bytes if phase == "window" else self.update_bytes


def choose_configurations(counts: Counts, seed: int, per_count: int) -> list[Config]:
    """Configurations that a seed draws, of which at least `per_count` tell about each count where any do."""
    draw = random.Random(seed)
    pool = [config for config in (_drawn(draw) for _ in range(_DRAWN)) if _is_affordable(config, counts)]
    plain = [estimate_with(config, counts).phase_bytes for config in pool]
    chosen: dict[int, None] = {}
    for name, value in values_of(counts).items():
        nudged = with_values(counts, {name: value * _NUDGE + (0.5 if value == 0 else 0)})
        sensitivities = []
        for index, config in enumerate(pool):
            moved = estimate_with(config, nudged).phase_bytes
            most = max(abs(moved[phase] / plain[index][phase] - 1) for phase in PHASES) / (_NUDGE - 1)
            if most >= _LEAST_SENSITIVITY:
                sensitivities.append((most, index))
        # The third that tells most, and among them at random: not all of one kind.
        best = sorted(sensitivities, reverse=True)[: max(3 * per_count, len(sensitivities) // 3)]
        missing = per_count - sum(index in chosen for _, index in best)
        fresh = [index for _, index in best if index not in chosen]
        for index in draw.sample(fresh, min(len(fresh), max(0, missing))):
            chosen[index] = None
    return [pool[index] for index in chosen]


def fit_counts(counts: Counts, observations: Sequence[Observation]) -> Counts:
    """`counts` fitted to what was measured; one that no observation depends on stays as it is."""
    values = values_of(counts)
    before = dict(values)
    fitted = with_values(counts, values)
    errors = [_errors(fitted, each) for each in observations]
    affected = {name: _affected(fitted, name, observations) for name in values}
    for _ in range(_MOST_ROUNDS):
        has_moved = False
        for name in values:
            if not affected[name]:
                continue
            best_loss = sum(sum(errors[index]) for index in affected[name]) + _prior(
                values[name], before[name]
            )
            for tried in _tries(values[name]):
                candidate = with_values(fitted, {name: tried})
                own = {index: _errors(candidate, observations[index]) for index in affected[name]}
                loss = sum(map(sum, own.values())) + _prior(tried, before[name])
                if loss < best_loss * (1 - 1e-4):
                    best_loss, values[name], fitted, has_moved = loss, tried, candidate, True
                    for index, error in own.items():
                        errors[index] = error
            # What depends on a count changes as others move.
            affected[name] = _affected(fitted, name, observations)
        if not has_moved:
            break
    return fitted


def ratios(counts: Counts, observations: Sequence[Observation]) -> list[float]:
    """Estimated / measured peak of each observation."""
    return [
        estimate_with(each.config, counts).peak_bytes / max(each.window_bytes, each.update_bytes)
        for each in observations
    ]


def loss_of(counts: Counts, observations: Sequence[Observation]) -> float:
    """What the fit minimises, without the prior; per observation."""
    return sum(sum(_errors(counts, each)) for each in observations) / max(1, len(observations))


def _errors(counts: Counts, observation: Observation) -> tuple[float, float]:
    found = estimate_with(observation.config, counts).phase_bytes
    peak = max(observation.window_bytes, observation.update_bytes)
    window, update = (
        _loss(math.log(found[phase] / observation.measured(phase)))
        * (1.0 if observation.measured(phase) == peak else _BESIDE_THE_PEAK)
        for phase in PHASES
    )
    return window, update


def _loss(error: float) -> float:
    """Huber's loss, and so many times as much for an estimate that is too low."""
    size = abs(error)
    loss = size * size / 2 if size <= _HUBER else _HUBER * (size - _HUBER / 2)
    return loss * (_TOO_LOW if error < 0 else 1.0)


def _prior(value: float, before: float) -> float:
    return _PRIOR * math.log(max(value, _LEAST_COUNT) / max(before, _LEAST_COUNT)) ** 2


def _tries(value: float) -> Iterator[float]:
    if value == 0:
        yield from _FROM_ZERO
    else:
        yield from (value * step for step in _STEPS)


def _affected(counts: Counts, name: str, observations: Sequence[Observation]) -> list[int]:
    """Which observations depend on a count, as it is or up to half as large again."""
    value = values_of(counts)[name]
    larger = with_values(counts, {name: value * 1.5 + 0.5})
    smaller = with_values(counts, {name: value * 0.6})
    found = []
    for index, observation in enumerate(observations):
        own, up, down = (
            estimate_with(observation.config, each).phase_bytes for each in (counts, larger, smaller)
        )
        if any(up[phase] != own[phase] or down[phase] != own[phase] for phase in PHASES):
            found.append(index)
    return found


def _is_affordable(config: Config, counts: Counts) -> bool:
    work = config.model.parameters * (config.bytes_per_step + 500)
    peak = estimate_with(config, counts).peak_bytes
    return work <= _MOST_WORK and _LEAST_PEAK_BYTES <= peak <= _MOST_PEAK_BYTES


def _drawn(draw: random.Random) -> Config:
    heads, width = draw.choice((2, 4, 6, 8, 16)), draw.choice((16, 32, 64, 96))
    trunk = draw.choice(("hybrid", "dense", "dense", "recurrent", "recurrent", "patched"))
    window = draw.choice((1, 2, 3))
    values: dict[str, object] = {
        "model.trunk": trunk,
        "model.layers": draw.choice((1, 1, 2, 3, 6)),
        "model.hidden": heads * width,
        "model.heads": heads,
        "model.ffn": round(heads * width * draw.choice((0.5, 1, 2, 4, 6))),
        "model.seq": draw.choice((64, 128, 192, 256, 512, 768, 1024)),
        "model.patch_stride": draw.choice((4, 8)),
        "step.batch": draw.choice((1, 2, 3, 4, 6, 8, 12)),
        "step.window": window,
        "step.chunks": window,
        "step.precision": draw.choice(("fp32", "fp32", "bf16", "bf16", "bf16-pure")),
        "step.activation_checkpointing": draw.choice(("false", "true")),
        "optimizer.name": draw.choice(("muon", "muon", "adamw")),
    }
    if trunk in ("dense", "recurrent") and draw.random() < 0.25:
        values |= {"model.vocabulary": draw.choice((1000, 2048, 8192)), "data.dtype": "uint16"}
    if draw.random() < 0.1:
        values |= {"optimizer.coefficients": "jordan", "optimizer.muon_dtype": "bfloat16"}
    return resolve(overrides=[f"{key}={value}" for key, value in values.items()])
