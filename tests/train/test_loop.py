"""The loop by itself: a model and batches of one's own, without a folder, a log or a console."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mlx_amort.config.values import OptimizerConfig, StepConfig
from mlx_amort.train.loop import MOST_SKIPPED_STEPS, LoopEnd, TakenStep, train
from mlx_amort.train.state import TrainState, new_train_state
from mlx_amort.train.step import StepResult, Tokens, TrainingStep
from tests.train.tiny import MODEL, is_equal, tiny_model


class Repeated:
    """The same two rows at every step."""

    def batch(self, step: int) -> Tokens:
        return np.resize(np.frombuffer(b"over and over ", np.uint8), (2, 2 * MODEL.seq + 1))


def fresh_state() -> TrainState:
    return new_train_state(tiny_model(), OptimizerConfig(), seed=0)


def test_another_program_trains_a_model_of_its_own() -> None:
    step, state = TrainingStep(tiny_model(), StepConfig(batch=2), OptimizerConfig()), fresh_state()
    taken: list[TakenStep] = []
    end = train(step, state, Repeated(), lambda done: 1e-2 / (done + 1), 12, report=taken.append)
    assert end == LoopEnd(has_diverged=False, skipped_in_a_row=0)
    assert [one.step for one in taken] == list(range(1, 13)) and state.step == 12
    assert [one.learning_rate for one in taken] == [1e-2 / n for n in range(1, 13)]
    assert taken[-1].result.loss_nats < taken[0].result.loss_nats - 0.5
    again = fresh_state()
    train(step, again, Repeated(), lambda done: 1e-2 / (done + 1), 5)
    train(step, again, Repeated(), lambda done: 1e-2 / (done + 1), 12)
    assert is_equal(again.weights, state.weights)


def told(results: list[float], last_step: int = 20, **how: object) -> tuple[list[str], LoopEnd]:
    """What the loop calls, for steps with these losses and then good ones."""
    calls: list[str] = []
    state = TrainState({}, {}, 0)

    def step(state: TrainState, batch: Tokens, learning_rate: float) -> StepResult:
        state.step += 1
        return StepResult(results[state.step - 1] if state.step <= len(results) else 1.0, 1.0)

    def save() -> bool:
        calls.append(f"save {state.step}")
        return how.get("is_good", True) is True

    end = train(
        step,
        state,
        Repeated(),
        lambda done: 1.0,
        last_step,
        validate=lambda: calls.append(f"validate {state.step}"),
        validate_every=2,
        save=save,
        save_every=3,
        is_stopped=lambda: state.step == how.get("stop_at"),
        skipped_in_a_row=int(str(how.get("skipped", 0))),
    )
    return calls, end


def test_it_validates_and_saves_every_so_many_steps_but_the_last() -> None:
    calls, _ = told([], last_step=6)
    assert calls == ["validate 2", "save 3", "validate 4"]


def test_nothing_is_saved_after_a_skipped_step() -> None:
    calls, end = told([1.0, 1.0, math.nan, math.inf, 1.0], last_step=7)
    assert calls == ["validate 2", "validate 6", "save 6"] and end == LoopEnd(False, 0)


def test_it_diverges_after_three_skipped_steps_counted_over_calls() -> None:
    assert MOST_SKIPPED_STEPS == 3
    assert told([1.0, math.nan, math.nan, math.nan])[1] == LoopEnd(True, 3)
    assert told([math.nan], skipped=2)[1] == LoopEnd(True, 3)
    assert told([math.nan, math.nan], last_step=2)[1] == LoopEnd(False, 2)


def test_it_stops_when_asked_and_at_a_state_not_worth_saving() -> None:
    assert told([], stop_at=3) == (["validate 2", "save 3"], LoopEnd(False, 0))
    assert told([], is_good=False) == (["validate 2", "save 3"], LoopEnd(True, 0))


@pytest.mark.parametrize("last_step", [0, 1])
def test_no_step_is_taken_past_the_last(last_step: int) -> None:
    state = TrainState({}, {}, 1)
    end = train(lambda *_: pytest.fail("a step"), state, Repeated(), lambda done: 1.0, last_step)
    assert end == LoopEnd(False, 0)
