"""Resumes a run from its newest checkpoint, if it is still the same run.

What decides the bytes of step n, or the arrays of a state, cannot change on resume (`recorded_corpora.FIXED`);
the length of the run, the schedule and the optimizer's constants can, from the next step on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from mlx_amort.backend import describe_machine
from mlx_amort.config.reading import SECTIONS, differing_keys, with_absolute_sources
from mlx_amort.config.values import Config
from mlx_amort.config.yaml_text import read_yaml
from mlx_amort.data.corpus import ProgressCallback
from mlx_amort.errors import UserError
from mlx_amort.train.checkpoint import config_content, load_config, load_latest
from mlx_amort.train.checkpoint_folders import CHECKPOINTS, RECORD, complete_checkpoints, has_none_yet
from mlx_amort.train.checkpoint_record import note_without_checksums
from mlx_amort.train.metrics import MetricsLog, read_rows
from mlx_amort.train.recorded_corpora import check_same, check_there, fixed_changes
from mlx_amort.train.run import Run, model_of, new_record, now, open_data
from mlx_amort.train.run_folder import RunFolder
from mlx_amort.train.run_lock import acquire, release
from mlx_amort.train.state import TrainState, new_train_state


def resumed_run(
    path: Path,
    resolve: Callable[[Config], Config],
    command: Sequence[str],
    checking: ProgressCallback | None = None,
    stop_after: int | None = None,
) -> Run:
    """A run from its newest checkpoint, with its own configuration and what `resolve` changes in it.

    One that was killed before its first checkpoint starts again: step 0 is a function of its configuration.
    A corpus may have been moved: its content decides.
    All is checked before anything is written, and other processes are kept out of the folder from here on.
    Raises: UserError, naming the keys, for a change after which it would not be the same run; when a corpus
    is not what it was; when the run is already longer than asked for, or past `stop_after`; when another process
    works on it.
    """
    RunFolder(path).check_is_run()
    lock_note = acquire(path, f"--resume {path}")
    try:
        return _resumed(path, resolve, command, checking, stop_after, lock_note)
    except BaseException:
        release(path)
        raise


def _resumed(
    path: Path,
    resolve: Callable[[Config], Config],
    command: Sequence[str],
    checking: ProgressCallback | None,
    stop_after: int | None,
    lock_note: str,
) -> Run:
    folder = RunFolder(path)
    config = with_absolute_sources(resolve(saved_config(path)))
    machine = describe_machine()
    state, trained, checkpoint = _saved_state(path)
    saved = with_absolute_sources(trained)
    changed = differing_keys(saved, config, SECTIONS)
    _check_changes(path, fixed_changes(saved, config))
    # Giving up the rest of a run that was to be longer does not change a run that is complete.
    is_complete = state.step >= saved.total_steps
    _check_length(path, state.step, config, stop_after)
    if is_complete and state.step == config.total_steps and changed:
        raise nothing_left(path, state.step)
    check_there(path, config.data)
    corpora, stream = open_data(config, checking)
    is_new = checkpoint is None and not folder.record.exists()
    record = new_record(machine, corpora, command) if is_new else folder.read_record()
    check_same(path, corpora, record)
    # A log that cannot be read is refused before anything is written.
    log = MetricsLog.resumed(folder.metrics, state.step)
    if not is_complete or changed:
        resumed = {"resumed_at": now(), "step": state.step, "command": list(command), "machine": machine}
        record["resumed"] = [*record.get("resumed", []), resumed]
        folder.write(config, record)
    return Run(
        folder,
        config,
        machine,
        *corpora,
        stream,
        model_of(config),
        state,
        log,
        resumed_from=checkpoint,
        checkpoint_note=note_without_checksums(checkpoint) if checkpoint else "",
        changed=tuple(changed),
        lock_note=lock_note,
    )


def _check_changes(path: Path, fixed: Sequence[str]) -> None:
    if fixed:
        raise UserError(
            f"--resume {path}",
            f"this run was trained with another value (saved and asked for): {'; '.join(fixed)}",
            "leave these as they were, or start a new run with --out",
        )


def _check_length(path: Path, step: int, config: Config, stop_after: int | None) -> None:
    if step > config.total_steps:
        raise UserError(
            f"{config.total_steps:,} steps",
            f"the run in {path} is already at step {step:,}",
            "ask for more",
        )
    if stop_after is not None and stop_after <= step:
        raise UserError(
            f"--stop-after {stop_after}", f"the run is already at step {step}", "name a later step"
        )


def _saved_state(path: Path) -> tuple[TrainState, Config, Path | None]:
    """The newest state, the configuration it was trained with, and its checkpoint; without one that of step 0."""
    if not _is_before_first_checkpoint(path):
        loaded = load_latest(path)
        return loaded.state, loaded.config, loaded.path
    config = saved_config(path)
    return new_train_state(model_of(config), config.optimizer, config.run.seed), config, None


def _is_before_first_checkpoint(path: Path) -> bool:
    """Whether nothing has been saved: a folder of checkpoints that can be listed, and is empty, says so.

    0.1 made that folder at the first checkpoint only; there a log without a row says it too.
    """
    folder = path / CHECKPOINTS
    if folder.is_dir() or folder.is_symlink() or not read_rows(RunFolder(path).metrics):
        return has_none_yet(path)
    raise UserError(
        str(folder),
        "is not there, and the run has logged steps",
        "bring it back from where it was moved; to start again from step 0, make an empty folder of that name",
    )


def nothing_left(path: Path, step: int) -> UserError:
    """The mistake of asking for changes to a run that has no step left to take."""
    return UserError(
        f"--resume {path}",
        f"the run is complete at step {step:,}: nothing is left to train, and nothing was changed",
        f"say how long it is to be: --steps {2 * step}",
    )


def saved_config(path: Path) -> Config:
    """The configuration of a run that is resumed: what config.yaml says, held against the newest checkpoint.

    config.yaml may be ahead of the checkpoint, for a run resumed with other flags and killed since; but it is
    whole, and what cannot change is as it was.
    Raises: UserError when config.yaml was changed or damaged, naming the whole copy.
    """
    folder = RunFolder(path)
    checkpoints = complete_checkpoints(path)
    if not checkpoints:
        return folder.read_config()
    trained = load_config(checkpoints[-1])
    try:
        config = folder.read_config()
        given = read_yaml(folder.config)
    except UserError as error:
        if not folder.config.is_file():
            raise
        raise _changed_config(path, checkpoints[-1], error.why) from error
    missing = [
        f"{section}.{key}"
        for section, values in config_content(checkpoints[-1]).items()
        if isinstance(values, dict)
        for key in values
        if key not in (given.get(section) or {})
    ]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise _changed_config(path, checkpoints[-1], f"it lacks {', '.join(missing[:3])}{more}")
    before, after = with_absolute_sources(trained), with_absolute_sources(config)
    other = fixed_changes(before, after)
    if other:
        raise _changed_config(path, checkpoints[-1], f"trained with and written there: {'; '.join(other)}")
    return config


def _changed_config(path: Path, checkpoint: Path, why: str) -> UserError:
    return UserError(
        str(RunFolder(path).config),
        f"was changed or damaged since the run was saved ({why})",
        f'restore it: {checkpoint / RECORD} holds a whole copy under "config", which may be pasted into it',
    )
