"""Results of a sweep in words, for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlx_amort.amounts import format_size
from mlx_amort.cost.configuration import point_of_record
from mlx_amort.cost.measure.roofline import describe_floors, describe_phases
from mlx_amort.cost.profile_store import has_law
from mlx_amort.cost.time.diagnostics import LARGEST_DRIFT, describe_drift


def describe_row(row: Mapping[str, Any]) -> str:
    """A row's times, or why there are none."""
    if row["step_s"] is None:
        return f"{row['status']} ({row['note']})" if row.get("note") else str(row["status"])
    samples = row["samples_s"]
    spread = f"median of {len(samples)}, {min(samples):.4g} to {max(samples):.4g}"
    peak = "" if row["peak_bytes"] is None else f", peak {format_size(row['peak_bytes'])}"
    flag = "" if row["status"] == "ok" else f", {row['status']}"
    return (
        f"{row['step_s']:.4g} s ({spread}), {row['bytes_per_step'] / row['step_s']:,.0f} bytes/s{peak}{flag}"
    )


def describe_held_out(entry: Mapping[str, Any]) -> str:
    """A prediction and, once there is one, its measurement."""
    told = f"held out {point_of_record(entry).label}: predicted {entry['predicted_s']:.4g} s"
    if "status" not in entry:
        return told
    if entry["measured_s"] is None:
        return f"{told}, {entry['note'] or entry['status']}"
    flag = "" if entry["status"] == "ok" else f", {entry['status']}"
    return f"{told}, measured {entry['measured_s']:.4g} s, error {100 * entry['relative_error']:+.1f} %{flag}"


def describe_outcome(record: Mapping[str, Any]) -> list[str]:
    """What a complete sweep found beside rows and fit: floors, where a step goes, drift, held out, cuts."""
    lines = [*describe_findings(record), *(describe_held_out(entry) for entry in record["held_out"])]
    cuts = record["plan"]["cut"] if record["plan"] else []
    if cuts:
        lines.append(f"left out: {', '.join(point_of_record(cut).label for cut in cuts)}")
    if record["fit"] is None:
        lines.append(f"no fit: {record['fit_refused']}")
    return lines


def describe_findings(record: Mapping[str, Any]) -> list[str]:
    """Sentences on how far the costs are from their floors, where a step goes, and the anchor's drift."""
    fit = record["fit"] if has_law(record) else None
    lines = describe_floors(record["floors"], fit)
    lines += describe_phases(record["rows"], record["floors"], fit["c0_s"] if fit else {})
    drift = record.get("drift")
    if drift:
        change = (record["fit"] or {}).get("drift") or 0.0
        # A machine that changed explains all that follows.
        place = 0 if change > LARGEST_DRIFT else len(lines)
        why = f"; {describe_drift(change)}" if change > LARGEST_DRIFT else ""
        lines.insert(
            place,
            f"anchor measured {drift['visits']} times: last to first {100 * drift['last_to_first']:+.1f} %, "
            f"slowest to fastest {100 * drift['spread']:+.1f} %{why}",
        )
    return lines
