"""Every setting of a run beside its model (`config/model.py`), as frozen dataclasses.

A default stands in these two files and nowhere else. `None` (null in YAML) always means absent.

Legend: `A` micro-batches, `B` rows, `S` bytes of a chunk, `K` chunks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from mlx_amort.amounts import shorten
from mlx_amort.config.checks import (
    WORDS_FOR_NULL,
    check_above_zero,
    check_at_least,
    check_at_most,
    check_choices,
    check_float32,
    check_fraction,
)
from mlx_amort.config.model import ModelConfig
from mlx_amort.errors import UserError
from mlx_amort.ops.constants import Precision as Precision

# Every window of a step, one after another, or only the last.
Truncation = Literal["consecutive", "last"]
OptimizerName = Literal["muon", "adamw"]
# As in ops/newton_schulz.py, which knows no configurations.
Coefficients = Literal["polar_express", "polar_express_nonic", "jordan"]
MuonDtype = Literal["float32", "bfloat16"]
MuonScale = Literal["match_rms", "aspect_ratio"]
ScheduleName = Literal["wsd", "cosine", "linear", "constant"]
DataDtype = Literal["uint8", "uint16"]
ValidationSplit = Literal["blocks", "tail"]

# MLX counts the entries of an axis in 32 bits, JSON a whole number in 53.
LARGEST_AXIS = 2**31 - 1
LARGEST_COUNT = 2**53
LARGEST_WEIGHT = 1e6
# The generators of the weights and of the data take 64 bits.
LARGEST_SEED = 2**64 - 1


@dataclass(frozen=True)
class StepConfig:
    """What one optimizer step does: `accum` micro-batches of `batch` rows, each walking `chunks` chunks."""

    batch: int = 8
    chunks: int = 2
    window: int = 2
    accum: int = 1
    tbptt: Truncation = "consecutive"
    precision: Precision = "bf16"
    activation_checkpointing: bool = False

    def __post_init__(self) -> None:
        check_choices("step", self)
        check_at_least("step", self, 1, "batch", "chunks", "window", "accum")
        check_at_most("step", self, LARGEST_AXIS, "batch", "chunks", "window", "accum")

    @property
    def effective_window(self) -> int:
        """Chunks the gradient flows through; a window longer than the row is the whole row."""
        return min(self.window, self.chunks)


@dataclass(frozen=True)
class OptimizerConfig:
    """Which optimizer, and its constants.

    `momentum`, `coefficients` and `muon_*` are Muon's, `beta1`, `beta2` and `eps` AdamW's, the others both's.
    """

    name: OptimizerName = "muon"
    weight_decay: float = 0.1
    clip_norm: float = 1.0
    momentum: float = 0.95
    coefficients: Coefficients = "polar_express_nonic"
    muon_dtype: MuonDtype = "float32"
    muon_scale: MuonScale = "match_rms"
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8

    def __post_init__(self) -> None:
        check_choices("optimizer", self)
        if self.muon_dtype != "float32" and self.coefficients == "polar_express_nonic":
            raise UserError(
                f"optimizer.coefficients={self.coefficients}",
                f"its large coefficients lose their digits in optimizer.muon_dtype={self.muon_dtype}",
                "set optimizer.coefficients=polar_express beside it",
            )
        check_at_least("optimizer", self, 0.0, "weight_decay")
        check_above_zero("optimizer", self, "clip_norm", "eps")
        check_float32("optimizer", self, "weight_decay", "clip_norm", "eps")
        check_fraction("optimizer", self, "momentum", "beta1", "beta2")


@dataclass(frozen=True)
class ScheduleConfig:
    """The learning rate over a run: warm-up, then from `base_lr` to `min_lr` (null: a tenth of `base_lr`)."""

    name: ScheduleName = "wsd"
    base_lr: float = 3e-4
    min_lr: float | None = None
    warmup_steps: int = 100
    decay_fraction: float = 0.2

    def __post_init__(self) -> None:
        check_choices("schedule", self)
        check_above_zero("schedule", self, "base_lr")
        check_at_least("schedule", self, 0, "warmup_steps", "min_lr")
        check_float32("schedule", self, "base_lr", "min_lr")
        check_at_most("schedule", self, LARGEST_COUNT, "warmup_steps")
        if self.min_lr is not None and self.min_lr > self.base_lr:
            raise UserError(
                f"schedule.min_lr={self.min_lr:g}",
                f"is above schedule.base_lr={self.base_lr:g}",
                "lower it, or leave it null for a tenth of base_lr",
            )
        if not 0 <= self.decay_fraction <= 1:
            raise UserError(
                f"schedule.decay_fraction={self.decay_fraction:g}", "must be between 0 and 1", "0.2 is usual"
            )

    @property
    def final_lr(self) -> float:
        """The rate the schedule ends at: `min_lr`, or a tenth of `base_lr` where that is null."""
        return self.base_lr / 10 if self.min_lr is None else self.min_lr


def _check_path(key: str, path: str) -> None:
    if not path:
        raise UserError(key, "a source has an empty path", "name a file, a folder or builtin:docs")
    if "\0" in path:
        raise UserError(key, "a path holds a NUL character", "write the path again")


@dataclass(frozen=True)
class SourceConfig:
    """One corpus of a mix: a path or builtin:NAME, and its share of the rows relative to the others.

    given: how the command line wrote it, PATH:WEIGHT, for messages; it is not saved.
    """

    path: str
    weight: float = 1.0
    given: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        _check_path("data.sources", self.path)
        if not 0 < self.weight <= LARGEST_WEIGHT:
            raise UserError(
                f"data.sources: weight {self.weight:g} of '{self.path}'",
                f"must be above 0 and at most {LARGEST_WEIGHT:,.0f}",
                "leave out what has no share; 0.7 and 0.3 share as 7 and 3 do",
            )


@dataclass(frozen=True)
class DataConfig:
    """What is read: weighted corpora, how wide a unit is on disk, and what is held out for validation.

    A fraction of each corpus is held out, in blocks spread over it or as its tail; none of it where
    `validation` names a file or folder of its own. `raw` reads a file as its bytes, whatever its kind.
    """

    sources: tuple[SourceConfig, ...] = (SourceConfig("builtin:docs"),)
    dtype: DataDtype = "uint8"
    validation_fraction: float = 0.05
    validation_split: ValidationSplit = "blocks"
    validation: str | None = None
    raw: bool = False

    def __post_init__(self) -> None:
        check_choices("data", self)
        if not self.sources:
            raise UserError("data.sources", "is empty", "name a file, a folder or builtin:docs")
        if self.validation is not None:
            _check_path("data.validation", self.validation)
            if self.validation.strip().lower() in WORDS_FOR_NULL:
                raise UserError(
                    f"data.validation={self.validation}",
                    "means that no corpus is named",
                    f"for a file of that name write ./{self.validation}",
                )
        if not 0 < self.validation_fraction < 1:
            raise UserError(
                f"data.validation_fraction={self.validation_fraction:g}",
                "must be above 0 and below 1",
                "0.05 holds out a twentieth",
            )


@dataclass(frozen=True)
class RunConfig:
    """How long a run is (`steps`, or a budget of `bytes`), what it saves on the way, and what it may use.

    `eval_every` and `save_every` null: only at the end. `memory_limit_bytes` null: what the machine has.
    """

    seed: int = 0
    steps: int | None = None
    bytes: int | None = None
    eval_every: int | None = None
    save_every: int | None = None
    keep_checkpoints: int = 2
    keep_best: bool = False
    sample_bytes: int = 400
    sample_prompt: str = "The "
    sample_temperature: float = 0.8
    memory_limit_bytes: int | None = None

    def __post_init__(self) -> None:
        check_at_least("run", self, 0, "seed", "sample_bytes", "sample_temperature")
        check_float32("run", self, "sample_temperature")
        check_at_least("run", self, 1, "steps", "bytes", "eval_every", "save_every", "keep_checkpoints")
        check_at_least("run", self, 1, "memory_limit_bytes")
        check_at_most("run", self, LARGEST_COUNT, "steps", "bytes", "eval_every", "save_every")
        check_at_most("run", self, LARGEST_COUNT, "keep_checkpoints", "sample_bytes", "memory_limit_bytes")
        if self.steps is not None and self.bytes is not None:
            raise UserError(
                f"run.steps={self.steps} and run.bytes={self.bytes}",
                "both say how long the run is",
                "give only one",
            )
        if self.seed > LARGEST_SEED:
            raise UserError(f"run.seed={shorten(self.seed)}", "must be below 2^64", "0 is usual")
        try:
            self.sample_prompt.encode()
        except UnicodeEncodeError as error:
            raise UserError(
                "run.sample_prompt",
                f"is not text in UTF-8 ({error.reason})",
                "leave out what is not a character",
            ) from error


@dataclass(frozen=True)
class Config:
    """A whole run, resolved."""

    preset: str | None = None
    model: ModelConfig = field(default_factory=ModelConfig)
    step: StepConfig = field(default_factory=StepConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    data: DataConfig = field(default_factory=DataConfig)
    run: RunConfig = field(default_factory=RunConfig)

    def __post_init__(self) -> None:
        if self.model.is_patched and self.data.dtype != "uint8":
            raise UserError(
                f"data.dtype={self.data.dtype}",
                f"the {self.model.trunk} trunk reads bytes, not token ids",
                "choose model.trunk=dense or recurrent",
            )

    @property
    def bytes_per_step(self) -> int:
        """T = A · B · S · K, the bytes (units, for a uint16 corpus) one optimizer step trains on."""
        return self.step.accum * self.step.batch * self.model.seq * self.step.chunks

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the run: `run.steps`, or as many whole steps as `run.bytes` pays for.

        Raises: UserError when the run has no length, or its budget is smaller than one step.
        """
        if self.run.steps is not None:
            return self.run.steps
        if self.run.bytes is None:
            raise UserError(
                "length of the run", "neither run.steps nor run.bytes is given", "give --steps N or --bytes D"
            )
        if self.run.bytes < self.bytes_per_step:
            raise UserError(
                f"run.bytes={self.run.bytes}",
                f"is less than one step, which takes {self.bytes_per_step} bytes",
                "raise it, or lower --batch, --chunks, --seq or --accum",
            )
        return self.run.bytes // self.bytes_per_step
