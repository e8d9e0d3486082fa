"""Whatever is configured trains one finite step, or is refused in one line."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlx_amort.config.reading import resolve
from mlx_amort.config.values import Config
from mlx_amort.errors import UserError
from mlx_amort.train.metrics import read_rows
from tests.train.tiny import start, write_text

# Small enough to be trained at once, with values at and past the ends of what is allowed.
VALUES: dict[str, list[Any]] = {
    "model.trunk": ["hybrid", "dense", "recurrent", "patched", "other"],
    "model.vocabulary": [256, 255, 0],
    "model.layers": [1, 2, 0],
    "model.hidden": [16, 24, 8, 7, -1],
    "model.ffn": [32, 1, 0],
    "model.heads": [1, 2, 3],
    "model.seq": [16, 12, 8, 1, 17],
    "model.patch_stride": [4, 1, 2, 16, 0],
    "model.boundary_rule": ["first", "every", "none"],
    "model.scale_residual_init": [True, False],
    "step.batch": [1, 2, 0],
    "step.chunks": [1, 2, 3],
    "step.window": [1, 2, 5],
    "step.accum": [1, 2, 0],
    "step.tbptt": ["consecutive", "last", "some"],
    "step.precision": ["fp32", "bf16", "bf16-pure", "fp16"],
    "step.activation_checkpointing": [True, False],
    "optimizer.name": ["muon", "adamw", "sgd"],
    "optimizer.weight_decay": [0.1, 0.0, 1e30, -1.0],
    "optimizer.clip_norm": [1.0, 1e-30, 0.0],
    "optimizer.momentum": [0.95, 0.0, 1.0],
    "optimizer.coefficients": ["polar_express", "polar_express_nonic", "jordan"],
    "optimizer.muon_dtype": ["float32", "bfloat16"],
    "optimizer.muon_scale": ["match_rms", "aspect_ratio"],
    "optimizer.eps": [1e-8, 1e-38, 0.0],
    "schedule.name": ["wsd", "cosine", "linear", "constant"],
    "schedule.base_lr": [1e-3, 1e-30, 1e300, 0.0],
    "schedule.min_lr": [None, 0.0, 1.0],
    "schedule.warmup_steps": [0, 1, 100],
    "schedule.decay_fraction": [0.2, 0.0, 1.0, 2.0],
    "data.validation_fraction": [0.1, 0.0, 0.99, 1.0],
    "data.validation_split": ["blocks", "tail"],
    "run.steps": [1, 0],
    "run.eval_every": [None, 1],
    "run.save_every": [None, 1],
    "run.keep_checkpoints": [1, 0],
    "run.keep_best": [True, False],
    "run.seed": [0, 2**64 - 1, 2**64],
}
# The first values of every key train together; few others are taken at once, for most combinations are refused.
CHANGES = st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=5, unique=True).flatmap(
    lambda keys: st.fixed_dictionaries({key: st.sampled_from(VALUES[key]) for key in keys})
)


def configured(changed: dict[str, Any], text: Path) -> Config:
    chosen = {**{key: values[0] for key, values in VALUES.items()}, "run.sample_bytes": 0, **changed}
    shown = {key: "null" if value is None else value for key, value in chosen.items()}
    return resolve(overrides=[*(f"{key}={value}" for key, value in shown.items()), f"data.sources={text}"])


def trains_or_is_refused(changed: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            config = configured(changed, write_text(folder, 4000))
            _, summary = start(config, folder / "run")
        except UserError as refusal:
            assert refusal.todo and "\n" not in str(refusal)
            return
        rows = [row for row in read_rows(folder / "run" / "metrics.jsonl") if "loss_bits" in row]
        assert len(rows) == config.total_steps
        for row in rows:
            loss = row["loss_bits"]
            assert loss is not None and math.isfinite(loss)
        assert summary is not None


def test_the_first_values_train() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        start(configured({}, write_text(folder, 4000)), folder / "run")
        assert len(read_rows(folder / "run" / "metrics.jsonl")) >= 1


QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large]


@settings(max_examples=12, derandomize=True, deadline=None, database=None, suppress_health_check=QUIET)
@given(CHANGES)
def test_a_configuration_trains_or_is_refused(changed: dict[str, Any]) -> None:
    trains_or_is_refused(changed)


@pytest.mark.slow
@settings(max_examples=80, deadline=None, database=None, suppress_health_check=QUIET)
@given(CHANGES)
def test_many_configurations_train_or_are_refused(changed: dict[str, Any]) -> None:
    trains_or_is_refused(changed)
