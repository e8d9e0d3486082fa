"""A profile for people: report.md with its verdict, tables and pictures, from the record in profile.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mlx_amort import plots
from mlx_amort.amounts import format_size, percent
from mlx_amort.cost.configuration import point_of_record
from mlx_amort.cost.memory.profile_estimates import estimates_of
from mlx_amort.cost.profile_file import rows_from_records
from mlx_amort.cost.sentences import describe_findings

Record = Mapping[str, Any]


def write_report(record: Record, folder: Path) -> Path:
    """Write report.md, cost_curve.png, residuals.png and memory.png into a folder; return the report's path.

    record: what profile.json holds. Without a fit (too few rows) the report has the rows alone and says so;
    memory.png needs one measured peak.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows = rows_from_records(record["rows"], "profile")
    pictures = []
    if record.get("fit"):
        plots.cost_curve(record, folder / "cost_curve.png")
        plots.residuals(record, folder / "residuals.png")
        pictures += ["cost_curve.png", "residuals.png"]
    if any(row.peak_bytes is not None for row in rows):
        plots.memory(record, folder / "memory.png", estimates_of(record))
        pictures.append("memory.png")
    path = folder / "report.md"
    path.write_text(report_text(record, pictures), encoding="utf-8")
    return path


def report_text(record: Record, pictures: Sequence[str]) -> str:
    """The text of report.md; pictures are names of files beside it."""
    sections = ["# What a step costs"]
    fit = record.get("fit")
    if fit:
        sections += [
            fit["verdict"],
            *(f"Note: {warning}." for warning in fit["warnings"]),
            _coefficients(fit),
        ]
    else:
        sections.append(f"No fit: {record.get('fit_refused') or 'the rows are too few or too equal'}.")
    if record.get("floors"):
        sections.append("\n".join(f"- {sentence}" for sentence in describe_findings(record)))
    sections += [f"![{name.removesuffix('.png').replace('_', ' ')}]({name})" for name in pictures]
    sections += ["## Measured configurations", _rows(record)]
    if cuts := (record.get("plan") or {}).get("cut"):
        left_out = [f"- {point_of_record(cut).label}: {cut['reason']}" for cut in cuts]
        sections += ["## Left out of the sweep", "\n".join(left_out)]
    if fit:
        sections += ["## Errors of the fit", _errors(fit), "## Further terms", _terms(fit)]
    if record.get("held_out"):
        sections += ["## Held out: predicted first, then measured", _held_out(record["held_out"])]
    phases = [row for row in record["rows"] if row.get("phases")]
    if phases:
        sections += ["## Where a step's time goes", _phases(phases)]
    if record.get("floors"):
        sections += ["## Floors of the machine", _floors(record["floors"]), _products(record["floors"])]
    for key, title in (("machine", "Machine"), ("model", "Model")):
        if record.get(key):
            lines = [[name, _plain(value)] for name, value in record[key].items()]
            sections += [f"## {title}", _table(["", ""], lines)]
    return "\n\n".join(sections) + "\n"


