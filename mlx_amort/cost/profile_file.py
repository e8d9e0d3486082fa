"""Measured configurations as typed rows, read from a profile.json or from a CSV with a few columns."""

from __future__ import annotations

import csv
import json
import math
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mlx_amort.config.conversion import current_name
from mlx_amort.cost.profile_store import key_of
from mlx_amort.errors import UserError

_TRUE = {"yes", "on", "true", "1"}
_FALSE = {"no", "off", "false", "0", ""}
# Beyond these a number is a slip of the pen, and beyond 2**53 no float holds it.
LARGEST_COUNT = 2**31 - 1
LARGEST_BYTES = 2**53
SHORTEST_S, LONGEST_S = 1e-9, 1e9
# A grid of a million rows is below; /dev/zero has no end.
LARGEST_FILE_BYTES = 64 << 20
_REQUIRED = ("batch", "chunks", "seq", "optimizer")


def count_windows(accum: int, chunks: int, window: int | None) -> int:
    """A · ⌈K / min(W, K)⌉: how often a step runs a window; a window of one chunk where W is not told."""
    return accum * math.ceil(chunks / min(window or 1, chunks))


@dataclass(frozen=True)
class Row:
    """One measured configuration.

    Units: step_s, samples_s, compile_s, update_s in seconds; peak_bytes in bytes. step_s is None where
    nothing was measured (`status` says why); precision and window are None where the file does not tell them.
    """

    batch: int
    chunks: int
    seq: int
    optimizer: str
    step_s: float | None
    window: int | None = None
    accum: int = 1
    precision: str | None = None
    activation_checkpointing: bool = False
    samples_s: tuple[float, ...] = ()
    compile_s: float | None = None
    peak_bytes: int | None = None
    update_s: float | None = None
    status: str = "ok"

    @property
    def bare(self) -> Row:
        """The configuration alone, without what was measured of it."""
        return replace(
            self, step_s=None, samples_s=(), compile_s=None, peak_bytes=None, update_s=None, status="ok"
        )

    @property
    def bytes_per_step(self) -> int:
        """A · B · S · K."""
        return self.accum * self.batch * self.seq * self.chunks

    @property
    def chunks_per_step(self) -> int:
        """A · K: how often a step pays what is paid once a chunk."""
        return self.accum * self.chunks

    @property
    def windows_per_step(self) -> int:
        """How often a step pays what is paid once a window: dispatch, choosing slots, adding gradients."""
        return count_windows(self.accum, self.chunks, self.window)

    @property
    def is_measured(self) -> bool:
        return self.status == "ok" and self.step_s is not None

    @property
    def label(self) -> str:
        """The configuration in words, as tables and messages name it."""
        parts = [f"B {self.batch}", f"K {self.chunks}", f"S {self.seq}", self.optimizer]
        if self.accum != 1:
            parts.insert(0, f"A {self.accum}")
        if self.activation_checkpointing:
            parts.append("checkpointed")
        return " ".join(parts)


