"""`mlx-amort profile`: measures what a step costs on this machine, fits a cost model, and tests it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, get_args

import click

from mlx_amort import command_line
from mlx_amort.amounts import format_duration, format_size, shorten
from mlx_amort.backend import describe_machine
from mlx_amort.cli.fit import describe_cost_model
from mlx_amort.cli.options import USER_PATH, RequestedConfig, config_options
from mlx_amort.config.values import OptimizerName, Precision
from mlx_amort.cost.commands import grid_command
from mlx_amort.cost.measure.grid import Lists
from mlx_amort.cost.measure.request import SweepRequest, configure_first
from mlx_amort.cost.measure.sweep import run_sweep
from mlx_amort.cost.measure.worker_process import ProcessMeasurer, usable_memory_bytes
from mlx_amort.cost.profile import Profile
from mlx_amort.cost.profile_file import FILE_NAME
from mlx_amort.cost.profile_store import default_folder
from mlx_amort.cost.sentences import describe_measurement, describe_outcome
from mlx_amort.errors import UserError, did_you_mean, printable
from mlx_amort.files import make_folder
from mlx_amort.streams import MovingLine

Value = TypeVar("Value")

DEFAULT_PRESET = "veritate_200m"
DEFAULT_STEPS = 5
DEFAULT_GRID_BUDGET = "20m"
_MOST_DIGITS = 12
_LONGEST_BUDGET_S = 366 * 86400.0
_UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
# What a profile does not depend on, or spells as a list.
_WITHOUT = (
    "--data",
    "--chunks",
    "--activation-checkpointing",
    "--lr",
    "--schedule",
    "--steps",
    "--bytes",
    "--seed",
)


@click.command()
@click.option("--grid", "is_grid", is_flag=True, help="Scan batches and chunks around the configuration.")
@click.option("--batches", metavar="B,B,...", help="Rows to measure.")
@click.option("--chunks", metavar="K,K,...", help="Chunks to measure.")
@click.option("--windows", metavar="W,W,...", help="Windows to measure.")
@click.option("--seqs", metavar="S,S,...", help="Sequence lengths to measure.")
@click.option("--optimizers", metavar="NAME,...", help="Optimizers to measure: muon, adamw.")
@click.option("--precisions", metavar="NAME,...", help="Precisions to measure: bf16, fp32, bf16-pure.")
@click.option("--activation-checkpointing", "recomputing", metavar="off,on", help="Blocks recomputed or not.")
@click.option(
    "--steps",
    type=click.IntRange(min=3),
    default=DEFAULT_STEPS,
    show_default=True,
    help="Timed steps of a configuration, at least.",
)
@click.option(
    "--time-budget",
    metavar="10m",
    help=f"Leave out what would take longer. Without it {DEFAULT_GRID_BUDGET} for --grid, else no limit.",
)
@click.option("--out", type=USER_PATH, help="Folder for profile.json, report.md and pictures.")
@click.option("--json", "as_json", is_flag=True, help="Print profile.json.")
@config_options(default_preset=DEFAULT_PRESET, without=_WITHOUT)
def command(
    requested: RequestedConfig,
    is_grid: bool,
    batches: str | None,
    chunks: str | None,
    windows: str | None,
    seqs: str | None,
    optimizers: str | None,
    precisions: str | None,
    recomputing: str | None,
    steps: int,
    time_budget: str | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Measure what an optimizer step costs on this machine, fit a cost model, and test it on what was held out.

    Without --grid and lists it measures the one configuration given. Lists without --grid are measured in
    every combination; with it they replace what the grid scans. A list's first value is the configuration's.
    A sweep that was interrupted is resumed by the same command.
    """
    lists = Lists(
        batches=parse_list("--batches", batches, _count),
        chunks=parse_list("--chunks", chunks, _count),
        windows=parse_list("--windows", windows, _count),
        seqs=parse_list("--seqs", seqs, _count),
        optimizers=parse_list("--optimizers", optimizers, _choice(get_args(OptimizerName))),
        precisions=parse_list("--precisions", precisions, _choice(get_args(Precision))),
        activation_checkpointing=parse_list("--activation-checkpointing", recomputing, _switch),
    )
    config = configure_first(requested.resolve(), lists)
    budget = time_budget or (DEFAULT_GRID_BUDGET if is_grid else None)
    request = SweepRequest(config, lists, is_grid, steps, None if budget is None else parse_duration(budget))
    machine = describe_machine()
    folder = out or default_folder(config, machine)
    make_folder(folder, f"folder {folder}" if out is None else f"--out {out}")
    profile, path = _measure(request, folder, machine)
    from mlx_amort.cost.report import write_report  # loads matplotlib, after the measurements

    # The report of the profile that stays must not be replaced by that of one beside it.
    report = write_report(profile, folder if path.name == FILE_NAME else folder / path.stem)
    click.echo(f"wrote {path} and {report}", err=True)
    click.echo(
        json.dumps(profile.to_record(), indent=1)
        if as_json
        else f"{describe_profile(profile)}\n\n{what_next(profile, path)}"
    )


