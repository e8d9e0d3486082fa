"""What is done every so many steps of a run, and how much a validation reads."""

from __future__ import annotations

from mlx_amort.data.validation import validation_targets
from mlx_amort.train.run import Run

CAP_STEPS = 8
"""A validation during training reads as many bytes as so many steps train on, in about three steps' time."""


def is_due(step: int, every: int | None, last_step: int) -> bool:
    """Whether something done every so many steps is done after this one; the last step has its own ending."""
    return every is not None and step % every == 0 and step < last_step


def most_bytes(run: Run) -> int:
    """What a validation during training reads at most."""
    return CAP_STEPS * run.config.bytes_per_step


def most_bytes_at_end(run: Run, step: int) -> int:
    """What the validation at the end reads at most: as many bytes as the run itself has trained on.

    A few steps of a large model would else be followed by hours of validation.
    """
    return max(CAP_STEPS, step) * run.config.bytes_per_step


def amounts_at_end(run: Run, step: int) -> list[int]:
    """What the validations at the end read at most, one after the other.

    Where there were validations on the way, first as much as these: figures over more text do not continue theirs.
    """
    most, held_out = most_bytes_at_end(run, step), validation_targets(run.held_out)
    is_less = most_bytes(run) < min(most, held_out)
    return [most_bytes(run), most] if run.config.run.eval_every is not None and is_less else [most]


def bytes_to_validate(run: Run, last_step: int) -> int:
    """What the validations from here to `last_step` will read in all; the one at the end only if it is the end."""
    held_out, every = validation_targets(run.held_out), run.config.run.eval_every
    # Counted, not walked through: a run may be told to take 2^53 steps.
    due = 0 if every is None else max(0, (last_step - 1) // every - run.state.step // every)
    total = due * min(held_out, most_bytes(run))
    if last_step == run.config.total_steps:
        total += sum(min(held_out, most) for most in amounts_at_end(run, last_step))
    return total
