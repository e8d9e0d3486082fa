"""AdamW: elementwise expressions that compile to one kernel for each array, written in place."""

from __future__ import annotations

import math
from collections.abc import Mapping

import mlx.core as mx

from mlx_amort.config.values import OptimizerConfig
from mlx_amort.ops.cpu.streams import elementwise_streams
from mlx_amort.ops.recompute import held_far_back
from mlx_amort.optim.partition import has_weight_decay
from mlx_amort.optim.rounding import split_key, store

Arrays = dict[str, mx.array]


def adamw_update(
    weights: Mapping[str, mx.array],
    gradients: Mapping[str, mx.array],
    first: Mapping[str, mx.array],
    second: Mapping[str, mx.array],
    updates: mx.array,
    learning_rate: mx.array,
    config: OptimizerConfig,
    *,
    gradient_scale: mx.array | float = 1.0,
    is_applied: mx.array | bool = True,
    key: mx.array | None = None,
) -> tuple[Arrays, Arrays, Arrays]:
    """Return the weights and both moments after update number `updates` (1 for the first).

        g  = gradient_scale · gradient
        m <- β1 m + (1 - β1) g
        v <- β2 v + (1 - β2) g²
        w <- (1 - lr · decay) w - lr · m/(1 - β1^t) / (sqrt(v/(1 - β2^t)) + eps)

    Where `is_applied` is false the values stay what they were, whatever the gradient holds.

    Source: Kingma and Ba 2015, algorithm 1; Loshchilov and Hutter 2019, algorithm 2.
    Shapes: any, the same names in all four mappings; `updates` and `learning_rate` are scalars.
    Dtypes: float32 inside; each result in the dtype of what it replaces, bfloat16 rounded with `key`.
    """
    keep_first, keep_second, unbias_first, unbias_second, step_size, decayed = _coefficients(
        updates, learning_rate, is_applied, config
    )
    results: tuple[Arrays, Arrays, Arrays] = ({}, {}, {})
    # Stochastic rounding needs temporaries as large as a tensor: there one stream, else as many as the backend has.
    # What a stream waits for is an input: waiting for what another stream has computed holds both up.
    streams = elementwise_streams() if key is None else elementwise_streams()[:1]
    before, dealt = [learning_rate] * len(streams), [0] * len(streams)
    for name, tensor_key in zip(weights, split_key(key, len(weights)), strict=True):
        least_busy = dealt.index(min(dealt))
        dealt[least_busy] += weights[name].size
        with mx.stream(streams[least_busy]):
            # One tensor after another, so that float32 copies and random bits of few live together.
            gradient = mx.depends(gradients[name], before[least_busy])
            gradient = mx.where(is_applied, gradient.astype(mx.float32) * gradient_scale, 0.0)
            m = keep_first * first[name].astype(mx.float32) + (1 - config.beta1) * gradient
            v = keep_second * second[name].astype(mx.float32) + (1 - config.beta2) * gradient * gradient
            # A kernel of three outputs does not write into old buffers; kept apart, these are three of one each.
            m, v = mx.depends(m, learning_rate), mx.depends(v, learning_rate)
            weight = weights[name].astype(mx.float32)
            if has_weight_decay(name):
                weight = decayed * weight
            weight = weight - step_size * (m * unbias_first / (mx.sqrt(v * unbias_second) + config.eps))
            kept = (weights[name], first[name], second[name])
            keys = split_key(tensor_key, 3)
            for result, value, old, own_key in zip(results, (weight, m, v), kept, keys, strict=True):
                result[name] = store(value, old.dtype, own_key)
            done = [result[name] for result in results]
            before[least_busy] = (
                mx.depends(learning_rate, done) if key is None else held_far_back([learning_rate], done)[0]
            )
    return results


def _coefficients(
    updates: mx.array, learning_rate: mx.array, is_applied: mx.array | bool, config: OptimizerConfig
) -> mx.array:
    """What is kept of both moments, what unbiases them, the step's size, what decay leaves of a weight. Shapes: [6]."""
    # A skipped update has no gradient and no step. The coefficients are read back from one array to compute
    # them once: the compiler would fuse them into each tensor's kernel, with an expm1 for every element.
    count = mx.maximum(updates, 1).astype(mx.float32)
    step_size = mx.where(is_applied, learning_rate, 0.0)
    return mx.stack(
        [
            mx.where(is_applied, config.beta1, 1.0),
            mx.where(is_applied, config.beta2, 1.0),
            1 / _one_minus_power(config.beta1, count),
            1 / _one_minus_power(config.beta2, count),
            step_size,
            1 - step_size * config.weight_decay,
        ]
    )


def _one_minus_power(beta: float, count: mx.array) -> mx.array:
    """Return 1 - beta^count without the cancellation that float32 suffers when beta is near 1."""
    return -mx.expm1(count * math.log(beta)) if beta > 0 else mx.ones_like(count)
