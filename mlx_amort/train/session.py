"""One session of a run: the steps that are left, with its log, checkpoints, validations, pictures and console."""

from __future__ import annotations

import math
from contextlib import nullcontext
from functools import partial

from mlx_amort.backend.kernel_cache import watch_compiling
from mlx_amort.data.stream import PrefetchedStream
from mlx_amort.optim.schedules import learning_rate
from mlx_amort.train import checkpoint
from mlx_amort.train.console import Console
from mlx_amort.train.interrupt import Interrupt, held_signals
from mlx_amort.train.loop import Step, TakenStep, train
from mlx_amort.train.metrics import StepRow, finite_or_none, is_timed, over_the_same_text
from mlx_amort.train.pace import Pace
from mlx_amort.train.pictures import Pictures
from mlx_amort.train.run import Run
from mlx_amort.train.run_lock import release
from mlx_amort.train.sample import write_sample
from mlx_amort.train.state import TrainState
from mlx_amort.train.step import StepResult, Tokens, TrainingStep
from mlx_amort.train.summary import Ending, Session, Summary, summarize
from mlx_amort.train.validation import left_to_validate, validate_at_end, validate_on_the_way


def train_run(
    run: Run,
    console: Console,
    interrupt: Interrupt,
    stop_after: int | None = None,
    pace: Pace | None = None,
) -> Summary:
    """Take the steps that are left, or those up to number `stop_after`; leave checkpoints, log, picture, sample.

    pace: what the steps were forecast to take; without one they are measured against the first of them.
    A run that ends on a skipped step saves, says so, and deletes no older checkpoint. The run's folder, which this
    process has had for itself, is free again afterwards.
    """
    try:
        return _train_run(run, console, interrupt, stop_after, pace or Pace())
    finally:
        release(run.folder.path)


def _train_run(
    run: Run, console: Console, interrupt: Interrupt, stop_after: int | None, pace: Pace
) -> Summary:
    config, state = run.config, run.state
    last_step = min(config.total_steps, stop_after or config.total_steps)
    session = Session(pace, first_step=state.step, interrupt=interrupt)
    if is_recorded(run):
        console.say(f"complete    {run.folder.path}: nothing is left to do and nothing was written")
        return summarize(run, session, "complete")

    console.header(run, last_step, pace)
    pictures = Pictures(run, lambda: pace.predicted_s, console.note)
    with PrefetchedStream(run.stream) as stream:
        end = train(
            watched(TrainingStep(run.model, config.step, config.optimizer), console),
            state,
            stream,
            lambda step: learning_rate(step, config.total_steps, config.schedule),
            last_step,
            report=partial(report_step, run, console, pace),
            validate=partial(validate_and_draw, run, console, interrupt, pictures),
            validate_every=config.run.eval_every,
            save=partial(save_if_finite, run, console),
            save_every=config.run.save_every,
            is_stopped=lambda: interrupt.is_set,
            skipped_in_a_row=run.log.skipped_in_a_row(),
        )
    console.steps_ended()
    has_diverged = end.has_diverged
    if end.skipped_in_a_row and not has_diverged:
        console.note(f"the last {end.skipped_in_a_row} steps were skipped; older checkpoints are kept")
    if not has_diverged:
        has_diverged = not save_if_finite(run, console, keeps_older=end.skipped_in_a_row > 0)
    ending = how_it_ended(run, has_diverged, interrupt)
    if ending == "complete":
        validate_at_end(run, console, interrupt)
        keep_best(run)
        write_sample(run, console, interrupt)
        ending = how_it_ended(run, has_diverged, interrupt)
    pictures.draw()
    return summarize(run, session, ending)


def watched(step: Step, console: Console) -> Step:
    """`step`, with signals held until its end; while the first compiles, the console is told how far that is."""
    is_first = True

    def take(state: TrainState, batch: Tokens, learning_rate: float) -> StepResult:
        nonlocal is_first
        watch = watch_compiling(console.compiling) if is_first else nullcontext()
        is_first = False
        with held_signals(), watch:
            return step(state, batch, learning_rate)

    return take


def report_step(run: Run, console: Console, pace: Pace, taken: TakenStep) -> None:
    """Log a step and show it, and what it changes in the forecast."""
    bytes_per_step = run.config.bytes_per_step
    row: StepRow = {
        "step": taken.step,
        "bytes": taken.step * bytes_per_step,
        "loss_bits": finite_or_none(taken.result.loss_nats / math.log(2)),
        "grad_norm": finite_or_none(taken.result.gradient_norm),
        "lr": taken.learning_rate,
        "step_s": round(taken.step_s, 6),
        "predicted_s": None if pace.predicted_s is None else round(pace.predicted_s, 6),
        "peak_bytes": taken.peak_bytes,
        "applied": taken.result.is_finite,
    }
    if taken.has_compiled:
        row["compiled"] = True
    if taken.has_napped:
        row["napped"] = True
    run.log.append(row)
    if is_timed(row) and (change := pace.take(row["step_s"], bytes_per_step)):
        console.pace_changed(change, run, pace)
    console.step(row)
    if not row["applied"]:
        console.skipped(row)


def validate_and_draw(run: Run, console: Console, interrupt: Interrupt, pictures: Pictures) -> None:
    """Validate, keep the state if it is the best so far and that is asked for, draw if that is cheap."""
    validate_on_the_way(run, console, interrupt)
    keep_best(run)
    pictures.draw_if_cheap()


def keep_best(run: Run) -> None:
    """With `run.keep_best`, save the state apart if its validation is the best so far over the same text."""
    rows = run.log.validations()
    if not run.config.run.keep_best or not rows or rows[-1]["step"] != run.state.step:
        return
    # At the end there is one over more text besides: the first of this step is the one that others can be held to.
    row = next(row for row in rows if row["step"] == run.state.step)
    bits = [other["val_bits"] for other in over_the_same_text(row, rows)]
    if row["val_bits"] is not None and row["val_bits"] <= min(bit for bit in bits if bit is not None):
        checkpoint.save_best(run.folder.path, run.state, run.config)


def save_if_finite(run: Run, console: Console, keeps_older: bool = False) -> bool:
    """Save a checkpoint; False, with a note, for a state with numbers that are not finite: the older ones stay."""
    if not checkpoint.is_finite(run.state):
        step = run.state.step
        console.note(
            f"step {step:,} not saved: weights or optimizer state are not finite; older checkpoints are kept"
        )
        return False
    checkpoint.save(run.folder.path, run.state, run.config, keeps_older)
    return True


def is_recorded(run: Run) -> bool:
    """Whether the run is at its end and all that its end leaves is there."""
    has_sample = run.config.run.sample_bytes == 0 or run.folder.sample.exists()
    return run.state.step >= run.config.total_steps and has_sample and not left_to_validate(run)


def how_it_ended(run: Run, has_diverged: bool, interrupt: Interrupt) -> Ending:
    """Why no further step is taken."""
    if has_diverged:
        return "diverged"
    if interrupt.is_set:
        return "interrupted"
    return "complete" if run.state.step >= run.config.total_steps else "stopped"
