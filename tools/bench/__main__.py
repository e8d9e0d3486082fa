"""`python -m tools.bench [COMMAND]`: see --help. PyTorch comes with the extra: pip install -e '.[bench]'."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from datetime import date
from pathlib import Path

import click

from mlx_amort.backend import load_blas

load_blas()

from mlx_amort.backend import describe_machine  # noqa: E402
from mlx_amort.config.reading import resolve  # noqa: E402
from mlx_amort.config.values import Config  # noqa: E402
from mlx_amort.cost.time.cost_model import CostModel  # noqa: E402
from mlx_amort.cost.time.fitting import fit_rows  # noqa: E402
from tools.bench.generation import compare_contexts  # noqa: E402
from tools.bench.parts import compare_kinds, compare_parts  # noqa: E402
from tools.bench.retained import compare_retained  # noqa: E402
from tools.bench.scaling import compare_precisions, compare_scaling  # noqa: E402
from tools.bench.turns import SIDES, Comparison, Worker, compare_gradients, spread, take_turns  # noqa: E402
from tools.bench.update import compare_updates  # noqa: E402

LAYERS, SEQ, HEAD_WIDTH = 4, 512, 64
# B, K and optimizer of the steps that a cost model is fitted to; the largest model takes seconds for each.
POINTS = ((1, 1, "adamw"), (1, 2, "adamw"), (2, 2, "adamw"), (4, 2, "adamw"), (2, 4, "adamw"))
MUON_POINTS = ((1, 2, "muon"), (2, 2, "muon"))
LARGEST_LOSS_DIFFERENCE, LARGEST_GRADIENT_DIFFERENCE = 1e-4, 1e-3


@click.group(invoke_without_command=True)
@click.pass_context
def main(context: click.Context) -> None:
    """Time the trainer against PyTorch, its update against mlx.optimizers, and its parts against the machine.

    Without a command all of them run, one after the other.
    """
    machine = describe_machine()
    click.echo(
        f"{date.today()}, {machine['processor']}, {machine['cores']} cores, mlx {machine['mlx']}, "
        f"{machine['blas']}\n"
    )
    if context.invoked_subcommand is None:
        for command in (model, update, parts, scaling, generation, retained):
            context.invoke(command)


@main.command()
@click.option("--hidden", default="256,512,1024", show_default=True, help="Widths of the model, with commas.")
@click.option("--turns", default=7, show_default=True, help="Steps that are timed on either side.")
@click.option("--threads", default=os.cpu_count() or 1, show_default=True, help="Threads of either side.")
def model(hidden: str, turns: int, threads: int) -> None:
    """The same hybrid model in PyTorch: gradients agree first, then both step by turns; c0 and c1 of both."""
    for width in (int(part) for part in hidden.split(",")):
        base = _config(width)
        parameters = base.model.parameters
        with (
            tempfile.TemporaryDirectory() as name,
            Worker("mlx", threads) as ours,
            Worker("torch", threads) as theirs,
        ):
            workers, folder = dict(zip(SIDES, (ours, theirs), strict=True)), Path(name)
            click.echo(
                f"H {width}, {LAYERS} + 4 blocks, S {SEQ}, {parameters:,} parameters, fp32, {threads} threads"
            )
            _check_agreement(workers, _at(base, 2, 2, "adamw"), folder)
            configs = [_at(base, *point) for point in (*POINTS, *MUON_POINTS)]
            found = take_turns(workers, configs, folder, turns, warm_up=2)
            for comparison in found:
                _tell(comparison)
            fits = {side: fit_rows([comparison.measurement(side) for comparison in found]) for side in SIDES}
            _tell_fits(fits)


def _config(width: int) -> Config:
    values = {"trunk": "hybrid", "layers": LAYERS, "hidden": width, "heads": width // HEAD_WIDTH}
    values |= {"ffn": 4 * width, "seq": SEQ, "patch_stride": 4}
    overrides = [f"model.{name}={value}" for name, value in values.items()]
    return resolve(overrides=[*overrides, "step.precision=fp32", "step.window=2", "step.accum=1"])


def _at(base: Config, batch: int, chunks: int, optimizer: str) -> Config:
    return resolve(
        base=base, overrides=[f"step.batch={batch}", f"step.chunks={chunks}", f"optimizer.name={optimizer}"]
    )


def _check_agreement(workers: dict[str, Worker], config: Config, folder: Path) -> None:
    agreement = compare_gradients(workers, config, folder)
    told = (
        f"loss differs by {agreement.loss_difference:.1e} nats, gradients by at most "
        f"{agreement.gradient_difference:.1e} of their largest value ({agreement.worst_name})"
    )
    if (
        agreement.loss_difference > LARGEST_LOSS_DIFFERENCE
        or agreement.gradient_difference > LARGEST_GRADIENT_DIFFERENCE
    ):
        raise click.ClickException(f"the two sides do not compute the same: {told}")
    click.echo(told)


def _tell(comparison: Comparison) -> None:
    step = comparison.config.step
    label = f"B {step.batch} K {step.chunks} {comparison.config.optimizer.name}"
    rate = {side: comparison.config.bytes_per_step / comparison.median_s(side, "window_s") for side in SIDES}
    update = {side: comparison.median_s(side, "update_s") for side in SIDES}
    click.echo(
        f"  {label:14} windows {rate['mlx']:8,.0f} and {rate['torch']:8,.0f} bytes/s, "
        f"ratio {spread(comparison.ratios('window_s'))}; update {update['mlx']:.3f} and {update['torch']:.3f} s, "
        f"ratio {spread(comparison.ratios('update_s'))}"
    )


def _tell_fits(fits: dict[str, CostModel]) -> None:
    for side, fit in fits.items():
        low, high = (1e6 * value for value in fit.c1_interval_s_per_byte)
        constants = ", ".join(f"c0 {name} {value:.3f} s" for name, value in fit.c0_s.items())
        third = "" if fit.third_unit is None else f", {1e3 * fit.third_cost_s:.1f} ms per {fit.third_unit}"
        click.echo(
            f"  {side:6} {fit.form}{third}; c1 {1e6 * fit.c1_s_per_byte:.2f} µs/byte "
            f"({low:.2f} to {high:.2f}), {constants}"
        )
    ours, theirs = fits["mlx"], fits["torch"]
    constants = ", ".join(f"c0 {name} {theirs.c0_s[name] / value:.2f}" for name, value in ours.c0_s.items())
    click.echo(f"  PyTorch's over ours: c1 {theirs.c1_s_per_byte / ours.c1_s_per_byte:.2f}, {constants}\n")


@main.command()
@click.option("--preset", default="veritate_80m", show_default=True, help="Whose parameter list is updated.")
@click.option("--turns", default=5, show_default=True, help="Updates that are timed of each kind.")
def update(preset: str, turns: int) -> None:
    """The update alone: ours, and mlx.optimizers' Muon and AdamW under MultiOptimizer, eager and compiled."""
    compare_updates(resolve(preset=preset, overrides=["step.precision=fp32"]), turns, click.echo)


