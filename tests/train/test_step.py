"""The step: what its gradient is, how often it is traced, what its memory depends on, and that it learns."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlx_amort.config.model import ModelConfig
from mlx_amort.config.values import OptimizerConfig, Precision, ScheduleConfig, StepConfig
from mlx_amort.model.blocks import Weights
from mlx_amort.model.byte_lm import ByteLM
from mlx_amort.optim.schedules import learning_rate
from mlx_amort.train import session
from mlx_amort.train.run import new_run
from mlx_amort.train.state import new_train_state
from mlx_amort.train.step import Tokens, TrainingStep
from tests.tolerances import assert_close, relative_error
from tests.train.tiny import MODEL, tiny_config, tiny_model, train_quietly, write_text

SEQ = MODEL.seq


def some_bytes(rows: int, chunks: int, seq: int = SEQ) -> Tokens:
    return np.random.default_rng(7).integers(32, 127, (rows, seq * chunks + 1)).astype(np.uint8)


def number(scalar: mx.array) -> float:
    return float(np.array(scalar))


def accumulated(step: StepConfig, batch: Tokens, weights: Weights) -> tuple[float, Weights]:
    loss, gradients = TrainingStep(tiny_model(), step, OptimizerConfig()).accumulate(weights, batch)
    return number(loss), gradients


def summed_over_windows(step: StepConfig, batch: Tokens, weights: Weights) -> tuple[float, Weights]:
    """The definition of a step's gradient, without compiling, accumulating in place or sharing anything."""
    model = tiny_model()
    total, summed = 0.0, {name: mx.zeros(weight.shape) for name, weight in weights.items()}
    state = model.zero_state(len(batch))
    for start in range(0, step.chunks, step.effective_window):
        length = min(step.effective_window, step.chunks - start)
        tokens = mx.array(batch[:, start * SEQ : (start + length) * SEQ + 1])
        (loss, after), gradients = mx.value_and_grad(model.loss)(weights, tokens, state)
        state = after
        total += number(loss) * length / step.chunks
        summed = {name: summed[name] + gradients[name] * (length / step.chunks) for name in summed}
    return total, summed


def assert_same(one: tuple[float, Weights], other: tuple[float, Weights]) -> None:
    assert one[0] == pytest.approx(other[0], rel=1e-5)
    for name in other[1]:
        # A gradient that nearly cancels is held against the size of those around it.
        assert_close(one[1][name], np.array(other[1][name]), "reordered", name, floor=1e-4)


@pytest.fixture(scope="module")
def weights() -> Weights:
    # Decays near 1, so that what crosses a window's edge is not lost in rounding.
    return {name: w * 2 if w.ndim == 2 else w for name, w in tiny_model().init_weights(3).items()}


@pytest.mark.parametrize(("chunks", "window"), [(1, 1), (4, 2), (5, 2), (2, 3), (3, 1)])
def test_every_chunk_is_trained_on(weights: Weights, chunks: int, window: int) -> None:
    step = StepConfig(batch=2, chunks=chunks, window=window)
    batch = some_bytes(2, chunks)
    assert_same(accumulated(step, batch, weights), summed_over_windows(step, batch, weights))


def test_a_window_of_all_chunks_is_full_backpropagation(weights: Weights) -> None:
    batch = some_bytes(2, 3)
    full = accumulated(StepConfig(batch=2, chunks=3, window=3), batch, weights)
    model = tiny_model()

    def loss_of(weights: Weights) -> mx.array:
        return model.loss(weights, mx.array(batch), model.zero_state(2))[0]

    loss, gradients = mx.value_and_grad(loss_of)(weights)
    assert_same(full, (number(loss), gradients))
    cut = accumulated(StepConfig(batch=2, chunks=3, window=1), batch, weights)
    # The state crosses the cut (equal losses), the gradient does not.
    assert cut[0] == pytest.approx(full[0], rel=1e-5)
    assert relative_error(cut[1]["blocks.2.qkv"], np.array(full[1]["blocks.2.qkv"])) > 1e-4


def test_micro_batches_are_one_batch(weights: Weights) -> None:
    batch = some_bytes(6, 2)
    whole = accumulated(StepConfig(batch=6, chunks=2, window=1), batch, weights)
    assert_same(accumulated(StepConfig(batch=2, accum=3, chunks=2, window=1), batch, weights), whole)


def test_last_trains_on_the_last_window_with_the_state_of_those_before(weights: Weights) -> None:
    batch = some_bytes(2, 3)
    last = accumulated(StepConfig(batch=2, chunks=3, window=1, tbptt="last"), batch, weights)
    model = tiny_model()
    _, state = model.hidden(weights, mx.array(batch[:, : 2 * SEQ]), model.zero_state(2))

    def loss_of(weights: Weights) -> mx.array:
        return model.loss(weights, mx.array(batch[:, 2 * SEQ :]), state)[0]

    loss, gradients = mx.value_and_grad(loss_of)(weights)
    assert_same(last, (number(loss), gradients))


