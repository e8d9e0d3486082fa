"""`mlx-amort fit FILE`: the cost model of a profile or of any CSV, with its doubts."""

from __future__ import annotations

import json
from pathlib import Path

import click

from mlx_amort.amounts import percent
from mlx_amort.cli.options import USER_PATH
from mlx_amort.cli.tables import align
from mlx_amort.cost.profile_file import read_profile
from mlx_amort.cost.time.cost_model import CostModel, FittedPoint
from mlx_amort.cost.time.extra_terms import TermTest
from mlx_amort.cost.time.fitting import fit_profile
from mlx_amort.files import make_folder


@click.command()
@click.argument("file", type=USER_PATH)
@click.option("--json", "as_json", is_flag=True, help="Print the cost model as JSON.")
@click.option("--out", type=USER_PATH, help="Also write report.md and pictures here.")
def command(file: Path, as_json: bool, out: Path | None) -> None:
    """Fit step time = c0 + c1 * bytes per step, and say whether it holds.

    FILE is a profile.json, a folder with one, or a CSV with columns batch, chunks, seq, optimizer, step_ms.
    """
    profile = read_profile(file)
    model = profile.cost_model = fit_profile(profile)
    if out is not None:
        # Drawing loads matplotlib, which a fit alone never needs.
        from mlx_amort.cost.report import write_report

        make_folder(out, f"--out {out}")
        write_report(profile, out)
    click.echo(json.dumps(model.to_record(), indent=2) if as_json else describe_cost_model(model))


def describe_cost_model(model: CostModel) -> str:
    """The cost model as the terminal shows it."""
    heading = ["configuration", "bytes per step", "measured s", "fitted s", "error", "left out"]
    parts = [
        model.verdict,
        align(["coefficient", "value", "95 % interval"], _coefficients(model)),
        align(heading, [_point(point) for point in model.points]),
        f"largest error {model.max_relative_error:.2%}, "
        f"largest leave-one-out residual {model.leave_one_out_error:.2%}, "
        f"root mean square of these {model.cross_validated_error:.2%}",
        align(
            ["further term", "error without", "with", ""],
            [_term(term) for term in model.terms],
            text_columns=(0, 3),
        ),
    ]
    if model.kept_out:
        lines = [[other.configuration.label, reason] for other, reason in model.kept_out]
        parts.append(align(["kept out", ""], lines, text_columns=(0, 1)))
    if model.slower_visits:
        parts.append(f"note: {model.describe_visits}")
    parts += [f"note: {warning}" for warning in model.warnings]
    return "\n\n".join(parts)


def _coefficients(model: CostModel) -> list[list[str]]:
    low, high = (bound * 1e6 for bound in model.c1_interval_s_per_byte)
    lines = [["c1", f"{model.c1_s_per_byte * 1e6:.3f} µs/byte", f"{low:.3f} to {high:.3f}"]]
    for name, value in model.c0_s.items():
        low, high = model.c0_interval_s[name]
        lines.append([f"c0 {name}", f"{value:.4f} s", f"{low:.4f} to {high:.4f}"])
    if model.third_cost_interval_s is not None:
        low, high = (bound * 1e3 for bound in model.third_cost_interval_s)
        name = f"per {model.third_unit}"
        lines.append([name, f"{model.third_cost_s * 1e3:.3f} ms", f"{low:.3f} to {high:.3f}"])
    if model.ceiling_bytes_per_s is not None:
        lines.append(["ceiling 1/c1", f"{model.ceiling_bytes_per_s:,.0f} bytes/s", ""])
    return lines


def _point(point: FittedPoint) -> list[str]:
    configuration = point.measurement.configuration
    without = "-" if point.leave_one_out_error is None else percent(point.leave_one_out_error)
    times = [f"{point.measured_s:.4f}", f"{point.predicted_s:.4f}"]
    size = f"{configuration.bytes_per_step:,}"
    return [configuration.label, size, *times, percent(point.relative_error), without]


def _term(term: TermTest) -> list[str]:
    name = term.name if term.beside is None else f"{term.name} beside {term.beside}"
    errors = [f"{term.error_without:.2%}", "-" if term.error_with is None else f"{term.error_with:.2%}"]
    return [name, *errors, term.note or ("asked for" if term.is_asked_for else "not asked for")]
