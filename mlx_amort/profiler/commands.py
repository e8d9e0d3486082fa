"""What a plan says to type next: the command that trains the configuration it chose, ready to paste; no mlx."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlx_amort.config import Config
from mlx_amort.config_io import preset_names, resolve
from mlx_amort.profiler.candidates import Candidate
from mlx_amort.profiler.fit import Fit
from mlx_amort.profiler.rows import Row
from mlx_amort.profiler.store import TIMELESS_MODEL_KEYS, identity_of, key_of

# What the command line takes where no preset is named; its differences are spelled out.
_NEAREST_PRESET = "demo"


def train_command(
    record: Mapping[str, Any], file: Path, fit: Fit, choice: Candidate, budget_bytes: int
) -> str:
    """The command of a run as planned; of a CSV, which does not tell its model, the flags after the preset."""
    model = record.get("identity")
    words = ["mlx-amort", "train"]
    if isinstance(model, dict):
        preset = (record.get("model") or {}).get("preset")
        preset = preset if preset in preset_names() else _NEAREST_PRESET
        # The record's model has what a profile does not depend on and a run does.
        whole = {**(record.get("model") or {}), **model}
        words += ["--preset", preset, *_model_settings(whole, resolve(preset=preset))]
    else:
        words += ["--preset", "NAME"]
    words += ["--batch", str(choice.batch), "--chunks", str(choice.chunks), "--seq", str(choice.seq)]
    if choice.window is not None:
        words += ["--window", str(choice.window)]
    words += ["--accum", str(choice.accum), "--optimizer", choice.optimizer]
    if fit.setting.precision is not None:
        words += ["--precision", fit.setting.precision]
    words.append(f"--{'' if choice.activation_checkpointing else 'no-'}activation-checkpointing")
    words += ["--bytes", str(budget_bytes)]
    if isinstance(model, dict) and _can_forecast(fit, choice):
        words += ["--profile", str(file)]
    return shlex.join(words)


def _can_forecast(fit: Fit, choice: Candidate) -> bool:
    """Whether the profile holds for its own choice, which may be of a setting that was not fitted."""
    row = Row(
        choice.batch,
        choice.chunks,
        choice.seq,
        choice.optimizer,
        None,
        window=choice.window,
        precision=fit.setting.precision,
        activation_checkpointing=choice.activation_checkpointing,
    )
    return not fit.is_rejected and fit.setting.differs(row) is None


def _model_settings(model: Mapping[str, Any], preset: Config) -> list[str]:
    known = identity_of(preset) | {key: getattr(preset.model, key) for key in TIMELESS_MODEL_KEYS}
    return [
        word
        for key, value in model.items()
        if key in known and known[key] != value
        for word in ("--set", f"{key_of(key)}={str(value).lower() if isinstance(value, bool) else value}")
    ]
