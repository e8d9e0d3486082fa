"""Runs held against each other where they have seen equally much, or taken equally long; no mlx.

Quality is interpolated on each run's own validation curve, linearly between two validations, and never beyond
its first or last: where a run has no figure, the answer is None.
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

from mlx_amort.config import Config
from mlx_amort.config_io import SECTIONS, differing_keys
from mlx_amort.data.corpus import unit_name
from mlx_amort.errors import UserError
from mlx_amort.train.metrics import Row, read_rows
from mlx_amort.train.run_folder import RunFolder
from mlx_amort.wording import percent

SMALL_DIFFERENCE = 0.05
"""What one seed cannot show: two seeds of the same run may lie as far apart."""
MOST_PLACES = 6

Optional = tuple[float | None, ...]


@dataclass(frozen=True)
class Curve:
    """The validations of one run, in order of bytes; of a CSV only `bytes` and `val_bits` are known.

    Units: bytes seen (ids of a uint16 corpus); val_bits are bits a byte; seconds of all steps until then.
    val_bytes: how many bytes each validation predicted. fingerprints: of the corpora.
    """

    name: str
    bytes: tuple[float, ...]
    val_bits: tuple[float, ...]
    seconds: tuple[float, ...] | None = None
    val_bytes: tuple[int, ...] | None = None
    config: Config | None = None
    fingerprints: tuple[str, ...] | None = None

    @property
    def unit(self) -> str:
        """What is counted: byte or id."""
        return "byte" if self.config is None else unit_name(self.config.data.dtype)

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
    """Runs against the first of them; differences: keys in which each other run's configuration differs."""

    curves: tuple[Curve, ...]
    at_bytes: tuple[Place, ...]
    at_seconds: tuple[Place, ...]
    quality: CommonQuality
    differences: dict[str, list[str]]
    warnings: tuple[str, ...]

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
    places = list(at_bytes) if at_bytes is not None else shared_places(curves, "bytes")
    quality = max(min(curve.val_bits) for curve in curves)
    reached = tuple(curve.reaches("bytes", quality) for curve in curves)
    first = reached[0]
    compared = tuple(_place(curves, "bytes", at) for at in places)
    return Comparison(
        tuple(curves),
        compared,
        tuple(_place(curves, "seconds", at) for at in shared_places(curves, "seconds")),
        CommonQuality(
            quality,
            reached,
            tuple(curve.reaches("seconds", quality) for curve in curves),
            tuple(first / bytes_seen if first and bytes_seen else None for bytes_seen in reached),
        ),
        {curve.name: _differences(curves[0], curve) for curve in curves[1:]},
        (*_other_validation(curves), *_seeds(curves, compared)),
    )


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
    config = folder.read_config()
    fingerprints = tuple(corpus["fingerprint"] for corpus in folder.read_record().get("corpora", ()))
    elapsed_s, found = 0.0, {}
    for row in read_rows(folder.metrics):
        elapsed_s += row.get("step_s", 0.0)
        if row.get("val_bits") is not None:
            # Of two validations after the same step the later one has read more.
            found[row["bytes"]] = (elapsed_s, row)
    if not found:
        raise UserError(
            f"run {path}",
            "has no validation in its log yet",
            "let it reach its end, or train it with --eval-every",
        )
    places = sorted(found)
    rows: list[Row] = [found[place][1] for place in places]
    return Curve(
        str(path),
        tuple(places),
        tuple(row["val_bits"] for row in rows),
        tuple(found[place][0] for place in places),
        tuple(row["val_bytes"] for row in rows),
        config,
        fingerprints,
    )


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
        raise UserError(str(path), f"cannot be read ({error.strerror})") from error
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


def _place(curves: Sequence[Curve], by: str, at: float) -> Place:
    bits = tuple(curve.at(by, at) for curve in curves)
    first = bits[0]
    return Place(at, bits, tuple(own / first - 1 if own is not None and first else None for own in bits))


def _differences(first: Curve, other: Curve) -> list[str]:
    if first.config is None or other.config is None:
        return []
    found = differing_keys(first.config, other.config, SECTIONS)
    if first.config.preset != other.config.preset:
        found.insert(0, f"preset: {first.config.preset} and {other.config.preset}")
    return found


def _other_validation(curves: Sequence[Curve]) -> list[str]:
    """What makes the figures those of different texts."""
    warnings = []
    unknown = [curve.name for curve in curves if curve.config is None]
    if unknown:
        warnings.append(f"{', '.join(unknown)}: a CSV does not tell what it was validated on")
    known = [curve for curve in curves if curve.config is not None and curve.val_bytes is not None]
    for other in known[1:]:
        first, names = known[0], f"{known[0].name} and {other.name}"
        assert first.config is not None and other.config is not None
        if first.fingerprints != other.fingerprints:
            warnings.append(f"{names} were validated on other corpora: their figures do not compare")
        fractions = [run.config.data.validation_fraction for run in (first, other) if run.config]
        if fractions[0] != fractions[1]:
            warnings.append(
                f"{names} hold out {fractions[0]:g} and {fractions[1]:g} of their corpora: "
                "their figures are of different texts"
            )
        amounts = [sorted(set(run.val_bytes or ())) for run in (first, other)]
        if amounts[0] != amounts[1]:
            told = " and ".join(
                " to ".join(f"{of[end]:,}" for end in sorted({0, len(of) - 1})) for of in amounts
            )
            warnings.append(
                f"{names} were validated over {told} {first.unit}s: their figures are of more and less text"
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
    run = dataclasses.replace(
        curve.config.run, seed=0, save_every=None, eval_every=None, memory_limit_bytes=None
    )
    return dataclasses.replace(curve.config, run=run)


def _seed_count(curves: Sequence[Curve], run: Curve) -> int:
    """How many seeds of this run's configuration are compared; a CSV counts as one."""
    alike = [curve.config for curve in curves if _but_the_seed(curve) == _but_the_seed(run)]
    return max(1, len({config.run.seed for config in alike if config is not None}))
