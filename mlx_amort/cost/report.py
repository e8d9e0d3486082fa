"""A profile for people: report.md with its verdict, tables and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mlx_amort import plots
from mlx_amort.amounts import format_size, percent
from mlx_amort.cost.configuration import Measurement
from mlx_amort.cost.measure.roofline import Roofline
from mlx_amort.cost.memory.profile_estimates import estimates_of
from mlx_amort.cost.profile import Fact, Prediction, Profile
from mlx_amort.cost.sentences import describe_findings
from mlx_amort.cost.time.cost_model import CostModel


def write_report(profile: Profile, folder: Path) -> Path:
    """Write report.md, cost_curve.png, residuals.png and memory.png into a folder; return the report's path.

    Without a cost model (too few measurements) the report has the measurements alone and says so; memory.png
    needs one measured peak.
    """
    folder.mkdir(parents=True, exist_ok=True)
    record = profile.to_record()
    pictures = []
    if profile.cost_model is not None:
        plots.cost_curve(record, folder / "cost_curve.png")
        plots.residuals(record, folder / "residuals.png")
        pictures += ["cost_curve.png", "residuals.png"]
    if any(each.peak_bytes is not None for each in profile.measurements):
        plots.memory(record, folder / "memory.png", estimates_of(profile))
        pictures.append("memory.png")
    path = folder / "report.md"
    path.write_text(report_text(profile, pictures), encoding="utf-8")
    return path


def report_text(profile: Profile, pictures: Sequence[str]) -> str:
    """The text of report.md; pictures are names of files beside it."""
    sections = ["# What a step costs"]
    model = profile.cost_model
    if model is not None:
        sections += [
            model.verdict,
            *(f"Note: {warning}." for warning in model.warnings),
            _coefficients(model),
        ]
    else:
        why = profile.why_no_cost_model or "the measurements are too few or too equal"
        sections.append(f"No cost model: {why}.")
    if findings := describe_findings(profile):
        sections.append("\n".join(f"- {sentence}" for sentence in findings))
    sections += [f"![{name.removesuffix('.png').replace('_', ' ')}]({name})" for name in pictures]
    sections += ["## Measured configurations", _measurements(profile)]
    if profile.plan is not None and profile.plan.cuts:
        left_out = [f"- {cut.configuration.label}: {cut.reason}" for cut in profile.plan.cuts]
        sections += ["## Left out of the sweep", "\n".join(left_out)]
    if model is not None:
        sections += ["## Errors of the cost model", _errors(model), "## Further terms", _terms(model)]
    if profile.holdout:
        sections += ["## Held out: predicted first, then measured", _holdout(profile.holdout)]
    if any(each.phases for each in profile.measurements):
        sections += ["## Where a step's time goes", _phases(profile.measurements)]
    if profile.roofline is not None:
        sections += ["## Roofline of the machine", _roofline(profile.roofline), _products(profile.roofline)]
    for facts, title in ((profile.machine, "Machine"), (profile.model, "Model")):
        if facts:
            lines = [[name, _plain(value)] for name, value in facts.items()]
            sections += [f"## {title}", _table(["", ""], lines)]
    return "\n\n".join(sections) + "\n"


def _table(heading: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = ["---", *("---:" for _ in heading[1:])]
    return "\n".join("| " + " | ".join(line) + " |" for line in [heading, rule, *lines])


def _percent(share: float | None) -> str:
    return "" if share is None else percent(share)


def _coefficients(model: CostModel) -> str:
    low, high = (1e6 * bound for bound in model.c1_interval_s_per_byte)
    lines = [["c1", f"{1e6 * model.c1_s_per_byte:.4g} µs/byte", f"{low:.4g} to {high:.4g}"]]
    for name, value in model.c0_s.items():
        low, high = model.c0_interval_s[name]
        lines.append([f"c0 {name}", f"{value:.4g} s", f"{low:.4g} to {high:.4g}"])
    if model.third_cost_interval_s is not None:
        low, high = (1e3 * bound for bound in model.third_cost_interval_s)
        name = f"per {model.third_unit}"
        lines.append([name, f"{1e3 * model.third_cost_s:.4g} ms", f"{low:.4g} to {high:.4g}"])
    if model.ceiling_bytes_per_s is not None:
        lines.append(["ceiling 1/c1", f"{model.ceiling_bytes_per_s:,.0f} bytes/s", ""])
    lines.append(["largest error", f"{model.max_relative_error:.2%}", ""])
    lines.append(["largest leave-one-out residual", f"{model.leave_one_out_error:.2%}", ""])
    return _table(["coefficient", "value", "95 % interval"], lines)


def _measurements(profile: Profile) -> str:
    model = profile.cost_model
    lines = []
    for each in profile.measurements:
        ceiling = model.ceiling_bytes_per_s if model and model.predicts(each.configuration) else None
        size = each.configuration.bytes_per_step
        cells = [each.configuration.label, f"{size:,}"]
        if each.step_s is None:
            cells += ["", "", ""]
        else:
            rate = size / each.step_s
            cells += [f"{each.step_s:.4g}", f"{rate:,.0f}", f"{rate / ceiling:.0%}" if ceiling else ""]
        peak = "" if each.peak_bytes is None else format_size(each.peak_bytes)
        cells += [peak, "" if each.compile_s is None else f"{each.compile_s:.3g}", each.status]
        lines.append(cells)
    names = ["bytes per step", "step s", "bytes/s", "of ceiling", "peak", "compile s", "status"]
    return _table(["configuration", *names], lines)


def _errors(model: CostModel) -> str:
    lines = []
    for point in model.points:
        times = [f"{point.measured_s:.4g}", f"{point.predicted_s:.4g}"]
        errors = [_percent(point.relative_error), _percent(point.leave_one_out_error)]
        lines.append([point.measurement.configuration.label, *times, *errors])
    text = _table(["configuration", "measured s", "fitted s", "error", "left out"], lines)
    if slower := [excess for _, excess in model.slower_visits]:
        text += (
            f"\n\nOf a configuration measured several times the fastest visit is fitted; the {len(slower)} "
            f"others were {min(slower):.1%} to {max(slower):.1%} slower."
        )
    if model.kept_out:
        text += "\n\nKept out of the fit:\n\n"
        text += "\n".join(f"- {other.configuration.label}: {reason}" for other, reason in model.kept_out)
    return text


def _terms(model: CostModel) -> str:
    lines = []
    for term in model.terms:
        name = term.name if term.beside is None else f"{term.name} beside {term.beside}"
        error_with = "" if term.error_with is None else f"{term.error_with:.2%}"
        answer = term.note or ("asked for" if term.is_asked_for else "not asked for")
        lines.append([name, f"{term.error_without:.2%}", error_with, answer])
    return _table(["term", "cross-validated error without", "with", ""], lines)


def _holdout(holdout: Sequence[Prediction]) -> str:
    lines = []
    for each in holdout:
        measured_s = None if each.best is None else each.best.step_s
        measured = "" if measured_s is None else f"{measured_s:.4g}"
        cells = [each.configuration.label, f"{each.predicted_s:.4g}", measured]
        lines.append([*cells, _percent(each.relative_error)])
    return _table(["configuration", "predicted s", "measured s", "error"], lines)


def _phases(measurements: Sequence[Measurement]) -> str:
    timed = [(each.configuration.label, each.phases) for each in measurements if each.phases]
    names = list(dict.fromkeys(name for _, phases in timed for name in phases))
    lines = []
    for label, phases in timed:
        parts_s = [phases.get(name) for name in names]
        lines.append([label, *("" if part_s is None else f"{1e3 * part_s:.4g}" for part_s in parts_s)])
    return _table(["configuration", *(f"{name} ms" for name in names)], lines)


def _roofline(roofline: Roofline) -> str:
    lines = [["c1", f"{roofline.c1_us_per_byte:.4g} µs/byte"]]
    lines += [[f"c0 {name}", f"{1e3 * c0_s:.4g} ms"] for name, c0_s in roofline.c0_s.items()]
    lines += [
        ["accumulating gradients, per window", f"{1e3 * roofline.accumulation_s:.4g} ms"],
        ["forward", f"{roofline.forward_flops_per_byte / 1e6:.4g} MFLOP/byte"],
        ["copy bandwidth", f"{roofline.copy_bytes_per_s / 1e9:.4g} GB/s"],
    ]
    return _table(["roofline", "value"], lines)


def _products(roofline: Roofline) -> str:
    lines = [[_plain(name), f"{rate / 1e9:,.4g}"] for name, rate in roofline.products.items()]
    return _table(["product", "GFLOP/s"], lines)


def _plain(value: Fact) -> str:
    if isinstance(value, bool) or value is None:
        return str(value).lower() if value is not None else ""
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value).replace("|", "\\|").replace("\n", " ")
