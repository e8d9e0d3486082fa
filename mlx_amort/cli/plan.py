"""`mlx-amort plan [FILE] --bytes D`: which configuration to run, what is faster, and why that is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import click

from mlx_amort.amounts import format_duration, format_size, parse_memory, parse_size
from mlx_amort.cli.options import USER_PATH
from mlx_amort.cli.tables import align
from mlx_amort.config.values import OptimizerName
from mlx_amort.cost.commands import train_command
from mlx_amort.cost.profile_file import read_profile
from mlx_amort.cost.profile_store import kept_profiles, profiles_folder
from mlx_amort.cost.time.candidates import PUBLISHED_TOKEN_ADVANTAGE, Candidate, PlanRequest
from mlx_amort.cost.time.cost_model import CostModel
from mlx_amort.cost.time.fitting import fit_profile
from mlx_amort.cost.time.planner import NoiseAdvice, Plan, TimeToQuality, plan_run
from mlx_amort.errors import UserError, printable


@click.command()
@click.argument("file", type=USER_PATH, required=False)
@click.option("--bytes", "budget", required=True, help="Bytes to train on, such as 2.006e9 or 2GB.")
@click.option("--min-updates", type=click.IntRange(min=1), help="Least number of optimizer steps.")
@click.option("--noise-scale", help="Gradient noise scale in bytes: weighs updates against speed.")
@click.option("--memory", help="Most peak memory, such as 48GB.")
@click.option("--prefer", help="Choose this optimizer (muon or adamw) whatever the other's time.")
@click.option(
    "--token-advantage",
    type=float,
    default=PUBLISHED_TOKEN_ADVANTAGE,
    show_default=True,
    help="AdamW's bytes over Muon's for one loss; the default was published at 10M, from one seed.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
def command(
    file: Path | None,
    budget: str,
    min_updates: int | None,
    noise_scale: str | None,
    memory: str | None,
    prefer: str | None,
    token_advantage: float,
    as_json: bool,
) -> None:
    """Choose the fastest configuration that still makes enough updates.

    FILE is a profile.json, a folder with one, or a CSV such as `fit` takes; without it the newest profile
    that `profile` left and that has a cost model. Optimizers are compared by time to quality: AdamW's time counts
    --token-advantage times.
    """
    request = PlanRequest(
        budget_bytes=parse_size(budget, "--bytes"),
        min_updates=min_updates,
        noise_scale_bytes=None if noise_scale is None else float(parse_size(noise_scale, "--noise-scale")),
        memory_bytes=None if memory is None else parse_memory(memory, "--memory"),
        prefer=None if prefer is None else prefer.lower(),
        token_advantage=token_advantage,
    )
    if file is None:
        file = newest_profile()
        click.echo(printable(f"profile: {file}"), err=as_json)
    profile = read_profile(file)
    model = fit_profile(profile)
    plan = plan_run(profile.measurements, model, request)
    next_command = train_command(profile, file, model, plan.choice, request.budget_bytes)
    if as_json:
        click.echo(json.dumps({**plan.to_record(), "command": next_command}, indent=2))
    else:
        click.echo(f"{describe_plan(plan, model)}\n\n{_what_next(next_command, plan.choice, model)}")


def _what_next(command: str | None, choice: Candidate, model: CostModel) -> str:
    if command is not None:
        return f"to run it, with --data for your own text:\n  {command}"
    unknown = f"optimizer {choice.configuration.optimizer}"
    if choice.configuration.optimizer in get_args(OptimizerName):
        unknown = f"precision {model.setting.precision}"
    return f"no command to run it: `mlx-amort train` has no {unknown}"


def newest_profile() -> Path:
    """The newest profile with a cost model where `profile` leaves them. Raises: UserError when there is none."""
    for path in kept_profiles():
        try:
            profile = read_profile(path)
            if profile.is_complete and not fit_profile(profile).is_rejected:
                return path
        except UserError:
            continue  # half a file, nothing of ours, or too few measurements
    why = f"no profile with a cost model is in {profiles_folder()}"
    raise UserError("plan", why, "run `mlx-amort profile --grid`, or name a FILE")


def _line(candidate: Candidate) -> list[str]:
    return [
        candidate.configuration.label,
        f"{candidate.configuration.bytes_per_step:,}",
        f"{candidate.steps:,}",
        f"{candidate.bytes_per_s:,.0f}",
        "-" if candidate.ceiling_fraction is None else f"{candidate.ceiling_fraction:.0%}",
        format_duration(3600 * candidate.hours),
        "-" if candidate.peak_bytes is None else format_size(candidate.peak_bytes),
    ]


def _as_time(hours: float) -> str:
    return f"{hours:.1f} hours" if hours >= 1 else format_duration(3600 * hours)


def describe_plan(plan: Plan, model: CostModel) -> str:
    """The plan as the terminal shows it."""
    heading = ["", "bytes per step", "steps", "bytes/s", "ceiling", "time", "peak"]
    choice = plan.choice
    ceiling = ""
    if choice.ceiling_fraction is not None:
        ceiling = f", {choice.ceiling_fraction:.0%} of the ceiling of {model.ceiling_bytes_per_s:,.0f}"
    parts = [
        f"choice: {choice.configuration.label}\n"
        f"  {choice.configuration.bytes_per_step:,} bytes per step, {choice.steps:,} steps "
        f"for {plan.request.budget_bytes:,} bytes\n"
        f"  {choice.step_s:.4g} s per step ({choice.source}), {choice.bytes_per_s:,.0f} bytes/s{ceiling}\n"
        f"  {_as_time(choice.hours)}"
        + ("" if choice.peak_bytes is None else f", peak memory {format_size(choice.peak_bytes)}")
    ]
    if plan.faster:
        lines = [[*_line(candidate), why] for candidate, why in plan.faster]
        parts.append("faster, and why not:\n" + align([*heading, "why not"], lines, text_columns=(0, 7)))
    else:
        parts.append("nothing measured is faster.")
    if plan.next_best is not None:
        parts.append("next best:\n" + align(heading, [_line(plan.next_best)]))
    if plan.worth_measuring:
        lines = [_line(candidate) for candidate in plan.worth_measuring]
        parts.append("predicted to be better, worth measuring:\n" + align(heading, lines))
    if plan.time_to_quality is not None:
        parts.append(_describe_time_to_quality(plan.time_to_quality))
    if plan.noise is not None:
        parts.append(_describe_noise(plan.noise, heading, _why_no_best(plan, model)))
    parts += [f"note: {warning}" for warning in plan.warnings]
    return "\n\n".join(parts)


def _why_no_best(plan: Plan, model: CostModel) -> str:
    if model.is_rejected:
        return "none, the cost model is rejected"
    if not model.predicts(plan.choice.configuration):
        return f"none, the cost model is that of {model.setting.label}"
    return "none, c0 is not positive"


def _describe_noise(noise: NoiseAdvice, heading: list[str], why_none: str) -> str:
    best = [f"{name} {size:,.0f}" for name, size in noise.best_bytes_per_step.items() if size is not None]
    text = (
        f"noise scale {noise.noise_scale_bytes:,.0f} bytes: "
        f"best bytes per step, sqrt(T_crit c0 / c1): {', '.join(best) or why_none}"
    )
    if not noise.around:
        return text
    lines = [[*_line(candidate), candidate.source] for candidate in noise.around]
    return text + "\n" + align(["around it", *heading[1:], "source"], lines, text_columns=(0, 7))


def _describe_time_to_quality(times: TimeToQuality) -> str:
    origin = "the figure published at 10M from one seed" if times.is_published_advantage else "as given"
    muon = f"{times.muon_step_s:.4g} s per step ({times.muon_source})"
    adamw = f"{times.adamw_step_s:.4g} s ({times.adamw_source})"
    ratio = f"muon needs {times.muon_to_adamw:.3f} of adamw's time at this configuration"
    return (
        f"time to equal quality: {ratio}\n"
        f"  {muon} against {adamw}, token advantage {times.token_advantage:g} ({origin})"
    )
