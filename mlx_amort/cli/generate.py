"""`mlx-amort generate`: continue a prompt with a run's checkpoint, byte by byte."""

from __future__ import annotations

import base64
import codecs
import json
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import click

from mlx_amort.amounts import parse_size
from mlx_amort.cli.checkpoints import checkpoint_of, step_of, weights_of
from mlx_amort.cli.options import USER_PATH
from mlx_amort.config.values import RunConfig
from mlx_amort.errors import UserError, harmless
from mlx_amort.files import expand_home

STANDARD_INPUT = "-"


@click.command()
@click.argument("run", metavar="RUN", type=USER_PATH)
@click.option("--prompt", default="", metavar="TEXT", help="What to continue. Without one: a new line.")
@click.option(
    "--prompt-file",
    metavar="FILE",
    help="Continue what is in this file, byte for byte; - is standard input.",
)
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
@click.option(
    "--top-p",
    type=float,
    default=1.0,
    show_default=True,
    help="Draw from the fewest whose probabilities sum to P.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="The same seed draws the same bytes.")
@click.option(
    "--checkpoint",
    "step",
    type=click.IntRange(0),
    metavar="STEP",
    help="The checkpoint of this step. Without: the newest.",
)
@click.option("--best", is_flag=True, help="The checkpoint of the best validation (run.keep_best).")
@click.option("--json", "as_json", is_flag=True, help="Print text, bytes (base64) and settings as JSON.")
def command(
    run: Path,
    prompt: str,
    prompt_file: str | None,
    count: str,
    temperature: float,
    top_k: int,
    top_p: float,
    seed: int,
    step: int | None,
    best: bool,
    as_json: bool,
) -> None:
    """Write N bytes that follow a prompt to standard output as they come, in constant memory however many.

    RUN is the folder of a run; its newest checkpoint is taken unless another is named. The prompt itself is not
    repeated. A pipe or a file gets the bytes as they are; a terminal gets text, newlines and tabs, and of everything
    else its escape, such as \\x1b.
    """
    from mlx_amort.backend import set_cpu_cache_limit
    from mlx_amort.generate import sample
    from mlx_amort.model.byte_lm import ByteLM
    from mlx_amort.train.checkpoint import load_config

    bytes_wanted = parse_size(count, "--bytes")
    checkpoint = checkpoint_of(run, step, best)
    config = load_config(checkpoint)
    prompt_bytes = _prompt_bytes(prompt, prompt_file)
    set_cpu_cache_limit()
    model = ByteLM(config.model, config.step.precision)
    weights = weights_of(checkpoint)
    drawn = sample(model, weights, prompt_bytes, bytes_wanted, temperature, top_k, seed, top_p)
    if not as_json:
        write_bytes(drawn)
        return
    started_at = time.monotonic()
    record = {
        "run": str(run),
        "checkpoint": str(checkpoint),
        "step": step_of(checkpoint),
        "prompt_bytes": len(prompt_bytes),
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "seed": seed,
        **_text_record(bytes(drawn)),
        "elapsed_s": time.monotonic() - started_at,
    }
    click.echo(json.dumps(record, indent=2))


def _text_record(drawn: bytes) -> dict[str, int | str]:
    """Bytes as text, with U+FFFD for what is not UTF-8, and as they are."""
    text = drawn.decode("utf-8", errors="replace")
    return {"bytes": len(drawn), "text": text, "base64": base64.b64encode(drawn).decode("ascii")}


def _prompt_bytes(prompt: str, prompt_file: str | None) -> bytes:
    """The prompt as bytes. Raises: UserError for two prompts, and for a file that cannot be read."""
    if prompt_file is None:
        return os.fsencode(prompt)
    if prompt:
        raise UserError("--prompt-file", "a prompt is given too", "give one of --prompt and --prompt-file")
    name = "standard input" if prompt_file == STANDARD_INPUT else prompt_file
    # None where it was closed before Python started.
    if prompt_file == STANDARD_INPUT and sys.stdin is None:
        raise UserError("--prompt-file -", "standard input is closed", "pipe the prompt in")
    try:
        if prompt_file == STANDARD_INPUT:
            return sys.stdin.buffer.read()
        return expand_home(prompt_file).read_bytes()
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise UserError(
            f"--prompt-file {prompt_file}",
            f"{name} cannot be read ({why})",
            "name a file, or - and pipe it in",
        ) from error


def write_bytes(drawn: Iterable[int]) -> None:
    """Write bytes to standard output as they come: as they are, or harmless on a terminal."""
    if not sys.stdout.isatty():
        output = sys.stdout.buffer
        for byte in drawn:
            output.write(bytes([byte]))
            output.flush()
        return
    # A character may come in several bytes; what is not UTF-8 comes as \xff.
    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
    for byte in drawn:
        sys.stdout.write(harmless(decoder.decode(bytes([byte]))))
        sys.stdout.flush()
    sys.stdout.write(harmless(decoder.decode(b"", final=True)) + "\n")
