"""`mlx-amort generate`: continue a prompt with a run's newest checkpoint, byte by byte."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from mlx_amort.amounts import parse_size
from mlx_amort.cli.options import USER_PATH
from mlx_amort.config.values import RunConfig


@click.command()
@click.argument("run", metavar="RUN", type=USER_PATH)
@click.option("--prompt", default="", metavar="TEXT", help="What to go on from; without one, a new line.")
@click.option(
    "--bytes",
    "count",
    default=str(RunConfig.sample_bytes),
    show_default=True,
    metavar="N",
    help="How many bytes to write, such as 500 or 1e3.",
)
@click.option(
    "--temperature",
    type=float,
    default=RunConfig.sample_temperature,
    show_default=True,
    help="0 takes the likeliest byte, 1 draws as trained.",
)
@click.option(
    "--top-k", type=int, default=0, show_default=True, help="Draw from the K likeliest; 0 from all."
)
@click.option("--seed", type=int, default=0, show_default=True, help="The same seed draws the same bytes.")
@click.option("--best", is_flag=True, help="Take the state of the best validation (run.keep_best).")
def command(
    run: Path, prompt: str, count: str, temperature: float, top_k: int, seed: int, best: bool
) -> None:
    """Write N bytes that follow a prompt to standard output as they come, in constant memory however many.

    RUN is the folder of a run; its newest checkpoint is taken, or with --best that of the best validation.
    The prompt itself is not repeated.
    """
    from mlx_amort.backend import set_cpu_cache_limit
    from mlx_amort.generate import sample
    from mlx_amort.model.byte_lm import ByteLM
    from mlx_amort.train.checkpoint import load_config, load_weights
    from mlx_amort.train.checkpoint_folders import best_checkpoint, newest_checkpoint

    bytes_wanted = parse_size(count, "--bytes")
    checkpoint = best_checkpoint(run) if best else newest_checkpoint(run)
    config = load_config(checkpoint)
    set_cpu_cache_limit()
    model = ByteLM(config.model, config.step.precision)
    output = sys.stdout.buffer
    weights = load_weights(checkpoint)
    for byte in sample(model, weights, os.fsencode(prompt), bytes_wanted, temperature, top_k, seed):
        output.write(bytes([byte]))
        output.flush()
    if output.isatty():
        output.write(b"\n")
