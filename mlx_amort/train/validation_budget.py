"""What is done every so many steps of a run, and how much a validation reads; no mlx."""

from __future__ import annotations

from collections.abc import Sequence

from mlx_amort.config.values import Config
from mlx_amort.data.corpus import Corpus
from mlx_amort.data.validation import validation_targets

CAP_STEPS = 8
"""A validation during training reads as many bytes as so many steps train on, in about three steps' time."""


def is_due(step: int, every: int | None, last_step: int) -> bool:
    """Whether something done every so many steps is done after this one; the last step has its own ending."""
    return every is not None and step % every == 0 and step < last_step


def most_bytes(config: Config) -> int:
    """What a validation during training reads at most."""
    return CAP_STEPS * config.bytes_per_step


def most_bytes_at_end(config: Config, step: int) -> int:
    """What the validation at the end reads at most: as many bytes as the run itself has trained on.

    A few steps of a large model would else be followed by hours of validation.
    """
    return max(CAP_STEPS, step) * config.bytes_per_step


def amounts_at_end(config: Config, held_out: Sequence[Corpus], step: int) -> list[int]:
    """What the validations at the end read at most, one after the other.

    Where there were validations on the way, first as much as these: figures over more text do not continue theirs.
    """
    most = most_bytes_at_end(config, step)
    is_less = most_bytes(config) < min(most, validation_targets(held_out))
    return [most_bytes(config), most] if config.run.eval_every is not None and is_less else [most]


def bytes_to_validate(config: Config, held_out: Sequence[Corpus], step: int, last_step: int) -> int:
    """What the validations after `step` to `last_step` will read in all; the one at the end only if it is the end."""
    targets, every = validation_targets(held_out), config.run.eval_every
    # Counted, not walked through: a run may have 2^53 steps.
    due = 0 if every is None else max(0, (last_step - 1) // every - step // every)
    total = due * min(targets, most_bytes(config))
    if last_step == config.total_steps:
        total += sum(min(targets, most) for most in amounts_at_end(config, held_out, last_step))
    return total
