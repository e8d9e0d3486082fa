"""One optimizer update as a pure function of weights, gradients and state; it is compiled whole."""

from __future__ import annotations

from collections.abc import Mapping

import mlx.core as mx

from mlx_amort.config.values import OptimizerConfig
from mlx_amort.optim.adamw import adamw_update
from mlx_amort.optim.muon import muon_update
from mlx_amort.optim.partition import STATE_NAMES, owners
from mlx_amort.optim.rounding import split_key

Arrays = dict[str, mx.array]


def init_optimizer_state(weights: Mapping[str, mx.array], config: OptimizerConfig) -> Arrays:
    """Return the state before the first update: all zero.

    Keys: "momentum/NAME" of what Muon owns, "first/NAME" and "second/NAME" of what AdamW owns, and "updates",
    the count of those done.
    Dtypes: those of the weights; the count is int32.
    """
    state: Arrays = {"updates": mx.array(0, dtype=mx.int32)}
    for name, owner in owners(_shapes(weights), config.name).items():
        for kind in STATE_NAMES[owner]:
            state[f"{kind}/{name}"] = mx.zeros_like(weights[name])
    return state


def gradient_norm(gradients: Mapping[str, mx.array]) -> mx.array:
    """Return the square root of the sum of all squares, a float32 scalar, before any clipping."""
    return mx.sqrt(mx.stack([_sum_of_squares(gradient) for gradient in gradients.values()]).sum())


def _sum_of_squares(gradient: mx.array) -> mx.array:
    # Each row times itself as a product: nothing is squared into memory, and no long float32 sum runs one
    # by one (on the CPU a whole-array sum loses percents).
    rows = gradient.astype(mx.float32).reshape(-1, 1, gradient.shape[-1])
    return (rows @ rows.swapaxes(-1, -2)).sum()


def apply_update(
    weights: Mapping[str, mx.array],
    gradients: Mapping[str, mx.array],
    state: Mapping[str, mx.array],
    learning_rate: mx.array,
    is_finite: mx.array,
    config: OptimizerConfig,
    key: mx.array | None = None,
) -> tuple[Arrays, Arrays, mx.array]:
    """Return weights and state after one update by each parameter's owner, and the norm before clipping.

    All gradients are scaled by min(1, clip_norm / norm), inside the update's own pass.
    Where `is_finite` (of the loss) is false, or the norm is not finite, nothing changes, nor does the count.
    Weights and state are written into their old buffers when nothing else holds these at evaluation.

    Shapes: `learning_rate` (float32) and `is_finite` (bool) are scalar arrays: an update is traced once.
    Dtypes: float32 inside; weights and state keep theirs, bfloat16 rounded stochastically with `key`.
    """
    norm = gradient_norm(gradients)
    is_applied = mx.logical_and(is_finite, mx.isfinite(norm))
    scale = mx.minimum(1.0, config.clip_norm / norm)
    updates = state["updates"] + is_applied.astype(mx.int32)
    owner_of = owners(_shapes(weights), config.name)
    muon_names = [name for name in weights if owner_of[name] == "muon"]
    adamw_names = [name for name in weights if owner_of[name] == "adamw"]
    muon_key, adamw_key = split_key(key, 2)

    muon_weights, momentum = muon_update(
        _pick(weights, muon_names),
        _pick(gradients, muon_names),
        _pick(state, muon_names, "momentum/"),
        learning_rate,
        config,
        gradient_scale=scale,
        is_applied=is_applied,
        key=muon_key,
    )
    adamw_weights, first, second = adamw_update(
        _pick(weights, adamw_names),
        _pick(gradients, adamw_names),
        _pick(state, adamw_names, "first/"),
        _pick(state, adamw_names, "second/"),
        updates,
        learning_rate,
        config,
        gradient_scale=scale,
        is_applied=is_applied,
        key=adamw_key,
    )

    changed = muon_weights | adamw_weights
    kinds = {"momentum": momentum, "first": first, "second": second}
    new_state = {f"{kind}/{name}": array for kind, arrays in kinds.items() for name, array in arrays.items()}
    new_state["updates"] = updates
    return {name: changed[name] for name in weights}, {name: new_state[name] for name in state}, norm


def _shapes(weights: Mapping[str, mx.array]) -> dict[str, tuple[int, ...]]:
    return {name: weight.shape for name, weight in weights.items()}


def _pick(arrays: Mapping[str, mx.array], names: list[str], prefix: str = "") -> Arrays:
    return {name: arrays[prefix + name] for name in names}
