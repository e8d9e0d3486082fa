"""What a run's steps will take, from the profile that holds for it; no mlx."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from mlx_amort.config.values import Config
from mlx_amort.cost.configuration import Configuration, Measurement
from mlx_amort.cost.profile import Fact, Profile, key_of
from mlx_amort.cost.profile_file import read_profile
from mlx_amort.cost.profile_store import (
    identity_of,
    is_profile_of,
    kept_profiles,
    machine_identity,
)
from mlx_amort.cost.time.cost_model import CostModel
from mlx_amort.cost.time.fitting import fit_profile
from mlx_amort.errors import UserError
from mlx_amort.train.pace import Forecast


def forecast_of(
    profile: Path | None, config: Config, machine: Mapping[str, Fact]
) -> tuple[Forecast | None, str]:
    """The forecast of `profile`, or of one that is found; where none is, why.

    Raises: UserError when `profile` holds for something else.
    """
    if profile is not None:
        return forecast_from_profile(profile, config, machine)
    return find_forecast(config, machine)


def find_forecast(config: Config, machine: Mapping[str, Fact]) -> tuple[Forecast | None, str]:
    """The forecast of the newest profile that `profile` left for this model and machine and that has one.

    Without a forecast, in words, why there is none.
    """
    whys = []
    for path in kept_profiles():
        try:
            profile = read_profile(path)
        except UserError:
            continue  # half a file, or nothing of ours
        if is_profile_of(profile, config, machine):
            try:
                forecast, why = _forecast_of_profile(profile, path, config)
            except UserError as error:
                forecast, why = None, f"{error.what} {error.why}"
            if forecast is not None:
                return forecast, ""
            whys.append(why)
    return None, whys[0] if whys else "there is no profile of this model on this machine"


def forecast_from_profile(
    path: Path, config: Config, machine: Mapping[str, Fact]
) -> tuple[Forecast | None, str]:
    """The step time that a profile's cost model predicts for `config`, whether or not that was measured.

    It is the model's, times what other programs cost on average while it was measured.
    Where no cost model holds, the time of the measurement of `config`; without one why there is no forecast.
    path: a profile.json or its folder.
    Raises: UserError, naming the keys, when the profile is of another model, machine, sequence, precision,
    window or optimizer.
    """
    profile = read_profile(path)
    _refuse_another(profile, config, machine, path)
    return _forecast_of_profile(profile, path, config)


def _forecast_of_profile(profile: Profile, path: Path, config: Config) -> tuple[Forecast | None, str]:
    configuration = Configuration.of(config)
    try:
        model = fit_profile(profile)
    except UserError as error:
        return _measured(profile, configuration, path, f"{path} has no cost model: {error.why}")
    if model.is_rejected:
        return _measured(profile, configuration, path, f"the cost model of {path} is rejected")
    todo = "profile this configuration, or train without --profile"
    difference = model.setting.differs(configuration)
    if difference is not None:
        raise UserError(str(path), f"cannot forecast this run: its {difference}", todo)
    optimizer = configuration.optimizer
    if optimizer not in model.c0_s:
        why = f"cannot forecast this run: its optimizer is {optimizer}, not {' or '.join(model.c0_s)}"
        raise UserError(str(path), why, todo)
    return _forecast(model, configuration, str(path)), ""


def _measured(
    profile: Profile, configuration: Configuration, path: Path, why: str
) -> tuple[Forecast | None, str]:
    """What measuring this very configuration showed, where no cost model holds."""
    times_s = [
        each.step_s
        for each in profile.measurements
        if each.is_measured and each.step_s is not None and _is_of(each, configuration)
    ]
    if not times_s:
        return None, f"{why}, and it did not measure this configuration"
    warning = f"{why}; this is the measured step time of {configuration.label}, not a prediction"
    source = f"the measurement in {path}"
    return Forecast(statistics.median(times_s), configuration.bytes_per_step, source, warning=warning), ""


def _is_of(measurement: Measurement, configuration: Configuration) -> bool:
    # Windows are compared by what they make of a step.
    other = measurement.configuration
    is_alike = replace(other, window=None) == replace(configuration, window=None)
    return is_alike and other.windows_per_step == configuration.windows_per_step


def _forecast(model: CostModel, configuration: Configuration, source: str) -> Forecast:
    sizes = [point.measurement.configuration.bytes_per_step for point in model.points]
    return Forecast(
        step_s=model.predict_s(configuration) * model.disturbance,
        disturbance=model.disturbance,
        bytes_per_step=configuration.bytes_per_step,
        source=source,
        ceiling_bytes_per_s=model.ceiling_bytes_per_s,
        c0_s=model.c0_s[configuration.optimizer],
        c1_s_per_byte=model.c1_s_per_byte,
        is_extrapolated=not min(sizes) <= configuration.bytes_per_step <= max(sizes),
        uncertainty=model.uncertainty if model.is_doubtful else None,
    )


def _refuse_another(profile: Profile, config: Config, machine: Mapping[str, Fact], path: Path) -> None:
    if profile.identity is None:
        todo = "write one with `mlx-amort profile`"
        raise UserError(str(path), "does not say which model it measured", todo)
    for what, theirs, ours in (
        ("model", _with_keys(profile.identity), _with_keys(identity_of(config))),
        ("machine", machine_identity(profile.machine), machine_identity(machine)),
    ):
        keys = [key for key in ours if theirs.get(key) != ours[key]]
        if keys:
            differing = ", ".join(f"{key} {theirs.get(key)} and not {ours[key]}" for key in keys)
            raise UserError(
                str(path),
                f"is the profile of another {what}: {differing}",
                "profile this one, or train without --profile",
            )


def _with_keys(identity: Mapping[str, Fact]) -> dict[str, Fact]:
    return {key_of(name): value for name, value in identity.items()}
