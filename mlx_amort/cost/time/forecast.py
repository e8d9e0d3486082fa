"""What a run's steps will take, from the profile that holds for it; no mlx."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mlx_amort.config.values import Config
from mlx_amort.cost.configuration import point_of
from mlx_amort.cost.profile_file import Row, read_record, rows_from_records
from mlx_amort.cost.profile_store import (
    identity_of,
    is_profile_of,
    kept_profiles,
    key_of,
    machine_identity,
)
from mlx_amort.cost.time.cost_model import Fit, fit_record
from mlx_amort.errors import UserError
from mlx_amort.train.pace import Forecast


def forecast_of(
    profile: Path | None, config: Config, machine: Mapping[str, Any]
) -> tuple[Forecast | None, str]:
    """The forecast of `profile`, or of one that is found; where none is, why.

    Raises: UserError when `profile` holds for something else.
    """
    if profile is not None:
        return forecast_from_profile(profile, config, machine)
    return find_forecast(config, machine)


def find_forecast(config: Config, machine: Mapping[str, Any]) -> tuple[Forecast | None, str]:
    """The forecast of the newest profile that `profile` left for this model and machine and that has one.

    Without a forecast, in words, why there is none.
    """
    whys = []
    for path in kept_profiles():
        try:
            record = read_record(path)
        except UserError:
            continue  # half a file, or nothing of ours
        if is_profile_of(record, config, machine):
            try:
                forecast, why = forecast_from_profile(path, config, machine)
            except UserError as error:
                forecast, why = None, f"{error.what} {error.why}"
            if forecast is not None:
                return forecast, ""
            whys.append(why)
    return None, whys[0] if whys else "there is no profile of this model on this machine"


def forecast_from_profile(
    path: Path, config: Config, machine: Mapping[str, Any]
) -> tuple[Forecast | None, str]:
    """The step time that a profile's fit predicts for `config`, whether or not that was measured.

    It is the law's, times what other programs cost on average while it was measured.
    Where the rows have no law that holds, the time of the row that measured `config`; without one why there
    is no forecast. path: a profile.json or its folder.
    Raises: UserError, naming the keys, when the profile is of another model, machine, sequence, precision,
    window or optimizer.
    """
    record = read_record(path)
    _refuse_another(record, config, machine, path)
    point = point_of(config)
    row = Row(
        point.batch,
        point.chunks,
        point.seq,
        point.optimizer,
        None,
        window=point.window,
        accum=point.accum,
        precision=point.precision,
        activation_checkpointing=point.activation_checkpointing,
    )
    try:
        fit = fit_record(record, str(path))
    except UserError as error:
        return _measured(record, row, path, f"{path} has no law: {error.why}")
    if fit.is_rejected:
        return _measured(record, row, path, f"the law of {path} was rejected")
    todo = "profile this configuration, or train without --profile"
    difference = fit.setting.differs(row)
    if difference is not None:
        raise UserError(str(path), f"cannot forecast this run: its {difference}", todo)
    if row.optimizer not in fit.c0_s:
        why = f"cannot forecast this run: its optimizer is {row.optimizer}, not {' or '.join(fit.c0_s)}"
        raise UserError(str(path), why, todo)
    return _forecast(fit, row, str(path)), ""


def _measured(record: Mapping[str, Any], row: Row, path: Path, why: str) -> tuple[Forecast | None, str]:
    """What measuring this very configuration told, where no law holds."""
    rows = [other for other in rows_from_records(record["rows"], str(path)) if other.is_measured]
    times_s = [other.step_s for other in rows if other.step_s is not None and _is_same(other, row)]
    if not times_s:
        return None, f"{why}, and it did not measure this configuration"
    warning = f"{why}; this is the step time of its own row {row.label}, no prediction"
    source = f"the measured row of {path}"
    return Forecast(statistics.median(times_s), row.bytes_per_step, source, warning=warning), ""


def _is_same(one: Row, other: Row) -> bool:
    # Windows are compared by what they make of a step.
    is_alike = replace(one.bare, window=None) == replace(other.bare, window=None)
    return is_alike and one.windows_per_step == other.windows_per_step


def _forecast(fit: Fit, row: Row, source: str) -> Forecast:
    sizes = [point.row.bytes_per_step for point in fit.points]
    return Forecast(
        step_s=fit.predict_s(row) * fit.disturbance,
        disturbance=fit.disturbance,
        bytes_per_step=row.bytes_per_step,
        source=source,
        ceiling_bytes_per_s=fit.ceiling_bytes_per_s,
        c0_s=fit.c0_s[row.optimizer],
        c1_s_per_byte=fit.c1_s_per_byte,
        is_extrapolated=not min(sizes) <= row.bytes_per_step <= max(sizes),
        uncertainty=fit.uncertainty if fit.is_doubtful else None,
    )


def _refuse_another(
    record: Mapping[str, Any], config: Config, machine: Mapping[str, Any], path: Path
) -> None:
    model = record.get("identity")
    if not isinstance(model, dict):
        raise UserError(
            str(path), "does not say which model it measured", "write one with `mlx-amort profile`"
        )
    for what, theirs, ours in (
        ("model", _with_keys(model), _with_keys(identity_of(config))),
        ("machine", machine_identity(record.get("machine") or {}), machine_identity(machine)),
    ):
        keys = [key for key in ours if theirs.get(key) != ours[key]]
        if keys:
            differing = ", ".join(f"{key} {theirs.get(key)} and not {ours[key]}" for key in keys)
            raise UserError(
                str(path),
                f"is the profile of another {what}: {differing}",
                "profile this one, or train without --profile",
            )


def _with_keys(identity: Mapping[str, Any]) -> dict[str, Any]:
    return {key_of(name): value for name, value in identity.items()}
