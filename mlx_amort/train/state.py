"""Everything a step maps and a checkpoint holds."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from mlx_amort.config.values import OptimizerConfig
from mlx_amort.model.byte_lm import ByteLM, Weights
from mlx_amort.optim.update import init_optimizer_state


@dataclass
class TrainState:
    """Weights, optimizer state and the number of completed steps; nothing outside it matters on resume.

    The arrays are replaced, not kept: whoever holds an old one keeps its buffer from being reused.
    """

    weights: Weights
    optimizer: dict[str, mx.array]
    step: int


def new_train_state(model: ByteLM, optimizer: OptimizerConfig, seed: int) -> TrainState:
    """Fresh weights of `seed` and the optimizer's state before its first update."""
    weights = model.init_weights(seed)
    return TrainState(weights, init_optimizer_state(weights, optimizer), step=0)
