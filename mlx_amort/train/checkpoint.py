"""What a run needs to be resumed, on disk: at any instant the newest complete checkpoint loads.

    RUN/checkpoints/step-00000123/weights.safetensors     in the model's names
                                  optimizer.safetensors   momentum/NAME, first/NAME, second/NAME, updates
                                  checkpoint.json         train/checkpoint_record.py: step, configuration, checksums
    RUN/best/step-00000100/       the same, of the best validation (`run.keep_best`)

A checkpoint is written to a hidden folder, flushed to disk and renamed; an old one is hidden by a rename
before it is deleted. So a folder with a step's name is complete, and a hidden one is what a killed run left. What
may be deleted: train/checkpoint_folders.py.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from mlx_amort import __version__
from mlx_amort.config.reading import from_dict, to_dict
from mlx_amort.config.values import Config
from mlx_amort.errors import UserError, advice
from mlx_amort.files import HIDDEN, flush_to_disk
from mlx_amort.ops.precision import policy_of
from mlx_amort.optim.partition import STATE_NAMES, owners
from mlx_amort.optim.update import gradient_norm
from mlx_amort.train.checkpoint_folders import (
    BEST,
    CHECKPOINTS,
    OPTIMIZER,
    RECORD,
    WEIGHTS,
    clear_leftovers,
    complete_checkpoints,
    delete,
    how_to_go_on,
    is_complete,
    newest_checkpoint,
)
from mlx_amort.train.checkpoint_record import check_files, damaged, read_record, record_text, unreadable
from mlx_amort.train.state import TrainState

_RESTORE = "restore the file, or delete its folder to resume from the checkpoint before it"

Arrays = dict[str, mx.array]
# Name -> shape and dtype that an array of a checkpoint must have.
Expected = dict[str, tuple[tuple[int, ...], mx.Dtype]]


@dataclass(frozen=True)
class LoadedCheckpoint:
    """A checkpoint in memory, and the folder it came from."""

    state: TrainState
    config: Config
    path: Path


def versions() -> dict[str, str]:
    """The versions of what computes; the same ones on the same machine repeat a run bit for bit."""
    return {
        "mlx_amort": __version__,
        "mlx": metadata.version("mlx"),
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def is_finite(state: TrainState) -> bool:
    """Whether every number of weights and optimizer state is finite: then the sum of their squares is.

    Weights whose squares leave float32's range are lost as well. Costs a tenth of what writing them does.
    """
    arrays = state.weights | {name: array for name, array in state.optimizer.items() if array.ndim > 0}
    return bool(mx.isfinite(gradient_norm(arrays)).item())


def save(run_folder: Path, state: TrainState, config: Config, keeps_older: bool = False) -> Path:
    """Write a checkpoint, then delete all but the `run.keep_checkpoints` newest; returns its folder.

    keeps_older: delete none, for a state that may be worse than what is saved already.
    A step that is already saved is not written again: a run's state is a function of its step.
    Raises: UserError when it cannot be written; the checkpoints before it stay.
    """
    keep = None if keeps_older else config.run.keep_checkpoints
    return _save(run_folder, CHECKPOINTS, state, config, keep)


def save_best(run_folder: Path, state: TrainState, config: Config) -> Path:
    """Write the state of the best validation apart, then delete every other. Raises: as `save`.

    A later step, or this one, may have been the best before the run was resumed from an earlier checkpoint.
    """
    return _save(run_folder, BEST, state, config, keep=1)


def _save(run_folder: Path, kind: str, state: TrainState, config: Config, keep: int | None) -> Path:
    folder = run_folder / kind
    final = folder / f"step-{state.step:08d}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        clear_leftovers(folder)
        if kind == BEST and is_complete(final):
            delete(final)
        if not is_complete(final):
            _write(final, state, config)
        complete = complete_checkpoints(run_folder, kind)
        superseded = [] if keep is None else complete[:-keep]
        if kind == BEST:
            superseded = [path for path in complete if path != final]
        for old in superseded:
            delete(old)
    # MLX tells a full disk as a RuntimeError.
    except (OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        # Half a checkpoint only takes the room that another attempt would need.
        with suppress(OSError, UserError):
            clear_leftovers(folder)
        mend = (
            advice(error) if isinstance(error, OSError) else "see that there is room, and the right to write"
        )
        todo = f"{mend}, then {how_to_go_on(run_folder)}"
        raise UserError(f"checkpoint {final}", f"cannot be written ({reason})", todo) from error
    return final


def load_latest(run_folder: Path) -> LoadedCheckpoint:
    """Load the newest complete checkpoint of a run; what a killed run left half-written is passed over.

    Raises: UserError when there is none, or a file of it is damaged or does not fit its configuration.
    """
    return load(newest_checkpoint(run_folder))


def load(path: Path) -> LoadedCheckpoint:
    """Load one checkpoint's folder. Raises: UserError as `load_latest`."""
    config = load_config(path)
    weights = load_weights(path)
    step = read_record(path)["step"]
    optimizer = _load_arrays(path / OPTIMIZER, _expected_optimizer(config))
    return LoadedCheckpoint(TrainState(weights, optimizer, step), config, path)


