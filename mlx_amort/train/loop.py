"""The training loop: one function that reads as a story, and the few verbs that tell it."""

from __future__ import annotations

import math
import time

import mlx.core as mx

from mlx_amort.data.stream import PrefetchedStream
from mlx_amort.optim.schedules import learning_rate
from mlx_amort.train import checkpoint
from mlx_amort.train.console import Console
from mlx_amort.train.interrupt import Interrupt
from mlx_amort.train.metrics import Row, finite_or_none
from mlx_amort.train.pace import Pace
from mlx_amort.train.results import Results
from mlx_amort.train.run import Run
from mlx_amort.train.step import TrainingStep
from mlx_amort.train.summary import Ending, Summary
from mlx_amort.train.validation_budget import is_due

REFUSED_STEPS = 3
"""So many steps in a row without a finite loss and gradient, and the run has diverged."""


def train(
    run: Run,
    console: Console,
    interrupt: Interrupt,
    stop_after: int | None = None,
    pace: Pace | None = None,
) -> Summary:
    """Take the steps that are left, or those up to number `stop_after`; leave checkpoints, log, plot, sample.

    pace: what the steps were forecast to take; without one they are measured against the first of them.
    A step that is not finite changes nothing and is reported. Nothing is saved between it and the next good
    one, for the weights may be finite and lost all the same; a run that ends there saves, says so, and deletes
    no older checkpoint. Three in a row end the run.
    """
    config, state, log = run.config, run.state, run.log
    last_step = min(config.total_steps, stop_after or config.total_steps)
    step = TrainingStep(run.model, config.step, config.optimizer)
    pace = pace or Pace()
    results = Results(run, console, interrupt, pace)
    has_diverged = False
    if results.is_recorded:
        console.say(f"complete    {run.folder.path}: nothing is left to do and nothing was written")
        results.recall()
        return results.summarize("complete")

    console.header(run, last_step, pace)
    with PrefetchedStream(run.stream) as stream:
        while state.step < last_step and not has_diverged and not interrupt.is_set:
            row = timed_step(run, step, stream, pace.predicted_s)
            log.append(row)
            if change := pace.take(row["step_s"], config.bytes_per_step):
                console.pace_changed(change, run, pace)
            console.step(row)
            if not row["applied"]:
                console.refused(row)
                has_diverged = log.refused_in_a_row >= REFUSED_STEPS
                continue
            if is_due(state.step, config.run.eval_every, last_step):
                results.validate()
                results.draw_now_and_then()
            if is_due(state.step, config.run.save_every, last_step):
                checkpoint.save(run.folder.path, state, config)

    console.steps_ended()
    if log.refused_in_a_row and not has_diverged:
        console.note(f"the last {log.refused_in_a_row} steps were not applied; older checkpoints are kept")
    if not has_diverged:
        checkpoint.save(run.folder.path, state, config, keeps_older=log.refused_in_a_row > 0)
    ending = how_it_ended(run, has_diverged, interrupt)
    if ending == "complete":
        results.validate_at_end()
        results.write_sample()
        ending = how_it_ended(run, has_diverged, interrupt)
    results.draw()
    return results.summarize(ending)


def timed_step(run: Run, step: TrainingStep, stream: PrefetchedStream, predicted_s: float | None) -> Row:
    """Take one step of the run: what came of it, its time with the wait for its data, its peak memory."""
    mx.reset_peak_memory()
    started_at = time.perf_counter()
    rate = learning_rate(run.state.step, run.config.total_steps, run.config.schedule)
    result = step(run.state, stream.batch(run.state.step), rate)
    step_s = time.perf_counter() - started_at
    return {
        "step": run.state.step,
        "bytes": run.state.step * run.config.bytes_per_step,
        "loss_bits": finite_or_none(result.loss_nats / math.log(2)),
        "grad_norm": finite_or_none(result.gradient_norm),
        "lr": rate,
        "step_s": round(step_s, 6),
        "predicted_s": predicted_s if predicted_s is None else round(predicted_s, 6),
        "peak_bytes": mx.get_peak_memory(),
        "applied": result.is_finite,
    }


def how_it_ended(run: Run, has_diverged: bool, interrupt: Interrupt) -> Ending:
    """Why no further step is taken."""
    if has_diverged:
        return "diverged"
    if interrupt.is_set:
        return "interrupted"
    return "complete" if run.state.step >= run.config.total_steps else "stopped"
