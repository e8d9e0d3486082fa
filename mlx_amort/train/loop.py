"""The training loop. It knows a step, a state, batches and a schedule; logging, validation, saving are functions.

train/session.py calls it for a run with a folder, a log and a console; docs/training_step.md shows it without them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import mlx.core as mx

from mlx_amort.backend.disturbance import this_moment
from mlx_amort.train.state import TrainState
from mlx_amort.train.step import StepResult, Tokens
from mlx_amort.train.validation_budget import is_due

MOST_SKIPPED_STEPS = 3
"""So many skipped steps in a row, without a finite loss and gradient, and training has diverged."""

Step = Callable[[TrainState, Tokens, float], StepResult]


class Batches(Protocol):
    """Where the bytes of a step come from (data/stream.py)."""

    def batch(self, step: int) -> Tokens:
        """The bytes of the step that follows `step` completed ones."""


@dataclass(frozen=True)
class TakenStep:
    """A step that was taken, its number from 1. Units: step_s in seconds, with the wait for its batch.

    has_compiled: it was the first of its session, or a kernel was compiled in it. has_napped: the machine was
    suspended in it, or the process stopped. Either says that step_s is not what a step takes.
    """

    step: int
    result: StepResult
    learning_rate: float
    step_s: float
    peak_bytes: int
    has_compiled: bool = False
    has_napped: bool = False


class LoopEnd(NamedTuple):
    """How the loop ended: whether training diverged, and how many of the last steps were skipped."""

    has_diverged: bool
    skipped_in_a_row: int


def do_nothing(*_: object) -> None:
    """What the loop calls where its caller wants nothing."""


def train(
    step: Step,
    state: TrainState,
    batches: Batches,
    schedule: Callable[[int], float],
    last_step: int,
    *,
    report: Callable[[TakenStep], None] = do_nothing,
    validate: Callable[[], None] = do_nothing,
    validate_every: int | None = None,
    save: Callable[[], bool] = lambda: True,
    save_every: int | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
    skipped_in_a_row: int = 0,
) -> LoopEnd:
    """Take steps until number `last_step` is done, `is_stopped`, or training has diverged; `state` is what it is then.

    schedule: the learning rate after so many completed steps. report: called after every step. validate, save:
    called every so many steps, but after the last; save tells whether the state was worth saving.
    skipped_in_a_row: steps that were skipped just before, in an earlier call.

    A step that is not finite is skipped: it changes nothing but the count of steps. Nothing is saved between it and
    the next applied one, for the weights may be finite and lost all the same. Three in a row are a divergence.
    """
    is_first = True
    while state.step < last_step and not is_stopped():
        taken = timed_step(step, state, batches, schedule, is_first)
        is_first = False
        report(taken)
        if not taken.result.is_finite:
            skipped_in_a_row += 1
            if skipped_in_a_row >= MOST_SKIPPED_STEPS:
                return LoopEnd(True, skipped_in_a_row)
            continue
        skipped_in_a_row = 0
        if is_due(state.step, validate_every, last_step):
            validate()
        if is_due(state.step, save_every, last_step) and not save():
            return LoopEnd(True, skipped_in_a_row)
    return LoopEnd(False, skipped_in_a_row)


def timed_step(
    step: Step, state: TrainState, batches: Batches, schedule: Callable[[int], float], is_first: bool
) -> TakenStep:
    """Take one step: what came of it, its time with the wait for its batch, its peak memory."""
    mx.reset_peak_memory()
    before, started_at = this_moment(), time.perf_counter()
    rate = schedule(state.step)
    result = step(state, batches.batch(state.step), rate)
    step_s, after = time.perf_counter() - started_at, this_moment()
    return TakenStep(
        state.step,
        result,
        rate,
        step_s,
        mx.get_peak_memory(),
        has_compiled=is_first or after.has_compiled_since(before),
        has_napped=after.has_napped_since(before),
    )
