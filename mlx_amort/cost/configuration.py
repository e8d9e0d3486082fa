"""A configuration of a step, and one measurement of it; arithmetic only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from mlx_amort.config.values import Config
from mlx_amort.cost.fields import LARGEST_BYTES, Fields

REQUIRED = ("batch", "chunks", "seq", "optimizer")
"""What every record of a configuration must tell."""


@dataclass(frozen=True)
class Configuration:
    """What a profile varies; everything else is the same in all of its measurements.

    window and precision are None where a file does not tell them.
    """

    batch: int
    chunks: int
    seq: int
    optimizer: str
    window: int | None = None
    accum: int = 1
    precision: str | None = None
    activation_checkpointing: bool = False

    @property
    def bytes_per_step(self) -> int:
        """A · B · S · K."""
        return self.accum * self.batch * self.seq * self.chunks

    @property
    def chunks_per_step(self) -> int:
        """A · K: how often a step pays what is paid once per chunk."""
        return self.accum * self.chunks

    @property
    def chunks_per_window(self) -> int | None:
        """min(W, K): a window is never longer than the step; None where W is not known."""
        return None if self.window is None else min(self.window, self.chunks)

    @property
    def windows_per_step(self) -> int:
        """A · ⌈K / min(W, K)⌉: how often a step runs a window; windows of one chunk where W is not known."""
        return self.accum * math.ceil(self.chunks / (self.chunks_per_window or 1))

    @property
    def shape(self) -> str:
        """A where it is not 1, B and K."""
        accum = "" if self.accum == 1 else f"A {self.accum} "
        return f"{accum}B {self.batch} K {self.chunks}"

    @property
    def label(self) -> str:
        """The configuration in words; W only where a step has more than one window of several chunks."""
        cut = self.chunks_per_window or self.chunks
        parts = [self.shape, f"W {cut}"] if cut < self.chunks else [self.shape]
        parts += [f"S {self.seq}", self.optimizer]
        parts += [] if self.precision is None else [self.precision]
        return " ".join([*parts, "checkpointed"] if self.activation_checkpointing else parts)

    def to_record(self) -> dict[str, Any]:
        """The configuration as JSON, with its bytes per step for readers."""
        return {
            "batch": self.batch,
            "chunks": self.chunks,
            "window": self.window,
            "accum": self.accum,
            "seq": self.seq,
            "optimizer": self.optimizer,
            "precision": self.precision,
            "activation_checkpointing": self.activation_checkpointing,
            "bytes_per_step": self.bytes_per_step,
        }

    @classmethod
    def from_record(cls, record: object, where: str = "record") -> Configuration:
        """A configuration as `to_record` or a CSV has it; other keys are left alone.

        Raises: UserError naming `where` and the key of a missing or impossible value.
        """
        return cls.from_fields(Fields(record, where))

    @classmethod
    def from_fields(cls, fields: Fields) -> Configuration:
        fields.require(REQUIRED)
        configuration = cls(
            batch=fields.known_count("batch"),
            chunks=fields.known_count("chunks"),
            seq=fields.known_count("seq"),
            optimizer=(fields.name("optimizer") or "").lower(),
            window=fields.count("window"),
            accum=fields.count("accum") or 1,
            precision=fields.name("precision"),
            activation_checkpointing=fields.flag("activation_checkpointing", "checkpoint", "checkpointing"),
        )
        size = configuration.bytes_per_step
        if size > LARGEST_BYTES:
            raise fields.refuse("bytes per step", f"{size:g} is over {LARGEST_BYTES:,}")
        stated = fields.count("bytes_per_step", LARGEST_BYTES)
        if stated not in (None, size):
            raise fields.refuse("bytes_per_step", f"{stated} is not accum · batch · seq · chunks = {size}")
        return configuration

    @classmethod
    def of(cls, config: Config) -> Configuration:
        """What a profile may vary of `config`."""
        step = config.step
        return cls(
            batch=step.batch,
            chunks=step.chunks,
            seq=config.model.seq,
            optimizer=config.optimizer.name,
            window=step.window,
            accum=step.accum,
            precision=step.precision,
            activation_checkpointing=step.activation_checkpointing,
        )

    def configure(self, base: Config) -> Config:
        """`base` in this configuration; a window or precision that is not known stays the base's.

        Raises: UserError for what the model does not allow.
        """
        step = replace(
            base.step,
            batch=self.batch,
            chunks=self.chunks,
            window=self.window or base.step.window,
            accum=self.accum,
            precision=self.precision or base.step.precision,  # type: ignore[arg-type]
            activation_checkpointing=self.activation_checkpointing,
        )
        optimizer = replace(base.optimizer, name=self.optimizer)  # type: ignore[arg-type]
        return replace(base, model=replace(base.model, seq=self.seq), step=step, optimizer=optimizer)


@dataclass(frozen=True)
class Measurement:
    """What measuring a configuration gave; step_s is None where it gave no time, and `status` and `note` say why.

    Units: times in seconds, medians but for samples_s; peak_bytes in bytes. status: "ok", "scattered", "did not
    fit", "too slow", "failed" or "not measured". phases: the parts of one step. wall_s: how long the whole
    process took. discarded_samples_s: those of a first try with a larger spread.
    """

    configuration: Configuration
    step_s: float | None = None
    samples_s: tuple[float, ...] = ()
    peak_bytes: int | None = None
    compile_s: float | None = None
    status: str = "ok"
    note: str = ""
    window_s: float | None = None
    update_s: float | None = None
    phases: Mapping[str, float] | None = None
    wall_s: float | None = None
    discarded_samples_s: tuple[float, ...] = ()
    is_anchor: bool = False

    @property
    def is_measured(self) -> bool:
        """Whether it has a time that may be fitted."""
        return self.status == "ok" and self.step_s is not None

    def to_record(self) -> dict[str, Any]:
        """The measurement as JSON; what is unknown of a step without a time is left out."""
        record = {
            **self.configuration.to_record(),
            "step_s": self.step_s,
            "samples_s": list(self.samples_s),
            "peak_bytes": self.peak_bytes,
            "compile_s": self.compile_s,
            "status": self.status,
        }
        known = {
            "note": self.note or None,
            "window_s": self.window_s,
            "update_s": self.update_s,
            "phases": None if self.phases is None else dict(self.phases),
            "wall_s": self.wall_s,
            "discarded_samples_s": list(self.discarded_samples_s) or None,
        }
        record |= {key: value for key, value in known.items() if value is not None}
        return record | {"is_anchor": self.is_anchor}

    @classmethod
    def from_record(cls, record: object, where: str = "record") -> Measurement:
        """A measurement as `to_record` wrote it, or a line of a CSV; other keys are left alone.

        Raises: UserError naming `where` and the key of a missing or impossible value.
        """
        return cls.from_fields(Fields(record, where))

    @classmethod
    def from_fields(cls, fields: Fields) -> Measurement:
        configuration = Configuration.from_fields(fields)
        step_s = fields.time_s({"step_s": 1.0, "step_ms": 1e-3}, "step time")
        return cls(
            configuration,
            step_s=step_s,
            samples_s=fields.times_s("samples_s"),
            peak_bytes=fields.bytes({"peak_bytes": 1.0, "memory_gb": 1e9}, "peak memory"),
            compile_s=fields.duration_s({"compile_s": 1.0, "compile_ms": 1e-3}, "compile_s"),
            status=fields.name("status") or ("ok" if step_s is not None else "not measured"),
            note=fields.text("note"),
            window_s=fields.duration_s({"window_s": 1.0}, "window_s"),
            update_s=fields.duration_s({"update_s": 1.0, "update_ms": 1e-3}, "update_s"),
            phases=fields.numbers("phases") or None,
            wall_s=fields.duration_s({"wall_s": 1.0}, "wall_s"),
            discarded_samples_s=fields.times_s("discarded_samples_s"),
            is_anchor=fields.flag("is_anchor"),
        )
