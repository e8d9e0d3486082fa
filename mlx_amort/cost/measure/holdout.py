"""Configurations that were not measured, for the cost model to predict first: a test that it can fail."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Collection

from mlx_amort.cost.configuration import Configuration
from mlx_amort.cost.time.cost_model import CostModel

MOST = 3
LEAST = 2
# Each is measured so often, by turns: a machine that is slow for a while must not judge the model by one of them.
VISITS = 3
_SEED = 1


def choose_holdout(
    model: CostModel,
    base: Configuration,
    taken: Collection[Configuration],
    seconds_of: Callable[[Configuration], float],
    left_s: float | None,
) -> list[Configuration]:
    """Two or three configurations between the fitted ones: a smaller and a larger one, then the other optimizer.

    As many as the time left pays for, but two where there are two: without them nothing is proved. `base`
    gives what the fit does not vary.
    """
    candidates = _candidates(model, base, taken)
    chosen: list[Configuration] = []
    for group in _groups(candidates, base.optimizer):
        group = [each for each in group if each not in chosen]
        affordable = [each for each in group if left_s is None or VISITS * seconds_of(each) <= left_s]
        if affordable:
            choice = random.Random(_SEED).choice(affordable)
        elif group and len(chosen) < LEAST:
            choice = min(group, key=seconds_of)
        else:
            continue
        chosen.append(choice)
        left_s = None if left_s is None else left_s - VISITS * seconds_of(choice)
    return chosen[:MOST]


def _candidates(
    model: CostModel, base: Configuration, taken: Collection[Configuration]
) -> list[Configuration]:
    """Fitted batches and those halfway between them, with the fitted chunks, within the fitted sizes."""
    fitted = [point.measurement.configuration for point in model.points]
    sizes = [each.bytes_per_step for each in fitted]
    batches = sorted({each.batch for each in fitted})
    between = {(low + high) // 2 for low, high in itertools.pairwise(batches)}
    candidates = []
    for batch, chunks, optimizer in itertools.product(
        sorted(between | set(batches)), sorted({each.chunks for each in fitted}), sorted(model.c0_s)
    ):
        candidate = Configuration(
            batch=batch,
            chunks=chunks,
            seq=model.setting.seq,
            optimizer=optimizer,
            window=model.setting.window or base.window,
            accum=base.accum,
            precision=model.setting.precision or base.precision,
            activation_checkpointing=model.setting.activation_checkpointing,
        )
        if candidate not in taken and min(sizes) <= candidate.bytes_per_step <= max(sizes):
            candidates.append(candidate)
    return candidates


def _groups(candidates: list[Configuration], optimizer: str) -> list[list[Configuration]]:
    """Candidates in the order of preference: smaller half, larger half, the other optimizer, any."""
    own = sorted((p for p in candidates if p.optimizer == optimizer), key=lambda p: p.bytes_per_step)
    half = len(own) // 2
    return [own[:half], own[half:], [p for p in candidates if p.optimizer != optimizer], candidates]
