"""The validations of a run: what they read, what is logged of them, and which was the best."""

from __future__ import annotations

from mlx_amort.data.validation import validation_targets
from mlx_amort.evaluate import evaluate
from mlx_amort.train.console import Console
from mlx_amort.train.interrupt import Interrupt, held_signals
from mlx_amort.train.metrics import ValidationRow, finite_or_none
from mlx_amort.train.run import Run
from mlx_amort.train.validation_budget import amounts_at_end, most_bytes


class _Interrupted(Exception):
    """Carries an interrupt out of a validation under way."""


def validate_on_the_way(run: Run, console: Console, interrupt: Interrupt) -> ValidationRow | None:
    """Log bits per byte over the first of what is held out; None where an interrupt cut it short."""
    return _validate(run, console, interrupt, most_bytes(run.config))


def validate_at_end(run: Run, console: Console, interrupt: Interrupt) -> None:
    """Log bits per byte over all that is held out, or much of it; figures of the same state stand."""
    for most in left_to_validate(run):
        _validate(run, console, interrupt, most)


def left_to_validate(run: Run) -> list[int]:
    """How much the validations read at most that the end of the run has not logged yet."""
    logged = [row for row in run.log.validations() if row["step"] == run.state.step]
    is_whole = any(row["whole"] for row in logged)
    return [] if is_whole else amounts_at_end(run.config, run.held_out, run.state.step)[len(logged) :]


@held_signals()
def _validate(run: Run, console: Console, interrupt: Interrupt, max_bytes: int) -> ValidationRow | None:
    def progress(done: int, total: int) -> None:
        if interrupt.is_set:
            raise _Interrupted
        console.progress(f"validation  {done:,} of {total:,} chunks")

    try:
        found = evaluate(run.model, run.state.weights, run.held_out, max_bytes=max_bytes, progress=progress)
    except _Interrupted:
        return None
    row: ValidationRow = {
        "step": run.state.step,
        "bytes": run.state.step * run.config.bytes_per_step,
        "val_bits": finite_or_none(found.bits_per_byte),
        "val_bytes": found.bytes,
        "whole": found.is_whole,
    }
    run.log.append(row)
    console.validated(row, validation_targets(run.held_out))
    return row
