"""What a run's steps will take, from a profile or from its own first steps, and whether they do; no mlx."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlx_amort.config import Config
from mlx_amort.errors import UserError
from mlx_amort.profiler.fit import Fit, fit_rows
from mlx_amort.profiler.points import point_of
from mlx_amort.profiler.rows import Row, read_record, rows_from_records
from mlx_amort.profiler.store import FILE_NAME, identity_of, is_profile_of, profiles_folder

# Beyond this the machine is not as it was when it was profiled: another program on it, or heat.
LARGEST_DEVIATION = 0.05


@dataclass(frozen=True)
class Forecast:
    """The step time of one configuration.

    Units: step_s, c0_s, chunk_cost_s in seconds, c1_s_per_byte in seconds a byte. `source`: the file, or "the
    run's own first N steps", in which case the costs and the ceiling are None. is_extrapolated: the bytes a
    step lie outside those that were measured.
    """

    step_s: float
    bytes_per_step: int
    source: str
    ceiling_bytes_per_s: float | None = None
    c0_s: float | None = None
    c1_s_per_byte: float | None = None
    chunk_cost_s: float | None = None
    is_extrapolated: bool = False

    @property
    def bytes_per_s(self) -> float:
        return self.bytes_per_step / self.step_s

    @property
    def ceiling_fraction(self) -> float | None:
        """The rate's share of 1 / c1."""
        return None if self.ceiling_bytes_per_s is None else self.bytes_per_s / self.ceiling_bytes_per_s

    def run_s(self, steps: int) -> float:
        """What `steps` steps take."""
        return steps * self.step_s

    def deviation(self, measured_s: float) -> float:
        """measured / predicted - 1."""
        return measured_s / self.step_s - 1

    def watch(self, median_step_s: float) -> str | None:
        """A warning when the running median is more than 5 % off the prediction, else None."""
        deviation = self.deviation(median_step_s)
        if abs(deviation) <= LARGEST_DEVIATION:
            return None
        if deviation < 0:
            why = "the profile was measured on a slower or busier machine; profile again"
        else:
            why = "another program on the machine, or heat"
        return (
            f"steps take {median_step_s:.4g} s, {abs(deviation):.0%} {'more' if deviation > 0 else 'less'} "
            f"than the {self.step_s:.4g} s predicted: {why}"
        )

    def summary(self, measured_s: float) -> str:
        """predicted 6.96 s, measured 6.95 s (-0.1 %)."""
        deviation = 100 * self.deviation(measured_s)
        return f"predicted {self.step_s:.4g} s, measured {measured_s:.4g} s ({deviation:+.1f} %)"


def find_profile(config: Config, machine: Mapping[str, Any]) -> Path | None:
    """The newest profile in the cache folder that can forecast this configuration on this machine."""
    found = []
    for path in profiles_folder().glob(f"*/{FILE_NAME}"):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue  # half a file of a sweep that is starting, or nothing of ours
        if isinstance(record, dict) and is_profile_of(record, config, machine):
            try:
                forecast_from_profile(path, config)
            except UserError:
                continue
            found.append(path)
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def forecast_from_profile(path: Path, config: Config) -> Forecast:
    """The step time that a profile's fit predicts for `config`, whether or not that was measured.

    Raises: UserError, naming what differs, when the profile is of another model, sequence, precision, window
    or optimizer, or its law was rejected.
    """
    record = read_record(path)
    _refuse_another_model(record, config, path)
    fit = fit_rows(rows_from_records(record["rows"], str(path)))
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
    difference = fit.setting.differs(row)
    if difference is not None:
        raise UserError(str(path), f"cannot forecast this run: {difference}", "profile this configuration")
    if fit.is_rejected:
        raise UserError(str(path), "its law was rejected", "profile again on an idle machine")
    return _forecast(fit, row, str(path))


def forecast_from_steps(samples_s: Sequence[float], bytes_per_step: int) -> Forecast:
    """A forecast without a profile: the median of a run's own first steps, without the one that compiles."""
    source = f"the run's own first {len(samples_s)} steps"
    return Forecast(statistics.median(samples_s), bytes_per_step, source)


def _forecast(fit: Fit, row: Row, source: str) -> Forecast:
    sizes = [point.row.bytes_per_step for point in fit.points]
    return Forecast(
        step_s=fit.predict_s(row.optimizer, row.bytes_per_step, row.chunks_per_step),
        bytes_per_step=row.bytes_per_step,
        source=source,
        ceiling_bytes_per_s=fit.ceiling_bytes_per_s,
        c0_s=fit.c0_s[row.optimizer],
        c1_s_per_byte=fit.c1_s_per_byte,
        chunk_cost_s=fit.chunk_cost_s,
        is_extrapolated=not min(sizes) <= row.bytes_per_step <= max(sizes),
    )


def _refuse_another_model(record: Mapping[str, Any], config: Config, path: Path) -> None:
    theirs, ours = record.get("identity"), identity_of(config)
    if not isinstance(theirs, dict):
        raise UserError(
            str(path), "does not say which model it measured", "write one with `mlx-amort profile`"
        )
    keys = [key for key in ours if theirs.get(key) != ours[key]]
    if keys:
        differing = ", ".join(f"{key} {theirs.get(key)} and not {ours[key]}" for key in keys)
        raise UserError(str(path), f"is the profile of another model: {differing}", "profile this one")
