"""What a run needs to go on, on disk: at any instant the newest complete checkpoint loads.

    RUN/checkpoints/step-00000123/weights.safetensors     in the model's names
                                  optimizer.safetensors   momentum/NAME, first/NAME, second/NAME, updates
                                  checkpoint.json         step, resolved configuration, versions

A checkpoint is written to a hidden folder, flushed to disk and renamed; an old one is hidden by a rename
before it is deleted. So what bears a step's name is whole, and what is hidden is the rubbish of a killed run.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from mlx_amort import __version__
from mlx_amort.command_line import command
from mlx_amort.config.reading import from_dict, to_dict
from mlx_amort.config.values import Config
from mlx_amort.errors import UserError
from mlx_amort.files import HIDDEN, flush_to_disk
from mlx_amort.ops.precision import policy_of
from mlx_amort.optim.partition import owners
from mlx_amort.train.state import TrainState

FORMAT = 1
WEIGHTS, OPTIMIZER, RECORD = "weights.safetensors", "optimizer.safetensors", "checkpoint.json"
_NAME = re.compile(r"step-(\d{8,})")

_RESTORE = "restore the file, or delete its folder to go on from the checkpoint before it"

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


def save(run_folder: Path, state: TrainState, config: Config, keeps_older: bool = False) -> Path:
    """Write a checkpoint, then delete all but the `run.keep_checkpoints` newest; returns its folder.

    keeps_older: delete none, for a state that may be worse than what is saved already.
    A step that is already saved is not written again: a run's state is a function of its step.
    Raises: UserError when it cannot be written; the checkpoints before it stay.
    """
    folder = run_folder / "checkpoints"
    final = folder / f"step-{state.step:08d}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob(f"{HIDDEN}*step-*"):
            shutil.rmtree(leftover)
        if not _is_complete(final):
            _write(final, state, config)
        superseded = [] if keeps_older else complete_checkpoints(run_folder)[: -config.run.keep_checkpoints]
        for old in superseded:
            _delete(old)
    # MLX tells a full disk as a RuntimeError.
    except (OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        # Half a checkpoint only takes the room that another attempt would need.
        shutil.rmtree(_hidden(final), ignore_errors=True)
        todo = f"make room, then {how_to_go_on(run_folder)}"
        raise UserError(f"checkpoint {final}", f"cannot be written ({reason})", todo) from error
    return final


def how_to_go_on(run_folder: Path) -> str:
    """What to do once the disk works again, naming the newest complete checkpoint."""
    complete = complete_checkpoints(run_folder)
    newest = f"from {complete[-1]}" if complete else "from the beginning, for no checkpoint was saved yet"
    return f"go on {newest}: {command('train', '--resume', run_folder)}"


def complete_checkpoints(run_folder: Path) -> list[Path]:
    """The folders of all complete checkpoints of a run, oldest first."""
    named = (run_folder / "checkpoints").glob("step-*")
    found = {int(match[1]): path for path in named if (match := _NAME.fullmatch(path.name))}
    return [found[step] for step in sorted(found) if _is_complete(found[step])]


def newest_checkpoint(run_folder: Path) -> Path:
    """The folder of the newest complete checkpoint. Raises: UserError when the run has none."""
    complete = complete_checkpoints(run_folder)
    if not complete:
        why = "holds no checkpoint" if run_folder.is_dir() else "no such folder"
        raise UserError(f"run {run_folder}", why, "name the folder of a run that has saved one")
    return complete[-1]


def load_latest(run_folder: Path) -> LoadedCheckpoint:
    """Load the newest complete checkpoint of a run; what a killed run left half-written is passed over.

    Raises: UserError when there is none, or a file of it is damaged or does not fit its configuration.
    """
    return load(newest_checkpoint(run_folder))


def load(path: Path) -> LoadedCheckpoint:
    """Load one checkpoint's folder. Raises: UserError as `load_latest`."""
    config = load_config(path)
    weights = load_weights(path)
    step = _read_record(path)["step"]
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
    return dict(_read_record(path)["config"])


def _write(final: Path, state: TrainState, config: Config) -> None:
    if final.exists():
        _delete(final)
    temporary = _hidden(final)
    temporary.mkdir()
    mx.save_safetensors(str(temporary / WEIGHTS), state.weights)
    mx.save_safetensors(str(temporary / OPTIMIZER), state.optimizer)
    record = {"format": FORMAT, "step": state.step, "versions": versions(), "config": to_dict(config)}
    (temporary / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    for name in (WEIGHTS, OPTIMIZER, RECORD):
        flush_to_disk(temporary / name)
    flush_to_disk(temporary)
    os.rename(temporary, final)
    flush_to_disk(final.parent)


def _hidden(final: Path) -> Path:
    return final.with_name(f"{HIDDEN}{final.name}")


def _delete(checkpoint: Path) -> None:
    hidden = checkpoint.with_name(f"{HIDDEN}old-{checkpoint.name}")
    os.rename(checkpoint, hidden)
    shutil.rmtree(hidden)


def _is_complete(path: Path) -> bool:
    return all((path / name).is_file() for name in (WEIGHTS, OPTIMIZER, RECORD))


def _read_record(path: Path) -> dict[str, Any]:
    try:
        record = json.loads((path / RECORD).read_text(encoding="utf-8"))
        found, step, config = record["format"], record["step"], record["config"]
    except OSError as error:
        todo = f"make it readable, or delete {path} to go on from the checkpoint before it"
        raise UserError(str(path / RECORD), error.strerror or "cannot be read", todo) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _damaged(path / RECORD, "is not a checkpoint's record") from error
    if found != FORMAT:
        raise UserError(
            str(path), f"has format {found}", f"this version reads format {FORMAT}: use the one that wrote it"
        )
    # true is an int to Python.
    if not isinstance(config, dict) or not isinstance(step, int) or isinstance(step, bool):
        raise _damaged(path / RECORD, "is not a checkpoint's record")
    named = _NAME.fullmatch(path.name)
    if step < 0 or (named is not None and int(named[1]) != step):
        raise _damaged(path / RECORD, f"says step {step}, which is not that of its folder's name")
    return dict(record)


def _load_arrays(path: Path, expected: Expected) -> Arrays:
    try:
        loaded = mx.load(str(path))
        assert isinstance(loaded, dict)
        # Loading is lazy: read now, before anything may replace or delete the file.
        mx.eval(loaded)
    except (RuntimeError, ValueError) as error:
        raise _damaged(path, f"cannot be read ({' '.join(str(error).split())})") from error
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
        for kind in ("momentum",) if owner == "muon" else ("first", "second"):
            expected[f"{kind}/{name}"] = weights[name]
    return expected


def _damaged(path: Path, why: str) -> UserError:
    todo = f"delete {path.parent} to go on from the checkpoint before it"
    return UserError(str(path), why, todo)
