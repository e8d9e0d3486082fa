"""What a plan says to type next: the command that trains the configuration it chose, ready to paste; no mlx."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from mlx_amort.command_line import command, nearest_preset, setting_words
from mlx_amort.config.reading import resolve
from mlx_amort.config.values import Config, OptimizerName, Precision
from mlx_amort.cost.configuration import Configuration
from mlx_amort.cost.profile import Profile, key_of
from mlx_amort.cost.profile_store import TIMELESS_MODEL_KEYS, identity_of, profiles_folder
from mlx_amort.cost.time.candidates import Candidate
from mlx_amort.cost.time.cost_model import CostModel

# The key of each part of a configuration that a profile varies.
_KEYS = {
    "batch": "step.batch",
    "chunks": "step.chunks",
    "seq": "model.seq",
    "window": "step.window",
    "accum": "step.accum",
    "optimizer": "optimizer.name",
    "precision": "step.precision",
    "activation_checkpointing": "step.activation_checkpointing",
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
    chosen = replace(choice.configuration, precision=fit.setting.precision).to_record()
    words: list[str | Path] = ["--preset", "NAME"]
    known: dict[str, Any] = {}
    if profile.identity is not None:
        preset = nearest_preset(str(profile.model.get("preset")))
        named = resolve(preset=preset)
        # The profile's model has what a profile does not depend on and a run does.
        whole = {**profile.model, **profile.identity}
        words = ["--preset", preset, *_model_words(whole, named)]
        known = Configuration.of(named).to_record()
    for key in _KEYS:
        value = chosen[key]
        if value is not None and (key not in known or known[key] != value):
            words += setting_words(_KEYS[key], value)
    words += setting_words("run.bytes", budget_bytes)
    # What `profile` left in its own place is found without being named.
    is_kept = file.absolute().is_relative_to(profiles_folder().absolute())
    if profile.identity is not None and _can_forecast(fit, choice) and not is_kept:
        words += ["--profile", file]
    return command("train", *words)


def grid_command(profile: Profile, file: Path) -> str:
    """The command that measures enough for a cost model: the grid of the same model, into the same folder."""
    model = {**profile.model, **(profile.identity or {})}
    preset = nearest_preset(str(profile.model.get("preset")))
    named = resolve(preset=preset)
    words: list[str | Path] = ["--grid", "--preset", preset, *_model_words(model, named)]
    if model["seq"] != named.model.seq:
        words += setting_words("model.seq", model["seq"])
    budget_s = profile.request.get("budget_s")
    if profile.request.get("is_grid") and isinstance(budget_s, int | float):
        # The same command with more time resumes what was measured.
        words += ["--time-budget", f"{2 * budget_s:.0f}s"]
    if not file.absolute().is_relative_to(profiles_folder().absolute()):
        words += ["--out", file.parent]
    return command("profile", *words)


def _can_forecast(fit: CostModel, choice: Candidate) -> bool:
    """Whether the profile holds for its own choice, which may be of a setting that was not fitted."""
    configuration = replace(choice.configuration, precision=fit.setting.precision)
    return fit.predicts(configuration)


def _model_words(model: Mapping[str, Any], preset: Config) -> list[str]:
    known = identity_of(preset) | {key: getattr(preset.model, key) for key in TIMELESS_MODEL_KEYS}
    return [
        word
        for key, value in model.items()
        if key in known and known[key] != value
        for word in setting_words(key_of(key), value)
    ]
