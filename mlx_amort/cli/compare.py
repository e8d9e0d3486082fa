"""`mlx-amort compare`: runs at equal bytes seen, at equal seconds, and at equal quality."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click

from mlx_amort.amounts import counted, format_duration, parse_size, percent
from mlx_amort.cli.options import USER_PATH
from mlx_amort.cli.tables import align
from mlx_amort.compare import BOOKKEEPING, Comparison, ComparisonPoint, Curve, compare, read_curve
from mlx_amort.errors import UserError, printable

NOT_THERE = "-"
_BOOKKEEPING = {f"run.{key}" for key in BOOKKEEPING}


@click.command()
@click.argument("runs", metavar="RUN RUN...", nargs=-1, required=True, type=USER_PATH)
@click.option(
    "--at",
    "points",
    metavar="BYTES,...",
    help="Compare at these bytes, such as 200M,395M. Without: where all were validated.",
)
@click.option("--out", type=USER_PATH, metavar="FILE.png", help="Draw the curves into this file.")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
def command(runs: tuple[Path, ...], points: str | None, out: Path | None, as_json: bool) -> None:
    """Compare runs at equal bytes seen, never at equal steps; every other run against the first.

    RUN is the folder of a run, or a CSV with the columns bytes and val_bits. Bits per byte are interpolated
    between a run's validations and never beyond them. Where validations meet at fewer than two points, training losses
    are compared too.
    """
    if len({run.resolve() for run in runs}) < len(runs):
        raise UserError("compare", "a run is named twice", "name each once")
    at_bytes = None if points is None else [float(parse_size(point, "--at")) for point in points.split(",")]
    if out is not None:
        _check_picture(out)
    comparison = compare([read_curve(run) for run in runs], at_bytes)
    if out is not None:
        _draw(comparison, out)
    if as_json:
        click.echo(json.dumps(comparison.to_record(), indent=2))
        return
    click.echo("\n".join(describe(comparison)))
    if out is not None:
        click.echo(f"\npicture  {printable(str(out))}")


def describe(comparison: Comparison) -> Iterator[str]:
    """The comparison as the terminal shows it."""
    curves, unit = comparison.curves, comparison.curves[0].unit
    labels = labels_of(curves)
    if comparison.corpus_warnings:
        yield from (f"warning: {printable(warning)}" for warning in comparison.corpus_warnings)
        yield ""
    for label, curve in zip(labels, curves, strict=True):
        yield f"{label}: {_extent(curve)}"
    yield f"\nbits per {unit} at equal {unit}s seen"
    if comparison.at_bytes:
        yield _table(comparison, f"{unit}s", comparison.at_bytes, lambda at: f"{at:,.0f}")
    else:
        yield f"  not compared: the runs have no {unit}s in common where all were validated"
    if any(bits is None for point in comparison.at_bytes for bits in point.bits):
        yield f"{NOT_THERE}: outside the bytes at which this run was validated; nothing is extrapolated"
    yield from _training(comparison)
    yield f"\nbits per {unit} at equal seconds of training"
    if comparison.at_seconds:
        yield _table(comparison, "time", comparison.at_seconds, _duration)
    elif any(curve.seconds is None for curve in curves):
        yield "  not compared: a CSV does not tell them"
    else:
        yield "  not compared: the runs have no time in common where all were validated"
    if all(comparison.is_comparable):
        yield from _quality(comparison, labels)
    yield from _ends(comparison, labels)
    for label, curve in list(zip(labels, curves, strict=True))[1:]:
        if keys := comparison.differences[curve.name]:
            yield f"\n{label} differs from {labels[0]} (first, then its own)"
            beside = [key for key in keys if key.partition(":")[0] in _BOOKKEEPING]
            yield from (f"  {printable(key)}" for key in keys if key not in beside)
            if beside:
                yield f"  without effect on the figures: {printable('; '.join(beside))}"
    if further := comparison.warnings[len(comparison.corpus_warnings) :]:
        yield ""
        yield from (f"warning: {printable(warning)}" for warning in further)


def labels_of(curves: Sequence[Curve]) -> list[str]:
    """The last part of each run's path, or the whole of it where two end alike; nothing in it drives a terminal."""
    short = [Path(curve.name).name or curve.name for curve in curves]
    names = short if len(set(short)) == len(short) else [curve.name for curve in curves]
    return [printable(name) for name in names]


