"""What the figures of a profile read from its record, as `Profile.to_record` makes it of profile.json or a CSV.

Here alone keys of a record are named; the figures draw the dataclasses below. Times are in seconds, memory in bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlx_amort.plots.figure import BLUE, PURPLE, RED, describe_origin

Record = Mapping[str, Any]

_OPTIMIZER_COLOURS = {"muon": BLUE, "adamw": RED}
_KEYS = ("batch", "chunks", "seq", "accum", "window", "optimizer", "precision", "activation_checkpointing")


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
    """Micro-batches (where more than one), rows and chunks of a configuration."""
    accum = "" if row["accum"] == 1 else f"A {row['accum']} "
    return f"{accum}B {row['batch']} K {row['chunks']}"


def key_of(row: Record) -> tuple[Any, ...]:
    """All that makes a configuration."""
    return tuple(row[name] for name in _KEYS)


def measured_s_of(row: Record) -> float | None:
    """Seconds per step of a point or a measurement, None where it has none."""
    measured_s: float | None = row.get("measured_s") or row.get("step_s")
    return measured_s


def fitted_model_of(record: Record) -> FittedModel:
    """The cost model of a profile's record."""
    model = record["cost_model"]
    intervals, third = model["intervals"], model["third_term"]
    unit = third["unit"] if third else None
    return FittedModel(
        points=tuple(
            _cost_point(
                point,
                predicted_s=point["predicted_s"],
                left_out_error=point["leave_one_out_error"],
                units=point[f"{unit}s_per_step"] if unit else 0,
            )
            for point in model["points"]
        ),
        c0_s={
            name: _coefficient(value, intervals["c0_s"].get(name)) for name, value in model["c0_s"].items()
        },
        c1_s_per_byte=_coefficient(model["c1_us_per_byte"], intervals["c1_us_per_byte"], 1e-6),
        unit=unit,
        unit_s=_coefficient(third["s"], third["interval_s"]) if third else Coefficient(0.0, None),
        confidence=model["confidence"],
        is_rejected=model["form"] == "rejected",
        is_doubtful=bool(model["is_doubtful"]),
        ceiling_bytes_per_s=model["ceiling_bytes_per_s"],
        largest_error=model["max_relative_error"],
        left_out_error=model["leave_one_out_error"],
    )


def held_out_of(record: Record) -> list[CostPoint]:
    """What was predicted first and then measured."""
    rows = [row for row in record["holdout"] if row["measured_s"]]
    return [_cost_point(row, predicted_s=row["predicted_s"]) for row in rows]


def not_fitted_of(record: Record) -> list[CostPoint]:
    """Rows of another setting than the fitted one; rows without a usable time are not among them."""
    kept_out = {key_of(row) for row in record["cost_model"]["kept_out"] if "status" not in row["reason"]}
    return [
        _cost_point(row) for row in record["measurements"] if key_of(row) in kept_out and measured_s_of(row)
    ]


def slower_visits_of(record: Record) -> list[CostPoint]:
    """Visits to fitted configurations that another visit was faster than."""
    return [_cost_point(row) for row in record["cost_model"]["slower_visits"]]


def chosen_of(record: Record) -> CostPoint | None:
    """The configuration that the profile recommends, with its measured time or else the predicted one."""
    chosen = record.get("chosen")
    if not chosen:
        return None
    match = [point for point in record["cost_model"]["points"] if key_of(point) == key_of(chosen)]
    row = match[0] if match else chosen
    return _cost_point({**chosen, "measured_s": measured_s_of(row)}) if measured_s_of(row) else None


def peaks_of(record: Record, estimates: Sequence[float | None] = ()) -> list[Peak]:
    """What has a peak or did not fit; estimates: bytes by the estimate, one for each of the record's measurements."""
    found = []
    for index, row in enumerate(record["measurements"]):
        if row["peak_bytes"] is None and row["status"] != "did not fit":
            continue
        kind = f"{row['optimizer']}{', checkpointed' if row['activation_checkpointing'] else ''}"
        estimated_bytes = estimates[index] if estimates else None
        found.append(Peak(row["batch"], row["chunks"], row["seq"], kind, row["peak_bytes"], estimated_bytes))
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


def _cost_point(
    row: Record, predicted_s: float | None = None, left_out_error: float | None = None, units: int = 0
) -> CostPoint:
    name, optimizer, measured_s = short_name(row), row["optimizer"], measured_s_of(row)
    assert measured_s is not None
    return CostPoint(name, optimizer, row["bytes_per_step"], measured_s, predicted_s, left_out_error, units)


def _coefficient(value: float, interval: Sequence[float] | None, unit: float = 1.0) -> Coefficient:
    low, high = interval or (float("-inf"), float("inf"))
    is_finite = abs(high - low) < float("inf")
    return Coefficient(value * unit, (high - low) / 2 * unit if is_finite else None)
