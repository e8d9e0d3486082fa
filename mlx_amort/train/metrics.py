"""The log of a run, metrics.jsonl: one JSON object per line, one line per step and per validation.

    a step       step, bytes (seen so far), loss_bits, grad_norm, lr, step_s, predicted_s (null: by nothing),
                 peak_bytes, applied; compiled, napped (only where true: step_s is not what a step takes)
    validation   step, bytes, val_bits, val_bytes (predicted), whole (or capped)

What is not finite is null. A skipped step, whose update was not applied, has `applied` false.
Units: `bytes` counts units of the corpus, which are ids where that is uint16.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypedDict, cast, final

from mlx_amort.errors import UserError, advice
from mlx_amort.files import write_whole


class _OfLaterVersions(TypedDict, total=False):
    """What a row may leave out, because whoever reads it can do without."""

    grad_norm: float | None
    lr: float
    predicted_s: float | None
    compiled: bool
    napped: bool


@final
class StepRow(_OfLaterVersions):
    """One step, as logged."""

    step: int
    bytes: int
    loss_bits: float | None
    step_s: float
    peak_bytes: int
    applied: bool


@final
class ValidationRow(TypedDict):
    """One validation, as logged."""

    step: int
    bytes: int
    val_bits: float | None
    val_bytes: int
    whole: bool


Row = StepRow | ValidationRow

_DELETE = "delete that line"


class MetricsLog:
    """Appends rows to a file; each is with the system before `append` returns."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def resumed(cls, path: Path, step: int) -> MetricsLog:
        """The log of a run that is resumed after `step`, without the rows of later steps, which are taken again.

        A killed run may have logged more steps than it saved, and left a line cut short.
        Raises: UserError when the rows are not in the order of one run.
        """
        logged = read_rows(path)
        _check_order(path, logged)
        rows = [row for row in logged if row["step"] <= step]
        text = "".join(_line(row) for row in rows)
        if not path.exists() or path.read_bytes() != text.encode():
            write_whole(path, text)
        return cls(path)

    def append(self, row: Row) -> None:
        """Write one row."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_line(row))

    def rows(self) -> list[Row]:
        """Every row, from the file: a long run keeps none in memory."""
        return read_rows(self.path)

    def steps(self) -> list[StepRow]:
        """The rows of all steps, oldest first."""
        return steps_of(self.rows())

    def validations(self) -> list[ValidationRow]:
        """The rows of all validations, oldest first."""
        return validations_of(self.rows())

    def skipped_in_a_row(self) -> int:
        """How many of the last steps were skipped, one after the other."""
        return next(
            (count for count, row in enumerate(reversed(self.steps())) if row["applied"]), len(self.steps())
        )


def steps_of(rows: Sequence[Row]) -> list[StepRow]:
    """The rows that are steps."""
    return [row for row in rows if "loss_bits" in row]


def is_timed(row: StepRow) -> bool:
    """Whether a step's time is what a step takes: it compiled nothing, and the machine did not nap."""
    return not row.get("compiled", False) and not row.get("napped", False)


def validations_of(rows: Sequence[Row]) -> list[ValidationRow]:
    """The rows that are validations."""
    return [row for row in rows if "val_bits" in row]


def over_the_same_text(row: ValidationRow, rows: Sequence[ValidationRow]) -> list[ValidationRow]:
    """The validations that read what `row` read and are finite: only their figures are to be compared with its."""
    text = (row["val_bytes"], row["whole"])
    return [
        other
        for other in rows
        if other["val_bits"] is not None and (other["val_bytes"], other["whole"]) == text
    ]


def read_rows(path: Path) -> list[Row]:
    """Every whole row of a log, without a last line that a kill cut short.

    Raises: UserError for another line that is not a row, with its number; for what is not a file or cannot be read.
    """
    if not path.exists():
        return []
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise UserError(str(path), f"cannot be read as a log ({error.strerror})", advice(error)) from error
    # What follows the last line end is nothing, or a line that was never finished.
    return [_row(line, f"{path}:{number}") for number, line in enumerate(lines[:-1], start=1)]


def _check_order(path: Path, rows: Sequence[Row]) -> None:
    """Refuse a log in which a step is not after the one before it, or a validation not at the last step."""
    last_step = 0
    for number, row in enumerate(rows, start=1):
        is_step = "loss_bits" in row
        if row["step"] < last_step or (is_step and row["step"] == last_step):
            raise UserError(
                f"{path}:{number}",
                f"step {row['step']:,} stands after step {last_step:,}: two processes wrote this log, or it was edited",
                "delete the lines that repeat a step",
            )
        last_step = row["step"]


def _row(line: bytes, where: str) -> Row:
    try:
        row = json.loads(line.decode("utf-8"))
    # A thousand brackets are nested too deep for the reader.
    except (ValueError, RecursionError) as error:
        raise UserError(where, "is not a row of a log", _DELETE) from error
    wrong = _wrong_in(row)
    if wrong:
        raise UserError(where, f"is not a row of a log: {wrong}", _DELETE)
    return cast(Row, row)


def _wrong_in(row: object) -> str:
    """What keeps a value from being a row of a step or a validation; empty for a row."""
    if not isinstance(row, dict):
        return "it is not an object of keys and values"
    if "loss_bits" in row:
        kind, wanted = "a step", _STEP
    elif "val_bits" in row:
        kind, wanted = "a validation", _VALIDATION
    else:
        return "it has neither loss_bits nor val_bits"
    missing = [key for key in wanted if key not in row and key not in _OPTIONAL]
    if missing:
        return f"{kind} without {', '.join(missing)}"
    for key, (is_right, name) in wanted.items():
        if key in row and not is_right(row[key]):
            return f"{key} is {json.dumps(row[key])[:40]}, not {name}"
    return ""


def _is_number(value: object) -> bool:
    """Whether a value is a number as the log has them: finite, and none is below zero."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1e300


_COUNT = (lambda value: _is_number(value) and isinstance(value, int), "a whole number of at least 0")
_NUMBER = (_is_number, "a number of at least 0")
_NUMBER_OR_NULL = (lambda value: value is None or _is_number(value), "a number of at least 0, or null")
_SWITCH = (lambda value: isinstance(value, bool), "true or false")
_Wanted = dict[str, tuple[Callable[[object], bool], str]]
_PLACE: _Wanted = {"step": _COUNT, "bytes": _COUNT}
_STEP: _Wanted = {
    **_PLACE,
    "loss_bits": _NUMBER_OR_NULL,
    "grad_norm": _NUMBER_OR_NULL,
    "lr": _NUMBER,
    "step_s": _NUMBER,
    "predicted_s": _NUMBER_OR_NULL,
    "peak_bytes": _COUNT,
    "applied": _SWITCH,
    "compiled": _SWITCH,
    "napped": _SWITCH,
}
_VALIDATION: _Wanted = {**_PLACE, "val_bits": _NUMBER_OR_NULL, "val_bytes": _COUNT, "whole": _SWITCH}
_OPTIONAL = frozenset(_OfLaterVersions.__annotations__)


def finite_or_none(value: float) -> float | None:
    """JSON has no number for what is not finite."""
    return value if math.isfinite(value) else None


def _line(row: Row) -> str:
    return json.dumps(row, allow_nan=False) + "\n"
