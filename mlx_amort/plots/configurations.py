"""What the figures of a profile read from its record, whether that comes from profile.json or a CSV.

Here alone keys of a record are named; the figures draw the dataclasses below. Times are in seconds, memory in bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlx_amort.plots.figure import BLUE, PURPLE, RED, describe_origin

Record = Mapping[str, Any]

_OPTIMIZER_COLOURS = {"muon": BLUE, "adamw": RED}


@dataclass(frozen=True)
class CostPoint:
    """A measured configuration; predicted_s, its error and units (of the third term) where it was fitted."""

    name: str
    optimizer: str
    bytes_per_step: int
    measured_s: float
    predicted_s: float | None = None
    left_out_error: float | None = None
    units: int = 0

    @property
    def relative_error(self) -> float | None:
        """(predicted - measured) / measured."""
        return None if self.predicted_s is None else self.predicted_s / self.measured_s - 1.0


@dataclass(frozen=True)
class Coefficient:
    """A fitted value and half the width of its interval; None where the record has none that is finite."""

    value: float
    half_width: float | None


@dataclass(frozen=True)
class FittedModel:
    """t = c0 of the optimizer + c1 · T + a third term per `unit` (chunk or window), where that was asked for."""

    points: tuple[CostPoint, ...]
    c0_s: dict[str, Coefficient]
    c1_s_per_byte: Coefficient
    unit: str | None
    unit_s: Coefficient
    confidence: float
    is_rejected: bool
    is_doubtful: bool
    ceiling_bytes_per_s: float | None
    largest_error: float
    left_out_error: float


@dataclass(frozen=True)
class Peak:
    """The peak memory of a configuration; measured_bytes: None where it did not fit, estimated_bytes: where unknown."""

    batch: int
    chunks: int
    seq: int
    kind: str
    measured_bytes: float | None
    estimated_bytes: float | None


def colour_of(optimizer: str) -> str:
    """An optimizer's colour in every figure."""
    return _OPTIMIZER_COLOURS.get(optimizer, PURPLE)


def short_name(row: Record) -> str:
    """Micro-batches (where more than one), rows and chunks of a row."""
    accum = f"A {row['accum']} " if row.get("accum", 1) not in (None, 1) else ""
    return f"{accum}B {row['batch']} K {row['chunks']}"


def is_checkpointed(row: Record) -> bool:
    """Whether a row was measured with activation checkpointing."""
    value = row.get("activation_checkpointing", row.get("checkpoint", False))
    return str(value).lower() in ("true", "yes", "on", "1")


def key_of(row: Record) -> tuple[Any, ...]:
    """All that makes a row's configuration; a CSV has texts, and may leave window and precision out."""
    counts = (int(row[name]) for name in ("batch", "chunks", "seq"))
    window, precision = int(row.get("window") or 0), str(row.get("precision") or "").strip()
    optimizer = str(row["optimizer"]).strip().lower()
    return (*counts, int(row.get("accum") or 1), window, optimizer, precision, is_checkpointed(row))


def bytes_per_step_of(row: Record) -> int:
    """T = A · B · K · S."""
    batch, chunks, seq, accum, *_ = key_of(row)
    return int(batch * chunks * seq * accum)


def measured_s_of(row: Record) -> float | None:
    """Seconds per step of a row, None where it has none."""
    for key, unit_s in (("measured_s", 1.0), ("step_s", 1.0), ("step_ms", 1e-3)):
        if row.get(key) not in (None, ""):
            return float(row[key]) * unit_s
    return None


def peak_bytes_of(row: Record) -> float | None:
    """Peak memory of a row, None where it has none."""
    if row.get("peak_bytes") not in (None, ""):
        return float(row["peak_bytes"])
    return float(row["memory_gb"]) * 1e9 if row.get("memory_gb") not in (None, "") else None


