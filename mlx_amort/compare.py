"""Runs held against each other where they have seen equally much, or taken equally long; no mlx.

Quality is interpolated on each run's own validation curve, linearly between two validations of the same text,
and never beyond the first or last of them: where a run has no figure, the answer is None. What a run validated
over more text at its end is a figure of its own.
"""

from __future__ import annotations

import csv
import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mlx_amort.config import Config, RunConfig
from mlx_amort.config_io import SECTIONS, differing_keys, with_absolute_sources
from mlx_amort.data.corpus import unit_name
from mlx_amort.errors import UserError
from mlx_amort.train.metrics import Row, read_rows
from mlx_amort.train.run_folder import RunFolder
from mlx_amort.wording import percent

SMALL_DIFFERENCE = 0.05
"""What one seed cannot show: two seeds of the same run may lie as far apart."""
MOST_PLACES = 6
BOOKKEEPING = (
    "eval_every",
    "save_every",
    "keep_checkpoints",
    "sample_bytes",
    "sample_prompt",
    "sample_temperature",
    "memory_limit_bytes",
)
"""Keys of `run` that decide no figure."""

Text = tuple[int, bool]
"""What a validation read: how many held-out bytes, and whether that was all of them."""
Optional = tuple[float | None, ...]


@dataclass(frozen=True)
class Curve:
    """The validations of one run over one text, in order of bytes; a CSV tells only `bytes` and `val_bits`.

    Units: bytes seen (ids of a uint16 corpus); val_bits are bits a byte; seconds of all steps until then.
    text: what each of them predicted. fingerprints: of the corpora. others: validations of other texts.
    """

    name: str
    bytes: tuple[float, ...]
    val_bits: tuple[float, ...]
    seconds: tuple[float, ...] | None = None
    text: Text | None = None
    config: Config | None = None
    fingerprints: tuple[str, ...] | None = None
    others: tuple[Curve, ...] = ()

    @property
    def unit(self) -> str:
        """What is counted: byte or id."""
        return "byte" if self.config is None else unit_name(self.config.data.dtype)

    @property
    def texts(self) -> dict[Text | None, Curve]:
        """Every curve of this run by what it was validated on."""
        return {curve.text: curve for curve in (self, *self.others)}

    @property
    def end(self) -> Curve:
        """The curve that goes furthest, and of those the one over the most text."""
        return max(self.texts.values(), key=lambda curve: (curve.bytes[-1], curve.text or (0, False)))

    def over(self, text: Text | None) -> Curve:
        """This run with that text's validations before the others."""
        chosen = self.texts[text]
        others = tuple(curve for curve in self.texts.values() if curve is not chosen)
        return dataclasses.replace(chosen, others=tuple(dataclasses.replace(c, others=()) for c in others))

    def axis(self, by: str) -> tuple[float, ...]:
        """The places of the validations: by "bytes", or by "seconds", which a CSV does not have."""
        places: tuple[float, ...] | None = getattr(self, by)
        return places or ()

    def at(self, by: str, place: float) -> float | None:
        """Bits a byte at a place between the first and the last validation; None outside."""
        axis = self.axis(by)
        if not axis or not axis[0] <= place <= axis[-1]:
            return None
        return float(np.interp(place, axis, self.val_bits))

    def reaches(self, by: str, val_bits: float) -> float | None:
        """Where the curve first comes down to a quality; None when it never does, or begins below it."""
        axis = self.axis(by)
        if not axis or self.val_bits[0] < val_bits:
            return None
        for i, bits in enumerate(self.val_bits):
            if bits <= val_bits:
                if i == 0:
                    return axis[0]
                above = self.val_bits[i - 1]
                return axis[i - 1] + (axis[i] - axis[i - 1]) * (above - val_bits) / (above - bits)
        return None


@dataclass(frozen=True)
class Place:
    """Every run's quality at one place (bytes or seconds), and its relative difference to the first run's."""

    at: float
    val_bits: Optional
    relative: Optional


