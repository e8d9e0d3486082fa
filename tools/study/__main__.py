"""Compare choices by bits per byte at equal bytes and at equal seconds: `python -m tools.study NAME`; see --help.

Every figure is of a run of the installed command in a process of its own. Seconds per step are measured before the
first of them, with the trainer's own step, and the choices take their steps by turns, so what slows the machine slows
all.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from functools import partial
from pathlib import Path

import click

from mlx_amort.backend import describe_machine, load_blas
from mlx_amort.config.reading import resolve
from mlx_amort.config.values import Config
from mlx_amort.errors import UserError
from tools.study.choices import PRESET, STUDIES, Overrides, Plan
from tools.study.comparisons import compare_choices, compare_optimizers
from tools.study.runs import Results, run_training
from tools.study.tables import times_lines
from tools.study.timing import samples_of

SEEDS = "1,2,3"


def _common(settings: Sequence[str], rate: float | None) -> Overrides:
    if not all("=" in setting for setting in settings):
        raise click.BadParameter("write it as SECTION.KEY=VALUE", param_hint="--set")
    common = {key.strip(): value for key, _, value in (setting.partition("=") for setting in settings)}
    return common if rate is None else {**common, "schedule.base_lr": f"{rate:g}"}


def _seeds(context: click.Context, parameter: click.Parameter, text: str) -> tuple[int, ...]:
    try:
        return tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise click.BadParameter("write them as 1,2,3") from None


@click.command()
@click.argument("name", type=click.Choice(list(STUDIES)))
@click.option("--steps", default=150, show_default=True, type=click.IntRange(1), help="N, the reference's.")
@click.option("--seeds", default=SEEDS, show_default=True, callback=_seeds, help="The first one tunes.")
@click.option("--jobs", default=2, show_default=True, type=click.IntRange(1), help="Runs at once.")
@click.option("--data", multiple=True, help="Corpora instead of the study's own. Repeatable.")
@click.option("--set", "settings", multiple=True, metavar="SECTION.KEY=VALUE", help="Changes the base.")
@click.option(
    "--lr", type=click.FloatRange(0, min_open=True), help="Learning rate. Without one: the preset's."
)
@click.option("--no-training", is_flag=True, help="Only measure the seconds per step.")
@click.option("--seconds-per-step", metavar="NAME=S,NAME=S", help="Take these instead of measuring.")
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), help="Append runs here, and repeat none of it."
)
def main(
    name: str,
    steps: int,
    seeds: tuple[int, ...],
    jobs: int,
    data: tuple[str, ...],
    settings: tuple[str, ...],
    lr: float | None,
    no_training: bool,
    seconds_per_step: str | None,
    out: Path | None,
) -> None:
    """Compare choices by validation bits per byte over seeds, at equal bytes and at equal seconds."""
    if name == "optimizers" and lr is not None:
        raise click.UsageError("--lr: this study finds the learning rate of each optimizer itself")
    study = STUDIES[name]
    plan = Plan(study, _common(settings, lr), steps, seeds, data or study.data)
    try:
        configs = {
            choice: resolve(PRESET, overrides=[f"{k}={v}" for k, v in plan.overrides(choice).items()])
            for choice in study.choices
        }
    except UserError as error:
        raise click.ClickException(str(error)) from None
    load_blas()
    _tell_base(plan, name, configs, click.echo)
    results = Results(out, partial(run_training, threads=1 if jobs > 1 else None), jobs)
    samples_s, origin = samples_of(plan, configs, seconds_per_step, None if no_training else results)
    click.echo("\n".join(times_lines(samples_s)) + f"\n\nSeconds per step: {origin}.\n")
    if no_training:
        return
    times_s = {choice: statistics.median(samples) for choice, samples in samples_s.items()}
    compare = compare_optimizers if name == "optimizers" else compare_choices
    compare(plan, times_s, results, click.echo)


def _tell_base(plan: Plan, name: str, configs: Mapping[str, Config], echo: Callable[[str], None]) -> None:
    machine = describe_machine()
    config = next(iter(configs.values()))
    model = config.model
    changed = "".join(f", {key}={value}" for key, value in plan.common.items())
    rate = "tuned" if name == "optimizers" else f"{config.schedule.base_lr:g}"
    echo(
        f"{date.today()}, {machine['processor']}, {machine['cores']} cores, mlx {machine['mlx']}, {machine['blas']}; "
        f"{name}: preset {PRESET}{changed} ({model.trunk}, {model.layers} layers, H {model.hidden}, S {model.seq}), "
        f"N {plan.steps} steps of {config.bytes_per_step:,} bytes, learning rate {rate}, "
        f"seeds {', '.join(map(str, plan.seeds))}\n"
    )


if __name__ == "__main__":
    main()
