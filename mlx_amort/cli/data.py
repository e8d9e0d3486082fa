"""`mlx-amort data`: describe corpora before training on them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, get_args

import click

from mlx_amort.amounts import counted
from mlx_amort.config.conversion import parse_source
from mlx_amort.config.presets import DEFAULT_PRESET
from mlx_amort.config.reading import resolve
from mlx_amort.config.values import DataConfig, DataDtype
from mlx_amort.data.card import describe
from mlx_amort.data.corpus import open_corpora

SHOWN_SKIPPED = 5


@click.command()
@click.argument("paths", metavar="PATH[:WEIGHT]...", nargs=-1, required=True)
@click.option(
    "--preset",
    metavar="NAME",
    help=f"Whose chunks and slots to measure against. Without one: {DEFAULT_PRESET}.",
)
@click.option(
    "--dtype", type=click.Choice(get_args(DataDtype)), help="What a .bin holds, if not the preset's."
)
@click.option(
    "--validation-fraction",
    type=float,
    default=DataConfig.validation_fraction,
    show_default=True,
    help="Tail of each corpus held out.",
)
@click.option("--seq", type=click.IntRange(1), help="Bytes S of a chunk, if not the preset's.")
@click.option("--patch-stride", type=click.IntRange(1), help="S / stride slots a chunk, if not the preset's.")
@click.option("--json", "as_json", is_flag=True, help="Print the cards as JSON.")
def command(
    paths: tuple[str, ...],
    preset: str | None,
    dtype: DataDtype | None,
    validation_fraction: float,
    seq: int | None,
    patch_stride: int | None,
    as_json: bool,
) -> None:
    """Describe corpora: size, split, entropy, zlib's bits per byte, boundaries against slots, a sample.

    PATH is a file, a folder (its text files, recursively), a .bin, builtin:docs or builtin:stdlib; with
    several, PATH:WEIGHT gives its share of the rows, as for train --data.
    """
    config = resolve(preset=preset or DEFAULT_PRESET)
    sources = tuple(parse_source(path) for path in paths)
    corpora = open_corpora(DataConfig(sources, dtype or config.data.dtype, validation_fraction))
    slots = (seq or config.model.seq, patch_stride or config.model.patch_stride)
    if not as_json:
        origin = f"preset {config.preset}" + ("" if preset else ", the default; --preset names another")
        click.echo(
            f"chunks of {slots[0]:,} bytes ({'--seq' if seq else origin}), "
            f"patch stride {slots[1]} ({'--patch-stride' if patch_stride else origin})\n"
        )
    total = sum(source.weight for source in sources)
    cards = []
    for corpus, source in zip(corpora, sources, strict=True):
        share = {"weight": source.weight, "row_share": source.weight / total}
        cards.append({**describe(corpus, *slots), **share})
        if not as_json:
            click.echo("\n".join(_card_lines(cards[-1])) + "\n")
    if as_json:
        click.echo(json.dumps({"preset": config.preset, "corpora": cards}, indent=2))


def _card_lines(card: dict[str, Any]) -> Iterator[str]:
    unit = card["unit"]
    yield card["name"]
    yield f"  size        {counted(card['units'], unit)} in {counted(card['files'], 'file')}"
    if card["row_share"] < 1:
        yield f"  weight      {card['weight']:g}, so {card['row_share']:.1%} of the rows a run draws"
    for skipped in card["skipped"][:SHOWN_SKIPPED]:
        yield f"  skipped     {skipped['path']}: {skipped['reason']}"
    if len(card["skipped"]) > SHOWN_SKIPPED:
        yield f"  skipped     and {len(card['skipped']) - SHOWN_SKIPPED:,} more"
    yield f"  split       {card['train_units']:,} to train on, the last {card['validation_units']:,} held out"
    over = "the whole corpus"
    if card["measured_units"] < card["units"]:
        over = f"evenly spaced pieces, {counted(card['measured_units'], unit)} in all"
    yield f"  entropy     {card['order0_entropy_bits']:.3f} bits per {unit}, order 0, over {over}"
    part = "the validation part"
    if card["zlib_units"] < card["validation_units"]:
        part = f"the first {counted(card['zlib_units'], unit)} of the validation part"
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
            f"    {rule:<8}  {found['density']:.3f} per byte; "
            f"{found['overflow_share']:.1%} of {found['chunks']:,} chunks overflow; "
            f"{found['unslotted_share']:.1%} of boundaries get no slot"
        )
