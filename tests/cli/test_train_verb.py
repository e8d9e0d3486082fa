"""`mlx-amort train` as it is typed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.train.tiny import SETTINGS, write_text

ROOT = Path(__file__).parents[2]


def amort(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(cwd)}
    return subprocess.run(
        [sys.executable, "-m", "mlx_amort", "train", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env=environment,
    )


@pytest.fixture
def tiny(tmp_path: Path) -> list[str]:
    write_text(tmp_path)
    return [f"--set={setting}" for setting in SETTINGS] + ["--data", "text.txt", "--steps", "4"]


def test_train_stop_resume(tmp_path: Path, tiny: list[str]) -> None:
    first = amort(*tiny, "--out", "run", "--stop-after", "2", "--save-every", "1", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert "demo is the default; --preset names another" in first.stdout
    assert "stopped as asked at step 2 of 4" in first.stdout and "train --resume run" in first.stdout
    saved = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text(encoding="utf-8"))
    assert (saved["run"]["save_every"], saved["run"]["steps"]) == (1, 4)
    second = amort("--resume", "run", "--json", cwd=tmp_path)
    assert second.returncode == 0, second.stderr
    assert json.loads(second.stdout)["step"] == 4 and "resumed" in second.stderr
    record = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    assert "--stop-after" in record["command"] and record["resumed"][0]["step"] == 2


def test_divergence_exits_1_and_says_where_to_go_on(tmp_path: Path, tiny: list[str]) -> None:
    wild = ["--lr", "1e30", "--steps", "9", "--set=schedule.warmup_steps=0", "--save-every", "1", "--quiet"]
    ended = amort(*tiny[:-2], *wild, "--out", "run", cwd=tmp_path)
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: run: diverged at step 4")
    assert str(Path("run", "checkpoints", "step-00000001")) in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--resume", "none"], "error: run none: no such folder"),
        (["--resume", "a", "--out", "b"], "error: --out and --resume: "),
        (["--save-every", "2", "--set", "run.save_every=3"], "error: run.save_every: given twice"),
        (["--eval-every", "0"], "error: run.eval_every=0: must be at least 1"),
        (["--set", "step.chunks=900"], "lower --chunks"),
        (["--data", "missing.txt"], "error: "),
        (["--set=model.trunk=dense", "--set=model.vocabulary=100"], "outside the model's vocabulary of 100"),
    ],
)
def test_mistakes_are_told_in_one_line(
    tmp_path: Path, tiny: list[str], arguments: list[str], said: str
) -> None:
    settings = [] if "--data" in arguments else tiny
    ended = amort(*settings, *arguments, cwd=tmp_path)
    assert ended.returncode == 2
    assert said in ended.stderr and ended.stderr.count("\n") == 1
    assert not (tmp_path / "runs").exists()
