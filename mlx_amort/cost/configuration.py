"""A point of a sweep: the settings of one configuration that a profile varies; arithmetic only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from mlx_amort.config.values import Config
from mlx_amort.cost.profile_file import count_windows


@dataclass(frozen=True)
class Point:
    """What varies from row to row of a profile; everything else is the base configuration's."""

    batch: int
    chunks: int
    window: int
    accum: int
    seq: int
    optimizer: str
    precision: str
    activation_checkpointing: bool

    @property
    def bytes_per_step(self) -> int:
        return self.accum * self.batch * self.seq * self.chunks

    @property
    def chunks_per_step(self) -> int:
        return self.accum * self.chunks

    @property
    def windows_per_step(self) -> int:
        return count_windows(self.accum, self.chunks, self.window)

    @property
    def label(self) -> str:
        """The configuration in words, with what is unusual about it only where it is."""
        accum = f"A {self.accum} " if self.accum != 1 else ""
        checkpointed = " checkpointed" if self.activation_checkpointing else ""
        shape = f"{accum}B {self.batch} K {self.chunks} S {self.seq}"
        return f"{shape} {self.optimizer} {self.precision}{checkpointed}"

    def to_record(self) -> dict[str, Any]:
        """The columns of a row that say what was measured."""
        return {**asdict(self), "bytes_per_step": self.bytes_per_step}

    def configure(self, base: Config) -> Config:
        """`base` at this point. Raises: UserError for what the model does not allow."""
        step = replace(
            base.step,
            batch=self.batch,
            chunks=self.chunks,
            window=self.window,
            accum=self.accum,
            precision=self.precision,  # type: ignore[arg-type]
            activation_checkpointing=self.activation_checkpointing,
        )
        optimizer = replace(base.optimizer, name=self.optimizer)  # type: ignore[arg-type]
        return replace(base, model=replace(base.model, seq=self.seq), step=step, optimizer=optimizer)


def point_of(config: Config) -> Point:
    """The point at which a configuration stands."""
    step = config.step
    return Point(
        batch=step.batch,
        chunks=step.chunks,
        window=step.window,
        accum=step.accum,
        seq=config.model.seq,
        optimizer=config.optimizer.name,
        precision=step.precision,
        activation_checkpointing=step.activation_checkpointing,
    )


def point_of_record(record: Mapping[str, Any]) -> Point:
    """The point of a row as `to_record` wrote it."""
    return Point(**{name: record[name] for name in Point.__dataclass_fields__})
