"""`mlx-amort compare`: runs at equal bytes seen, at equal seconds, and at equal quality."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click

from mlx_amort.cli.tables import align
from mlx_amort.compare import Comparison, Curve, Place, compare, read_curve
from mlx_amort.errors import UserError
from mlx_amort.wording import format_duration, parse_size, percent

NOT_THERE = "-"


@click.command()
@click.argument("runs", metavar="RUN RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--at",
    "places",
    metavar="BYTES,...",
    help="Compare here, such as 200M,395M. Without: where all validated.",
)
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE.png", help="Draw the curves into this file."
)
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
def command(runs: tuple[Path, ...], places: str | None, out: Path | None, as_json: bool) -> None:
    """Compare runs at equal bytes seen, never at equal steps; every other run against the first.

    RUN is the folder of a run, or a CSV with the columns bytes and val_bits. Bits per byte are interpolated
    between a run's validations and never beyond them.
    """
    if len({run.resolve() for run in runs}) < len(runs):
        raise UserError("compare", "a run is named twice", "name each once")
    at_bytes = None if places is None else [float(parse_size(place, "--at")) for place in places.split(",")]
    comparison = compare([read_curve(run) for run in runs], at_bytes)
    if out is not None:
        _draw(comparison, out)
    if as_json:
        click.echo(json.dumps(comparison.to_record(), indent=2))
        return
    click.echo("\n".join(describe(comparison)))
    if out is not None:
        click.echo(f"\npicture  {out}")


def describe(comparison: Comparison) -> Iterator[str]:
    """The comparison as the terminal shows it."""
    curves, unit = comparison.curves, comparison.curves[0].unit
    labels = labels_of(curves)
    for label, curve in zip(labels, curves, strict=True):
        yield f"{label}: {_extent(curve)}"
    yield f"\nbits per {unit} at equal {unit}s seen"
    if comparison.at_bytes:
        yield _table(f"{unit}s", labels, comparison.at_bytes, lambda at: f"{at:,.0f}")
    else:
        yield f"  not compared: the runs have no {unit}s in common where all were validated"
    if any(bits is None for place in comparison.at_bytes for bits in place.val_bits):
        yield f"{NOT_THERE}: outside what this run was validated at; nothing is extrapolated"
    yield f"\nbits per {unit} at equal seconds of training"
    if comparison.at_seconds:
        yield _table("time", labels, comparison.at_seconds, _duration)
    elif any(curve.seconds is None for curve in curves):
        yield "  not compared: a CSV does not tell them"
    else:
        yield "  not compared: the runs have no time in common where all were validated"
    yield from _quality(comparison, labels)
    for label, curve in list(zip(labels, curves, strict=True))[1:]:
        if keys := comparison.differences[curve.name]:
            yield f"\n{label} differs from {labels[0]} (first, then its own)"
            yield from (f"  {key}" for key in keys)
    if comparison.warnings:
        yield ""
        yield from (f"warning: {warning}" for warning in comparison.warnings)


def labels_of(curves: Sequence[Curve]) -> list[str]:
    """The last part of each run's path, or the whole of it where two end alike."""
    short = [Path(curve.name).name or curve.name for curve in curves]
    return short if len(set(short)) == len(short) else [curve.name for curve in curves]


def _extent(curve: Curve) -> str:
    size = "" if curve.config is None else f"{curve.config.model.parameters:,} parameters, "
    took = "" if curve.seconds is None else f" in {_duration(curve.seconds[-1])}"
    return (
        f"{size}{len(curve.bytes)} validations from {curve.bytes[0]:,.0f} to {curve.bytes[-1]:,.0f} "
        f"{curve.unit}s{took}"
    )


def _table(heading: str, labels: list[str], places: Sequence[Place], write: Callable[[float], str]) -> str:
    rows = []
    for place in places:
        cells = [write(place.at), _bits(place.val_bits[0])]
        for bits, relative in zip(place.val_bits[1:], place.relative[1:], strict=True):
            cells += [_bits(bits), NOT_THERE if relative is None else percent(relative)]
        rows.append(cells)
    columns = [labels[0], *(text for label in labels[1:] for text in (label, "difference"))]
    return align([heading, *columns], rows, text_columns=())


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else format_duration(seconds)


def _bits(bits: float | None) -> str:
    return NOT_THERE if bits is None else f"{bits:.4f}"


def _quality(comparison: Comparison, labels: list[str]) -> Iterator[str]:
    quality, unit = comparison.quality, comparison.curves[0].unit
    yield f"\n{unit}s until {quality.val_bits:.4f} bits per {unit}, the best that all of them reach"
    seconds, advantage = quality.seconds, quality.token_advantage
    rows = []
    for index, label in enumerate(labels):
        seen, took, times = quality.bytes[index], seconds[index], advantage[index]
        rows.append(
            [
                label,
                "before its first validation" if seen is None else f"{seen:,.0f}",
                NOT_THERE if took is None else _duration(took),
                NOT_THERE if times is None else f"{times:.2f}",
            ]
        )
    yield align(["run", f"{unit}s", "time", "times fewer"], rows)


def _draw(comparison: Comparison, out: Path) -> None:
    # matplotlib is loaded only to draw.
    from mlx_amort import plots

    records = [
        {"name": label, "bytes": curve.bytes, "val_bits": curve.val_bits, "seconds": curve.seconds}
        for label, curve in zip(labels_of(comparison.curves), comparison.curves, strict=True)
    ]
    try:
        plots.compare(records, out, comparison.quality.val_bits, comparison.curves[0].unit)
    except (OSError, ValueError) as error:
        raise UserError(
            f"--out {out}", f"cannot be drawn ({error})", "name a file such as compare.png"
        ) from error