def _table(heading: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = ["---", *("---:" for _ in heading[1:])]
    return "\n".join("| " + " | ".join(line) + " |" for line in [heading, rule, *lines])


def _percent(share: float | None) -> str:
    return "" if share is None else percent(share)


def _coefficients(fit: Record) -> str:
    intervals = fit["intervals"]
    low, high = intervals["c1_us_per_byte"]
    lines = [["c1", f"{fit['c1_us_per_byte']:.4g} µs/byte", f"{low:.4g} to {high:.4g}"]]
    for name, value in fit["c0_s"].items():
        low, high = intervals["c0_s"][name]
        lines.append([f"c0 {name}", f"{value:.4g} s", f"{low:.4g} to {high:.4g}"])
    if fit["third_term"]:
        low, high = (1e3 * bound for bound in fit["third_term"]["interval_s"])
        name = f"per {fit['third_term']['unit']}"
        lines.append([name, f"{1e3 * fit['third_term']['s']:.4g} ms", f"{low:.4g} to {high:.4g}"])
    if fit["ceiling_bytes_per_s"]:
        lines.append(["ceiling 1/c1", f"{fit['ceiling_bytes_per_s']:,.0f} bytes/s", ""])
    lines.append(["largest error", f"{fit['max_relative_error']:.2%}", ""])
    lines.append(["largest error, left out", f"{fit['leave_one_out_error']:.2%}", ""])
    return _table(["coefficient", "value", "95 % interval"], lines)


def _rows(record: Record) -> str:
    ceiling = (record.get("fit") or {}).get("ceiling_bytes_per_s")
    lines = []
    for row in rows_from_records(record["rows"], "profile"):
        cells = [row.label, f"{row.bytes_per_step:,}"]
        if row.step_s is None:
            cells += ["", "", ""]
        else:
            rate = row.bytes_per_step / row.step_s
            cells += [f"{row.step_s:.4g}", f"{rate:,.0f}", f"{rate / ceiling:.0%}" if ceiling else ""]
        peak = "" if row.peak_bytes is None else format_size(row.peak_bytes)
        cells += [peak, "" if row.compile_s is None else f"{row.compile_s:.3g}", row.status]
        lines.append(cells)
    heading = [
        "configuration",
        "bytes a step",
        "step s",
        "bytes/s",
        "of ceiling",
        "peak",
        "compile s",
        "status",
    ]
    return _table(heading, lines)


def _name(row: Record) -> str:
    accum = f"A {row['accum']} " if row.get("accum") not in (None, 1) else ""
    checkpointed = " checkpointed" if row.get("activation_checkpointing") else ""
    return f"{accum}B {row['batch']} K {row['chunks']} S {row['seq']} {row['optimizer']}{checkpointed}"


def _errors(fit: Record) -> str:
    lines = []
    for p in fit["points"]:
        times = [f"{p['measured_s']:.4g}", f"{p['predicted_s']:.4g}"]
        lines.append([_name(p), *times, _percent(p["relative_error"]), _percent(p["leave_one_out_error"])])
    text = _table(["configuration", "measured s", "fitted s", "error", "left out"], lines)
    if slower := [row["slower_by"] for row in fit.get("slower_visits", [])]:
        text += (
            f"\n\nOf configurations visited again the fastest visit is fitted; the {len(slower)} others were "
        )
        text += f"{min(slower):.1%} to {max(slower):.1%} slower."
    if fit["kept_out"]:
        text += "\n\nKept out of the fit:\n\n"
        text += "\n".join(f"- {_name(row)}: {row['reason']}" for row in fit["kept_out"])
    return text


def _terms(fit: Record) -> str:
    lines = []
    for term in fit["terms"]:
        name = term["name"] if term["beside"] is None else f"{term['name']} beside {term['beside']}"
        error_with = "" if term["error_with"] is None else f"{term['error_with']:.2%}"
        answer = term["note"] or ("asked for" if term["is_asked_for"] else "not asked for")
        lines.append([name, f"{term['error_without']:.2%}", error_with, answer])
    return _table(["term", "cross-validated error without", "with", ""], lines)


def _held_out(held_out: Sequence[Record]) -> str:
    lines = []
    for row in held_out:
        measured_s = row.get("measured_s")
        measured = "" if measured_s is None else f"{measured_s:.4g}"
        lines.append([_name(row), f"{row['predicted_s']:.4g}", measured, _percent(row.get("relative_error"))])
    return _table(["configuration", "predicted s", "measured s", "error"], lines)


def _phases(rows: Sequence[Record]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row["phases"]))
    lines = []
    for row in rows:
        parts_s = [row["phases"].get(name) for name in names]
        lines.append([_name(row), *("" if part_s is None else f"{1e3 * part_s:.4g}" for part_s in parts_s)])
    return _table(["configuration", *(f"{name} ms" for name in names)], lines)


def _floors(floors: Record) -> str:
    lines = [["c1", f"{floors['c1_us_per_byte']:.4g} µs/byte"]]
    lines += [[f"c0 {name}", f"{1e3 * c0_s:.4g} ms"] for name, c0_s in floors["c0_s"].items()]
    lines += [
        ["accumulating gradients, a window", f"{1e3 * floors['accumulation_s']:.4g} ms"],
        ["forward", f"{floors['forward_flops_per_byte'] / 1e6:.4g} MFLOP/byte"],
        ["copy bandwidth", f"{floors['copy_bytes_per_s'] / 1e9:.4g} GB/s"],
    ]
    return _table(["floor", "value"], lines)


def _products(floors: Record) -> str:
    lines = [[_plain(name), f"{rate / 1e9:,.4g}"] for name, rate in floors["products"].items()]
    return _table(["product", "GFLOP/s"], lines)


def _plain(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return str(value).lower() if value is not None else ""
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value).replace("|", "\\|").replace("\n", " ")
