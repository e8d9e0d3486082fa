"""Everything a run works with, made ready from a configuration (from the folder of a run: train/resume.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any

from mlx_amort.backend import describe_machine
from mlx_amort.config.reading import Difference, with_absolute_sources
from mlx_amort.config.values import Config
from mlx_amort.data.card import zlib_bits_per_byte
from mlx_amort.data.corpus import Corpus, ProgressCallback, check_ids, unit_name
from mlx_amort.data.opening import Corpora, open_corpora
from mlx_amort.data.stream import ByteStream
from mlx_amort.model.byte_lm import ByteLM
from mlx_amort.ops.constants import WIDTHS
from mlx_amort.optim.partition import state_numbers
from mlx_amort.train.checkpoint import versions
from mlx_amort.train.checkpoint_folders import CHECKPOINTS
from mlx_amort.train.metrics import MetricsLog
from mlx_amort.train.recorded_corpora import record_of
from mlx_amort.train.run_folder import RunFolder, create
from mlx_amort.train.state import TrainState, new_train_state


@dataclass
class Run:
    """One run: where it is kept, its configuration, what it reads, and its state.

    For a resumed run, resumed_from: the checkpoint; changed: keys that were given other values than it had.
    lock_note: why other processes cannot be kept out of its folder; empty where they are.
    checkpoint_note: why the checkpoint it resumed from could not be verified; empty where it was.
    """

    folder: RunFolder
    config: Config
    machine: dict[str, Any]
    corpora: tuple[Corpus, ...]
    held_out: tuple[Corpus, ...]
    stream: ByteStream
    model: ByteLM
    state: TrainState
    log: MetricsLog
    resumed_from: Path | None = None
    changed: tuple[Difference, ...] = ()
    lock_note: str = ""
    checkpoint_note: str = ""

    @property
    def unit(self) -> str:
        """What the corpora, and so the run's bytes, are counted in: byte or id."""
        return unit_name(self.config.data.dtype)

    @cached_property
    def zlib_bits(self) -> float:
        """What zlib -9 needs per byte on the validation part, bits."""
        return zlib_bits_per_byte(self.held_out)


def new_run(
    config: Config, out: Path | None, command: Sequence[str], checking: ProgressCallback | None = None
) -> Run:
    """A run from its beginning; its folder is made once everything else is found to be in order.

    `checking` is called with how many ids of the corpora have been checked, which takes long for large ones.
    """
    config = with_absolute_sources(config)
    # Asked for before anything is written: it refuses a run without a length, or of less than a step.
    _ = config.total_steps
    machine = describe_machine()
    corpora, stream = open_data(config, checking)
    model = model_of(config)
    state = new_train_state(model, config.optimizer, config.run.seed)
    folder, lock_note = create(out, config.preset or config.model.trunk)
    folder.write(config, new_record(machine, corpora, command))
    # From now on a missing folder of checkpoints means that it was removed.
    (folder.path / CHECKPOINTS).mkdir()
    log = MetricsLog(folder.metrics)
    return Run(folder, config, machine, *corpora, stream, model, state, log, lock_note=lock_note)


def state_bytes(config: Config) -> int:
    """Bytes of weights, gradient accumulator and optimizer state: what a step needs before any activation."""
    widths, parameters = WIDTHS[config.step.precision], config.model.parameters
    state = state_numbers(config.model.parameter_shapes(), config.optimizer.name)
    return (parameters + state) * widths.weights + parameters * widths.gradients


def open_data(config: Config, checking: ProgressCallback | None) -> tuple[Corpora, ByteStream]:
    """The corpora of a configuration, with their ids checked, and the rows drawn from them."""
    corpora = open_corpora(config.data)
    check_ids(corpora.all, config.model.vocabulary, checking)
    weights = [source.weight for source in config.data.sources]
    rows, row_units = config.step.accum * config.step.batch, config.model.seq * config.step.chunks + 1
    return corpora, ByteStream(corpora.training, weights, config.run.seed, rows, row_units)


def model_of(config: Config) -> ByteLM:
    """The model of a configuration, without weights."""
    return ByteLM(config.model, config.step.precision, config.step.activation_checkpointing)


def new_record(machine: dict[str, Any], corpora: Corpora, command: Sequence[str]) -> dict[str, Any]:
    """What run.json says of a run that begins now."""
    return {
        "started_at": now(),
        "command": list(command),
        "versions": versions(),
        "machine": machine,
        **record_of(corpora),
        "resumed": [],
    }


def now() -> str:
    """This moment, in UTC, as records have it."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
