"""Where profiles are kept, and for which model and machine one holds; no mlx."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from mlx_amort.backend.cache_folder import cache_folder
from mlx_amort.config.values import Config
from mlx_amort.cost.profile import OPTIMIZER_KEYS, Fact, Profile
from mlx_amort.cost.profile_file import FILE_NAME

# What is measured beside a profile that has a cost model, until it has one of its own.
LATEST_FILE_NAME = "profile.latest.json"
# What makes two machines the same for timing; versions and names of the system may differ.
_MACHINE_KEYS = ("processor", "cores", "backend", "device_name", "blas")
# What changes the values of weights and nothing that is done with them.
TIMELESS_MODEL_KEYS = ("scale_residual_init",)


def profiles_folder() -> Path:
    """$XDG_CACHE_HOME/mlx-amort/profiles, ~/.cache where that is not set."""
    return cache_folder() / "profiles"


def kept_profiles() -> list[Path]:
    """The profiles that `profile` left, the newest first."""
    paths = profiles_folder().glob(f"*/{FILE_NAME}")
    return sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True)


def identity_of(config: Config) -> dict[str, Fact]:
    """What a profile does not vary and a step's time depends on: the model but its seq, how it is stepped."""
    model = dataclasses.asdict(config.model)
    for name in ("seq", *TIMELESS_MODEL_KEYS):
        model.pop(name)
    optimizer = {key: getattr(config.optimizer, key) for key in OPTIMIZER_KEYS}
    return {**model, "tbptt": config.step.tbptt, **optimizer}


def machine_identity(machine: Mapping[str, Fact]) -> dict[str, Fact]:
    """The part of `describe_machine()` that a step's time depends on."""
    return {key: machine.get(key) for key in _MACHINE_KEYS}


def default_folder(config: Config, machine: Mapping[str, Fact]) -> Path:
    """Where `profile` leaves the profile of a model on a machine, and `train` finds it."""
    identity = json.dumps([identity_of(config), machine_identity(machine)], sort_keys=True)
    digest = hashlib.sha256(identity.encode()).hexdigest()[:10]
    return profiles_folder() / f"{config.preset or config.model.trunk}-{digest}"


def put_previous_aside(path: Path) -> Path | None:
    """Keep the profile that is at `path` as profile.previous.json; None where there is none."""
    if not path.exists():
        return None
    previous = path.with_suffix(".previous.json")
    path.replace(previous)
    return previous


def is_profile_of(profile: Profile, config: Config, machine: Mapping[str, Fact]) -> bool:
    """Whether a profile was measured with this model on this machine."""
    is_model = profile.identity == identity_of(config)
    return is_model and machine_identity(profile.machine) == machine_identity(machine)
