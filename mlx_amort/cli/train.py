"""`mlx-amort train`: train a byte language model, or go on with a run that stopped."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import click

from mlx_amort.cli.options import RequestedConfig, config_options
from mlx_amort.errors import UserError

DEFAULT_PRESET = "demo"


@click.command()
@config_options(default_preset=DEFAULT_PRESET)
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder of the run. Without one: runs/PRESET-TIME."
)
@click.option("--resume", type=click.Path(path_type=Path), help="Go on with the run in this folder.")
@click.option(
    "--stop-after", type=click.IntRange(1), metavar="STEP", help="Stop and save once this step is done."
)
@click.option("--save-every", metavar="STEPS", help="Save a checkpoint every so many steps, and at the end.")
@click.option("--eval-every", metavar="STEPS", help="Validate every so many steps, and at the end.")
@click.option("--quiet", is_flag=True, help="Print only the summary.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print the summary as JSON, progress to standard error."
)
def command(
    requested: RequestedConfig,
    out: Path | None,
    resume: Path | None,
    stop_after: int | None,
    save_every: str | None,
    eval_every: str | None,
    quiet: bool,
    as_json: bool,
) -> int:
    """Train a byte language model, or go on with a run (--resume).

    A resumed run has its own configuration; flags change only what they name, and what would make it another
    run is refused. Ctrl-C finishes the step, saves and exits 130.
    """
    if out is not None and resume is not None:
        raise UserError("--out and --resume", "a resumed run stays in its folder", "give only one of them")
    requested = _with(requested, {"run.save_every": save_every, "run.eval_every": eval_every})

    # mlx is loaded here, and not for --help; everything from here on ends in good order at a signal.
    from mlx_amort.backend import set_cpu_cache_limit
    from mlx_amort.train.console import Console, divergence
    from mlx_amort.train.interrupt import Interrupt
    from mlx_amort.train.loop import train
    from mlx_amort.train.opening import new_run, resumed_run

    with Interrupt() as interrupt:
        set_cpu_cache_limit()
        if resume is not None:
            run = resumed_run(resume, requested.resolve, sys.argv)
        else:
            run = new_run(requested.resolve(), out, sys.argv)
        if stop_after is not None and stop_after <= run.state.step:
            why = f"the run is already at step {run.state.step}"
            raise UserError(f"--stop-after {stop_after}", why, "name a later step")
        progress = sys.stderr if as_json else sys.stdout
        console = Console(progress, sys.stdout, is_quiet=quiet, as_json=as_json)
        if resume is None and requested.preset is None and requested.file is None:
            console.say(f"preset      {DEFAULT_PRESET} is the default; --preset names another")
        summary = train(run, console, interrupt, stop_after)
        console.summary(summary)
    if summary.ending == "diverged":
        print(f"error: {divergence(summary)}", file=sys.stderr)
    return summary.exit_code


def _with(requested: RequestedConfig, given: dict[str, str | None]) -> RequestedConfig:
    set_keys = {override.partition("=")[0].strip() for override in requested.overrides}
    for key, value in given.items():
        if value is not None and key in set_keys:
            raise UserError(key, "given twice, by its flag and by --set", "give it once")
    added = tuple(f"{key}={value}" for key, value in given.items() if value is not None)
    return dataclasses.replace(requested, overrides=(*requested.overrides, *added))