@dataclass(frozen=True)
class CommonQuality:
    """The best quality that every run reaches, and where each run first does.

    token_advantage: bytes of the first run / bytes of a run; above 1 the run needs fewer.
    """

    val_bits: float
    bytes: Optional
    seconds: Optional
    token_advantage: Optional


@dataclass(frozen=True)
class Comparison:
    """Runs against the first of them; differences: keys in which each other run's configuration differs.

    is_comparable: whether a run's figures are of the corpora of the first's; where not, there is no difference.
    corpus_warnings: what these differ in, the first of the warnings.
    """

    curves: tuple[Curve, ...]
    at_bytes: tuple[Place, ...]
    at_seconds: tuple[Place, ...]
    quality: CommonQuality
    differences: dict[str, list[str]]
    is_comparable: tuple[bool, ...]
    corpus_warnings: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def ends(self) -> tuple[Curve, ...]:
        """What each run came to at its end, where any of them validated that over another text than before."""
        ends = tuple(curve.end for curve in self.curves)
        is_told = all(end.text == curve.text for end, curve in zip(ends, self.curves, strict=True))
        return () if is_told else ends

    def to_record(self) -> dict[str, Any]:
        """Plain values for JSON; None where a run has no figure."""
        runs = [
            {
                "name": curve.name,
                "unit": curve.unit,
                "parameters": None if curve.config is None else curve.config.model.parameters,
                "seed": None if curve.config is None else curve.config.run.seed,
                "bytes": list(curve.bytes),
                "val_bits": list(curve.val_bits),
                "seconds": None if curve.seconds is None else list(curve.seconds),
                "val_bytes": None if curve.text is None else curve.text[0],
                "whole": None if curve.text is None else curve.text[1],
                "end": {
                    "bytes": curve.end.bytes[-1],
                    "val_bits": curve.end.val_bits[-1],
                    "val_bytes": None if curve.end.text is None else curve.end.text[0],
                    "whole": None if curve.end.text is None else curve.end.text[1],
                },
            }
            for curve in self.curves
        ]
        named = {"at_bytes": "bytes", "at_seconds": "seconds"}
        places = {
            key: [
                {by: place.at, "val_bits": list(place.val_bits), "relative": list(place.relative)}
                for place in getattr(self, key)
            ]
            for key, by in named.items()
        }
        return {
            "runs": runs,
            **places,
            "last_common_quality": dataclasses.asdict(self.quality),
            "differences": self.differences,
            "warnings": list(self.warnings),
        }


def compare(curves: Sequence[Curve], at_bytes: Sequence[float] | None = None) -> Comparison:
    """Compare runs at the bytes named, else at a few of their validations within the range all share.

    Raises: UserError for less than two runs, and runs that count in different units.
    """
    if len(curves) < 2:
        raise UserError("compare", "needs at least two runs", "name the folders of two or more")
    units = {curve.unit: curve.name for curve in curves}
    if len(units) > 1:
        raise UserError(
            f"{units['byte']} and {units['id']}",
            "one counts bits a byte, the other bits a token id",
            "compare runs on corpora of one kind",
        )
    curves = over_one_text(curves)
    by_run = [_other_corpora(curves[0], curve) for curve in curves]
    is_comparable = tuple(not warnings for warnings in by_run)
    corpus_warnings = tuple(warning for warnings in by_run for warning in warnings)
    places = list(at_bytes) if at_bytes is not None else shared_places(curves, "bytes")
    quality = max(min(curve.val_bits) for curve in curves)
    reached = tuple(curve.reaches("bytes", quality) for curve in curves)
    first = reached[0]
    compared = tuple(_place(curves, "bytes", at, is_comparable) for at in places)
    return Comparison(
        tuple(curves),
        compared,
        tuple(_place(curves, "seconds", at, is_comparable) for at in shared_places(curves, "seconds")),
        CommonQuality(
            quality,
            reached,
            tuple(curve.reaches("seconds", quality) for curve in curves),
            tuple(
                first / seen if first and seen and has_same else None
                for seen, has_same in zip(reached, is_comparable, strict=True)
            ),
        ),
        {curve.name: _differences(curves[0], curve) for curve in curves[1:]},
        is_comparable,
        corpus_warnings,
        (*corpus_warnings, *_other_amounts(curves), *_seeds(curves, compared)),
    )