@main.command()
@click.option("--preset", default="veritate_80m", show_default=True, help="Whose step is taken apart.")
@click.option("--batch", default=1, show_default=True, help="Rows.")
@click.option("--turns", default=3, show_default=True, help="Steps that are timed.")
def parts(preset: str, batch: int, turns: int) -> None:
    """GFLOP/s of each part of a step over the best product rate, and where time goes by kind of operation."""
    config = resolve(preset=preset, overrides=["step.precision=fp32", f"step.batch={batch}", "step.accum=1"])
    config = replace(config, step=replace(config.step, chunks=config.step.effective_window))
    compare_parts(config, turns, click.echo)
    compare_kinds(config, click.echo)


@main.command()
@click.option("--turns", default=5, show_default=True, help="Steps that are timed of each configuration.")
def scaling(turns: int) -> None:
    """A window's time per byte against B, K, S, H, layers and presets; bfloat16 against float32."""
    compare_scaling(turns, click.echo)
    compare_precisions(turns, click.echo)


@main.command()
@click.option("--preset", default="demo", show_default=True, help="Whose model generates.")
@click.option("--turns", default=7, show_default=True, help="Chunks that are timed after each context.")
def generation(preset: str, turns: int) -> None:
    """Bytes per second of generation after one chunk of context and after a hundred."""
    compare_contexts(resolve(preset=preset), turns, click.echo)


@main.command()
def retained() -> None:
    """What a block keeps for the backward pass, beside a plainly written one."""
    compare_retained(click.echo)


if __name__ == "__main__":
    main()
