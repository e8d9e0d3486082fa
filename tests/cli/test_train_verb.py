"""`mlx-amort train` as it is typed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml

from mlx_amort.cli.train import command
from mlx_amort.data.corpus import Corpus
from mlx_amort.data.parts import Units
from tests.environment import clean_environment
from tests.train.tiny import SETTINGS, write_text


def amort(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mlx_amort", "train", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env=clean_environment(cwd),
    )


@pytest.fixture
def tiny(tmp_path: Path) -> list[str]:
    write_text(tmp_path)
    return [f"--set={setting}" for setting in SETTINGS] + ["--data", "text.txt", "--steps", "4"]


def test_train_stop_resume(tmp_path: Path, tiny: list[str]) -> None:
    first = amort(*tiny, "--out", "run", "--stop-after", "2", "--save-every", "1", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert "demo is the default; --preset names another" in first.stdout
    assert "--data names your own" not in first.stdout
    assert "stopped as asked at step 2 of 4" in first.stdout and "train --resume run" in first.stdout
    saved = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text(encoding="utf-8"))
    assert (saved["run"]["save_every"], saved["run"]["steps"]) == (1, 4)
    second = amort("--resume", "run", "--json", cwd=tmp_path)
    assert second.returncode == 0, second.stderr
    assert json.loads(second.stdout)["step"] == 4 and "resumed" in second.stderr
    record = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    assert "--stop-after" in record["command"] and record["resumed"][0]["step"] == 2


def test_flags_for_a_finished_run_are_refused_and_none_is_no_mistake(tmp_path: Path, tiny: list[str]) -> None:
    assert amort(*tiny, "--out", "run", cwd=tmp_path).returncode == 0
    before = (tmp_path / "run" / "config.yaml").read_bytes()
    for flags in (["--lr", "1e-5"], ["--steps", "4"]):
        ended = amort("--resume", "run", *flags, cwd=tmp_path)
        assert ended.returncode == 2 and "--steps 8" in ended.stderr and ended.stderr.count("\n") == 1
    plain = amort("--resume", "run", cwd=tmp_path)
    assert plain.returncode == 0 and "complete    run: nothing is left to do" in plain.stdout
    assert (tmp_path / "run" / "config.yaml").read_bytes() == before


def test_the_default_corpus_is_said_only_where_none_was_named(tmp_path: Path) -> None:
    tiny = [f"--set={setting}" for setting in (*SETTINGS, "run.sample_bytes=0")] + ["--steps", "1"]
    unnamed = amort(*tiny, "--out", "unnamed", cwd=tmp_path)
    assert "corpus      builtin:docs is the default; --data names your own" in unnamed.stdout
    named = amort(*tiny, "--data", "builtin:docs", "--out", "named", cwd=tmp_path)
    assert named.returncode == 0 and "is the default; --data" not in named.stdout


def test_a_signal_while_ids_are_checked_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.zeros(5000, np.uint16).tofile(tmp_path / "ids.bin")
    monkeypatch.chdir(tmp_path)
    read = Corpus.pieces_as_filed

    def interrupted(*arguments: int) -> Iterator[Units]:
        os.kill(os.getpid(), signal.SIGTERM)
        return read(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Corpus, "pieces_as_filed", interrupted)
    settings = [f"--set={setting}" for setting in (*SETTINGS[1:], "model.trunk=dense", "data.dtype=uint16")]
    arguments = [*settings, "--data", "ids.bin", "--steps", "1", "--out", "run"]
    assert command.main(arguments, standalone_mode=False) == 143
    assert not (tmp_path / "run").exists()


def test_divergence_exits_1_and_says_where_to_go_on(tmp_path: Path, tiny: list[str]) -> None:
    wild = ["--lr", "1e30", "--steps", "9", "--set=schedule.warmup_steps=0", "--save-every", "1", "--quiet"]
    ended = amort(*tiny[:-2], *wild, "--out", "run", cwd=tmp_path)
    assert ended.returncode == 1
    # Weights of 1e30 are finite, and lost: they are no good state to go on from.
    assert "step 1 not saved: weights or optimizer state are not finite" in ended.stdout
    assert ended.stderr.startswith("error: run: diverged at step 1") and "none was saved yet" in ended.stderr
    assert not list((tmp_path / "run" / "checkpoints").iterdir())


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
