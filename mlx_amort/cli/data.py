"""`mlx-amort data`: describe corpora before training on them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, get_args

import click

from mlx_amort.config import DataConfig, DataDtype, ModelConfig, SourceConfig
from mlx_amort.data.card import describe
from mlx_amort.data.corpus import open_corpora

SHOWN_SKIPPED = 5


@click.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option(
    "--dtype",
    type=click.Choice(get_args(DataDtype)),
    default=DataConfig.dtype,
    show_default=True,
    help="what a .bin holds",
)
@click.option(
    "--validation-fraction",
    type=float,
    default=DataConfig.validation_fraction,
    show_default=True,
    help="tail of each corpus held out",
)
@click.option(
    "--seq", type=click.IntRange(1), default=ModelConfig.seq, show_default=True, help="bytes of a chunk, S"
)
@click.option(
    "--patch-stride",
    type=click.IntRange(1),
    default=ModelConfig.patch_stride,
    show_default=True,
    help="S / stride slots a chunk",
)
@click.option("--json", "as_json", is_flag=True, help="print the cards as JSON")
def command(
    paths: tuple[str, ...],
    dtype: DataDtype,
    validation_fraction: float,
    seq: int,
    patch_stride: int,
    as_json: bool,
) -> None:
    """Describe corpora: size, split, entropy, zlib's bits per byte, boundaries against slots, a sample.

    PATH is a file, a folder (its text files, recursively), a .bin, builtin:docs or builtin:stdlib.
    """
    sources = tuple(SourceConfig(path) for path in paths)
    corpora = open_corpora(DataConfig(sources, dtype, validation_fraction))
    cards = []
    for corpus in corpora:
        cards.append(describe(corpus, seq, patch_stride))
        if not as_json:
            click.echo("\n".join(_card_lines(cards[-1])) + "\n")
    if as_json:
        click.echo(json.dumps({"corpora": cards}, indent=2))


def _card_lines(card: dict[str, Any]) -> Iterator[str]:
    unit = card["unit"]
    yield card["name"]
    yield f"  size        {_counted(card['units'], unit)} in {_counted(card['files'], 'file')}"
    for skipped in card["skipped"][:SHOWN_SKIPPED]:
        yield f"  skipped     {skipped['path']}: {skipped['reason']}"
    if len(card["skipped"]) > SHOWN_SKIPPED:
        yield f"  skipped     and {len(card['skipped']) - SHOWN_SKIPPED:,} more"
    yield f"  split       {card['train_units']:,} to train on, the last {card['validation_units']:,} held out"
    over = "the whole corpus"
    if card["measured_units"] < card["units"]:
        over = f"evenly spaced pieces, {_counted(card['measured_units'], unit)} in all"
    yield f"  entropy     {card['order0_entropy_bits']:.3f} bits per {unit}, order 0, over {over}"
    part = "the validation part"
    if card["zlib_units"] < card["validation_units"]:
        part = f"the first {_counted(card['zlib_units'], unit)} of the validation part"
    yield f"  zlib -9     {card['zlib_bits']:.3f} bits per {unit}, over {part}"
    yield from _boundary_lines(card)
    yield "  sample"
    yield from (f"    {line}" for line in card["sample"])


def _boundary_lines(card: dict[str, Any]) -> Iterator[str]:
    if card["boundaries"] is None:
        why = "shorter than one chunk" if card["unit"] == "byte" else "token ids have none"
        yield f"  boundaries  not measured: {why}"
        return
    chunk = f"a chunk of {card['seq']:,} bytes (patch stride {card['patch_stride']})"
    yield f"  boundaries  against {card['slots']:,} slots {chunk}"
    for rule, found in card["boundaries"].items():
        yield (
            f"    {rule:<8}  {found['density']:.3f} a byte; "
            f"{found['overflow_share']:.1%} of {found['chunks']:,} chunks overflow; "
            f"{found['unslotted_share']:.1%} of boundaries get no slot"
        )


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
