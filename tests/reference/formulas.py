"""The operations of the model as float64 formulas with gradients.

Shapes: B rows, h heads, N slots, S bytes, d head width, H width.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.reference.autodiff import Array, Tensor, apply_elementwise, concatenate, stack

_erf = np.vectorize(math.erf, otypes=[np.float64])


def gelu(x: Tensor) -> Tensor:
    """x (1 + erf(x / sqrt 2)) / 2."""
    normal = (1.0 + _erf(x.value / math.sqrt(2.0))) / 2.0
    density = np.exp(-(x.value**2) / 2.0) / math.sqrt(2.0 * math.pi)
    return apply_elementwise(x, x.value * normal, normal + x.value * density)


def silu(x: Tensor) -> Tensor:
    """x / (1 + exp(-x))."""
    gate = _sigmoid(x.value)
    return apply_elementwise(x, x.value * gate, gate + x.value * gate * (1.0 - gate))


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x))."""
    value = _sigmoid(x.value)
    return apply_elementwise(x, value, value * (1.0 - value))


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x))."""
    return apply_elementwise(x, np.logaddexp(0.0, x.value), _sigmoid(x.value))


def exponential(x: Tensor) -> Tensor:
    value = np.exp(x.value)
    return apply_elementwise(x, value, value)


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-5) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis."""
    mean_square = (x * x).mean_last() + eps
    root = apply_elementwise(mean_square, mean_square.value**-0.5, -0.5 * mean_square.value**-1.5)
    return x * root * weight


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x Wᵀ with W [out, in]."""
    return x @ weight.transposed()


def attend_causally(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax over s ≤ t of q_t·k_s / sqrt d, times v; q, k, v [..., S, d]."""
    scores = (q @ k.transposed()) * (q.shape[-1] ** -0.5)
    return _softmax_up_to_own_position(scores) @ v


def gla(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """S_t = exp(log_decay_t) S_{t-1} + k_tᵀ v_t; out_t = q_t S_t, slot by slot.

    q, k, v [B, h, N, d]; log_decay [B, h, N]; state [B, h, d, d] -> out [B, h, N, d], final state.
    """
    B, h, N, d = q.shape
    rows, finals = [], []
    for row in range(B):
        S = state[row]
        outputs = []
        for t in range(N):
            decay = exponential(log_decay[row, :, t]).reshape(h, 1, 1)
            S = decay * S + k[row, :, t].reshape(h, d, 1) * v[row, :, t].reshape(h, 1, d)
            outputs.append(q[row, :, t].reshape(h, 1, d) @ S)
        rows.append(concatenate(outputs, axis=1))
        finals.append(S)
    return stack(rows), stack(finals)


def cross_entropy(logits: Tensor, targets: NDArray[np.integer[Any]]) -> Tensor:
    """Mean of log(sum(exp(logits))) - logits[target], in nats; logits [S, V], targets [S]."""
    S = logits.shape[0]
    shifted = logits.value - logits.value.max(axis=-1, keepdims=True)
    log_probability = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    positions = np.arange(S)

    def spread(gradient: Array) -> None:
        slope = np.exp(log_probability)
        slope[positions, targets] -= 1.0
        logits.gradient[...] += gradient * slope / S

    return Tensor(-log_probability[positions, targets].mean(), (logits,), spread)


def _softmax_up_to_own_position(scores: Tensor) -> Tensor:
    probability = np.zeros_like(scores.value)
    for t in range(scores.shape[-2]):
        seen = scores.value[..., t, : t + 1]
        weight = np.exp(seen - seen.max(axis=-1, keepdims=True))
        probability[..., t, : t + 1] = weight / weight.sum(axis=-1, keepdims=True)

    def spread(gradient: Array) -> None:
        inner = (gradient * probability).sum(axis=-1, keepdims=True)
        scores.gradient[...] += probability * (gradient - inner)

    return Tensor(probability, (scores,), spread)


def _sigmoid(x: Array) -> Array:
    return np.exp(-np.logaddexp(0.0, -x))
