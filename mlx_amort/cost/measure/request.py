"""What a sweep is asked for, and the profile that it starts from or resumes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from mlx_amort.config.values import Config
from mlx_amort.cost.configuration import Configuration
from mlx_amort.cost.measure.grid import Lists
from mlx_amort.cost.profile import Fact, Profile
from mlx_amort.cost.profile_file import FILE_NAME, read_profile
from mlx_amort.cost.profile_store import (
    LATEST_FILE_NAME,
    identity_of,
    is_profile_of,
    put_previous_aside,
)
from mlx_amort.cost.time.fitting import refit
from mlx_amort.errors import UserError
from mlx_amort.model.flops import training_flops_per_byte


def configure_first(config: Config, lists: Lists) -> Config:
    """`config` with the first value of each list: a single value is the configuration's, not a variation of it.

    Raises: UserError for what the model does not allow.
    """
    own = Configuration.of(config)
    first = replace(
        own,
        batch=(*lists.batches, own.batch)[0],
        chunks=(*lists.chunks, own.chunks)[0],
        window=(*lists.windows, own.window)[0],
        seq=(*lists.seqs, own.seq)[0],
        optimizer=(*lists.optimizers, own.optimizer)[0],
        precision=(*lists.precisions, own.precision)[0],
        activation_checkpointing=(*lists.activation_checkpointing, own.activation_checkpointing)[0],
    )
    return first.configure(config)


@dataclass(frozen=True)
class SweepRequest:
    """What is to be profiled: around which configuration, what varies, how many timed steps, for how long.

    base: the configuration with what the lists say (`configure_first`).
    """

    base: Config
    lists: Lists
    is_grid: bool
    steps: int
    budget_s: float | None

    def to_record(self) -> dict[str, Any]:
        """What must agree for a sweep to be resumed."""
        lists = {name: list(values) for name, values in dataclasses.asdict(self.lists).items()}
        return {
            "base": Configuration.of(self.base).to_record(),
            "is_grid": self.is_grid,
            "steps": self.steps,
            "budget_s": self.budget_s,
            **lists,
        }


def open_profile(
    request: SweepRequest, folder: Path, machine: Mapping[str, Fact]
) -> tuple[Profile, Path, str]:
    """The profile to fill, its file, and what to tell of the profile that the folder holds already.

    An incomplete profile of the same request is resumed, and with a larger time budget one without a usable cost
    model too. A new one is measured into profile.latest.json
    where the folder holds a profile with a cost model, which only another with one replaces; else what is there
    is kept as profile.previous.json.
    Raises: UserError when the folder holds the profile of another model or machine, or a damaged one.
    """
    path, latest = folder / FILE_NAME, folder / LATEST_FILE_NAME
    is_kept = False
    for file in (path, latest):
        if not file.exists():
            continue
        profile = _read_back(file)
        if not is_profile_of(profile, request.base, machine):
            raise UserError(str(file), "is the profile of another model or machine", "name another --out")
        refit(profile)
        is_grown = _is_grown(profile, request)
        if is_grown or (not profile.is_complete and profile.request == request.to_record()):
            _check_resumable(profile, file)
            if is_grown:
                _reopen(profile, request)
            larger = " with a larger time budget" if is_grown else ""
            told = f"resuming {file}{larger}: {len(profile.measurements)} measurements are there"
            return profile, file, told
        if file == path:
            is_kept = profile.usable_cost_model is not None
    if is_kept:
        return (
            _new_profile(request, machine),
            latest,
            f"{path} stays until this one has a cost model that holds",
        )
    previous = put_previous_aside(path)
    told = "" if previous is None else f"the profile that was here is kept as {previous}"
    return _new_profile(request, machine), path, told


def _read_back(file: Path) -> Profile:
    try:
        return read_profile(file)
    except UserError as error:
        place = error.what.removeprefix(str(file)).lstrip(", ")
        raise _damaged(file, f"{place}: {error.why}" if place else error.why) from error


def _is_grown(profile: Profile, request: SweepRequest) -> bool:
    """Whether only the time budget differs from the profile's, is larger, and may bring a cost model."""
    asked, given = request.to_record(), dict(profile.request)
    before_s, now_s = given.pop("budget_s", None), asked.pop("budget_s")
    is_larger = isinstance(before_s, int | float) and (now_s is None or now_s > before_s)
    return asked == given and is_larger and profile.usable_cost_model is None


def _reopen(profile: Profile, request: SweepRequest) -> None:
    """Make a profile ready to be planned anew: what was measured stays, but for what ran out of time."""
    profile.request, profile.status = request.to_record(), "incomplete"
    profile.measurements = [each for each in profile.measurements if each.status != "too slow"]
    profile.plan = profile.rates_at_end = profile.chosen = profile.drift = None
    profile.holdout = []


def _check_resumable(profile: Profile, file: Path) -> None:
    """Refuse what a CSV may leave untold and a sweep may not."""
    untold = {"elapsed_s": profile.elapsed_s, "started_at": profile.started_at or None}
    if missing := [name for name, value in untold.items() if value is None]:
        raise _damaged(file, f"{', '.join(missing)} missing")
    for number, measurement in enumerate(profile.measurements, start=1):
        each = measurement.configuration
        absent = [name for name in ("window", "precision") if getattr(each, name) is None]
        if absent:
            raise _damaged(file, f"measurement {number}: {', '.join(absent)} missing")


def _damaged(file: Path, why: str) -> UserError:
    return UserError(
        str(file),
        f"is not a complete profile, so it cannot be resumed: {why}",
        "delete it, or name another --out",
    )


def _new_profile(request: SweepRequest, machine: Mapping[str, Fact]) -> Profile:
    model = request.base.model
    return Profile(
        status="incomplete",
        started_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        elapsed_s=0.0,
        request=request.to_record(),
        identity=identity_of(request.base),
        machine=dict(machine),
        model={
            "preset": request.base.preset,
            **dataclasses.asdict(model),
            "parameters": model.parameters,
            "training_flops_per_byte": training_flops_per_byte(request.base),
        },
    )
