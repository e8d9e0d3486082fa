"""Muon: momentum whose every matrix is orthogonalised before it is applied; decoupled weight decay."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final

import mlx.core as mx

from mlx_amort.config.values import MuonDtype, OptimizerConfig
from mlx_amort.errors import assert_never
from mlx_amort.ops.orthogonalize import orthogonalize
from mlx_amort.ops.recompute import held_far_back
from mlx_amort.optim.rounding import split_key, store
from mlx_amort.optim.stacks import stack_size

Arrays = dict[str, mx.array]

_DTYPES: Final[Mapping[MuonDtype, mx.Dtype]] = {"float32": mx.float32, "bfloat16": mx.bfloat16}


def muon_update(
    weights: Mapping[str, mx.array],
    gradients: Mapping[str, mx.array],
    momentum: Mapping[str, mx.array],
    learning_rate: mx.array,
    config: OptimizerConfig,
    *,
    gradient_scale: mx.array | float = 1.0,
    is_applied: mx.array | bool = True,
    key: mx.array | None = None,
) -> tuple[Arrays, Arrays]:
    """Return the matrices and the momentum after one update.

        G  = gradient_scale · gradient
        M <- μ M + (1 - μ) G
        U  = (1 - μ) G + μ M                                   Nesterov: one step ahead
        W <- (1 - lr · decay) W - lr · scale(m, n) · orthogonalize(U)

    scale is 0.2 sqrt(max(m, n)) (`match_rms`: an update's RMS is AdamW's, about 0.2) or sqrt(max(1, m/n))
    (`aspect_ratio`). Every matrix decays.
    Where `is_applied` is false the values stay what they were, whatever the gradient holds.
    Matrices of one shape are orthogonalised as one stack.

    Source: Jordan 2024 (Muon); Liu et al. 2025 (arXiv 2502.16982), equation 4, for the scale and the decay.
    Shapes: matrices [m, n] by name, the same names in all three mappings.
    Dtypes: float32 inside; each result in the dtype of what it replaces, bfloat16 rounded with `key`.
    """
    mu = config.momentum
    keep, step_size, decayed = _coefficients(learning_rate, is_applied, config)

    new_momentum: Arrays = {}
    new_weights: Arrays = {}
    weight_key, momentum_key = split_key(key, 2)
    weight_keys = dict(zip(weights, split_key(weight_key, len(weights)), strict=True))
    momentum_keys = dict(zip(weights, split_key(momentum_key, len(weights)), strict=True))
    dtype = _DTYPES[config.muon_dtype]
    before = step_size
    for names in _stacks(weights):
        directions = []
        for name in names:
            # Each stack waits for the one before, so that their temporaries never live together.
            gradient = mx.depends(gradients[name], before)
            gradient = mx.where(is_applied, gradient.astype(mx.float32) * gradient_scale, 0.0)
            moved = keep * momentum[name].astype(mx.float32) + (1 - mu) * gradient
            # A kernel of two outputs does not write into old buffers; kept apart, these are two of one each.
            moved = mx.depends(moved, step_size)
            directions.append((1 - mu) * gradient + mu * moved)
            new_momentum[name] = store(moved, momentum[name].dtype, momentum_keys[name])
        steps = orthogonalize(mx.stack(directions), config.coefficients, dtype)
        scale = _update_scale(weights[names[0]].shape, config)
        for name, step in zip(names, steps, strict=True):
            weight = decayed * weights[name].astype(mx.float32) - step_size * scale * step
            new_weights[name] = store(weight, weights[name].dtype, weight_keys[name])
        if key is None:
            before = mx.depends(steps, [new_weights[name] for name in names])
        else:
            # Stochastic rounding takes arrays that wait for nothing; held far back they are one stack's alone.
            results = [new[name] for name in names for new in (new_weights, new_momentum)]
            (before,) = held_far_back([step_size], results)
    return ({name: new_weights[name] for name in weights}, {name: new_momentum[name] for name in weights})


def _coefficients(learning_rate: mx.array, is_applied: mx.array | bool, config: OptimizerConfig) -> mx.array:
    """What is kept of the momentum, the step's size, what decay leaves of a weight. Shapes: [3]."""
    # A skipped update has no gradient and no step. The coefficients are read back from one array to compute
    # them once: the compiler would fuse them into each matrix's kernel.
    step_size = mx.where(is_applied, learning_rate, 0.0)
    return mx.stack(
        [mx.where(is_applied, config.momentum, 1.0), step_size, 1 - step_size * config.weight_decay]
    )


def _stacks(weights: Mapping[str, mx.array]) -> Iterator[list[str]]:
    """Yield the names that share a stack: of one shape, in even parts within the bounds."""
    on_cpu = mx.default_device() == mx.Device(mx.cpu)
    by_shape: dict[tuple[int, ...], list[str]] = {}
    for name, weight in weights.items():
        by_shape.setdefault(weight.shape, []).append(name)
    for shape, names in by_shape.items():
        size = stack_size(len(names), math.prod(shape), on_cpu)
        for start in range(0, len(names), size):
            yield names[start : start + size]


def _update_scale(shape: tuple[int, ...], config: OptimizerConfig) -> float:
    rows, columns = shape
    match config.muon_scale:
        case "match_rms":
            return 0.2 * math.sqrt(max(rows, columns))
        case "aspect_ratio":
            return math.sqrt(max(1.0, rows / columns))
        case unknown:
            assert_never(unknown)
