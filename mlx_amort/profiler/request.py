"""What a sweep is asked for, and the record that it starts from or goes on with."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from mlx_amort.config import Config
from mlx_amort.errors import UserError
from mlx_amort.model.flops import training_flops_per_byte
from mlx_amort.profiler.grid import Lists
from mlx_amort.profiler.points import point_of
from mlx_amort.profiler.rows import read_record
from mlx_amort.profiler.store import FILE_NAME, identity_of, is_profile_of


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


def open_record(request: Request, folder: Path, machine: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The record to fill, and what to tell of the profile that the folder holds already (nothing: empty).

    An incomplete record of the same request is continued; any other is kept as profile.previous.json.
    Raises: UserError when the folder holds the profile of another model or machine.
    """
    path = folder / FILE_NAME
    told = ""
    if path.exists():
        record = read_record(path)
        if not is_profile_of(record, request.base, machine):
            raise UserError(str(path), "is the profile of another model or machine", "name another --out")
        if record.get("status") == "incomplete" and record.get("request") == request.to_record():
            return record, f"continuing {path}: {len(record['rows'])} rows are measured"
        previous = path.with_suffix(".previous.json")
        path.replace(previous)
        told = f"the profile that was here is kept as {previous}"
    return _new_record(request, machine), told


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
