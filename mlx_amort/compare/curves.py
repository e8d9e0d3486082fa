"""The validation curve of a run, read from its folder or a CSV."""

from __future__ import annotations

import bisect
import csv
import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mlx_amort.config.reading import with_absolute_sources
from mlx_amort.config.values import Config
from mlx_amort.data.corpus import unit_name
from mlx_amort.errors import UserError, advice
from mlx_amort.train.metrics import read_rows
from mlx_amort.train.run_folder import RunFolder

Text = tuple[int, bool]
"""What a validation read: how many held-out bytes, and whether that was all of them."""


@dataclass(frozen=True)
class TrainingLoss:
    """The training loss of a run's steps, of those where it is finite. Units: bytes seen, bits per byte, seconds."""

    bytes: tuple[float, ...] = ()
    bits: tuple[float, ...] = ()
    seconds: tuple[float, ...] = ()

    def mean(self, low: float, high: float) -> float | None:
        """Mean bits of the steps that ended between two counts of bytes; None without one."""
        first, last = bisect.bisect_left(self.bytes, low), bisect.bisect_right(self.bytes, high)
        return float(np.mean(self.bits[first:last])) if first < last else None


@dataclass(frozen=True)
class Curve:
    """The validations of one run over one text, in order of bytes; a CSV tells only `bytes` and `val_bits`.

    Units: bytes seen (ids of a uint16 corpus); val_bits are bits per byte; seconds of all steps until then.
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
    training: TrainingLoss = TrainingLoss()

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
        """Where the validations were made: by "bytes", or by "seconds", which a CSV does not have."""
        axis: tuple[float, ...] | None = getattr(self, by)
        return axis or ()

    def at(self, by: str, point: float) -> float | None:
        """Bits per byte at a point between the first and the last validation; None outside."""
        axis = self.axis(by)
        if not axis or not axis[0] <= point <= axis[-1]:
            return None
        return float(np.interp(point, axis, self.val_bits))

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


def over_one_text(curves: Sequence[Curve]) -> list[Curve]:
    """The runs by their validations of one text that meet, of the text with most; else each by what it has most of.

    Validations meet where the bytes of all runs' share a range, if only a point.
    """
    common = {
        text
        for text in set.intersection(*(set(curve.texts) for curve in curves))
        if max(curve.texts[text].bytes[0] for curve in curves)
        <= min(curve.texts[text].bytes[-1] for curve in curves)
    }

    def count(text: Text | None, of: Sequence[Curve]) -> tuple[int, Text]:
        return sum(len(curve.texts[text].bytes) for curve in of), text or (0, False)

    if common:
        text = max(common, key=lambda text: count(text, curves))
        return [curve.over(text) for curve in curves]
    return [curve.over(max(curve.texts, key=lambda text: count(text, [curve]))) for curve in curves]


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
    record = folder.read_record()
    validated = record.get("validation", record["corpora"])
    fingerprints = tuple(corpus["fingerprint"] for corpus in validated)
    elapsed_s = 0.0
    texts: dict[Text, dict[float, tuple[float, float]]] = {}
    steps: list[tuple[float, float, float]] = []
    for row in read_rows(folder.metrics):
        if "loss_bits" in row:
            elapsed_s += row["step_s"]
            if row["loss_bits"] is not None:
                steps.append((row["bytes"], row["loss_bits"], elapsed_s))
        elif row["val_bits"] is not None:
            found_at = (elapsed_s, row["val_bits"])
            texts.setdefault((row["val_bytes"], row["whole"]), {})[row["bytes"]] = found_at
    if not texts:
        raise UserError(
            f"run {path}",
            "has no validation in its log yet",
            "let it reach its end, or train it with --eval-every",
        )
    training = TrainingLoss(*zip(*steps, strict=True)) if steps else TrainingLoss()
    first, *others = (
        Curve(
            str(path),
            tuple(sorted(found)),
            tuple(found[seen][1] for seen in sorted(found)),
            tuple(found[seen][0] for seen in sorted(found)),
            text,
            config,
            fingerprints,
            training=training,
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
                    f"is not the folder of a run and, as a CSV, has no column {' and '.join(sorted(missing))}",
                    "name a run's folder, or a CSV with the columns bytes and val_bits",
                )
            for row in reader:
                found[_number(path, reader.line_num, row, "bytes")] = _number(
                    path, reader.line_num, row, "val_bits"
                )
    except OSError as error:
        raise UserError(
            str(path), f"cannot be read ({error.strerror})", f"{advice(error)}, or name another run"
        ) from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(str(path), "is neither a run's folder nor a CSV", "name one of these") from error
    if not found:
        raise UserError(str(path), "has no rows", "write one line per validation: bytes,val_bits")
    seen = sorted(found)
    return Curve(str(path), tuple(seen), tuple(found[count] for count in seen))


def _number(path: Path, line: int, row: dict[str, Any], column: str) -> float:
    try:
        number = float(row[column])
    except (TypeError, ValueError):
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise UserError(f"{path}:{line}", f"{column} is {row[column]!r}, not a number", "correct that line")
    return number
