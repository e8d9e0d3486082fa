"""Runs of the installed command, each in a process of its own, and a file that keeps what came of them."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click

from tools.study.choices import BASE, PRESET, Overrides, Training
from tools.study.tables import figure

Runner = Callable[[Training], float]


def run_training(wanted: Training, threads: int | None = None) -> float:
    """Train in a process and a folder of their own; threads: OpenBLAS', None for its own choice.

    Units: bits per byte over the whole validation part, infinite for a run that diverged.
    Raises: click.ClickException when the command failed.
    """
    environment = dict(os.environ)
    if threads is not None:
        environment["OPENBLAS_NUM_THREADS"] = str(threads)
    with tempfile.TemporaryDirectory() as parent:
        folder = str(Path(parent) / "run")
        command = ["train", "--json", "--preset", PRESET, "--out", folder, "--data", wanted.data]
        command += ["--steps", str(wanted.steps), "--seed", str(wanted.seed)]
        for override in wanted.overrides:
            command += ["--set", override]
        summary = _answer(command, environment)
        if summary["ending"] == "diverged":
            return math.inf
        if summary["ending"] != "complete":
            raise click.ClickException(f"a run ended as {summary['ending']}: {wanted}")
        if summary["val_is_whole"]:
            bits = summary["val_bits"]
        else:
            bits = _answer(["evaluate", folder, "--json"], environment)["bits_per_byte"]
    return float(bits) if bits is not None and math.isfinite(bits) else math.inf  # type: ignore[arg-type]


def _answer(command: list[str], environment: Mapping[str, str]) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-m", "mlx_amort", *command], env=environment, capture_output=True, text=True
    )
    try:
        # A diverged run exits with 1 and has a summary all the same.
        answer: dict[str, object] = json.loads(done.stdout)
    except json.JSONDecodeError:
        told = done.stderr.strip().splitlines()[-1:]
        raise click.ClickException(
            f"`{command[0]}` exited with {done.returncode}: {' '.join(told)}"
        ) from None
    return answer


class Results:
    """Bits per byte of runs by what they are, and times by choices, kept in memory and in a file of JSON lines."""

    def __init__(self, file: Path | None, runner: Runner, jobs: int = 1) -> None:
        self._file = file
        self._runner = runner
        self._jobs = jobs
        self._lock = threading.Lock()
        self._bits: dict[Training, float] = {}
        self._times: dict[str, dict[str, list[float]]] = {}
        if file is not None and file.exists():
            self._read(file)

    def bits(self, wanted: Sequence[Training]) -> list[float]:
        """Bits per byte of each run; those that are not known yet are made first, `jobs` at once."""
        missing = [one for one in dict.fromkeys(wanted) if one not in self._bits]
        with ThreadPoolExecutor(self._jobs) as pool:
            list(pool.map(self._run, missing))
        return [self._bits[one] for one in wanted]

    def times(self, choices: Mapping[str, Overrides]) -> dict[str, list[float]] | None:
        """Seconds of each timed step by choice, if exactly these choices were timed together before."""
        return self._times.get(_key_of(choices))

    def keep_times(self, choices: Mapping[str, Overrides], samples_s: dict[str, list[float]]) -> None:
        """Remember what `times` answers: an interrupted study goes on with the step counts it began with."""
        self._times[_key_of(choices)] = samples_s
        self._append({"choices": choices, "samples_s": samples_s})

    def _run(self, wanted: Training) -> None:
        bits = self._runner(wanted)
        with self._lock:
            self._bits[wanted] = bits
            finite = bits if math.isfinite(bits) else None
            self._append({**dataclasses.asdict(wanted), "bits_per_byte": finite})
            shown = " ".join(override for override in wanted.overrides if override.split("=")[0] not in BASE)
            click.echo(
                f"{wanted.data} {shown}, {wanted.steps} steps, seed {wanted.seed}: {figure(bits)}", err=True
            )

    def _append(self, record: Mapping[str, object]) -> None:
        if self._file is not None:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")

    def _read(self, file: Path) -> None:
        text = file.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            # The last line was cut off by whatever ended the study; what is appended starts a line.
            file.write_text(whole, encoding="utf-8")
        for line in whole.splitlines():
            record = json.loads(line)
            if "samples_s" in record:
                self._times[_key_of(record["choices"])] = record["samples_s"]
            else:
                bits = record.pop("bits_per_byte")
                key = Training(**{**record, "overrides": tuple(record["overrides"])})
                self._bits[key] = math.inf if bits is None else bits


def _key_of(choices: Mapping[str, Overrides]) -> str:
    return json.dumps(choices, sort_keys=True)
