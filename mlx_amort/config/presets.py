"""The presets: YAML files that stand beside the package in a wheel, and at the root in a checkout."""

from __future__ import annotations

from pathlib import Path

from mlx_amort.errors import UserError, did_you_mean

DEFAULT_PRESET = "demo"
"""What train, and what describes its data, takes where nothing else is named."""


def preset_names() -> tuple[str, ...]:
    """Every preset there is, sorted."""
    return tuple(sorted(path.stem for path in _preset_folder().glob("*.yaml")))


def preset_path(name: str) -> Path:
    """The YAML file of a preset. Raises: UserError, with the nearest name, when there is none."""
    if name not in preset_names():
        raise UserError(f"preset {name}", "no such preset", did_you_mean(name, preset_names()))
    return _preset_folder() / f"{name}.yaml"


def _preset_folder() -> Path:
    package = Path(__file__).parent.parent
    beside = package / "presets"
    return beside if beside.is_dir() else package.parent / "presets"
