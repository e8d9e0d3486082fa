"""Measurements from a CSV with a few columns, as a program or a spreadsheet writes it."""

from __future__ import annotations

import csv
import re

from mlx_amort.cost.configuration import REQUIRED, Measurement
from mlx_amort.errors import UserError

_SEPARATORS = ",;\t|"
_COLUMNS = "batch, chunks, seq, optimizer, step_ms"
# The first line by which a spreadsheet tells its separator.
_TOLD = re.compile(r"sep=(.)", re.IGNORECASE)
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+(e[+-]?\d+)?", re.IGNORECASE)
# What a profile holds as lists and objects a cell does not.
_NESTED = ("samples_s", "discarded_samples_s", "phases")


def read_csv(text: str, source: str) -> list[Measurement]:
    """The measurements of a CSV; `source` names the file in messages.

    Columns are separated by commas, semicolons, tabs or bars; with other than commas, decimal commas are read too.
    Raises: UserError for what is not such a table, naming the line.
    """
    lines = text.splitlines()
    first = next((index for index, line in enumerate(lines) if line.strip()), len(lines))
    told = _TOLD.fullmatch(lines[first].strip()) if first < len(lines) else None
    if told is not None:
        first += 1
    heading = lines[first] if first < len(lines) else ""
    # Of a heading the separator is what stands in it most often.
    separator = told.group(1) if told is not None else max(_SEPARATORS, key=heading.count)
    reader = csv.reader(lines[first:], delimiter=separator, skipinitialspace=True)
    try:
        columns = _columns(next(reader, []), separator, source)
        return [
            _measurement(cells, columns, separator, f"{source}, line {first + reader.line_num}")
            for cells in reader
            if any(cell.strip() for cell in cells)
        ]
    except csv.Error as problem:
        where = f"{source}, line {first + reader.line_num}"
        raise UserError(where, f"is not CSV ({problem})", "correct the file") from None


def _columns(heading: list[str], separator: str, source: str) -> list[str]:
    columns = [name.strip().lower() for name in heading]
    # A spreadsheet ends every line with the separators of its empty columns.
    while columns and not columns[-1]:
        columns.pop()
    if twice := sorted({name for name in columns if columns.count(name) > 1}):
        raise UserError(source, f"has the column {', '.join(twice)} twice", "leave one of them")
    missing = [name for name in REQUIRED if name not in columns]
    if not {"step_ms", "step_s"} & set(columns):
        missing.append("step_ms")
    if missing:
        read = f"its heading is read as separated by {separator!r}"
        raise UserError(
            source, f"the columns {', '.join(missing)} are missing ({read})", f"a CSV needs {_COLUMNS}"
        )
    return columns


def _measurement(cells: list[str], columns: list[str], separator: str, where: str) -> Measurement:
    if len(cells) < len(columns) or any(cell.strip() for cell in cells[len(columns) :]):
        why = f"has {len(cells)} fields, and the heading has {len(columns)}"
        raise UserError(where, why, "correct the file")
    values = {name: cell.strip() for name, cell in zip(columns, cells, strict=False) if name not in _NESTED}
    if separator != ",":
        values = {
            name: cell.replace(",", ".") if _DECIMAL_COMMA.fullmatch(cell) else cell
            for name, cell in values.items()
        }
    return Measurement.from_record(values, where)