def load_weights(path: Path) -> Arrays:
    """The weights of one checkpoint's folder, without the optimizer's state, which may be twice as large."""
    return _load_arrays(path / WEIGHTS, _expected_weights(load_config(path)))


def load_config(path: Path) -> Config:
    """The configuration that a checkpoint's state was trained with."""
    return from_dict(config_content(path), where=f" in {path / RECORD}")


def config_content(path: Path) -> dict[str, Any]:
    """That configuration in plain values, with the keys that the version had that wrote it."""
    return dict(read_record(path)["config"])


def _write(final: Path, state: TrainState, config: Config) -> None:
    if final.exists():
        delete(final)
    temporary = final.with_name(f"{HIDDEN}{final.name}")
    temporary.mkdir()
    mx.save_safetensors(str(temporary / WEIGHTS), state.weights)
    mx.save_safetensors(str(temporary / OPTIMIZER), state.optimizer)
    text = record_text(temporary, state.step, versions(), to_dict(config))
    (temporary / RECORD).write_text(text, encoding="utf-8")
    for name in (WEIGHTS, OPTIMIZER, RECORD):
        flush_to_disk(temporary / name)
    flush_to_disk(temporary)
    os.rename(temporary, final)
    flush_to_disk(final.parent)


def _load_arrays(path: Path, expected: Expected) -> Arrays:
    check_files(path.parent, [path.name])
    try:
        loaded = mx.load(str(path))
        assert isinstance(loaded, dict)
        # Loading is lazy: read now, before anything may replace or delete the file.
        mx.eval(loaded)
    except (RuntimeError, ValueError) as error:
        _check_opens(path)
        raise damaged(path, f"cannot be read ({' '.join(str(error).split())})") from error
    _check(path, loaded, expected)
    return {name: loaded[name] for name in expected}


def _check(path: Path, loaded: Mapping[str, mx.array], expected: Expected) -> None:
    differing = sorted(loaded.keys() ^ expected.keys())
    if differing:
        raise UserError(str(path), f"does not fit its configuration: {', '.join(differing[:5])}", _RESTORE)
    for name, (shape, dtype) in expected.items():
        array = loaded[name]
        if array.shape != shape or array.dtype != dtype:
            found, wanted = f"{array.dtype} {list(array.shape)}", f"{dtype} {list(shape)}"
            raise UserError(str(path), f"{name} is {found} where its configuration says {wanted}", _RESTORE)


def _expected_weights(config: Config) -> Expected:
    dtype = policy_of(config.step.precision).weights
    return {name: (shape, dtype) for name, shape in config.model.parameter_shapes().items()}


def _expected_optimizer(config: Config) -> Expected:
    weights = _expected_weights(config)
    expected: Expected = {"updates": ((), mx.int32)}
    for name, owner in owners(config.model.parameter_shapes(), config.optimizer.name).items():
        for kind in STATE_NAMES[owner]:
            expected[f"{kind}/{name}"] = weights[name]
    return expected


def _check_opens(path: Path) -> None:
    """Tell a file that cannot be opened, which says nothing of what it holds, from a damaged one."""
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        raise unreadable(path, error) from error
