"""Bytes drawn one after another from a trained model: a pure function of weights, prompt and seed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from mlx_amort.config.model import BYTE_VALUES, ModelConfig
from mlx_amort.errors import UserError
from mlx_amort.model.byte_lm import ByteLM, Weights
from mlx_amort.model.decoding import Decoder
from mlx_amort.ops.paths import active_path

# A model needs a byte to continue from; a line's end says least about what comes next.
EMPTY_PROMPT = b"\n"


def sample(
    model: ByteLM,
    weights: Weights,
    prompt: bytes,
    count: int,
    temperature: float,
    top_k: int,
    seed: int,
    top_p: float = 1.0,
) -> Iterator[int]:
    """Yield `count` bytes that follow `prompt`, each as soon as it is drawn.

    p = softmax(logits / temperature) over the `top_k` largest logits (0: all), then over the fewest of these whose
    probabilities sum to `top_p` at least; temperature 0 takes the largest. An empty prompt is a newline. On the CPU the
    weights are multiplied in float32 whatever the model's precision: bfloat16 is slower there.
    Source: top-p is nucleus sampling (Holtzman et al. 2020, arXiv 1904.09751, section 3.1).
    Raises: UserError, before the first byte, for values out of range; later when the logits are not finite.
    """
    _check(model.config, prompt, count, seed)
    _check_drawing(temperature, top_k, top_p)
    return _sample(model, weights, prompt or EMPTY_PROMPT, count, temperature, top_k, seed, top_p)


def _sample(
    model: ByteLM,
    weights: Weights,
    prompt: bytes,
    count: int,
    temperature: float,
    top_k: int,
    seed: int,
    top_p: float,
) -> Iterator[int]:
    if count == 0:
        return
    precision = "fp32" if active_path() == "cpu" else model.precision
    decoder = Decoder(dataclasses.replace(model, precision=precision))
    weights = decoder.prepare(weights)
    generator = np.random.Philox(key=seed)
    logits, state = decoder.read(weights, prompt)
    for remaining in range(count - 1, -1, -1):
        # Raw words, scaled here: numpy keeps those the same over versions, its distributions it may change.
        uniform = (int(generator.random_raw()) >> 11) * 2.0**-53
        byte = draw(np.array(logits), temperature, top_k, uniform, top_p)
        yield byte
        if remaining:
            logits = decoder.step(weights, byte, state)


def draw(
    logits: NDArray[np.float32], temperature: float, top_k: int, uniform: float, top_p: float = 1.0
) -> int:
    """The value at which the cumulated probability exceeds `uniform` in [0, 1). Shapes: logits [V].

    Of equal logits the lower values count as larger. Raises: UserError when a logit is not finite.
    """
    if not np.isfinite(logits).all():
        raise UserError(
            "this model's weights", "give logits that are not finite numbers", "use an earlier checkpoint"
        )
    if temperature == 0:
        return int(np.argmax(logits))
    wide = logits.astype(np.float64)
    kept = np.arange(len(wide))
    if 0 < top_k < len(wide):
        kept = np.sort(np.argsort(-wide, kind="stable")[:top_k])
    # So cold that all but the largest are infinitely far below it: exp makes 0 of these.
    with np.errstate(over="ignore"):
        scaled = (wide[kept] - wide.max()) / temperature
    weights = np.exp(scaled)
    if top_p < 1:
        order = np.argsort(-weights, kind="stable")
        reached = np.searchsorted(np.cumsum(weights[order]), top_p * weights.sum())
        nucleus = np.sort(order[: int(reached) + 1])
        kept, weights = kept[nucleus], weights[nucleus]
    cumulated = np.cumsum(weights)
    return int(kept[np.searchsorted(cumulated, uniform * cumulated[-1], side="right")])


def _check(config: ModelConfig, prompt: bytes, count: int, seed: int) -> None:
    if config.vocabulary > BYTE_VALUES:
        raise UserError(
            f"a model of {config.vocabulary} token ids",
            "does not speak in bytes, and its tokenizer is not known here",
            "generate from a model with vocabulary 256",
        )
    if prompt and max(prompt) >= config.vocabulary:
        raise UserError(
            f"byte {max(prompt)} of the prompt",
            f"is outside the model's vocabulary of {config.vocabulary}",
            "leave it out",
        )
    if count < 0:
        raise UserError(f"{count} bytes", "is less than none", "ask for 0 or more")
    if not 0 <= seed < 2**64:
        raise UserError(f"seed {seed}", "must be 0 or above and below 2^64", "0 is usual")


def _check_drawing(temperature: float, top_k: int, top_p: float) -> None:
    if not (math.isfinite(temperature) and temperature >= 0):
        raise UserError(
            f"temperature {temperature:g}",
            "must be 0 or above",
            "0 takes the likeliest byte, 1 draws as trained",
        )
    if top_k < 0:
        raise UserError(f"top-k {top_k}", "must be 0 or above", "0 keeps every byte")
    if not 0 < top_p <= 1:
        raise UserError(f"top-p {top_p:g}", "must be above 0 and at most 1", "1 keeps every byte")
