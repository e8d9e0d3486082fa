"""`mlx-amort fit FILE`: the cost model of a profile or of any CSV, with its doubts."""

from __future__ import annotations

import json
from pathlib import Path

import click

from mlx_amort.amounts import percent
from mlx_amort.cli.options import USER_PATH
from mlx_amort.cli.tables import align
from mlx_amort.cost.profile_file import read_record
from mlx_amort.cost.time.cost_model import Fit, fit_record
from mlx_amort.files import make_folder


@click.command()
@click.argument("file", type=USER_PATH)
@click.option("--json", "as_json", is_flag=True, help="Print the fit as JSON.")
@click.option("--out", type=USER_PATH, help="Also write report.md and pictures here.")
def command(file: Path, as_json: bool, out: Path | None) -> None:
    """Fit step time = c0 + c1 * bytes per step, and say whether it holds.

    FILE is a profile.json, a folder with one, or a CSV with columns batch, chunks, seq, optimizer, step_ms.
    """
    record = read_record(file)
    fit = fit_record(record, str(file))
    if out is not None:
        # Drawing loads matplotlib, which a fit alone never needs.
        from mlx_amort.cost.report import write_report

        make_folder(out, f"--out {out}")
        write_report({**record, "fit": fit.to_record()}, out)
    click.echo(json.dumps(fit.to_record(), indent=2) if as_json else describe_fit(fit))


def describe_fit(fit: Fit) -> str:
    """The fit as the terminal shows it."""
    low, high = (bound * 1e6 for bound in fit.c1_interval_s_per_byte)
    laws = [["c1", f"{fit.c1_s_per_byte * 1e6:.3f} µs/byte", f"{low:.3f} to {high:.3f}"]]
    for name, value in fit.c0_s.items():
        low, high = fit.c0_interval_s[name]
        laws.append([f"c0 {name}", f"{value:.4f} s", f"{low:.4f} to {high:.4f}"])
    if fit.third_cost_interval_s is not None:
        low, high = (bound * 1e3 for bound in fit.third_cost_interval_s)
        name = f"per {fit.third_unit}"
        laws.append([name, f"{fit.third_cost_s * 1e3:.3f} ms", f"{low:.3f} to {high:.3f}"])
    if fit.ceiling_bytes_per_s is not None:
        laws.append(["ceiling 1/c1", f"{fit.ceiling_bytes_per_s:,.0f} bytes/s", ""])
    points = []
    for point in fit.points:
        without = "-" if point.leave_one_out_error is None else percent(point.leave_one_out_error)
        measured_s = point.row.step_s or 0.0
        cells = [f"{point.row.bytes_per_step:,}", f"{measured_s:.4f}", f"{point.predicted_s:.4f}"]
        points.append([point.row.label, *cells, percent(point.relative_error), without])
    terms = []
    for term in fit.terms:
        name = term.name if term.beside is None else f"{term.name} beside {term.beside}"
        errors = [f"{term.error_without:.2%}", "-" if term.error_with is None else f"{term.error_with:.2%}"]
        terms.append([name, *errors, term.note or ("asked for" if term.is_asked_for else "not asked for")])
    parts = [
        fit.verdict,
        align(["coefficient", "value", "95 % interval"], laws),
        align(["configuration", "bytes a step", "measured s", "fitted s", "error", "left out"], points),
        f"largest error {fit.max_relative_error:.2%}, left out {fit.leave_one_out_error:.2%}, "
        f"left out (root mean square) {fit.cross_validated_error:.2%}",
        align(["further term", "error without", "with", ""], terms, text_columns=(0, 3)),
    ]
    if fit.kept_out:
        parts.append(
            align(
                ["kept out", ""], [[row.label, reason] for row, reason in fit.kept_out], text_columns=(0, 1)
            )
        )
    if fit.slower_visits:
        parts.append(f"note: {fit.describe_visits}")
    parts += [f"note: {warning}" for warning in fit.warnings]
    return "\n\n".join(parts)
