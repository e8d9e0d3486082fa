"""Everything a run works with, made ready: from a configuration, or from the folder of a run that stopped.

What decides the bytes of step n, or the arrays of a state, cannot change on resume (`FIXED`); the length of
the run, the schedule and the optimizer's constants can, from the next step on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any

from mlx_amort.backend import describe_machine
from mlx_amort.config.reading import SECTIONS, Difference, differing_keys, with_absolute_sources
from mlx_amort.config.values import Config
from mlx_amort.config.yaml_text import read_yaml
from mlx_amort.data.card import zlib_bits_per_byte
from mlx_amort.data.corpus import Corpus, ProgressCallback, check_ids, open_corpora, unit_name
from mlx_amort.data.stream import ByteStream
from mlx_amort.errors import UserError
from mlx_amort.model.byte_lm import ByteLM
from mlx_amort.ops.precision import policy_of
from mlx_amort.optim.partition import owners
from mlx_amort.train.checkpoint import (
    RECORD,
    complete_checkpoints,
    config_content,
    load_config,
    load_latest,
    versions,
)
from mlx_amort.train.metrics import MetricsLog
from mlx_amort.train.run_folder import RunFolder, create
from mlx_amort.train.state import TrainState, new_train_state

FIXED = (
    "model.",
    "data.",
    "step.batch",
    "step.chunks",
    "step.accum",
    "step.precision",
    "optimizer.name",
    "run.seed",
)


@dataclass
class Run:
    """One run: where it is kept, what it is told, what it reads, and its state.

    For a resumed run, resumed_from: the checkpoint; changed: keys that were given other values than it had.
    """

    folder: RunFolder
    config: Config
    machine: dict[str, Any]
    corpora: tuple[Corpus, ...]
    stream: ByteStream
    model: ByteLM
    state: TrainState
    log: MetricsLog
    resumed_from: Path | None = None
    changed: tuple[Difference, ...] = ()

    @property
    def unit(self) -> str:
        """What the corpora, and so the run's bytes, are counted in: byte or id."""
        return unit_name(self.config.data.dtype)

    @cached_property
    def zlib_bits(self) -> float:
        """What zlib -9 needs a byte on the validation part, bits."""
        return zlib_bits_per_byte(self.corpora)


def new_run(
    config: Config, out: Path | None, command: Sequence[str], checking: ProgressCallback | None = None
) -> Run:
    """A run from its beginning; its folder is made once everything else is found to be in order.

    `checking` is told how many ids of the corpora have been checked, which takes long for large ones.
    """
    config = with_absolute_sources(config)
    machine = describe_machine()
    corpora, stream = _open_data(config, checking)
    folder = create(out, config.preset or config.model.trunk)
    folder.write(config, _new_record(machine, corpora, command))
    model = _model(config)
    state = new_train_state(model, config.optimizer, config.run.seed)
    return Run(folder, config, machine, corpora, stream, model, state, MetricsLog(folder.metrics))


def resumed_run(
    path: Path,
    resolve: Callable[[Config], Config],
    command: Sequence[str],
    checking: ProgressCallback | None = None,
) -> Run:
    """A run from its newest checkpoint, with its own configuration and what `resolve` changes in it.

    One that was killed before its first checkpoint starts again: step 0 is a function of its configuration.
    Raises: UserError, naming the keys, for a change after which it would not be the same run; when a corpus
    is not what it was; when the run is already longer than asked for.
    """
    folder = RunFolder(path)
    config = with_absolute_sources(resolve(saved_config(path)))
    machine = describe_machine()
    state, trained, checkpoint = _saved_state(path)
    saved = with_absolute_sources(trained)
    changed = differing_keys(saved, config, SECTIONS)
    refused = [str(change) for change in changed if change.key.startswith(FIXED)]
    if refused:
        raise UserError(
            f"--resume {path}",
            f"this run was trained with another value (saved and asked for): {'; '.join(refused)}",
            "leave these as they were, or start a new run with --out",
        )
    if state.step > config.total_steps:
        raise UserError(
            f"{config.total_steps:,} steps",
            f"the run in {path} is already at step {state.step:,}",
            "ask for more",
        )
    # Giving up the rest of a run that was to be longer is no change of a run that is complete.
    is_complete = state.step >= saved.total_steps
    if is_complete and state.step == config.total_steps and changed:
        raise nothing_left(path, state.step)
    corpora, stream = _open_data(config, checking)
    is_new = checkpoint is None and not folder.record.exists()
    record = _new_record(machine, corpora, command) if is_new else folder.read_record()
    _check_corpora(path, corpora, record)
    # A log that cannot be read is told before anything is written.
    log = MetricsLog.resumed(folder.metrics, state.step)
    if not is_complete or changed:
        resumed = {
            "resumed_at": _now(),
            "step": state.step,
            "command": list(command),
            "machine": machine,
        }
        record["resumed"] = [*record.get("resumed", []), resumed]
        folder.write(config, record)
    return Run(
        folder,
        config,
        machine,
        corpora,
        stream,
        _model(config),
        state,
        log,
        resumed_from=checkpoint,
        changed=tuple(changed),
    )


