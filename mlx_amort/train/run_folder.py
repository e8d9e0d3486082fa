"""A run's folder: what stands where, and how a new one is made.

RUN/config.yaml      the resolved configuration
    run.json         versions, machine, command, corpora, when it started and was resumed
    metrics.jsonl    a row per step and per validation
    checkpoints/     the newest states
    best/            with run.keep_best: the state with the best validation
    .lock            names the process that works on the run
    plots/           loss_and_rate.png
    sample.txt       what the model writes at the end
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import count
from pathlib import Path
from typing import Any

from mlx_amort.command_line import command
from mlx_amort.config.reading import dump, load
from mlx_amort.config.values import Config
from mlx_amort.errors import UserError, advice
from mlx_amort.files import HIDDEN, write_whole
from mlx_amort.train.run_lock import LOCK, acquire

RUNS = Path("runs")


@dataclass(frozen=True)
class RunFolder:
    """The paths of one run."""

    path: Path

    @property
    def config(self) -> Path:
        """The resolved configuration."""
        return self.path / "config.yaml"

    @property
    def record(self) -> Path:
        """Where, with what and when the run was made."""
        return self.path / "run.json"

    @property
    def metrics(self) -> Path:
        """The log of steps and validations."""
        return self.path / "metrics.jsonl"

    @property
    def plot(self) -> Path:
        """Loss and rate over bytes seen."""
        return self.path / "plots" / "loss_and_rate.png"

    @property
    def sample(self) -> Path:
        """What the model wrote at the end."""
        return self.path / "sample.txt"

    def read_config(self) -> Config:
        """The run's configuration. Raises: UserError where this is not a run's folder."""
        self.check_is_run()
        return load(self.config)

    def read_record(self) -> dict[str, Any]:
        """The run's record. Raises: UserError when it cannot be read, or lacks what is read of it."""
        self.check_is_run()
        todo = "restore it from a copy, or start a new run with --out"
        try:
            record = json.loads(self.record.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise UserError(str(self.record), "cannot be read as a run's record", todo) from error
        wrong = _wrong_in(record)
        if wrong:
            raise UserError(str(self.record), f"is damaged or was edited: {wrong}", todo)
        return dict(record)

    def write(self, config: Config, record: dict[str, Any]) -> None:
        """Write configuration and record, each in one go."""
        write_whole(self.config, dump(config))
        write_whole(self.record, json.dumps(record, indent=2, ensure_ascii=False) + "\n")

    def check_is_run(self) -> None:
        """Raises: UserError where this is not a run's folder."""
        if not self.config.is_file():
            why = "is not the folder of a run" if self.path.exists() else "no such folder"
            raise UserError(f"run {self.path}", why, f"name a folder that holds {self.config.name}")


def create(out: Path | None, name: str) -> tuple[RunFolder, str]:
    """Make the folder of a new run: `out`, or runs/NAME-TIME with a name that nothing bears yet.

    Other processes are kept out of it from here on; the second value says why where they cannot be.
    Raises: UserError when `out` already holds a run, or files of another kind, or cannot be made.
    """
    if out is None:
        out = _unused(name)
    folder = RunFolder(out)
    try:
        str(out).encode()
    except UnicodeEncodeError as error:
        # MLX takes no other name for the files of a checkpoint, and would say so at the first one.
        raise UserError(
            f"--out {os.fsencode(out)!r}", "is not a name in UTF-8", "name a folder in UTF-8"
        ) from error
    try:
        _check_is_empty(folder)
        out.mkdir(parents=True, exist_ok=True)
        lock_note = acquire(out, f"--out {out}")
        # Again: another process may have had it a moment ago.
        _check_is_empty(folder)
    except OSError as error:
        raise UserError(
            f"--out {out}", f"cannot be made ({error.strerror})", f"{advice(error)}, or name another folder"
        ) from error
    return folder, lock_note


def _check_is_empty(folder: RunFolder) -> None:
    out = folder.path
    if any(path.exists() for path in (folder.config, folder.record, folder.metrics, out / "checkpoints")):
        raise UserError(
            f"--out {out}",
            "already holds a run",
            f"name another, or go on: {command('train', '--resume', out)}",
        )
    entries = sorted(out.iterdir()) if out.exists() else []
    foreign = next((entry.name for entry in entries if not _is_leftover(entry)), None)
    if foreign is not None:
        raise UserError(f"--out {out}", f"holds other files ({foreign})", "name a new or an empty folder")


def _wrong_in(record: object) -> str:
    """What keeps the content of run.json from being a run's record; empty for one."""
    if not isinstance(record, dict):
        return "it is not an object of keys and values"
    corpora, resumed = record.get("corpora"), record.get("resumed", [])
    wanted: dict[str, type] = {"name": str, "units": int, "fingerprint": str}
    if not isinstance(corpora, list) or not corpora:
        return "it has no list named corpora"
    validation = record.get("validation", [])
    if not isinstance(validation, list):
        return "validation is not a list"
    for number, corpus in enumerate([*corpora, *validation], start=1):
        if not isinstance(corpus, dict) or not all(
            isinstance(corpus.get(key), kind) and not isinstance(corpus.get(key), bool)
            for key, kind in wanted.items()
        ):
            return f"corpus {number} has not {', '.join(wanted)}"
    if not isinstance(resumed, list):
        return "resumed is not a list"
    return ""


def _is_leftover(entry: Path) -> bool:
    """Whether it is what a run leaves that is killed while it writes its first files."""
    return entry.name == LOCK or entry.name.startswith((f"{HIDDEN}config.yaml.", f"{HIDDEN}run.json."))


def _unused(name: str) -> Path:
    stem = f"{name}-{datetime.now(timezone.utc).astimezone():%Y%m%d-%H%M%S}"
    for number in count(1):
        path = RUNS / (stem if number == 1 else f"{stem}-{number}")
        try:
            # Making it is the only test of a name that two starting at once cannot both pass.
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            todo = f"{advice(error)}, or name another with --out"
            raise UserError(str(path), f"cannot be made ({error.strerror})", todo) from error
        return path
    raise AssertionError("count() ends nowhere")