def fitted_model_of(record: Record) -> FittedModel:
    """The fit of a profile's record."""
    fit = _fit_of(record)
    intervals, third = fit["intervals"], fit["third_term"]
    unit = third["unit"] if third else None
    return FittedModel(
        points=tuple(
            _cost_point(
                point,
                predicted_s=point["predicted_s"],
                left_out_error=point["leave_one_out_error"],
                units=point[f"{unit}s_per_step"] if unit else 0,
            )
            for point in fit["points"]
        ),
        c0_s={name: _coefficient(value, intervals["c0_s"].get(name)) for name, value in fit["c0_s"].items()},
        c1_s_per_byte=_coefficient(fit["c1_us_per_byte"], intervals["c1_us_per_byte"], 1e-6),
        unit=unit,
        unit_s=_coefficient(third["s"], third["interval_s"]) if third else Coefficient(0.0, None),
        confidence=fit["confidence"],
        is_rejected=(fit.get("form") or fit["law"]) == "rejected",
        is_doubtful=bool(fit["is_doubtful"]),
        ceiling_bytes_per_s=fit["ceiling_bytes_per_s"],
        largest_error=fit["max_relative_error"],
        left_out_error=fit["leave_one_out_error"],
    )


def held_out_of(record: Record) -> list[CostPoint]:
    """What was predicted first and then measured."""
    rows = [row for row in record.get("holdout") or record.get("held_out") or [] if row.get("measured_s")]
    return [_cost_point(row, predicted_s=row["predicted_s"]) for row in rows]


def not_fitted_of(record: Record) -> list[CostPoint]:
    """Rows of another setting than the fitted one; rows without a usable time are no part of them."""
    kept_out = {key_of(row) for row in _fit_of(record)["kept_out"] if "status" not in row["reason"]}
    return [_cost_point(row) for row in _rows_of(record) if key_of(row) in kept_out and measured_s_of(row)]


def slower_visits_of(record: Record) -> list[CostPoint]:
    """Visits to fitted configurations that another visit was faster than."""
    return [_cost_point(row) for row in _fit_of(record).get("slower_visits", [])]


def chosen_of(record: Record) -> CostPoint | None:
    """The configuration that the profile recommends, with its measured time or else the predicted one."""
    chosen = record.get("chosen")
    if not chosen:
        return None
    match = [point for point in _fit_of(record)["points"] if key_of(point) == key_of(chosen)]
    row = match[0] if match else chosen
    return _cost_point({**chosen, "measured_s": measured_s_of(row)}) if measured_s_of(row) else None


def peaks_of(record: Record, estimates: Sequence[float | None] = ()) -> list[Peak]:
    """The rows that have a peak or did not fit; estimates: bytes by the estimate, one for each of the record's rows."""
    found = []
    for index, row in enumerate(_rows_of(record)):
        measured_bytes = peak_bytes_of(row)
        if measured_bytes is None and "not fit" not in str(row.get("status", "")):
            continue
        kind = f"{str(row['optimizer']).strip().lower()}{', checkpointed' if is_checkpointed(row) else ''}"
        batch, chunks, seq = (int(row[name]) for name in ("batch", "chunks", "seq"))
        found.append(Peak(batch, chunks, seq, kind, measured_bytes, estimates[index] if estimates else None))
    return found


def origin_of(record: Record) -> str:
    """What was measured, and on what machine; empty for a CSV."""
    model, machine = record.get("model") or {}, record.get("machine") or {}
    preset = str(model.get("preset") or "")
    if preset and model.get("parameters"):
        preset += f", {model['parameters']:,} parameters"
    processor = str(machine.get("device_name") or machine.get("processor") or "")
    if processor and machine.get("cores"):
        processor += f", {machine['cores']} cores"
    backend = f", {machine['backend']}" if machine.get("backend") else ""
    return describe_origin(preset, f"{processor}{backend}")


def _fit_of(record: Record) -> Record:
    fit: Record = record.get("cost_model") or record["fit"]
    return fit


def _rows_of(record: Record) -> Sequence[Record]:
    rows: Sequence[Record] = record.get("measurements") or record["rows"]
    return rows


def _cost_point(
    row: Record, predicted_s: float | None = None, left_out_error: float | None = None, units: int = 0
) -> CostPoint:
    optimizer, measured_s = str(row["optimizer"]).strip().lower(), measured_s_of(row)
    assert measured_s is not None
    return CostPoint(
        short_name(row), optimizer, bytes_per_step_of(row), measured_s, predicted_s, left_out_error, units
    )


def _coefficient(value: float, interval: Sequence[float] | None, unit: float = 1.0) -> Coefficient:
    low, high = interval or (float("-inf"), float("inf"))
    is_finite = abs(high - low) < float("inf")
    return Coefficient(value * unit, (high - low) / 2 * unit if is_finite else None)
