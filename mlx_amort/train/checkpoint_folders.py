"""Which checkpoints a run has, and which of their folders may be deleted.

Only folders of the names that train/checkpoint.py gives are looked at, and none is deleted that holds anything but the
three files of a checkpoint: nothing that a user or another program has put there is lost.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from mlx_amort.command_line import command
from mlx_amort.errors import UserError, advice
from mlx_amort.files import HIDDEN

CHECKPOINTS, BEST = "checkpoints", "best"
WEIGHTS, OPTIMIZER, RECORD = FILES = ("weights.safetensors", "optimizer.safetensors", "checkpoint.json")
NAME = re.compile(r"step-(\d{8,})")
_LEFTOVER = re.compile(rf"{re.escape(HIDDEN)}(old-)?step-\d{{8,}}")
# What macOS lays beside a file where the file system has no room for its attributes.
_APPLE_DOUBLE = "._"


def how_to_go_on(run_folder: Path) -> str:
    """What to do once the disk works again, naming the newest complete checkpoint."""
    if not run_folder.is_dir():
        return "start a new run, for the folder of this one is gone"
    try:
        complete = complete_checkpoints(run_folder)
    except UserError:
        return f"go on: {command('train', '--resume', run_folder)}"
    newest = f"from {complete[-1]}" if complete else "from the beginning, for no checkpoint was saved yet"
    return f"go on {newest}: {command('train', '--resume', run_folder)}"


def complete_checkpoints(run_folder: Path, kind: str = CHECKPOINTS) -> list[Path]:
    """The folders of all complete checkpoints of a run, oldest first; kind: CHECKPOINTS, or BEST.

    Raises: UserError for a folder of checkpoints that cannot be listed, as behind a link to what is not mounted.
    """
    folder = run_folder / kind
    found = {int(path.name.rpartition("-")[2]): path for path in _folders(folder, NAME)}
    return [found[step] for step in sorted(found) if is_complete(found[step])]


def has_none_yet(run_folder: Path) -> bool:
    """Whether a run has not begun to save: its folder of checkpoints is empty. Raises: as complete_checkpoints."""
    return not [name for name in _listed(run_folder / CHECKPOINTS) if not name.startswith(HIDDEN)]


def _folders(folder: Path, name: re.Pattern[str]) -> list[Path]:
    """The folders in `folder`, and no links to folders, whose whole name fits."""
    paths = [folder / found for found in _listed(folder) if name.fullmatch(found)]
    return [path for path in paths if path.is_dir() and not path.is_symlink()]


def _listed(folder: Path) -> list[str]:
    """The names in a folder; none where there is no such folder. Raises: UserError when it cannot be listed."""
    try:
        return os.listdir(folder)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not folder.is_symlink():
            return []
        raise UserError(
            str(folder), f"cannot be listed ({error.strerror})", f"mount it, or {advice(error)}"
        ) from error


def newest_checkpoint(run_folder: Path) -> Path:
    """The folder of the newest complete checkpoint. Raises: UserError when the run has none."""
    complete = complete_checkpoints(run_folder)
    if not complete:
        why = "holds no checkpoint" if run_folder.is_dir() else "no such folder"
        raise UserError(f"run {run_folder}", why, "name the folder of a run that has saved one")
    return complete[-1]


def best_checkpoint(run_folder: Path) -> Path:
    """The folder of the state with the best validation. Raises: UserError when the run has kept none."""
    complete = complete_checkpoints(run_folder, BEST)
    if not complete:
        why = "has kept no best checkpoint" if run_folder.is_dir() else "no such folder"
        todo = "train with --eval-every and --set run.keep_best=true, or leave out --best"
        raise UserError(f"run {run_folder}", why, todo)
    return complete[-1]


def is_complete(path: Path) -> bool:
    """Whether all files of a checkpoint are there."""
    return all((path / name).is_file() for name in FILES)


def delete(checkpoint: Path) -> None:
    """Delete a checkpoint, hidden by a rename first; one in which somebody has put other files stays."""
    if _holds_only_ours(checkpoint):
        hidden = checkpoint.with_name(f"{HIDDEN}old-{checkpoint.name}")
        os.rename(checkpoint, hidden)
        _remove(hidden)


def clear_leftovers(folder: Path) -> None:
    """Delete what a killed run has left half-written or half-deleted."""
    for leftover in _folders(folder, _LEFTOVER):
        if _holds_only_ours(leftover):
            _remove(leftover)


def _holds_only_ours(checkpoint: Path) -> bool:
    return all(name.removeprefix(_APPLE_DOUBLE) in FILES for name in os.listdir(checkpoint))


def _remove(folder: Path) -> None:
    for name in os.listdir(folder):
        # Deleting a file may have deleted what macOS laid beside it.
        (folder / name).unlink(missing_ok=True)
    folder.rmdir()
