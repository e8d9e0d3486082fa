"""Train a tiny model for long, killed again and again, and hold it against a run that nothing disturbed.

The run saves, validates and draws all the time; every so many steps its process is killed (SIGKILL) and the run
resumed. Checked: the final state is bit for bit that of the undisturbed run, the log has every step once and in
order, and the undisturbed process holds as much memory and as many open files at its end as after its warm-up.
"""

from __future__ import annotations

import argparse
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from mlx_amort.errors import UserError
from mlx_amort.train.checkpoint import load_latest
from mlx_amort.train.metrics import read_rows

TINY = (
    *(
        "--preset",
        "demo",
        "--seq",
        "32",
        "--batch",
        "2",
        "--chunks",
        "2",
        "--window",
        "1",
        "--precision",
        "fp32",
    ),
    *(
        "--set",
        "model.layers=1",
        "--set",
        "model.hidden=16",
        "--set",
        "model.ffn=32",
        "--set",
        "model.heads=2",
    ),
    *("--set", "run.sample_bytes=0"),
)
TEXT_BYTES, SEED = 60_000, 1
WATCHED_EVERY_S = 0.02


@dataclass(frozen=True)
class Held:
    """What the process of a run held after some step."""

    step: int
    resident_bytes: int
    descriptors: int


class Failed(Exception):
    """A promise that was not kept."""


def main() -> None:
    """Train both runs and print what was seen; exit 1 with the promise that was not kept."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=2000, help="length of each run (default: 2000)")
    parser.add_argument("--kill-every", type=int, default=100, help="steps between kills (default: 100)")
    parser.add_argument("--save-every", type=int, default=10, help="steps between checkpoints (default: 10)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        try:
            report = soak(Path(folder), arguments.steps, arguments.kill_every, arguments.save_every)
        except Failed as failure:
            sys.exit(f"FAILED: {failure}")
    print("\n".join(report))


def soak(folder: Path, steps: int, kill_every: int, save_every: int) -> list[str]:
    """Both runs, and what was seen, a line each. Raises: Failed."""
    text = folder / "text.txt"
    words = random.Random(SEED).choices(
        ["a", "state", "of", "bytes", "is", "carried", "over", "every", "cut", "of", "the", "text"],
        k=TEXT_BYTES,
    )
    text.write_text(" ".join(words)[:TEXT_BYTES], encoding="utf-8")
    options = [*TINY, "--data", str(text), "--steps", str(steps), "--save-every", str(save_every)]
    options += ["--eval-every", str(save_every)]
    undisturbed, killed = folder / "undisturbed", folder / "killed"
    started_at = time.monotonic()
    held = _watched(["train", *options, "--out", str(undisturbed)], undisturbed)
    took_s = time.monotonic() - started_at
    kills = _killed_again_and_again(["train", *options, "--out", str(killed)], killed, steps, kill_every)
    _check_states(undisturbed, killed, steps)
    for run in (undisturbed, killed):
        _check_log(run, steps)
    return [
        f"machine      {platform.machine()}, {psutil.cpu_count()} cores, {platform.system()}",
        f"undisturbed  {steps:,} steps in {took_s:.0f} s",
        f"killed       {kills} times; final state equal bit for bit; both logs have every step once, in order",
        _check_flat(held, steps),
    ]


def _start(arguments: list[str], run: Path) -> subprocess.Popen[bytes]:
    with (run.parent / f"{run.name}.log").open("ab") as output:
        command = [sys.executable, "-m", "mlx_amort", *arguments]
        return subprocess.Popen(command, stdout=output, stderr=output)


def _watched(arguments: list[str], run: Path) -> list[Held]:
    """Train to the end, and what the process held at each step that was seen."""
    process = _start(arguments, run)
    watched, held = psutil.Process(process.pid), list[Held]()
    while process.poll() is None:
        try:
            reached = _steps_logged(run)
            held.append(Held(reached, watched.memory_info().rss, watched.num_fds()))
        except psutil.Error:
            # It ended between two questions.
            break
        time.sleep(WATCHED_EVERY_S)
    _check_ended(process.wait(), 0, run)
    return held


def _killed_again_and_again(arguments: list[str], run: Path, steps: int, kill_every: int) -> int:
    """Kill a run whenever another `kill_every` steps are logged, resume it, and let it end; returns the kills."""
    kills = 0
    for kill_at in range(kill_every, steps, kill_every):
        process = _start(arguments if kills == 0 else ["train", "--resume", str(run)], run)
        while process.poll() is None and _steps_logged(run) < kill_at:
            time.sleep(WATCHED_EVERY_S / 10)
        process.kill()
        _check_ended(process.wait(), -signal.SIGKILL, run)
        kills += 1
    process = _start(["train", "--resume", str(run)] if kills else arguments, run)
    _check_ended(process.wait(), 0, run)
    return kills


def _check_ended(code: int, expected: int, run: Path) -> None:
    if code != expected:
        printed = (run.parent / f"{run.name}.log").read_text(encoding="utf-8", errors="replace")
        raise Failed(f"{run.name}: exit {code}, expected {expected}: {printed[-2000:]}")


def _steps_logged(run: Path) -> int:
    try:
        return (run / "metrics.jsonl").read_bytes().count(b'"loss_bits"')
    except OSError:
        return 0


def _check_states(one: Path, other: Path, steps: int) -> None:
    try:
        states = [load_latest(run).state for run in (one, other)]
    except UserError as refusal:
        raise Failed(str(refusal)) from refusal
    if [state.step for state in states] != [steps, steps]:
        raise Failed(f"the runs ended at steps {[state.step for state in states]}")
    for kind in ("weights", "optimizer"):
        arrays, others = (getattr(state, kind) for state in states)
        for name in arrays.keys() | others.keys():
            if np.array(arrays[name]).tobytes() != np.array(others[name]).tobytes():
                raise Failed(f"{kind} {name} differs from the undisturbed run's")


def _check_log(run: Path, steps: int) -> None:
    logged = [row["step"] for row in read_rows(run / "metrics.jsonl") if "loss_bits" in row]
    if logged != list(range(1, steps + 1)):
        raise Failed(f"{run.name}: the log does not have every step once, in order")


def _check_flat(held: list[Held], steps: int) -> str:
    """That the last quarter holds no more than the quarter after the first half: the median of each."""
    early = [each for each in held if steps // 2 <= each.step < 3 * steps // 4]
    late = [each for each in held if 3 * steps // 4 <= each.step < steps]
    if not early or not late:
        raise Failed("the run was too fast to be watched; ask for more steps")
    before, after = (float(np.median([each.resident_bytes for each in part])) for part in (early, late))
    files, more_files = (int(np.median([each.descriptors for each in part])) for part in (early, late))
    if after > 1.01 * before or more_files != files:
        raise Failed(
            f"resident {before / 1e6:.1f} to {after / 1e6:.1f} MB, {files} to {more_files} descriptors"
        )
    return f"memory       resident {before / 1e6:.1f} to {after / 1e6:.1f} MB, {files} open descriptors throughout"


if __name__ == "__main__":
    main()