def _is_absent(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _number(record: Mapping[str, Any], key: str, where: str) -> float | None:
    value = record.get(key)
    return None if _is_absent(value) else _finite(value, f"{where}, {key}")


def _finite(value: Any, where: str) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        raise UserError(where, f"{_shown(value)} is not a number", "correct the file") from None
    if not math.isfinite(number):
        raise UserError(where, f"{_shown(value)} is not finite", "correct the file")
    return number


def _shown(value: Any) -> str:
    """A wrong value in a message of one line, cut where it is long."""
    text = repr(value) if isinstance(value, str | float | bool) else f"a value of kind {type(value).__name__}"
    return text if len(text) <= 40 else f"{text[:40]}..."


def _count(record: Mapping[str, Any], key: str, where: str, largest: int = LARGEST_COUNT) -> int | None:
    number = _number(record, key, where)
    if number is None:
        return None
    if number < 1 or number != int(number):
        raise UserError(
            f"{where}, {key}",
            f"{_shown(record[key])} is not a whole number of at least 1",
            "correct the file",
        )
    if number > largest:
        raise UserError(f"{where}, {key}", f"{number:g} is over {largest:,}", "correct the file")
    return int(number)


def _time(number: float | None, where: str) -> float | None:
    if number is not None and not SHORTEST_S <= number <= LONGEST_S:
        raise UserError(
            where, f"{number:g} s is not between {SHORTEST_S:g} and {LONGEST_S:g} s", "correct the file"
        )
    return number


def _flag(record: Mapping[str, Any], keys: Iterable[str], where: str) -> bool:
    for key in keys:
        if key in record and record[key] is not None:
            text = str(record[key]).strip().lower()
            if text in _TRUE:
                return True
            if text in _FALSE:
                return False
            raise UserError(f"{where}, {key}", f"{record[key]!r} is neither yes nor no", "write yes or no")
    return False


def _scaled(record: Mapping[str, Any], names: Mapping[str, float], where: str) -> float | None:
    """The first of several columns that is there, in its base unit."""
    for key, factor in names.items():
        number = _number(record, key, where)
        if number is not None:
            return number * factor
    return None


def row_from_record(record: Mapping[str, Any], where: str = "row") -> Row:
    """A typed row from one entry of profile.json or one CSV line; columns it does not know are left alone.

    Raises: UserError naming `where` and the column for a missing or impossible value.
    """
    missing = [key for key in _REQUIRED if _is_absent(record.get(key))]
    if missing:
        raise UserError(where, f"{', '.join(missing)} missing", f"every row needs {', '.join(_REQUIRED)}")
    batch, chunks, seq = (_count(record, key, where) or 0 for key in ("batch", "chunks", "seq"))
    step_s = _scaled(record, {"step_s": 1.0, "step_ms": 1e-3}, where)
    if step_s is not None and step_s <= 0:
        raise UserError(f"{where}, step time", f"{step_s} s is not positive", "correct the file")
    step_s = _time(step_s, f"{where}, step time")
    optimizer = str(record["optimizer"]).strip().lower()
    if len(optimizer) > 40 or not optimizer.isprintable():
        raise UserError(f"{where}, optimizer", f"{_shown(optimizer)} is no name", "correct the file")
    status = str(record.get("status") or ("ok" if step_s is not None else "not measured")).strip()
    peak_bytes = _scaled(record, {"peak_bytes": 1.0, "memory_gb": 1e9}, where)
    if peak_bytes is not None and not 0 <= peak_bytes <= LARGEST_BYTES:
        raise UserError(
            f"{where}, peak memory", f"{peak_bytes:g} bytes is no amount of memory", "correct the file"
        )
    samples = record.get("samples_s")
    precision = record.get("precision")
    row = Row(
        batch=batch,
        chunks=chunks,
        seq=seq,
        optimizer=optimizer,
        step_s=step_s,
        window=_count(record, "window", where),
        accum=_count(record, "accum", where) or 1,
        precision=None if _is_absent(precision) else str(precision).strip(),
        activation_checkpointing=_flag(
            record, ("activation_checkpointing", "checkpoint", "checkpointing"), where
        ),
        samples_s=tuple(_finite(sample, f"{where}, samples_s") for sample in samples)
        if isinstance(samples, list)
        else (),
        compile_s=_scaled(record, {"compile_s": 1.0, "compile_ms": 1e-3}, where),
        peak_bytes=None if peak_bytes is None else round(peak_bytes),
        update_s=_scaled(record, {"update_s": 1.0, "update_ms": 1e-3}, where),
        status=status,
    )
    if row.bytes_per_step > LARGEST_BYTES:
        raise UserError(
            f"{where}, bytes a step", f"{row.bytes_per_step:g} is over {LARGEST_BYTES:,}", "correct the file"
        )
    stated = _count(record, "bytes_per_step", where, LARGEST_BYTES)
    if stated is not None and stated != row.bytes_per_step:
        raise UserError(
            f"{where}, bytes_per_step",
            f"{stated} is not accum · batch · seq · chunks = {row.bytes_per_step}",
            "correct the file",
        )
    return row


def rows_from_records(records: Iterable[Mapping[str, Any]], source: str) -> list[Row]:
    """Typed rows of a list of records; `source` names the file in messages."""
    return [
        row_from_record(record, f"{source}, row {index}") for index, record in enumerate(records, start=1)
    ]


def held_out_rows(record: Mapping[str, Any], source: str) -> list[Row]:
    """What a profile measured after predicting it, as typed rows."""
    entries = record.get("held_out") or []
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise UserError(source, "held_out is no list of configurations", "correct the file")
    measured = [entry for entry in entries if entry.get("measured_s")]
    records = [{**entry, "step_s": entry["measured_s"]} for entry in measured]
    return [row for row in rows_from_records(records, f"{source}, held out") if row.is_measured]


def read_record(path: str | Path) -> dict[str, Any]:
    """The record of a profile: profile.json as it stands, or {"rows": [...]} made of a CSV's lines.

    A folder stands for the profile.json in it.
    Raises: UserError for a file that is absent, unreadable or neither.
    """
    file = Path(path)
    if file.is_dir():
        file = file / "profile.json"
    try:
        # Opening a pipe waits for its writer, so the kind is asked first.
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):
            raise UserError(str(file), "is no regular file", "name a profile.json or a CSV file")
        if status.st_size > LARGEST_FILE_BYTES:
            raise UserError(
                str(file),
                f"has {status.st_size:,} bytes, and {LARGEST_FILE_BYTES:,} are the most that is read",
                "name a profile.json or a CSV file",
            )
        text = file.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UserError(
            str(file), "no such file", "write one with `mlx-amort profile`, or name a CSV"
        ) from None
    except (OSError, ValueError) as problem:
        why = problem.strerror if isinstance(problem, OSError) else problem
        raise UserError(str(file), f"cannot be read ({why})", "name a profile.json or a CSV file") from None
    if text.lstrip().startswith(("{", "[")):
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as problem:
            # A number of thousands of digits is a ValueError, a thousand brackets a RecursionError.
            raise UserError(
                str(file),
                f"is not valid JSON ({_why_no_json(problem)})",
                "delete it and run `mlx-amort profile` again, or name another file",
            ) from None
        rows = record.get("rows") if isinstance(record, dict) else None
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise UserError(
                str(file), "has no list named rows", "name a profile.json written by `mlx-amort profile`"
            )
        return _with_current_names(record)
    return {"rows": _csv_records(text, str(file))}


