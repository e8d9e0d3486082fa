"""Results of a sweep in words, for the terminal and the report."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from mlx_amort.amounts import format_size
from mlx_amort.cost.configuration import Measurement
from mlx_amort.cost.measure.roofline import OPTIMIZERS, Roofline
from mlx_amort.cost.profile import Prediction, Profile
from mlx_amort.cost.time.cost_model import CostModel
from mlx_amort.cost.time.diagnostics import THRESHOLDS, describe_drift


def describe_measurement(measurement: Measurement) -> str:
    """The times of a measurement, or why there are none."""
    if measurement.step_s is None:
        return f"{measurement.status} ({measurement.note})" if measurement.note else measurement.status
    samples_s = measurement.samples_s or (measurement.step_s,)
    spread = f"median of {len(samples_s)}, {min(samples_s):.4g} to {max(samples_s):.4g}"
    peak = "" if measurement.peak_bytes is None else f", peak {format_size(measurement.peak_bytes)}"
    flag = "" if measurement.status == "ok" else f", {measurement.status}"
    rate = measurement.configuration.bytes_per_step / measurement.step_s
    return f"{measurement.step_s:.4g} s ({spread}), {rate:,.0f} bytes/s{peak}{flag}"


def describe_prediction(prediction: Prediction) -> str:
    """A prediction and, once there is one, its measurement."""
    told = f"held out {prediction.configuration.label}: predicted {prediction.predicted_s:.4g} s"
    best, error = prediction.best, prediction.relative_error
    if best is None:
        return told
    if best.step_s is None or error is None:
        return f"{told}, {best.note or best.status}"
    flag = "" if best.status == "ok" else f", {best.status}"
    return f"{told}, measured {best.step_s:.4g} s, error {100 * error:+.1f} %{flag}"


def describe_outcome(profile: Profile) -> list[str]:
    """What a complete sweep found beside measurements and cost model: findings, what was held out, cuts."""
    lines = [*describe_findings(profile), *(describe_prediction(each) for each in profile.holdout)]
    if profile.plan is not None and profile.plan.cuts:
        lines.append(f"left out: {', '.join(cut.configuration.label for cut in profile.plan.cuts)}")
    if profile.cost_model is None:
        lines.append(f"no cost model: {profile.why_no_cost_model}")
    return lines


def describe_findings(profile: Profile) -> list[str]:
    """Sentences on how far the costs are from the roofline, where a step goes, and the anchor's drift."""
    model, roofline = profile.usable_cost_model, profile.roofline
    lines = []
    if roofline is not None:
        lines += describe_roofline(roofline, model)
        lines += describe_phases(profile.measurements, roofline, model.c0_s if model else {})
    drift = profile.drift
    if drift is not None:
        change = (profile.cost_model.drift if profile.cost_model else None) or 0.0
        # A machine that changed explains all that follows.
        place = 0 if change > THRESHOLDS.doubtful_drift else len(lines)
        why = f"; {describe_drift(change)}" if change > THRESHOLDS.doubtful_drift else ""
        lines.insert(
            place,
            f"anchor measured {drift.visits} times: last to first {100 * drift.last_to_first:+.1f} %, "
            f"slowest to fastest {100 * drift.spread:+.1f} %{why}",
        )
    return lines


def describe_roofline(roofline: Roofline, model: CostModel | None) -> list[str]:
    """Each fitted cost beside its roofline, or the roofline alone where nothing was fitted."""
    if model is None:
        least = ", ".join(f"c0 of {name} {c0_s:.3g} s" for name, c0_s in roofline.c0_s.items())
        return [f"roofline: c1 {roofline.c1_us_per_byte:.3g} µs/byte, {least}"]
    lines = [
        f"c1 = {roofline.c1_ratio(model):.1f} × its roofline: {model.c1_s_per_byte * 1e6:.4g} against "
        f"{roofline.c1_us_per_byte:.3g} µs/byte "
        f"({roofline.forward_flops_per_byte / 1e6:.3g} MFLOP per byte forward, "
        f"best product {roofline.best_flops_per_s / 1e9:,.0f} GFLOP/s)"
    ]
    for name, ratio in roofline.c0_ratios(model).items():
        lines.append(
            f"c0 of {name} = {ratio:.1f} × its roofline: {model.c0_s[name]:.3g} "
            f"against {roofline.c0_s[name]:.3g} s (copy {roofline.copy_bytes_per_s / 1e9:.3g} GB/s)"
        )
    return lines


def describe_phases(
    measurements: Sequence[Measurement], roofline: Roofline, c0_s: Mapping[str, float]
) -> list[str]:
    """Where the largest step of each optimizer spends its time; its update beside the fitted c0.

    Accumulation happens inside the compiled window and cannot be timed apart: it is what moving its bytes
    takes at the copy bandwidth, once per window.
    """
    lines = []
    for name in OPTIMIZERS:
        own = [
            (each, each.step_s, each.phases)
            for each in measurements
            if each.configuration.optimizer == name and each.step_s is not None and each.phases
        ]
        if not own:
            continue
        largest, step_s, phases = max(own, key=lambda timed: timed[0].configuration.bytes_per_step)
        parts = ", ".join(f"{part} {seconds / step_s:.1%}" for part, seconds in phases.items())
        share = largest.configuration.windows_per_step * roofline.accumulation_s / step_s
        lines.append(
            f"{largest.configuration.label}: {parts}; of the windows, accumulation about {share:.1%}"
        )
        updates_s = [each.update_s for each, _, _ in own if each.update_s is not None]
        if name in c0_s and updates_s:
            update = f"update timed alone {statistics.median(updates_s):.3g} s"
            lines.append(f"{name}: {update}, fitted c0 {c0_s[name]:.3g} s")
    return lines
