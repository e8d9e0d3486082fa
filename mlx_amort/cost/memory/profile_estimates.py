"""The memory estimate of every configuration that a profile measured, to be held beside the measured peaks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from mlx_amort.config.model import ModelConfig
from mlx_amort.config.values import Config, OptimizerConfig, StepConfig
from mlx_amort.cost.memory.estimate import estimate
from mlx_amort.ops.constants import Backend

Record = Mapping[str, Any]

_MODEL_KEYS = {field.name for field in fields(ModelConfig)}
_OPTIMIZER_KEYS = ("coefficients", "muon_dtype")
_STEP_KEYS = ("batch", "chunks", "window", "accum", "precision", "activation_checkpointing")


def estimates_of(record: Record) -> list[float | None]:
    """Peak bytes by the estimate for each measurement of a profile's record.

    None where the record has no model (a CSV), and for one that does not tell its window or precision.
    """
    rows: Sequence[Record] = record["measurements"]
    model: Record = record.get("model") or {}
    backend: Backend | None = (record.get("machine") or {}).get("backend")
    if backend is None or not set(model) >= _MODEL_KEYS:
        return [None] * len(rows)
    identity: Record = record.get("identity") or {}
    optimizer = {key: identity[key] for key in _OPTIMIZER_KEYS if key in identity}
    return [_estimate_bytes(row, model, optimizer, backend) for row in rows]


def _estimate_bytes(row: Record, model: Record, optimizer: Record, backend: Backend) -> float | None:
    if any(row.get(key) is None for key in _STEP_KEYS):
        return None
    config = Config(
        model=ModelConfig(**{**{key: model[key] for key in _MODEL_KEYS}, "seq": row["seq"]}),
        step=StepConfig(**{key: row[key] for key in _STEP_KEYS}),
        optimizer=OptimizerConfig(name=row["optimizer"], **optimizer),
    )
    return float(estimate(config, backend).peak_bytes)
