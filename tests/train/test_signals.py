"""Ctrl-C and SIGTERM sent to a real process: the step is finished, the state saved, the exit code right."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mlx_amort.train.checkpoint import load_latest
from mlx_amort.train.interrupt import Interrupt
from mlx_amort.train.metrics import read_rows
from tests.train.tiny import SETTINGS, write_text

ENDLESS_STEPS = 100_000
PATIENCE_S = 60


def running(tmp_path: Path) -> subprocess.Popen[str]:
    """A run under way: its third step is logged."""
    arguments = [f"--set={setting}" for setting in SETTINGS]
    arguments += ["--data", str(write_text(tmp_path)), "--steps", str(ENDLESS_STEPS), "--precision", "fp32"]
    arguments += ["--save-every", "2", "--eval-every", "50", "--out", str(tmp_path / "run")]
    process = subprocess.Popen(
        [sys.executable, "-m", "mlx_amort", "train", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    log, patience_ends_at = tmp_path / "run" / "metrics.jsonl", time.monotonic() + PATIENCE_S
    while not log.exists() or len(log.read_text(encoding="utf-8").splitlines()) < 3:
        if process.poll() is not None or time.monotonic() > patience_ends_at:
            process.kill()
            pytest.fail(f"the run did not come to its third step:\n{process.communicate()[0]}")
        time.sleep(0.02)
    return process


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    try:
        printed, _ = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    return process.returncode, printed


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_saves_the_step_it_came_in(tmp_path: Path, number: int, code: int) -> None:
    process = running(tmp_path)
    process.send_signal(number)
    returned, printed = ended(process)
    assert returned == code, printed
    saved, logged = load_latest(tmp_path / "run").state.step, read_rows(tmp_path / "run" / "metrics.jsonl")
    assert saved == max(row["step"] for row in logged) >= 3
    assert f"interrupted and saved at step {saved:,}" in printed and "--resume" in printed
    assert "Traceback" not in printed


def test_an_impatient_ctrl_c_harms_nothing(tmp_path: Path) -> None:
    process = running(tmp_path)
    for _ in range(4):
        process.send_signal(signal.SIGINT)
        time.sleep(0.02)
    returned, printed = ended(process)
    assert returned in (130, -signal.SIGINT), printed
    assert load_latest(tmp_path / "run").state.step >= 3


def test_a_kill_leaves_a_run_that_goes_on(tmp_path: Path) -> None:
    process = running(tmp_path)
    process.kill()
    ended(process)
    saved = load_latest(tmp_path / "run").state.step
    arguments = ["--resume", str(tmp_path / "run"), "--stop-after", str(saved + 2), "--quiet"]
    subprocess.run(
        [sys.executable, "-m", "mlx_amort", "train", *arguments],
        check=True,
        capture_output=True,
        cwd=Path(__file__).parents[2],
    )
    steps = [row["step"] for row in read_rows(tmp_path / "run" / "metrics.jsonl") if "loss_bits" in row]
    assert steps == list(range(1, saved + 3))


def test_the_first_signal_decides_and_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Interrupt() as interrupt:
        assert not interrupt.is_set
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupt.is_set and interrupt.exit_code == 143
    assert signal.getsignal(signal.SIGTERM) is before
