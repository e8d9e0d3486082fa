"""The log of a run, metrics.jsonl: a JSON object a line, one line a step, and one a validation.

    a step       step, bytes (seen so far), loss_bits, grad_norm, lr, step_s, predicted_s (null: by nothing),
                 peak_bytes, applied
    validation   step, bytes, val_bits, val_bytes (predicted), whole (or capped)

What is not finite is null. A step whose update was not applied has `applied` false.
Units: `bytes` counts units of the corpus, which are ids where that is uint16.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from mlx_amort.errors import UserError
from mlx_amort.files import write_whole

Row = dict[str, Any]


class MetricsLog:
    """Appends rows to a file; each is with the system before `append` returns.

    refused_in_a_row: how many of the last steps were not applied, one after the other.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.refused_in_a_row = 0
        for row in self.rows():
            self._count(row)

    @classmethod
    def resumed(cls, path: Path, step: int) -> MetricsLog:
        """The log of a run that goes on after `step`, without the rows of later steps, which are taken again.

        A killed run may have logged more steps than it saved, and left a line cut short.
        """
        rows = [row for row in read_rows(path) if row["step"] <= step]
        write_whole(path, "".join(_line(row) for row in rows))
        return cls(path)

    def append(self, row: Row) -> None:
        """Write one row."""
        self._count(row)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_line(row))

    def rows(self) -> list[Row]:
        """Every row, from the file: a long run keeps none in memory."""
        return read_rows(self.path)

    def whole_validation(self, step: int) -> Row | None:
        """The row of a validation over the whole validation part at `step`, if there was one."""
        found = (row for row in reversed(self.rows()) if "val_bits" in row and row["step"] == step)
        return next((row for row in found if row["whole"]), None)

    def _count(self, row: Row) -> None:
        if "loss_bits" in row:
            self.refused_in_a_row = 0 if row["applied"] else self.refused_in_a_row + 1


def read_rows(path: Path) -> list[Row]:
    """Every whole row of a log, without a last line that a kill cut short.

    Raises: UserError for another line that is no row.
    """
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    rows = []
    # What follows the last line end is nothing, or a line that was never finished.
    for number, line in enumerate(lines[:-1], start=1):
        try:
            row = json.loads(line)
            row["step"]
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path}:{number}", "is not a row of a log", "delete that line") from error
        rows.append(row)
    return rows


def finite_or_none(value: float) -> float | None:
    """JSON has no number for what is not finite."""
    return value if math.isfinite(value) else None


def _line(row: Row) -> str:
    return json.dumps(row, allow_nan=False) + "\n"