def _saved_state(path: Path) -> tuple[TrainState, Config, Path | None]:
    """The newest state, the configuration it was trained with, and its checkpoint; without one that of step 0."""
    begun = sorted((path / "checkpoints").glob("step-*"))
    if begun or not RunFolder(path).config.is_file():
        loaded = load_latest(path)
        return loaded.state, loaded.config, loaded.path
    config = saved_config(path)
    return new_train_state(_model(config), config.optimizer, config.run.seed), config, None


def nothing_left(path: Path, step: int) -> UserError:
    """What to tell who asks for changes to a run that has no step left to take."""
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
    other = [
        str(change) for change in differing_keys(before, after, SECTIONS) if change.key.startswith(FIXED)
    ]
    if other:
        raise _changed_config(path, checkpoints[-1], f"trained with and written there: {'; '.join(other)}")
    return config


def _changed_config(path: Path, checkpoint: Path, why: str) -> UserError:
    return UserError(
        str(RunFolder(path).config),
        f"was changed or damaged since the run was saved ({why})",
        f'restore it: {checkpoint / RECORD} holds a whole copy under "config", which may be pasted into it',
    )


def state_bytes(config: Config) -> int:
    """Bytes of weights, gradient accumulator and optimizer state: what a step needs before any activation."""
    policy = policy_of(config.step.precision)
    shapes = config.model.parameter_shapes()
    # Muon keeps one array of a matrix's size, AdamW two.
    kept = {"muon": 1, "adamw": 2}
    return sum(
        math.prod(shapes[name]) * (policy.weights.size * (1 + kept[owner]) + policy.gradients.size)
        for name, owner in owners(shapes, config.optimizer.name).items()
    )


def _open_data(config: Config, checking: ProgressCallback | None) -> tuple[tuple[Corpus, ...], ByteStream]:
    corpora = open_corpora(config.data)
    check_ids(corpora, config.model.vocabulary, checking)
    weights = [source.weight for source in config.data.sources]
    rows, row_units = config.step.accum * config.step.batch, config.model.seq * config.step.chunks + 1
    return corpora, ByteStream(corpora, weights, config.run.seed, rows, row_units)


def _model(config: Config) -> ByteLM:
    return ByteLM(config.model, config.step.precision, config.step.activation_checkpointing)


def _new_record(machine: dict[str, Any], corpora: Sequence[Corpus], command: Sequence[str]) -> dict[str, Any]:
    return {
        "started_at": _now(),
        "command": list(command),
        "versions": versions(),
        "machine": machine,
        "corpora": [
            {"name": corpus.name, "units": corpus.units, "fingerprint": corpus.fingerprint()}
            for corpus in corpora
        ],
        "resumed": [],
    }


def _check_corpora(path: Path, corpora: Sequence[Corpus], record: dict[str, Any]) -> None:
    if len(corpora) != len(record["corpora"]):
        raise UserError(
            str(RunFolder(path).record),
            f"tells of {len(record['corpora'])} corpora, and the run's configuration names {len(corpora)}",
            "restore it from a copy, or start a new run with --out",
        )
    for corpus, known in zip(corpora, record["corpora"], strict=True):
        if corpus.fingerprint() != known["fingerprint"]:
            unit = unit_name(corpus.dtype)
            how = f"{known['units']:,} {unit}s when the run started, {corpus.units:,} now"
            if corpus.units == known["units"]:
                how = f"still {corpus.units:,} {unit}s, with another content or in other files"
            raise UserError(
                f"--resume {path}",
                f"corpus '{corpus.name}' changed: {how}",
                "bring back what it was, or start a new run with --out",
            )


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
