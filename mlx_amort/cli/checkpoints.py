"""The checkpoint of a run that a verb takes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from mlx_amort.errors import UserError, printable

if TYPE_CHECKING:
    import mlx.core as mx


def checkpoint_of(run: Path, step: int | None, is_best: bool = False) -> Path:
    """The folder of a run's checkpoint: at a step, of its best validation, or the newest.

    Raises: UserError naming the steps there are, or how a run keeps its best.
    """
    from mlx_amort.train.checkpoint_folders import best_checkpoint, complete_checkpoints, newest_checkpoint

    if is_best and step is not None:
        raise UserError("--best and --checkpoint", "each names a checkpoint", "give one of them")
    if is_best:
        return best_checkpoint(run)
    newest = newest_checkpoint(run)
    if step is None:
        return newest
    found = {step_of(path): path for path in complete_checkpoints(run)}
    if step not in found:
        raise UserError(
            f"--checkpoint {step}",
            f"run {run} has no checkpoint of that step",
            f"name one of {', '.join(map(str, found))}; run.keep_checkpoints says how many a run keeps",
        )
    return found[step]


def weights_of(checkpoint: Path) -> dict[str, mx.array]:
    """The verified weights of a checkpoint; says on standard error where there is nothing to verify them by."""
    from mlx_amort.train.checkpoint import load_weights
    from mlx_amort.train.checkpoint_record import note_without_checksums

    if note := note_without_checksums(checkpoint):
        click.echo(f"note: {printable(note)}", err=True)
    return load_weights(checkpoint)


def step_of(checkpoint: Path) -> int:
    """The step that a checkpoint's folder is named after."""
    return int(checkpoint.name.rpartition("-")[2])
