"""The memory estimate of every configuration that a profile measured, to be held beside the measured peaks."""

from __future__ import annotations

from dataclasses import fields

from mlx_amort.config.model import ModelConfig
from mlx_amort.config.values import Config, OptimizerConfig
from mlx_amort.cost.memory.estimate import estimate
from mlx_amort.cost.profile import Profile

_OPTIMIZER_KEYS = ("coefficients", "muon_dtype")
_MODEL_KEYS = tuple(field.name for field in fields(ModelConfig))


def estimates_of(profile: Profile) -> list[float | None]:
    """Peak bytes by the estimate for each measurement of a profile.

    None where the profile has no model (a CSV), and for a measurement that does not say its window or precision.
    """
    model, backend, identity = profile.model, profile.machine.get("backend"), profile.identity or {}
    if backend is None or not set(_MODEL_KEYS) <= set(model):
        return [None] * len(profile.measurements)
    optimizer = {key: identity[key] for key in _OPTIMIZER_KEYS if key in identity}
    base = Config(
        model=ModelConfig(**{key: model[key] for key in _MODEL_KEYS}),  # type: ignore[arg-type]
        optimizer=OptimizerConfig(**optimizer),  # type: ignore[arg-type]
    )
    return [
        None
        if each.window is None or each.precision is None
        else float(estimate(each.configure(base), backend).peak_bytes)  # type: ignore[arg-type]
        for each in (measurement.configuration for measurement in profile.measurements)
    ]
