"""Everything a run works with, made ready: from a configuration, or from the folder of a run that stopped.

What decides the bytes of step n, or the arrays of a state, cannot change on resume (`FIXED`); the length of
the run, the schedule and the optimizer's constants can, from the next step on.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any

from mlx_amort.backend import describe_machine
from mlx_amort.config import Config
from mlx_amort.config_io import SECTIONS, differing_keys
from mlx_amort.data.card import zlib_bits_per_byte
from mlx_amort.data.corpus import Corpus, Progress, check_ids, open_corpora, unit_name
from mlx_amort.data.stream import ByteStream
from mlx_amort.errors import UserError
from mlx_amort.model.byte_lm import ByteLM
from mlx_amort.ops.precision import policy_of
from mlx_amort.optim.partition import owners
from mlx_amort.train.checkpoint import load_latest, versions
from mlx_amort.train.metrics import MetricsLog
from mlx_amort.train.run_folder import RunFolder, create
from mlx_amort.train.state import TrainState, new_train_state
from mlx_amort.wording import format_size

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
BUILTIN = "builtin:"


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
    changed: tuple[str, ...] = ()

    @property
    def unit(self) -> str:
        """What the corpora, and so the run's bytes, are counted in: byte or id."""
        return unit_name(self.config.data.dtype)

    @cached_property
    def zlib_bits(self) -> float:
        """What zlib -9 needs a byte on the validation part, bits."""
        return zlib_bits_per_byte(self.corpora)


def new_run(
    config: Config, out: Path | None, command: Sequence[str], checking: Progress | None = None
) -> Run:
    """A run from its beginning; its folder is made once everything else is found to be in order.

    `checking` is told how many ids of the corpora have been checked, which takes long for large ones.
    """
    config = with_absolute_sources(config)
    machine = describe_machine()
    check_memory(config, machine)
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
    checking: Progress | None = None,
) -> Run:
    """A run from its newest checkpoint, with its own configuration and what `resolve` changes in it.

    Raises: UserError, naming the keys, for a change after which it would not be the same run; when a corpus
    is not what it was; when there is no checkpoint; when the run is already longer than asked for.
    """
    folder = RunFolder(path)
    config = with_absolute_sources(resolve(folder.read_config()))
    machine = describe_machine()
    loaded = load_latest(path)
    changed = differing_keys(loaded.config, config, SECTIONS)
    refused = [key for key in changed if key.startswith(FIXED)]
    if refused:
        raise UserError(
            f"--resume {path}",
            f"this run was trained with another value (saved and asked for): {'; '.join(refused)}",
            "leave these as they were, or start a new run with --out",
        )
    if loaded.state.step > config.total_steps:
        raise UserError(
            f"{config.total_steps:,} steps",
            f"the run in {path} is already at step {loaded.state.step:,}",
            "ask for more",
        )
    corpora, stream = _open_data(config, checking)
    record = folder.read_record()
    _check_corpora(path, corpora, record)
    resumed = {"resumed_at": _now(), "step": loaded.state.step, "command": list(command), "machine": machine}
    record["resumed"] = [*record.get("resumed", []), resumed]
    folder.write(config, record)
    log = MetricsLog.resumed(folder.metrics, loaded.state.step)
    return Run(
        folder,
        config,
        machine,
        corpora,
        stream,
        _model(config),
        loaded.state,
        log,
        resumed_from=loaded.path,
        changed=tuple(changed),
    )


def with_absolute_sources(config: Config) -> Config:
    """The configuration with its corpora named so that they are found from any folder."""
    sources = tuple(
        source
        if source.path.startswith(BUILTIN)
        else dataclasses.replace(source, path=str(Path(source.path).expanduser().absolute()))
        for source in config.data.sources
    )
    return dataclasses.replace(config, data=dataclasses.replace(config.data, sources=sources))


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


def check_memory(config: Config, machine: dict[str, Any]) -> None:
    """Refuse a run whose state alone exceeds `run.memory_limit_bytes`, or the machine's memory.

    Raises: UserError.
    """
    limit = config.run.memory_limit_bytes or machine["memory_bytes"]
    needed = state_bytes(config)
    if needed > limit:
        raise UserError(
            f"{config.model.parameters:,} parameters",
            f"weights, gradients and optimizer state alone take {format_size(needed)}, and {format_size(limit)} "
            "may be used",
            "take a smaller preset or --precision bf16-pure, or raise run.memory_limit_bytes",
        )


def _open_data(config: Config, checking: Progress | None) -> tuple[tuple[Corpus, ...], ByteStream]:
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
    for corpus, known in zip(corpora, record["corpora"], strict=True):
        if corpus.fingerprint() != known["fingerprint"]:
            raise UserError(
                f"--resume {path}",
                f"corpus '{corpus.name}' changed: {known['units']:,} units when the run started, "
                f"{corpus.units:,} in other files now",
                "bring back what it was, or start a new run with --out",
            )


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
