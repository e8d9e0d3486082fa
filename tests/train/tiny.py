"""A run small enough for many tests: a hybrid model of width 16 on chunks of 32 bytes of a generated text."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

import mlx.core as mx

from mlx_amort.config.model import ModelConfig
from mlx_amort.config.values import (
    Config,
    DataConfig,
    Precision,
    RunConfig,
    ScheduleConfig,
    SourceConfig,
    StepConfig,
)
from mlx_amort.model.byte_lm import ByteLM
from mlx_amort.train.console import Console
from mlx_amort.train.interrupt import Interrupt
from mlx_amort.train.resume import resumed_run
from mlx_amort.train.run import Run, new_run
from mlx_amort.train.session import train_run
from mlx_amort.train.summary import Summary

MODEL = ModelConfig(trunk="hybrid", layers=1, hidden=16, ffn=32, heads=2, seq=32)
WORDS = "the state of a byte is carried over chunks and never cut while its gradient is"
SETTINGS = (
    "model.trunk=hybrid",
    "model.layers=1",
    "model.hidden=16",
    "model.ffn=32",
    "model.heads=2",
    "model.seq=32",
    "step.batch=2",
    "step.chunks=2",
    "step.window=1",
    "run.sample_bytes=4",
)


def write_text(folder: Path, size: int = 6000) -> Path:
    """A text of random words, the same for every test."""
    words = random.Random(1).choices(WORDS.split(), k=size)
    path = folder / "text.txt"
    path.write_text(" ".join(words)[:size], encoding="utf-8")
    return path


def tiny_config(text: Path, precision: str = "fp32", steps: int = 6, **run: Any) -> Config:
    """The configuration of a tiny run."""
    return Config(
        model=MODEL,
        step=StepConfig(batch=2, chunks=2, window=1, precision=precision),  # type: ignore[arg-type]
        schedule=ScheduleConfig(base_lr=3e-3, warmup_steps=2),
        data=DataConfig((SourceConfig(str(text)),), validation_fraction=0.1),
        run=RunConfig(steps=steps, **{"sample_bytes": 4, "sample_prompt": "th", **run}),
    )


def tiny_model(precision: Precision = "fp32", activation_checkpointing: bool = False) -> ByteLM:
    return ByteLM(MODEL, precision, activation_checkpointing)


def train_quietly(run: Run, stop_after: int | None = None) -> tuple[Summary, str]:
    """Train to the end; returns the outcome and what was printed."""
    printed = io.StringIO()
    summary = train_run(run, Console(printed, printed), Interrupt(), stop_after)
    return summary, printed.getvalue()


def start(config: Config, out: Path, stop_after: int | None = None) -> tuple[Run, Summary]:
    run = new_run(config, out, ["test"])
    return run, train_quietly(run, stop_after)[0]


def go_on(out: Path) -> tuple[Run, Summary]:
    run = resumed_run(out, lambda config: config, ["test"])
    return run, train_quietly(run)[0]


def is_equal(one: dict[str, mx.array], other: dict[str, mx.array]) -> bool:
    """Whether two flat trees are the same, bit for bit."""
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and bool(mx.array_equal(one[name], other[name])) for name in one
    )
