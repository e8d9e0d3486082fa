"""What a run's steps will take, from the profile that holds for it; no mlx."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlx_amort.config import Config
from mlx_amort.errors import UserError
from mlx_amort.profiler.fit import Fit, fit_rows
from mlx_amort.profiler.points import point_of
from mlx_amort.profiler.rows import Row, read_record, rows_from_records
from mlx_amort.profiler.store import (
    FILE_NAME,
    identity_of,
    is_profile_of,
    key_of,
    machine_identity,
    profiles_folder,
)
from mlx_amort.train.forecast import Forecast


def forecast_of(
    profile: Path | None, config: Config, machine: Mapping[str, Any]
) -> tuple[Forecast | None, str]:
    """The forecast of `profile`, or of one that is found; where none is, why.

    Raises: UserError when `profile` holds for something else.
    """
    if profile is not None:
        return forecast_from_profile(profile, config, machine), ""
    return find_forecast(config, machine)


def find_forecast(config: Config, machine: Mapping[str, Any]) -> tuple[Forecast | None, str]:
    """The forecast of the newest profile that `profile` left for this model and machine and that has one.

    Without a forecast, in words, why there is none.
    """
    whys = []
    folder = profiles_folder()
    for path in sorted(folder.glob(f"*/{FILE_NAME}"), key=lambda path: path.stat().st_mtime, reverse=True):
        try:
            record = read_record(path)
        except UserError:
            continue  # half a file, or nothing of ours
        if is_profile_of(record, config, machine):
            try:
                return forecast_from_profile(path, config, machine), ""
            except UserError as error:
                whys.append(f"{error.what} {error.why}")
    return None, whys[0] if whys else "there is no profile of this model on this machine"


def forecast_from_profile(path: Path, config: Config, machine: Mapping[str, Any]) -> Forecast:
    """The step time that a profile's fit predicts for `config`, whether or not that was measured.

    path: a profile.json or its folder. Raises: UserError, naming the keys, when the profile is of another
    model, machine, sequence, precision, window or optimizer; when its law was rejected.
    """
    record = read_record(path)
    _refuse_another(record, config, machine, path)
    try:
        fit = fit_rows(rows_from_records(record["rows"], str(path)))
    except UserError as error:
        raise UserError(str(path), f"cannot forecast: {error.why}", error.todo) from error
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
    todo = "profile this configuration, or train without --profile"
    difference = fit.setting.differs(row)
    if difference is not None:
        raise UserError(str(path), f"cannot forecast this run: its {difference}", todo)
    if row.optimizer not in fit.c0_s:
        why = f"cannot forecast this run: its optimizer is {row.optimizer}, not {' or '.join(fit.c0_s)}"
        raise UserError(str(path), why, todo)
    if fit.is_rejected:
        raise UserError(str(path), "its law was rejected", "profile again on an idle machine")
    return _forecast(fit, row, str(path))


def _forecast(fit: Fit, row: Row, source: str) -> Forecast:
    sizes = [point.row.bytes_per_step for point in fit.points]
    return Forecast(
        step_s=fit.predict_s(row),
        bytes_per_step=row.bytes_per_step,
        source=source,
        ceiling_bytes_per_s=fit.ceiling_bytes_per_s,
        c0_s=fit.c0_s[row.optimizer],
        c1_s_per_byte=fit.c1_s_per_byte,
        is_extrapolated=not min(sizes) <= row.bytes_per_step <= max(sizes),
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