def test_recomputed_activations_give_the_same_gradient(weights: Weights) -> None:
    step, batch = StepConfig(batch=2, chunks=2, window=2), some_bytes(2, 2)
    recomputed = TrainingStep(tiny_model(activation_checkpointing=True), step, OptimizerConfig())
    loss, gradients = recomputed.accumulate(weights, batch)
    assert_same((number(loss), gradients), accumulated(step, batch, weights))


@pytest.mark.parametrize(
    ("step", "traced"),
    [
        (StepConfig(batch=2, chunks=4, window=2, accum=2), {"window of 2", "update"}),
        (StepConfig(batch=2, chunks=3, window=2), {"window of 2", "window of 1", "update"}),
        (StepConfig(batch=2, chunks=4, window=2, tbptt="last"), {"advance of 2", "window of 2", "update"}),
    ],
)
@pytest.mark.parametrize("precision", ["fp32", "bf16-pure"])
def test_each_function_is_traced_once_in_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: StepConfig, traced: set[str], precision: str
) -> None:
    made: list[TrainingStep] = []

    class Watched(TrainingStep):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(session, "TrainingStep", Watched)
    config = tiny_config(write_text(tmp_path), precision, eval_every=2, save_every=2)
    config = dataclasses.replace(config, step=dataclasses.replace(step, precision=precision))  # type: ignore[arg-type]
    rates = {learning_rate(n, config.total_steps, config.schedule) for n in range(config.total_steps)}
    assert len(rates) > 2, "the schedule must move for the test to say anything"
    train_quietly(new_run(config, tmp_path / "run", ["test"]))
    assert [step.traces for step in made] == [Counter(dict.fromkeys(traced, 1))]


# Wide enough for a window's activations to weigh more than weights and optimizer state.
BROAD = ModelConfig(trunk="hybrid", layers=2, hidden=32, ffn=128, heads=2, seq=128)


def peak_bytes(step: StepConfig, is_recomputing: bool = False) -> int:
    """Peak over 16 windows of settled steps: compiled, their buffers in place.

    MLX allocates ahead of execution, as far as the machine's other work lets it: a peak over many windows scatters
    upward, so what is compared has as many.
    """
    training_step = TrainingStep(ByteLM(BROAD, "fp32", is_recomputing), step, OptimizerConfig())
    state = new_train_state(training_step.model, OptimizerConfig(), seed=0)
    windows = step.accum * -(-step.chunks // step.effective_window)
    for index in range(2 + 16 // windows):
        if index <= 2:
            mx.reset_peak_memory()
        # What other tests left in memory is no part of a step.
        own = [*state.weights.values(), *state.optimizer.values()]
        before = mx.get_active_memory() - sum(array.nbytes for array in own)
        training_step(state, some_bytes(step.accum * step.batch, step.chunks, BROAD.seq), 1e-3)
    return mx.get_peak_memory() - before


@pytest.mark.slow
def test_peak_memory_depends_on_rows_and_window_only() -> None:
    two = peak_bytes(StepConfig(batch=4, chunks=2, window=2))
    assert peak_bytes(StepConfig(batch=4, chunks=8, window=2)) <= 1.02 * two
    assert peak_bytes(StepConfig(batch=4, chunks=2, window=2, accum=4)) <= 1.02 * two
    assert peak_bytes(StepConfig(batch=4, chunks=8, window=8)) > 2 * two
    assert peak_bytes(StepConfig(batch=8, chunks=2, window=2)) > 1.5 * two


@pytest.mark.slow
def test_recomputing_activations_lowers_the_peak() -> None:
    step = StepConfig(batch=4, chunks=2, window=2)
    assert peak_bytes(step, is_recomputing=True) < 0.9 * peak_bytes(step)


def losses(precision: Precision, steps: int, batch: Tokens) -> list[float]:
    step = StepConfig(batch=len(batch), chunks=2, window=2)
    training_step = TrainingStep(tiny_model(precision), step, OptimizerConfig())
    state = new_train_state(training_step.model, OptimizerConfig(), seed=0)
    schedule = ScheduleConfig(base_lr=1e-2, warmup_steps=10)
    return [training_step(state, batch, learning_rate(n, steps, schedule)).loss_nats for n in range(steps)]


def test_it_learns_a_small_text_by_heart_in_either_precision() -> None:
    text = (b"In the beginning was the byte, and the byte was with the gradient. " * 3)[: 2 * SEQ + 1]
    batch = np.frombuffer(text, np.uint8)[None].repeat(2, axis=0)
    exact, rounded = losses("fp32", 150, batch), losses("bf16", 150, batch)
    assert exact[-1] < 0.3 < 5 < exact[0]
    # Early on, where the losses are still large, the two must go together.
    assert np.mean(rounded[20:40]) == pytest.approx(np.mean(exact[20:40]), rel=0.016)
