"""`mlx-amort train`: train a byte language model, or resume a run."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlx_amort.amounts import parse_memory
from mlx_amort.cli.options import USER_PATH, RequestedConfig, config_options
from mlx_amort.cli.progress import ProgressLine
from mlx_amort.config.presets import DEFAULT_PRESET
from mlx_amort.config.values import Config
from mlx_amort.cost.memory.budget import budget_bytes, check_data, check_fits
from mlx_amort.cost.memory.estimate import estimate
from mlx_amort.cost.time.forecast import forecast_of
from mlx_amort.errors import UserError, advice, printable, user_error_of
from mlx_amort.streams import write
from mlx_amort.train.interrupt import Interrupt

if TYPE_CHECKING:
    from mlx_amort.train.run import Run
    from mlx_amort.train.summary import Summary


@click.command()
@config_options(default_preset=DEFAULT_PRESET)
@click.option("--out", type=USER_PATH, help="Folder of the run. Without one: runs/PRESET-TIME.")
@click.option("--resume", type=USER_PATH, help="Resume the run in this folder.")
@click.option(
    "--stop-after", type=click.IntRange(1), metavar="STEP", help="Stop and save once this step is done."
)
@click.option("--save-every", metavar="STEPS", help="Save a checkpoint every so many steps, and at the end.")
@click.option("--eval-every", metavar="STEPS", help="Validate every so many steps, and at the end.")
@click.option(
    "--profile",
    type=USER_PATH,
    metavar="FILE",
    help="Forecast from this profile.json or folder. Without one: from what `mlx-amort profile` left.",
)
@click.option(
    "--memory-limit", metavar="48GB", help="Most memory a step may use. Without one: what the machine has."
)
@click.option("--force", is_flag=True, help="Go ahead although a step is estimated to need more.")
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
    profile: Path | None,
    memory_limit: str | None,
    force: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Train a byte language model, or resume a run (--resume).

    A resumed run has its own configuration; flags change only what they name, and what would make it another
    run is refused. Ctrl-C finishes the step, saves and exits 130.
    """
    if out is not None and resume is not None:
        raise UserError("--out and --resume", "a resumed run stays in its folder", "give only one of them")
    limit = None if memory_limit is None else str(parse_memory(memory_limit, "--memory-limit"))
    given = {"run.save_every": save_every, "run.eval_every": eval_every, "run.memory_limit_bytes": limit}
    requested = _with(requested, given)

    # mlx is loaded here, and not for --help; everything from here on ends in good order at a signal.
    from mlx_amort.backend import describe_machine, set_cpu_cache_limit, wired_working_set
    from mlx_amort.train.console import Console
    from mlx_amort.train.pace import Pace
    from mlx_amort.train.resume import saved_config
    from mlx_amort.train.session import train_run
    from mlx_amort.train.summary_lines import divergence

    with Interrupt() as interrupt:
        set_cpu_cache_limit()
        # Before the run has a folder: what is refused leaves nothing behind.
        config = requested.resolve(None if resume is None else saved_config(resume))
        machine = describe_machine()
        if not force:
            _check_memory(config, machine)
        pace = Pace(*forecast_of(profile, config, machine))
        try:
            run = _open_run(requested, config, out, resume, stop_after, interrupt)
        except KeyboardInterrupt:
            # Nothing was begun, so there is nothing to save.
            return interrupt.exit_code
        progress = sys.stderr if as_json else sys.stdout
        console = Console(progress, sys.stdout, is_quiet=quiet, as_json=as_json)
        for line in _assumed(requested, config) if resume is None else _resumed(run):
            console.say(line)
        with wired_working_set(), _disk_errors_reported(run.folder.path):
            summary = train_run(run, console, interrupt, stop_after, pace)
        console.summary(_with_memory(summary, run))
    if summary.ending == "diverged":
        write(sys.stderr, f"error: {printable(divergence(summary))}\n")
    return summary.exit_code


def _open_run(
    requested: RequestedConfig,
    config: Config,
    out: Path | None,
    resume: Path | None,
    stop_after: int | None,
    interrupt: Interrupt,
) -> Run:
    """The run, new or resumed. Raises: UserError; KeyboardInterrupt when a signal has come first."""
    from mlx_amort.train.resume import nothing_left, resumed_run
    from mlx_amort.train.run import new_run

    checking = _Checking(interrupt)
    try:
        if resume is None:
            return new_run(config, out, sys.argv, checking)
        run = resumed_run(resume, requested.resolve, sys.argv, checking, stop_after)
    finally:
        checking.close()
    is_over = run.state.step >= run.config.total_steps and not run.changed
    if is_over and requested.gives_anything:
        raise nothing_left(resume, run.state.step)
    return run


def _assumed(requested: RequestedConfig, config: Config) -> Iterator[str]:
    """What a new run takes because nothing else was named."""
    if requested.preset is None and requested.file is None:
        yield f"preset      {DEFAULT_PRESET} is the default; --preset names another"
    if not requested.gives("data.sources"):
        names = ", ".join(source.path for source in config.data.sources)
        yield f"corpus      {names} is the default; --data names your own"


def _resumed(run: Run) -> Iterator[str]:
    if run.resumed_from is None:
        yield "resumed     from the beginning: the run ended before its first checkpoint"


@contextmanager
def _disk_errors_reported(run_folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reported = _ended_by_disk(error, run_folder)
        if reported is None:
            raise
        raise reported from error


def _check_memory(config: Config, machine: dict[str, Any]) -> None:
    limit = config.run.memory_limit_bytes
    budget = budget_bytes(machine, limit)
    check_data(config, budget)
    check_fits(config, budget, machine["backend"], is_given=limit is not None)


def _with_memory(summary: Summary, run: Run) -> Summary:
    """`summary` with the estimate beside the peak of this session's steps, and MLX's cache."""
    import mlx.core as mx

    memory = dataclasses.replace(
        summary.memory,
        estimated_peak_bytes=estimate(run.config, run.machine["backend"]).peak_bytes,
        cache_bytes=mx.get_cache_memory(),
    )
    return dataclasses.replace(summary, memory=memory)


def _ended_by_disk(error: OSError, run_folder: Path) -> UserError | None:
    """The mistake to report when a run's folder can no longer be written, or is gone; None for what may be a bug."""
    from mlx_amort.train.checkpoint_folders import how_to_go_on

    told = user_error_of(error)
    if told is None and run_folder.exists():
        return None
    what = str(run_folder) if error.filename is None else str(error.filename)
    todo = f"{advice(error)}, then {how_to_go_on(run_folder)}"
    return UserError(what, f"cannot be written ({error.strerror})", todo)


class _Checking(ProgressLine):
    """Progress of what comes before the first step; there a signal, once noted, ends the command."""

    def __init__(self, interrupt: Interrupt) -> None:
        super().__init__("checking ids", "id")
        self._interrupt = interrupt

    def __call__(self, done: int, total: int) -> None:
        """Tell that so much is done. Raises: KeyboardInterrupt when a signal has come."""
        if self._interrupt.is_set:
            raise KeyboardInterrupt
        super().__call__(done, total)


def _with(requested: RequestedConfig, given: dict[str, str | None]) -> RequestedConfig:
    set_keys = {override.partition("=")[0].strip() for override in requested.overrides}
    for key, value in given.items():
        if value is not None and key in set_keys:
            raise UserError(key, "given twice, by its flag and by --set", "give it once")
    added = tuple(f"{key}={value}" for key, value in given.items() if value is not None)
    return dataclasses.replace(requested, overrides=(*requested.overrides, *added))
