"""What a plan says to type next: the command that trains the configuration it chose, ready to paste; no mlx."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from mlx_amort.config.reading import preset_names, resolve
from mlx_amort.config.values import Config, OptimizerName, Precision
from mlx_amort.cost.configuration import Configuration
from mlx_amort.cost.profile import Profile
from mlx_amort.cost.profile_store import TIMELESS_MODEL_KEYS, identity_of, key_of, profiles_folder
from mlx_amort.cost.time.candidates import Candidate
from mlx_amort.cost.time.cost_model import CostModel

# What the command line takes where no preset is named; its differences are spelled out.
_NEAREST_PRESET = "demo"
# The flag of each part of a configuration that a profile varies.
_FLAGS = {
    "batch": "batch",
    "chunks": "chunks",
    "seq": "seq",
    "window": "window",
    "accum": "accum",
    "optimizer": "optimizer",
    "precision": "precision",
    "activation_checkpointing": "activation-checkpointing",
}


def train_command(
    profile: Profile, file: Path, fit: CostModel, choice: Candidate, budget_bytes: int
) -> str | None:
    """The command of a run as planned: its preset and what differs from it.

    Of a CSV, which does not tell its model, all flags after the preset. None where `train` does not know the
    optimizer or the precision, which another program may have measured.
    """
    if choice.configuration.optimizer not in get_args(OptimizerName):
        return None
    if fit.setting.precision not in (None, *get_args(Precision)):
        return None
    point = replace(choice.configuration, precision=fit.setting.precision).to_record()
    words, known = ["mlx-amort", "train", "--preset", "NAME"], {}
    if profile.identity is not None:
        preset = str(profile.model.get("preset"))
        preset = preset if preset in preset_names() else _NEAREST_PRESET
        named = resolve(preset=preset)
        # The profile's model has what a profile does not depend on and a run does.
        whole = {**profile.model, **profile.identity}
        words, known = (
            [*words[:-1], preset, *_model_settings(whole, named)],
            Configuration.of(named).to_record(),
        )
    for key in _FLAGS:
        value = point[key]
        if value is not None and (key not in known or known[key] != value):
            words += _flag(_FLAGS[key], value)
    words += ["--bytes", str(budget_bytes)]
    # What `profile` left in its own place is found without being named.
    is_kept = file.absolute().is_relative_to(profiles_folder().absolute())
    if profile.identity is not None and _can_forecast(fit, choice) and not is_kept:
        words += ["--profile", str(file)]
    return shlex.join(words)


def grid_command(profile: Profile, file: Path) -> str:
    """The command that measures enough for a cost model: the grid of the same model, into the same folder."""
    model, preset = {**profile.model, **(profile.identity or {})}, str(profile.model.get("preset"))
    preset = preset if preset in preset_names() else _NEAREST_PRESET
    words = ["mlx-amort", "profile", "--grid", "--preset", preset]
    named = resolve(preset=preset)
    words += _model_settings(model, named)
    if model["seq"] != named.model.seq:
        words += ["--seq", str(model["seq"])]
    if not file.absolute().is_relative_to(profiles_folder().absolute()):
        words += ["--out", str(file.parent)]
    return shlex.join(words)


def _flag(flag: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [f"--{'' if value else 'no-'}{flag}"]
    return [f"--{flag}", str(value)]


def _can_forecast(fit: CostModel, choice: Candidate) -> bool:
    """Whether the profile holds for its own choice, which may be of a setting that was not fitted."""
    configuration = replace(choice.configuration, precision=fit.setting.precision)
    return not fit.is_rejected and fit.setting.differs(configuration) is None


def _model_settings(model: Mapping[str, Any], preset: Config) -> list[str]:
    known = identity_of(preset) | {key: getattr(preset.model, key) for key in TIMELESS_MODEL_KEYS}
    return [
        word
        for key, value in model.items()
        if key in known and known[key] != value
        for word in ("--set", f"{key_of(key)}={str(value).lower() if isinstance(value, bool) else value}")
    ]
