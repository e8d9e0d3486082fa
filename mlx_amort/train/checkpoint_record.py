"""checkpoint.json: what a checkpoint is, and the checksums by which each file of it is known to be what was written.

    format       2; 1 had no checksums, and is still read
    step         its step
    versions     of what computed it
    config       the resolved configuration it was trained with
    checksums    algorithm, files {name: hexadecimal}, record: of all of the above

The record's own checksum is taken of its content, as JSON with sorted keys and without spaces: laying it out anew
changes nothing, changing a value does.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypedDict

from mlx_amort.errors import UserError, advice
from mlx_amort.train.checkpoint_folders import (
    NAME,
    OPTIMIZER,
    RECORD,
    WEIGHTS,
    complete_checkpoints,
)

FORMAT = 2
_FORMAT_WITHOUT_CHECKSUMS = 1
_ALGORITHM, _DIGEST_BYTES = "blake2b", 32
_BLOCK_BYTES = 1 << 20
_NO_RECORD = "is not a checkpoint's record"


class Record(TypedDict):
    """What checkpoint.json says; checksums is empty where the version that wrote it took none."""

    format: int
    step: int
    versions: dict[str, str]
    config: dict[str, Any]
    checksums: dict[str, str]


class _Damage(Exception):
    """A file of a checkpoint is not what was written."""

    def __init__(self, path: Path, why: str) -> None:
        self.path = path
        self.why = why
        super().__init__(path, why)


def record_text(folder: Path, step: int, versions: dict[str, str], config: dict[str, Any]) -> str:
    """The text of checkpoint.json for the arrays that `folder` holds already. Raises: OSError."""
    record = {"format": FORMAT, "step": step, "versions": versions, "config": config}
    names = (WEIGHTS, OPTIMIZER)
    # hashlib lets go of the interpreter: the files are read side by side.
    with ThreadPoolExecutor(len(names)) as pool:
        digests = list(pool.map(_digest, (folder / name for name in names)))
    checksums = {
        "algorithm": _ALGORITHM,
        "files": dict(zip(names, digests, strict=True)),
        "record": _record_digest(record),
    }
    return json.dumps({**record, "checksums": checksums}, indent=2) + "\n"


def read_record(checkpoint: Path) -> Record:
    """The record of a checkpoint's folder. Raises: UserError when it cannot be read, or is not what was written."""
    try:
        return _read(checkpoint)
    except _Damage as damage:
        raise damaged(damage.path, damage.why) from damage


def check_files(checkpoint: Path, names: Iterable[str]) -> None:
    """Hold files of a checkpoint against their checksums. Raises: UserError naming the first that differs."""
    try:
        _check_files(checkpoint, names)
    except _Damage as damage:
        raise damaged(damage.path, damage.why) from damage


def note_without_checksums(checkpoint: Path) -> str:
    """What to tell of a checkpoint whose files cannot be verified; empty where they can."""
    if read_record(checkpoint)["checksums"]:
        return ""
    return f"{checkpoint} has no checksums (mlx-amort 0.1 wrote none), so its files were not verified"


def damaged(path: Path, why: str) -> UserError:
    """The refusal of a checkpoint of which `path` was shown to be damaged, naming the newest whole one before it."""
    checkpoint = path.parent
    whole = _whole_before(checkpoint)
    if whole is None:
        todo = f"restore it from a copy; no older checkpoint beside {checkpoint} is whole"
    else:
        todo = (
            f"restore it from a copy, or take {whole.name}, which is whole: "
            f"evaluate and generate by --checkpoint {_step(whole)}, train --resume once {checkpoint} is deleted"
        )
    return UserError(str(path), why, todo)


def unreadable(path: Path, error: OSError) -> UserError:
    """The refusal of a file that cannot be opened, which says nothing of what it holds."""
    return UserError(str(path), f"cannot be read ({error.strerror})", advice(error))


def _whole_before(checkpoint: Path) -> Path | None:
    older = [path for path in _siblings(checkpoint) if _step(path) < _step(checkpoint)]
    return next((path for path in reversed(older) if _is_whole(path)), None)


def _is_whole(checkpoint: Path) -> bool:
    try:
        _check_files(checkpoint, (WEIGHTS, OPTIMIZER))
    except (_Damage, UserError):
        return False
    return True


def _siblings(checkpoint: Path) -> list[Path]:
    """The complete checkpoints in the same folder, oldest first; none where it is not in a run's."""
    folder = checkpoint.parent
    return complete_checkpoints(folder.parent, folder.name) if NAME.fullmatch(checkpoint.name) else []


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])


def _read(checkpoint: Path) -> Record:
    path = checkpoint / RECORD
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        found, step, config = record["format"], record["step"], record["config"]
    except OSError as error:
        raise unreadable(path, error) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _Damage(path, _NO_RECORD) from error
    checksums = _checksums(path, record) if found == FORMAT else {}
    if found not in (FORMAT, _FORMAT_WITHOUT_CHECKSUMS) or isinstance(found, bool):
        raise UserError(
            str(checkpoint),
            f"has format {found}",
            f"this version reads format {FORMAT}: use the one that wrote it",
        )
    if found == _FORMAT_WITHOUT_CHECKSUMS and "checksums" in record:
        raise _Damage(path, "says format 1, which has no checksums, and has some")
    # true is an int to Python.
    if not isinstance(config, dict) or not isinstance(step, int) or isinstance(step, bool):
        raise _Damage(path, _NO_RECORD)
    if step < 0 or (NAME.fullmatch(checkpoint.name) is not None and _step(checkpoint) != step):
        raise _Damage(path, f"says step {step}, which is not that of its folder's name")
    return {
        "format": found,
        "step": step,
        "versions": record.get("versions", {}),
        "config": config,
        "checksums": checksums,
    }


def _checksums(path: Path, record: dict[str, Any]) -> dict[str, str]:
    """The files' checksums, after the record's own was held against its content."""
    content = {name: value for name, value in record.items() if name != "checksums"}
    try:
        checksums = record["checksums"]
        files = {name: str(checksums["files"][name]) for name in (WEIGHTS, OPTIMIZER)}
        is_known, own = checksums["algorithm"] == _ALGORITHM, checksums["record"]
    except (KeyError, TypeError) as error:
        raise _Damage(path, "lacks checksums, which format 2 has") from error
    if not is_known or own != _record_digest(content):
        raise _Damage(path, "is not what was written: its content differs from its own checksum")
    return files


def _check_files(checkpoint: Path, names: Iterable[str]) -> None:
    checksums = _read(checkpoint)["checksums"]
    for name in names if checksums else ():
        path = checkpoint / name
        try:
            found = _digest(path)
        except OSError as error:
            raise unreadable(path, error) from error
        if found != checksums[name]:
            raise _Damage(path, _difference(path, found))


def _difference(path: Path, found: str) -> str:
    """That a file is not what was written, and whether it is that of another checkpoint beside it."""
    for other in _siblings(path.parent):
        try:
            is_of_other = _read(other)["checksums"].get(path.name) == found
        except (_Damage, UserError):
            continue
        if is_of_other:
            return f"is not what was written: it is that of {other.name}"
    return f"is not what was written: its checksum is {found[:12]}, another than {RECORD} says"


def _digest(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    with path.open("rb", buffering=0) as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _record_digest(content: dict[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode("utf-8"), digest_size=_DIGEST_BYTES).hexdigest()
