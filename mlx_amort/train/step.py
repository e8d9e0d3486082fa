"""One optimizer step, as two compiled functions: what is trained, profiled and forecast.

    window   weights, accumulator, state, bytes  -> loss, accumulator, state     once per W chunks of a micro-batch
    update   weights, accumulator, optimizer, lr -> weights, optimizer, norm     once per step

A step walks A micro-batches of B rows over K chunks. The recurrent state is carried from window to window, the gradient
stops between them. After each window its results are evaluated, so its activations are gone before the next begins:
peak memory depends on B and W, never on K or A. Losses and gradients are weighted by their share of the step's bytes,
so their sums are the step's means. See docs/training_step.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from mlx_amort.config.values import OptimizerConfig, StepConfig
from mlx_amort.errors import assert_never
from mlx_amort.model.byte_lm import ByteLM, StreamState, Weights
from mlx_amort.ops.precision import policy_of
from mlx_amort.optim.update import apply_update
from mlx_amort.train.state import TrainState

# Far from the seeds that weights are drawn with.
_ROUNDING_KEYS = 1 << 32

Tokens = NDArray[np.uint8] | NDArray[np.uint16]
Compiled = Callable[..., Any]


@dataclass(frozen=True)
class StepResult:
    """What a step reports. loss_nats: mean over the bytes trained on; gradient_norm: before clipping."""

    loss_nats: float
    gradient_norm: float

    @property
    def is_finite(self) -> bool:
        """Whether the update was applied."""
        return bool(np.isfinite(self.loss_nats) and np.isfinite(self.gradient_norm))


def window_lengths(chunks: int, window: int) -> list[int]:
    """K chunks cut into windows of W, a shorter one last when W does not divide K."""
    whole, rest = divmod(chunks, window)
    return [window] * whole + ([rest] if rest else [])


def walked_windows(step: StepConfig) -> tuple[list[int], list[int]]:
    """Lengths of the windows that only advance the state, and of those after them that are trained on."""
    match step.tbptt:
        case "consecutive":
            return [], window_lengths(step.chunks, step.effective_window)
        case "last":
            early = window_lengths(step.chunks - step.effective_window, step.effective_window)
            return early, [step.effective_window]
        case unknown:
            assert_never(unknown)


class TrainingStep:
    """The compiled functions of one configuration, and the walk through them that makes a step.

    `traces` counts how often each function was traced: once in a run, whatever the learning rate does. A remainder
    window (K not divisible by W) and the gradient-free windows of `tbptt: last` are functions of their own.
    """

    def __init__(self, model: ByteLM, step: StepConfig, optimizer: OptimizerConfig) -> None:
        self.model = model
        self.step = step
        self.traces: Counter[str] = Counter()
        self._needs_key = policy_of(model.precision).weights == mx.bfloat16
        early, lengths = walked_windows(step)
        self._early = [(length, self._compiled_advance(length)) for length in early]
        share = {length: length / (step.accum * sum(lengths)) for length in lengths}
        compiled = {length: self._compiled_window(length, share[length]) for length in share}
        self._windows = [(length, compiled[length]) for length in lengths]
        self._update = self._compiled_update(optimizer)

    def __call__(self, state: TrainState, batch: Tokens, learning_rate: float) -> StepResult:
        """Take one step on `batch` [A·B, S·K + 1]; `state` holds the new weights afterwards.

        A step whose loss or gradient is not finite changes nothing but the count of steps.
        """
        loss, gradients = self.accumulate(state.weights, batch)
        norm = self.update(state, gradients, loss, learning_rate)
        state.step += 1
        return StepResult(loss.item(), norm.item())  # type: ignore[arg-type]

    def accumulate(self, weights: Weights, batch: Tokens) -> tuple[mx.array, Weights]:
        """Mean loss in nats and the gradient of a whole step, walked micro-batch by micro-batch, window by window."""
        dtype = policy_of(self.model.precision).gradients
        accumulator = {name: mx.zeros(weight.shape, dtype=dtype) for name, weight in weights.items()}
        # Made before the first window, so that its peak is that of every other one, whatever K and A.
        mx.eval(accumulator)
        losses = []
        for micro_batch in np.split(batch, self.step.accum):
            tokens = mx.array(micro_batch)
            stream = self.model.zero_state(len(micro_batch))
            start = 0
            for length, advance in self._early:
                stream = advance(weights, stream, self._bytes_of(tokens, start, length))
                mx.eval(stream)
                start += length
            for length, window in self._windows:
                piece = self._bytes_of(tokens, start, length)
                loss, accumulator, stream = window(weights, accumulator, stream, piece)
                mx.eval(loss, accumulator, stream)
                losses.append(loss)
                start += length
        return mx.stack(losses).sum(), accumulator

    def update(self, state: TrainState, gradients: Weights, loss: mx.array, learning_rate: float) -> mx.array:
        """Apply `gradients` to `state`, if loss and norm are finite; returns the norm before clipping.

        `gradients` is consumed: the dictionary is emptied, so that the update works in the buffers it held.
        """
        key = mx.random.key(_ROUNDING_KEYS + state.step) if self._needs_key else None
        state.weights, state.optimizer, norm = self._update(
            state.weights, gradients, state.optimizer, mx.array(learning_rate), mx.isfinite(loss), key
        )
        gradients.clear()
        mx.eval(state.weights, state.optimizer, norm)
        return norm  # type: ignore[no-any-return]

    def _bytes_of(self, tokens: mx.array, start: int, length: int) -> mx.array:
        seq = self.model.config.seq
        return tokens[:, start * seq : (start + length) * seq + 1]

    def _compiled_window(self, length: int, share: float) -> Compiled:
        def weighted_loss(
            weights: Weights, accumulator: Weights, stream: StreamState, tokens: mx.array
        ) -> tuple[mx.array, StreamState]:
            loss, stream = self.model.loss(weights, tokens, stream, accumulator)
            return loss * share, stream

        def window(
            weights: Weights, accumulator: Weights, stream: StreamState, tokens: mx.array
        ) -> tuple[mx.array, Weights, StreamState]:
            self.traces[f"window of {length}"] += 1
            gradient_of = mx.value_and_grad(weighted_loss)
            (loss, stream), accumulator = gradient_of(weights, accumulator, stream, tokens)
            return loss, accumulator, stream

        return mx.compile(window)

    def _compiled_advance(self, length: int) -> Compiled:
        def advance(weights: Weights, stream: StreamState, tokens: mx.array) -> StreamState:
            self.traces[f"advance of {length}"] += 1
            return self.model.hidden(weights, tokens[:, :-1], stream)[1]

        return mx.compile(advance)

    def _compiled_update(self, optimizer: OptimizerConfig) -> Compiled:
        def update(
            weights: Weights,
            gradients: Weights,
            state: dict[str, mx.array],
            learning_rate: mx.array,
            is_finite: mx.array,
            key: mx.array | None,
        ) -> tuple[Weights, dict[str, mx.array], mx.array]:
            self.traces["update"] += 1
            return apply_update(weights, gradients, state, learning_rate, is_finite, optimizer, key)

        return mx.compile(update)