def over_one_text(curves: Sequence[Curve]) -> list[Curve]:
    """The runs by their validations of the text that all of them have most of, else each by what it has most of."""
    common = set.intersection(*(set(curve.texts) for curve in curves))

    def count(text: Text | None, of: Sequence[Curve]) -> tuple[int, Text]:
        return sum(len(curve.texts[text].bytes) for curve in of), text or (0, False)

    if common:
        text = max(common, key=lambda text: count(text, curves))
        return [curve.over(text) for curve in curves]
    return [curve.over(max(curve.texts, key=lambda text: count(text, [curve]))) for curve in curves]


def shared_places(curves: Sequence[Curve], by: str) -> list[float]:
    """At most six validations of any run, spread over the range that all runs share; none without one."""
    axes = [curve.axis(by) for curve in curves]
    if not all(axes):
        return []
    low, high = max(axis[0] for axis in axes), min(axis[-1] for axis in axes)
    inside = sorted({place for axis in axes for place in axis if low <= place <= high})
    if len(inside) <= MOST_PLACES:
        return inside
    wanted = np.linspace(low, high, MOST_PLACES)
    return sorted({min(inside, key=lambda place: abs(place - near)) for near in wanted})


def read_curve(path: Path) -> Curve:
    """The curve of a run's folder, or of a CSV with the columns bytes and val_bits.

    Raises: UserError when it is neither, or holds no validation.
    """
    if path.is_file():
        return _from_csv(path)
    return _from_run(path)


def _from_run(path: Path) -> Curve:
    folder = RunFolder(path)
    config = with_absolute_sources(folder.read_config())
    fingerprints = tuple(corpus["fingerprint"] for corpus in folder.read_record().get("corpora", ()))
    elapsed_s = 0.0
    texts: dict[Text, dict[float, tuple[float, Row]]] = {}
    for row in read_rows(folder.metrics):
        elapsed_s += row.get("step_s", 0.0)
        if row.get("val_bits") is not None:
            texts.setdefault((row["val_bytes"], row["whole"]), {})[row["bytes"]] = (elapsed_s, row)
    if not texts:
        raise UserError(
            f"run {path}",
            "has no validation in its log yet",
            "let it reach its end, or train it with --eval-every",
        )
    first, *others = (
        Curve(
            str(path),
            tuple(sorted(found)),
            tuple(found[place][1]["val_bits"] for place in sorted(found)),
            tuple(found[place][0] for place in sorted(found)),
            text,
            config,
            fingerprints,
        )
        for text, found in texts.items()
    )
    return over_one_text([dataclasses.replace(first, others=tuple(others))])[0]


def _from_csv(path: Path) -> Curve:
    found: dict[float, float] = {}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            missing = {"bytes", "val_bits"} - set(reader.fieldnames or ())
            if missing:
                raise UserError(
                    str(path),
                    f"is no run's folder and, as a CSV, has no column {' and '.join(sorted(missing))}",
                    "name a run's folder, or a CSV with the columns bytes and val_bits",
                )
            for row in reader:
                found[_number(path, reader.line_num, row, "bytes")] = _number(
                    path, reader.line_num, row, "val_bits"
                )
    except OSError as error:
        raise UserError(
            str(path), f"cannot be read ({error.strerror})", "name the folders of two or more runs"
        ) from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(str(path), "is neither a run's folder nor a CSV", "name one of these") from error
    if not found:
        raise UserError(str(path), "has no rows", "write one a validation: bytes,val_bits")
    places = sorted(found)
    return Curve(str(path), tuple(places), tuple(found[place] for place in places))