def _with_current_names(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record whose identity calls its choices what they are called now."""
    identity = record.get("identity")
    if not isinstance(identity, dict):
        return dict(record)
    current = {name: current_name(key_of(name), value) for name, value in identity.items()}
    return {**record, "identity": current}


def _why_no_json(problem: Exception) -> str:
    if isinstance(problem, RecursionError):
        return "too many brackets"
    return str(problem) if isinstance(problem, json.JSONDecodeError) else "a number of thousands of digits"


def _csv_records(text: str, source: str) -> list[dict[str, Any]]:
    reader = csv.DictReader(text.splitlines(), skipinitialspace=True)
    try:
        return _checked_records(reader, source)
    except csv.Error as problem:
        # line_num is that of the last line which could be read.
        where = f"{source}, line {reader.line_num + 1}"
        raise UserError(where, f"is no CSV ({problem})", "correct the file") from None


def _checked_records(reader: csv.DictReader[str], source: str) -> list[dict[str, Any]]:
    columns = [name.strip() for name in reader.fieldnames or []]
    twice = sorted({name for name in columns if columns.count(name) > 1})
    if twice:
        raise UserError(source, f"has the column {', '.join(twice)} twice", "leave one of them")
    missing = [name for name in _REQUIRED if name not in columns]
    if not {"step_ms", "step_s"} & set(columns):
        missing.append("step_ms")
    if missing:
        raise UserError(
            source,
            f"the columns {', '.join(missing)} are missing",
            "a CSV needs batch, chunks, seq, optimizer, step_ms",
        )
    reader.fieldnames = columns
    records = []
    for record in reader:
        if None in record or None in record.values():
            raise UserError(
                f"{source}, line {reader.line_num}",
                "has not as many fields as the heading",
                "correct the file",
            )
        records.append(dict(record))
    return records


def read_rows(path: str | Path) -> list[Row]:
    """Typed rows of a profile.json, of a folder that holds one, or of a CSV file."""
    return rows_from_records(read_record(path)["rows"], str(path))
