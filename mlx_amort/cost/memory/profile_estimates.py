"""The memory estimate of every configuration that a profile measured, to be held beside the measured peaks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from mlx_amort.config.model import ModelConfig
from mlx_amort.config.values import Config, OptimizerConfig, StepConfig
from mlx_amort.cost.memory.estimate import estimate

Record = Mapping[str, Any]

_IDENTITY_OF_OPTIMIZER = ("coefficients", "muon_dtype")
_STEP_KEYS = ("batch", "chunks", "window", "accum", "precision", "activation_checkpointing")


def estimates_of(record: Record) -> list[float | None]:
    """Peak bytes by the estimate for each row of a profile's record; None where that has no model (a CSV)."""
    rows: Sequence[Record] = record.get("measurements") or record["rows"]
    model: Record | None = record.get("model")
    backend = (record.get("machine") or {}).get("backend")
    known = {field.name for field in fields(ModelConfig)}
    if model is None or backend is None or not known <= set(model):
        return [None] * len(rows)
    identity: Record = record.get("identity") or {}
    optimizer = {key: identity[key] for key in _IDENTITY_OF_OPTIMIZER if key in identity}
    return [
        float(
            estimate(
                Config(
                    model=ModelConfig(**{**{key: model[key] for key in known}, "seq": row["seq"]}),
                    step=StepConfig(**{key: row[key] for key in _STEP_KEYS}),
                    optimizer=OptimizerConfig(name=row["optimizer"], **optimizer),
                ),
                backend,
            ).peak_bytes
        )
        for row in rows
    ]