def _number(path: Path, line: int, row: dict[str, Any], column: str) -> float:
    try:
        number = float(row[column])
    except (TypeError, ValueError):
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise UserError(f"{path}:{line}", f"{column} is {row[column]!r}, not a number", "mend that line")
    return number


def _place(curves: Sequence[Curve], by: str, at: float, is_comparable: Sequence[bool]) -> Place:
    bits = tuple(curve.at(by, at) for curve in curves)
    first = bits[0]
    relative = tuple(
        own / first - 1 if own is not None and first and has_same else None
        for own, has_same in zip(bits, is_comparable, strict=True)
    )
    return Place(at, bits, relative)


def _differences(first: Curve, other: Curve) -> list[str]:
    if first.config is None or other.config is None:
        return []
    found = differing_keys(first.config, other.config, SECTIONS)
    if first.config.preset != other.config.preset:
        found.insert(0, f"preset: {first.config.preset} and {other.config.preset}")
    return found


def _other_corpora(first: Curve, other: Curve) -> list[str]:
    """What makes the figures of two runs those of different corpora."""
    if first.config is None or other.config is None:
        return []
    warnings, names = [], f"{first.name} and {other.name}"
    if first.fingerprints != other.fingerprints:
        warnings.append(f"{names} were validated on other corpora: their figures do not compare")
    fractions = [curve.config.data.validation_fraction for curve in (first, other) if curve.config]
    if fractions[0] != fractions[1]:
        warnings.append(
            f"{names} hold out {fractions[0]:g} and {fractions[1]:g} of their corpora: "
            "their figures are of different texts"
        )
    return warnings


def _other_amounts(curves: Sequence[Curve]) -> list[str]:
    """What makes the figures those of more and less text."""
    warnings = []
    unknown = [curve.name for curve in curves if curve.text is None]
    if unknown:
        warnings.append(f"{', '.join(unknown)}: a CSV does not tell what it was validated on")
    known = [curve for curve in curves if curve.text is not None]
    for other in known[1:]:
        first = known[0]
        assert first.text is not None and other.text is not None
        if not _other_corpora(first, other) and first.text != other.text:
            warnings.append(
                f"{first.name} and {other.name} were validated over {first.text[0]:,} and {other.text[0]:,} "
                f"{first.unit}s: their figures are of more and less text"
            )
    return warnings


def _seeds(curves: Sequence[Curve], places: Sequence[Place]) -> list[str]:
    """What a small difference at the last place compared rests on."""
    warnings = []
    for index, other in enumerate(curves[1:], start=1):
        told = [(place.at, found) for place in places if (found := place.relative[index]) is not None]
        if not told:
            continue
        _, difference = max(told)
        names = f"{other.name} against {curves[0].name}"
        if other.config is not None and _but_the_seed(other) == _but_the_seed(curves[0]):
            seeds = {curve.config.run.seed for curve in (curves[0], other) if curve.config}
            cause = "a seed makes" if len(seeds) > 1 else "the same run makes, repeated"
            warnings.append(f"{names}: the same configuration; {percent(difference)} is what {cause}")
        elif abs(difference) < SMALL_DIFFERENCE and 1 in (
            _seed_count(curves, run) for run in (curves[0], other)
        ):
            warnings.append(
                f"{names}: a difference of {percent(difference)} rests on one seed; below "
                f"{SMALL_DIFFERENCE:.0%} it needs more than one"
            )
    return warnings


def _but_the_seed(curve: Curve) -> Config | None:
    """A run's configuration without its seed, and without what decides no figure."""
    if curve.config is None:
        return None
    defaults: dict[str, Any] = {key: getattr(RunConfig(), key) for key in BOOKKEEPING}
    return dataclasses.replace(curve.config, run=dataclasses.replace(curve.config.run, seed=0, **defaults))


def _seed_count(curves: Sequence[Curve], run: Curve) -> int:
    """How many seeds of this run's configuration are compared; a CSV counts as one."""
    alike = [curve.config for curve in curves if _but_the_seed(curve) == _but_the_seed(run)]
    return max(1, len({config.run.seed for config in alike if config is not None}))
