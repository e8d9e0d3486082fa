"""`mlx-amort data`: describe corpora before training on them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any, get_args

import click

from mlx_amort.amounts import counted
from mlx_amort.config.conversion import parse_source
from mlx_amort.config.presets import DEFAULT_PRESET
from mlx_amort.config.reading import resolve
from mlx_amort.config.values import DataConfig, DataDtype, ValidationSplit
from mlx_amort.data.card import describe
from mlx_amort.data.opening import open_corpora
from mlx_amort.data.slots import warn_of_slots
from mlx_amort.errors import printable

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
    help="Share of each corpus held out.",
)
@click.option(
    "--validation-split",
    type=click.Choice(get_args(ValidationSplit)),
    default=DataConfig.validation_split,
    show_default=True,
    help="Whether that is blocks spread over the corpus or its tail.",
)
@click.option("--validation", metavar="PATH", help="A corpus of its own that is held out, and nothing else.")
@click.option("--raw", is_flag=True, help="Read a file as the bytes it holds, whatever its kind (data.raw).")
@click.option("--seq", type=click.IntRange(1), help="Bytes S of a chunk, if not the preset's.")
@click.option(
    "--patch-stride", type=click.IntRange(1), help="S / stride slots per chunk, if not the preset's."
)
@click.option("--json", "as_json", is_flag=True, help="Print the cards as JSON.")
def command(
    paths: tuple[str, ...],
    preset: str | None,
    dtype: DataDtype | None,
    validation_fraction: float,
    validation_split: ValidationSplit,
    validation: str | None,
    raw: bool,
    seq: int | None,
    patch_stride: int | None,
    as_json: bool,
) -> None:
    """Describe corpora: what is read and left out, size, split, entropy, zlib, boundaries against slots.

    PATH is a file, a folder (its text files, recursively), a .bin, builtin:docs or builtin:stdlib; with
    several, PATH:WEIGHT gives its share of the rows, as for train --data.
    """
    config = resolve(preset=preset or DEFAULT_PRESET)
    sources = tuple(parse_source(path) for path in paths)
    width = dtype or config.data.dtype
    corpora = open_corpora(DataConfig(sources, width, validation_fraction, validation_split, validation, raw))
    slots = (seq or config.model.seq, patch_stride or config.model.patch_stride)
    model = dataclasses.replace(config.model, seq=slots[0], patch_stride=slots[1])
    if not as_json:
        origin = f"preset {config.preset}" + ("" if preset else ", the default; --preset names another")
        click.echo(
            f"chunks of {slots[0]:,} bytes ({'--seq' if seq else origin}), "
            f"patch stride {slots[1]} ({'--patch-stride' if patch_stride else origin})\n"
        )
    total = sum(source.weight for source in sources)
    cards = []
    for index, corpus in enumerate(corpora.all):
        card = describe(corpus, *slots)
        if index < len(sources):
            weight = sources[index].weight
            card |= {"weight": weight, "row_share": weight / total}
        if warning := warn_of_slots(corpus, model):
            card["notes"].append(warning)
        cards.append(card)
        if not as_json:
            click.echo("\n".join(printable(line) for line in _card_lines(card)) + "\n")
    if as_json:
        click.echo(json.dumps({"preset": config.preset, "corpora": cards}, indent=2))


def _card_lines(card: dict[str, Any]) -> Iterator[str]:
    unit = card["unit"]
    yield card["name"]
    yield f"  size        {counted(card['units'], unit)} in {counted(card['files'], 'file')}"
    if card.get("row_share", 1) < 1:
        yield f"  weight      {card['weight']:g}, so {card['row_share']:.1%} of the rows a run draws"
    for skipped in card["skipped"][:SHOWN_SKIPPED]:
        todo = f"; {skipped['todo']}" if skipped["todo"] else ""
        yield f"  left out    {skipped['path']}: {skipped['reason']}{todo}"
    if len(card["skipped"]) > SHOWN_SKIPPED:
        yield f"  left out    and {len(card['skipped']) - SHOWN_SKIPPED:,} more"
    yield f"  split       {_split(card)}"
    yield from (f"  note        {note}" for note in card["notes"])
    over = "the whole corpus"
    if card["measured_units"] < card["units"]:
        over = f"evenly spaced pieces, {counted(card['measured_units'], unit)} in all"
    yield f"  entropy     {card['order0_entropy_bits']:.3f} bits per {unit}, order 0, over {over}"
    part = "the validation part"
    if card["zlib_units"] < card["validation_units"]:
        part = f"the first {counted(card['zlib_units'], unit)} of the validation part"
    if card["zlib_bits"] is not None:
        yield f"  zlib -9     {card['zlib_bits']:.3f} bits per {unit}, over {part}"
    yield from _boundary_lines(card)
    yield "  sample"
    yield from (f"    {line}" for line in card["sample"])


def _split(card: dict[str, Any]) -> str:
    if not card["train_units"]:
        return f"all {card['validation_units']:,} held out"
    if not card["validation_units"]:
        return f"all {card['train_units']:,} to train on"
    place = card["place_held_out"]
    return f"{card['train_units']:,} to train on, {card['validation_units']:,} held out: {place}"


def _boundary_lines(card: dict[str, Any]) -> Iterator[str]:
    if card["boundaries"] is None:
        why = "shorter than one chunk" if card["unit"] == "byte" else "token ids have none"
        yield f"  boundaries  not measured: {why}"
        return
    chunk = f"a chunk of {card['seq']:,} bytes (patch stride {card['patch_stride']})"
    yield f"  boundaries  against {card['slots']:,} slots in {chunk}"
    for rule, found in card["boundaries"].items():
        yield (
            f"    {rule:<8}  {found['density']:.3f} per byte; "
            f"{found['overflow_share']:.1%} of {found['chunks']:,} chunks overflow; "
            f"{found['unslotted_share']:.1%} of boundaries get no slot"
        )
