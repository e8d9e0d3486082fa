"""Reads a profile.json or a CSV, and writes a profile.json."""

from __future__ import annotations

import json
import stat
from pathlib import Path

from mlx_amort.cost.configuration import Measurement
from mlx_amort.cost.csv_file import read_csv
from mlx_amort.cost.fields import Fields
from mlx_amort.cost.profile import Profile
from mlx_amort.errors import UserError
from mlx_amort.files import write_whole

FILE_NAME = "profile.json"
# A grid of a million rows is below; /dev/zero has no end.
LARGEST_FILE_BYTES = 64 << 20
_NAME_ANOTHER = "name a profile.json or a CSV file"


def read_profile(path: str | Path) -> Profile:
    """The profile of a profile.json, of a folder that holds one, or of a CSV, whose measurements are all it has.

    Raises: UserError for a file that is absent, unreadable or neither, or that holds an impossible value.
    """
    file = Path(path)
    if file.is_dir():
        file = file / FILE_NAME
    text = _read_text(file)
    if not text.lstrip().startswith(("{", "[")):
        return Profile(read_csv(text, str(file)))
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as problem:
        # A number of thousands of digits is a ValueError, a thousand brackets a RecursionError.
        why = f"is not valid JSON ({_why_no_json(problem)})"
        todo = "delete it and run `mlx-amort profile` again, or name another file"
        raise UserError(str(file), why, todo) from None
    rows = record.get("measurements", record.get("rows")) if isinstance(record, dict) else None
    if not isinstance(rows, list):
        todo = "name a profile.json written by `mlx-amort profile`"
        raise UserError(str(file), "has no list of measurements", todo)
    return Profile.from_fields(Fields(record, str(file)))


def read_measurements(path: str | Path) -> list[Measurement]:
    """The measurements of what `read_profile` reads."""
    return read_profile(path).measurements


def write_profile(profile: Profile, path: Path) -> None:
    """Write a profile whole or not at all: a sweep killed meanwhile leaves the file before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(profile.to_record(), indent=1, ensure_ascii=False))


def _read_text(file: Path) -> str:
    try:
        # Opening a pipe waits for its writer, so the kind is asked first.
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):
            raise UserError(str(file), "is not a regular file", _NAME_ANOTHER)
        if status.st_size > LARGEST_FILE_BYTES:
            why = f"has {status.st_size:,} bytes, and at most {LARGEST_FILE_BYTES:,} are read"
            raise UserError(str(file), why, _NAME_ANOTHER)
        return file.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        todo = "write one with `mlx-amort profile`, or name a CSV"
        raise UserError(str(file), "no such file", todo) from None
    except (OSError, ValueError) as problem:
        why = (problem.strerror if isinstance(problem, OSError) else None) or str(problem)
        raise UserError(str(file), f"cannot be read ({why})", _NAME_ANOTHER) from None


def _why_no_json(problem: Exception) -> str:
    if isinstance(problem, RecursionError):
        return "too many brackets"
    return str(problem) if isinstance(problem, json.JSONDecodeError) else "a number of thousands of digits"