def _measure(request: SweepRequest, folder: Path, machine: dict[str, Any]) -> tuple[Profile, Path]:
    """Measure what is requested, and tell on stderr how far it is."""
    config, progress = request.base, Terminal()
    memory_bytes = usable_memory_bytes(machine, config.run.memory_limit_bytes)
    progress.line(
        f"profiling {config.preset or config.model.trunk} ({config.model.parameters:,} parameters) on "
        f"{machine['processor']}, {machine['backend']}, {machine['blas']}; "
        f"{format_size(memory_bytes)} may be used"
    )
    if request.budget_s is not None:
        progress.line(f"time budget {format_duration(request.budget_s)}; --time-budget changes it")
    try:
        measurer = ProcessMeasurer(config, request.steps, memory_bytes, machine["backend"])
        return run_sweep(request, folder, machine, measurer, progress)
    except KeyboardInterrupt:
        progress.line(f"interrupted; the same command resumes from what is in {folder}")
        raise


def describe_profile(profile: Profile) -> str:
    """A complete profile as the terminal shows it."""
    parts = ["\n".join(describe_outcome(profile))]
    if profile.cost_model is not None:
        parts.insert(0, describe_cost_model(profile.cost_model))
    else:
        lines = [f"{each.configuration.label}: {describe_measurement(each)}" for each in profile.measurements]
        parts.insert(0, "\n".join(lines))
    return "\n\n".join(parts)


def what_next(profile: Profile, path: Path) -> str:
    """The command that uses a profile, or, without a cost model, the one that measures enough for one."""
    if profile.cost_model is not None:
        return f"next  {command_line.command('plan', path, '--bytes', 'D', '--min-updates', 'U')}"
    return f"next  {grid_command(profile, path)}"


class Terminal:
    """Progress on stderr: lines that stay and, on a terminal, one that says what is being done."""

    def __init__(self) -> None:
        self._line = MovingLine(sys.stderr, plain_every_s=0.0)

    def line(self, text: str) -> None:
        """A line that stays."""
        self._line.stay(printable(text))

    def doing(self, text: str) -> None:
        """A line that the next one replaces; where nothing can be replaced, it stays too."""
        self._line.show(f"{text} ...")


def parse_duration(text: str) -> float:
    """Seconds meant by 90, 90s, 10m, 1.5h. Raises: UserError for anything else."""
    match = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*([a-z]*)", text.strip().lower())
    unit_s = _UNITS_S.get(match.group(2)) if match else None
    seconds = float(match.group(1)) * unit_s if match and unit_s else 0.0
    if not 0 < seconds <= _LONGEST_BUDGET_S:
        raise UserError(
            f"--time-budget {shorten(text)!r}",
            "is not a duration of at most a year",
            "write it as 90s, 10m or 1.5h",
        )
    return seconds


def parse_list(option: str, text: str | None, convert: Callable[[str], Value | None]) -> tuple[Value, ...]:
    """The different values of a comma-separated list, in order. Raises: UserError naming one that is none."""
    values: list[Value] = []
    for part in [] if text is None else text.split(","):
        value = convert(part.strip().lower())
        if value is None:
            known = getattr(convert, "known", ())
            todo = did_you_mean(part.strip(), known) if known else "write whole numbers such as 4,8"
            raise UserError(
                f"{option} {shorten(text)!r}", f"{shorten(part.strip())!r} is not one of its values", todo
            )
        values.append(value)
    return tuple(dict.fromkeys(values))


class _Choice:
    def __init__(self, known: tuple[str, ...]) -> None:
        self.known = known

    def __call__(self, text: str) -> str | None:
        return text if text in self.known else None


class _Switch:
    known = ("off", "on")

    def __call__(self, text: str) -> bool | None:
        return {"off": False, "on": True}.get(text)


_choice, _switch = _Choice, _Switch()


def _count(text: str) -> int | None:
    # More digits than any count has, and than Python reads at all.
    return int(text) if text.isdecimal() and len(text) < _MOST_DIGITS and int(text) > 0 else None
