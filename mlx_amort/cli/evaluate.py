"""`mlx-amort evaluate`: bits per byte of a run's checkpoint over a whole validation part."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import click

from mlx_amort.cli.checkpoints import checkpoint_of, step_of, weights_of
from mlx_amort.cli.options import USER_PATH
from mlx_amort.cli.progress import ProgressLine
from mlx_amort.config.conversion import parse_source
from mlx_amort.config.values import DataConfig
from mlx_amort.errors import printable


@click.command()
@click.argument("run", metavar="RUN", type=USER_PATH)
@click.option(
    "--data",
    "sources",
    metavar="DATA",
    multiple=True,
    help="Another corpus than the run's: file, folder, .bin or builtin:NAME. Repeatable.",
)
@click.option(
    "--checkpoint",
    "step",
    type=click.IntRange(0),
    metavar="STEP",
    help="The checkpoint of this step. Without: the newest.",
)
@click.option("--best", is_flag=True, help="The checkpoint of the best validation (run.keep_best).")
@click.option("--whole", is_flag=True, help="Score all of the text, not only the part that is held out.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def command(
    run: Path, sources: tuple[str, ...], step: int | None, best: bool, whole: bool, as_json: bool
) -> None:
    """Bits per byte of a run over the whole validation part of its corpora, the state carried along the text.

    RUN is the folder of a run; its newest checkpoint is taken unless another is named. The validation part is what was
    held out of training; of another corpus (--data) it is as large a share, or with --whole all but the first byte.
    """
    from mlx_amort.backend import set_cpu_cache_limit
    from mlx_amort.data.card import zlib_bits_per_byte
    from mlx_amort.data.corpus import check_ids
    from mlx_amort.data.opening import open_corpora, open_whole
    from mlx_amort.evaluate import evaluate
    from mlx_amort.model.byte_lm import ByteLM
    from mlx_amort.train.checkpoint import load_config

    checkpoint = checkpoint_of(run, step, best)
    config = load_config(checkpoint)
    data = _data_of(config.data, sources)
    corpora = open_whole(data) if whole else open_corpora(data).held_out
    for note in (note for corpus in corpora for note in corpus.notes):
        click.echo(f"note: {note}", err=True)
    checking = ProgressLine("checking ids", "id")
    check_ids(corpora, config.model.vocabulary, checking)
    checking.close()
    set_cpu_cache_limit()
    progress = ProgressLine("evaluating", "chunk")
    result = evaluate(
        ByteLM(config.model, config.step.precision), weights_of(checkpoint), corpora, progress=progress
    )
    progress.close()
    record = {
        "run": str(run),
        "checkpoint": str(checkpoint),
        "step": step_of(checkpoint),
        "is_whole_text": whole,
        "bits_per_byte": result.bits_per_byte,
        "bytes": result.bytes,
        "zlib_bits_per_byte": zlib_bits_per_byte(corpora),
        "elapsed_s": progress.elapsed_s,
        "corpora": [
            {
                "name": quality.name,
                "bits_per_byte": quality.bits_per_byte,
                "bytes": quality.bytes,
                "zlib_bits_per_byte": zlib_bits_per_byte([corpus]),
            }
            for quality, corpus in zip(result.corpora, corpora, strict=True)
        ],
    }
    click.echo(json.dumps(record, indent=2) if as_json else _report(record, config.data.dtype))


def _data_of(data: DataConfig, sources: tuple[str, ...]) -> DataConfig:
    if not sources:
        return data
    named = tuple(parse_source(text) for text in sources)
    return dataclasses.replace(data, sources=named, validation=None)


def _report(record: dict[str, Any], dtype: str) -> str:
    unit = "byte" if dtype == "uint8" else "id"
    of = f"{unit}s of all the text" if record["is_whole_text"] else f"validation {unit}s"
    lines = [f"{record['run']}, step {record['step']:,}: {_figures(record, unit, of)}"]
    if len(record["corpora"]) > 1:
        lines += [f"  {corpus['name']}: {_figures(corpus, unit, of)}" for corpus in record["corpora"]]
    return "\n".join(printable(line) for line in lines)


def _figures(record: dict[str, Any], unit: str, of: str) -> str:
    return (
        f"{record['bits_per_byte']:.4f} bits per {unit} over {record['bytes']:,} {of} "
        f"(zlib -9: {record['zlib_bits_per_byte']:.3f})"
    )
