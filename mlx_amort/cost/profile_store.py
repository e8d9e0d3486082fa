"""Where profiles are kept, how they are written, and for which model and machine one holds; no mlx."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlx_amort.config.values import Config
from mlx_amort.files import cache_folder, write_whole

FILE_NAME = "profile.json"
# What is measured beside a profile that has a law, until it has one of its own.
LATEST_FILE_NAME = "profile.latest.json"
# What makes two machines the same for timing; versions and names of the system may differ.
_MACHINE_KEYS = ("processor", "cores", "backend", "device_name", "blas")
_OPTIMIZER_KEYS = ("muon_dtype", "coefficients")
# What changes the values of weights and nothing that is done with them.
TIMELESS_MODEL_KEYS = ("scale_residual_init",)


def profiles_folder() -> Path:
    """$XDG_CACHE_HOME/mlx-amort/profiles, ~/.cache where that is not set."""
    return cache_folder() / "profiles"


def kept_profiles() -> list[Path]:
    """The profiles that `profile` left, the newest first."""
    paths = profiles_folder().glob(f"*/{FILE_NAME}")
    return sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True)


def has_law(record: Mapping[str, Any]) -> bool:
    """Whether a profile has a fit that was not rejected."""
    fit = record.get("fit")
    return isinstance(fit, dict) and fit.get("law") != "rejected"


def identity_of(config: Config) -> dict[str, Any]:
    """What a profile does not vary and a step's time depends on: the model but its seq, how it is stepped."""
    model = dataclasses.asdict(config.model)
    for name in ("seq", *TIMELESS_MODEL_KEYS):
        model.pop(name)
    optimizer = {key: getattr(config.optimizer, key) for key in _OPTIMIZER_KEYS}
    return {**model, "tbptt": config.step.tbptt, **optimizer}


def key_of(name: str) -> str:
    """Where the configuration has what `identity_of` calls `name`: model.layers, step.tbptt."""
    if name in _OPTIMIZER_KEYS:
        return f"optimizer.{name}"
    return f"step.{name}" if name == "tbptt" else f"model.{name}"


def machine_identity(machine: Mapping[str, Any]) -> dict[str, Any]:
    """The part of `describe_machine()` that a step's time depends on."""
    return {key: machine.get(key) for key in _MACHINE_KEYS}


def default_folder(config: Config, machine: Mapping[str, Any]) -> Path:
    """Where `profile` leaves the profile of a model on a machine, and `train` finds it."""
    identity = json.dumps([identity_of(config), machine_identity(machine)], sort_keys=True)
    digest = hashlib.sha256(identity.encode()).hexdigest()[:10]
    return profiles_folder() / f"{config.preset or config.model.trunk}-{digest}"


def write_record(record: Mapping[str, Any], path: Path) -> None:
    """Write a profile whole or not at all: a sweep killed meanwhile leaves the file before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(record, indent=1, ensure_ascii=False))


def put_previous_aside(path: Path) -> Path | None:
    """Keep the profile that is at `path` as profile.previous.json; None where there is none."""
    if not path.exists():
        return None
    previous = path.with_suffix(".previous.json")
    path.replace(previous)
    return previous


def is_profile_of(record: Mapping[str, Any], config: Config, machine: Mapping[str, Any]) -> bool:
    """Whether a record was measured with this model on this machine."""
    theirs = record.get("machine")
    return record.get("identity") == identity_of(config) and (
        machine_identity(theirs if isinstance(theirs, dict) else {}) == machine_identity(machine)
    )