def _extent(curve: Curve) -> str:
    size = "" if curve.config is None else f"{curve.config.model.parameters:,} parameters, "
    took = "" if curve.seconds is None else f" in {_duration(curve.seconds[-1])}"
    text = ""
    if curve.text is not None:
        text = f" over {'all ' if curve.text[1] else 'the same '}{curve.text[0]:,} held-out {curve.unit}s"
    span = f"at {curve.bytes[0]:,.0f}"
    if len(curve.bytes) > 1:
        span = f"from {curve.bytes[0]:,.0f} to {curve.bytes[-1]:,.0f}"
    return f"{size}{counted(len(curve.bytes), 'validation')}{text}, {span} {curve.unit}s seen{took}"


def _table(
    comparison: Comparison, heading: str, points: Sequence[ComparisonPoint], write: Callable[[float], str]
) -> str:
    labels, has_difference = labels_of(comparison.curves), comparison.is_comparable[1:]
    columns = [heading, labels[0]]
    for label, is_shown in zip(labels[1:], has_difference, strict=True):
        columns += [label, "difference"] if is_shown else [label]
    rows = []
    for point in points:
        cells = [write(point.at), _bits(point.bits[0])]
        for bits, relative, is_shown in zip(point.bits[1:], point.relative[1:], has_difference, strict=True):
            difference = NOT_THERE if relative is None else percent(relative)
            cells += [_bits(bits), difference] if is_shown else [_bits(bits)]
        rows.append(cells)
    return align(columns, rows, text_columns=())


def _training(comparison: Comparison) -> Iterator[str]:
    """Training losses, where validations meet at fewer than two points and the losses are of the same corpora."""
    if len(comparison.at_bytes) > 1 or not comparison.training or not all(comparison.is_comparable):
        return
    unit = comparison.curves[0].unit
    yield f"\ntraining, bits per {unit} at equal {unit}s seen: means of the steps around, not of held-out text"
    yield _table(comparison, f"{unit}s", comparison.training, lambda at: f"{at:,.0f}")


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


def _ends(comparison: Comparison, labels: list[str]) -> Iterator[str]:
    """Figures over more text, which the curves above leave out."""
    if not comparison.ends:
        return
    unit, rows = comparison.curves[0].unit, []
    for label, end in zip(labels, comparison.ends, strict=True):
        over = NOT_THERE if end.text is None else f"{end.text[0]:,}{' (all)' if end.text[1] else ''}"
        rows.append([label, f"{end.bytes[-1]:,.0f}", _bits(end.val_bits[-1]), over])
    yield "\nat the end of each run, over as much text as it then read (not part of its curve above)"
    yield align(["run", f"{unit}s", f"bits per {unit}", f"held-out {unit}s"], rows)


def _check_picture(out: Path) -> None:
    """Refuse, before anything is read, what cannot become a picture. Raises: UserError."""
    if out.is_dir():
        raise UserError(f"--out {out}", "is a folder", f"name a file, such as {out / 'compare.png'}")
    if out.exists() and not out.is_file():
        raise UserError(f"--out {out}", "is not a regular file", "name a file such as compare.png")


def _draw(comparison: Comparison, out: Path) -> None:
    # matplotlib is loaded only to draw.
    from mlx_amort import plots

    runs = [
        plots.RunCurve(
            label,
            curve.bytes,
            curve.val_bits,
            curve.seconds or (),
            curve.training.bytes,
            curve.training.bits,
            curve.training.seconds,
        )
        for label, curve in zip(labels_of(comparison.curves), comparison.curves, strict=True)
    ]
    quality_bits = comparison.quality.val_bits if all(comparison.is_comparable) else None
    try:
        plots.compare(runs, out, quality_bits, comparison.curves[0].unit)
    except (OSError, ValueError) as error:
        raise UserError(
            f"--out {out}", f"cannot be drawn ({error})", "name a file such as compare.png"
        ) from error
