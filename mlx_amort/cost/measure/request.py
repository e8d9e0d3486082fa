"""What a sweep is asked for, and the record that it starts from or goes on with."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from mlx_amort.config.values import Config
from mlx_amort.cost.configuration import Point, point_of
from mlx_amort.cost.measure.grid import Lists
from mlx_amort.cost.profile_file import read_record, rows_from_records
from mlx_amort.cost.profile_store import (
    FILE_NAME,
    LATEST_FILE_NAME,
    has_law,
    identity_of,
    is_profile_of,
    put_previous_aside,
)
from mlx_amort.errors import UserError
from mlx_amort.model.flops import training_flops_per_byte


def configure_first(config: Config, lists: Lists) -> Config:
    """`config` with the first value of each list: a single value is the configuration's, not a variation of it.

    Raises: UserError for what the model does not allow.
    """
    point = point_of(config)
    first = {
        "batch": lists.batches,
        "chunks": lists.chunks,
        "window": lists.windows,
        "seq": lists.seqs,
        "optimizer": lists.optimizers,
        "precision": lists.precisions,
        "activation_checkpointing": lists.activation_checkpointing,
    }
    given: dict[str, Any] = {name: values[0] for name, values in first.items() if values}
    return replace(point, **given).configure(config)


@dataclass(frozen=True)
class Request:
    """What is to be profiled: around which configuration, what varies, how many timed steps, for how long.

    base: the configuration with what the lists say (`configure_first`).
    """

    base: Config
    lists: Lists
    is_grid: bool
    steps: int
    budget_s: float | None

    def to_record(self) -> dict[str, Any]:
        """What must agree for a sweep to be continued."""
        lists = {name: list(values) for name, values in dataclasses.asdict(self.lists).items()}
        point = point_of(self.base).to_record()
        return {
            "base": point,
            "is_grid": self.is_grid,
            "steps": self.steps,
            "budget_s": self.budget_s,
            **lists,
        }


def open_record(
    request: Request, folder: Path, machine: Mapping[str, Any]
) -> tuple[dict[str, Any], Path, str]:
    """The record to fill, its file, and what to tell of the profile that the folder holds already.

    An incomplete record of the same request is continued. A new one is measured into profile.latest.json
    where the folder holds a profile with a law, which only another law replaces; else what is there is kept
    as profile.previous.json.
    Raises: UserError when the folder holds the profile of another model or machine, or a damaged one.
    """
    path, latest = folder / FILE_NAME, folder / LATEST_FILE_NAME
    kept = None
    for file in (path, latest):
        if not file.exists():
            continue
        try:
            record = read_record(file)
            rows_from_records(record["rows"], str(file))
        except UserError as error:
            place = error.what.removeprefix(str(file)).lstrip(", ")
            raise _damaged(file, f"{place}: {error.why}" if place else error.why) from error
        if not is_profile_of(record, request.base, machine):
            raise UserError(str(file), "is the profile of another model or machine", "name another --out")
        if record.get("status") == "incomplete" and record.get("request") == request.to_record():
            _check_continues(record, _new_record(request, machine), file)
            return record, file, f"continuing {file}: {len(record['rows'])} rows are measured"
        if file == path and has_law(record):
            kept = path
    if kept is not None:
        return _new_record(request, machine), latest, f"{kept} stays until this one has a law that holds"
    previous = put_previous_aside(path)
    told = "" if previous is None else f"the profile that was here is kept as {previous}"
    return _new_record(request, machine), path, told


_SECTION = (dict, type(None))
_KINDS: dict[str, Any] = {
    **dict.fromkeys(("model", "machine"), dict),
    **dict.fromkeys(("rates", "rates_at_end", "floors", "base", "anchor", "plan", "fit", "chosen"), _SECTION),
    "held_out": list,
    "elapsed_s": (int, float),
}


def _check_continues(record: Mapping[str, Any], new: Mapping[str, Any], file: Path) -> None:
    missing = [key for key in new if key not in record]
    if missing:
        raise _damaged(file, f"it has no {', '.join(missing)}")
    wrong = [key for key, kinds in _KINDS.items() if not isinstance(record[key], kinds)]
    if wrong:
        raise _damaged(file, f"{', '.join(wrong)} cannot be what it is")
    for number, row in enumerate(record["rows"], start=1):
        absent = [key for key in Point.__dataclass_fields__ if row.get(key) is None]
        absent += [key for key in ("status", "step_s") if key not in row]
        if absent:
            raise _damaged(file, f"row {number} has no {', '.join(absent)}")


def _damaged(file: Path, why: str) -> UserError:
    return UserError(
        str(file),
        f"is no whole profile, so it cannot be gone on with: {why}",
        "delete it, or name another --out",
    )


def _new_record(request: Request, machine: Mapping[str, Any]) -> dict[str, Any]:
    model = request.base.model
    return {
        "status": "incomplete",
        "started_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "elapsed_s": 0.0,
        "request": request.to_record(),
        "identity": identity_of(request.base),
        "machine": dict(machine),
        "model": {
            "preset": request.base.preset,
            **dataclasses.asdict(model),
            "parameters": model.parameters,
            "training_flops_per_byte": training_flops_per_byte(request.base),
        },
        "rates": None,
        "rates_at_end": None,
        "floors": None,
        "base": None,
        "anchor": None,
        "plan": None,
        "rows": [],
        "fit": None,
        "held_out": [],
        "chosen": None,
    }
