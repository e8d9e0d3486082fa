"""The command as a shell sees it: closed and full outputs, Ctrl-C while it loads, files that cannot be written."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from mlx_amort.cli import main, program
from mlx_amort.errors import user_error_of
from mlx_amort.train.metrics import MetricsLog, Row
from tests.environment import clean_environment
from tests.train.tiny import SETTINGS, write_text

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "mlx_amort"]
FULL = Path("/dev/full")


def shell(line: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """What bash makes of a line in which `amort` is the command."""
    text = f'set -o pipefail; amort() {{ {" ".join(COMMAND)} "$@"; }}; {line}'
    return subprocess.run(
        ["bash", "-c", text], capture_output=True, text=True, check=False, cwd=cwd, env=clean_environment(cwd)
    )


@pytest.fixture
def train(tmp_path: Path) -> str:
    write_text(tmp_path)
    return " ".join(
        ["amort train", *[f"--set={setting}" for setting in SETTINGS], "--data text.txt --steps 6"]
    )


@pytest.mark.parametrize("outlet", ["| true", "> /dev/full", ">&-", "> /dev/full 2> /dev/full"])
def test_training_does_not_die_of_its_console(tmp_path: Path, train: str, outlet: str) -> None:
    ended = shell(f"{train} --out run {outlet}", tmp_path)
    assert ended.returncode == 0 and ended.stderr == ""
    assert (tmp_path / "run" / "checkpoints" / "step-00000006").is_dir()


@pytest.mark.parametrize("verb", ["presets", "presets demo", "--help", "train --help"])
def test_other_verbs_end_quietly_when_their_reader_has_gone(tmp_path: Path, verb: str) -> None:
    # The reader has gone before the first byte comes.
    ended = shell(f"(sleep 2; amort {verb}) | true", tmp_path)
    assert ended.returncode == 141 and ended.stderr == ""


@pytest.mark.skipif(not FULL.exists(), reason="no device that is always full: a full output stays untried")
def test_a_full_output_is_told_in_one_line(tmp_path: Path) -> None:
    ended = shell("amort presets > /dev/full", tmp_path)
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: output: ") and ended.stderr.count("\n") == 1


def test_a_name_that_is_no_text_is_printed_all_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    write_text(folder)
    (folder / "text.txt").rename(folder / os.fsdecode(b"t\xff.txt"))
    assert shell("amort data texts", tmp_path).returncode == 0
    train = " ".join(["amort train", *[f"--set={setting}" for setting in SETTINGS]])
    ended = shell(
        f"{train} --data $'texts/t\\xff.txt' --steps 1 --out run && amort train --resume run", tmp_path
    )
    assert ended.returncode == 0, ended.stderr
    refused = shell(f"{train} --steps 1 --out $'r\\xff'", tmp_path)
    assert refused.returncode == 2 and "is not a name in UTF-8" in refused.stderr


@pytest.mark.parametrize("delay_s", [0.05, 0.1, 0.2, 0.4])
def test_ctrl_c_while_the_command_loads_is_quiet(tmp_path: Path, delay_s: float) -> None:
    # From inside, for on a busy machine this process may be the one that is late.
    program = f"""
import os, signal, threading
import mlx_amort.__main__ as command
threading.Timer({delay_s}, os.kill, (os.getpid(), signal.SIGINT)).start()
command.main()
"""
    ended = subprocess.run(
        [sys.executable, "-c", program, "train"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=clean_environment(tmp_path),
    )
    assert ended.returncode == 130 and ended.stderr.strip() == ""


def test_ctrl_c_in_an_extension_that_loads_is_quiet(tmp_path: Path) -> None:
    # An import that is interrupted where nanobind would abort: inside another module's execution, in a verb.
    (tmp_path / "slow.py").write_text(
        "import os, signal; os.kill(os.getpid(), signal.SIGINT); raise SystemError"
    )
    told = "import signal, mlx_amort.cli as cli; signal.signal(signal.SIGINT, cli._interrupt); import slow"
    ended = subprocess.run(
        [sys.executable, "-c", told],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=clean_environment(tmp_path),
    )
    assert ended.returncode == 130 and ended.stderr == ""
    told = "import signal, mlx_amort.cli as cli; cli._interrupt(signal.SIGINT, None)"
    ended = subprocess.run(
        [sys.executable, "-c", told],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=clean_environment(tmp_path),
    )
    assert "KeyboardInterrupt" in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", "--batch", "3", "--batch", "4"], "--batch: given twice; give it once"),
        (["generate", "run", "--seed", "1", "--seed=2"], "--seed: given twice; give it once"),
        (
            ["train", "--activation-checkpointing", "--no-activation-checkpointing"],
            "--activation-checkpointing: given twice",
        ),
        (["train", "--out", ""], "--out: its value is empty; give one"),
        (["train", "--preset="], "--preset: its value is empty; give one"),
        (["train", "--save-every", ""], "--save-every: its value is empty; give one"),
        (["train", "--data", "a", "--data", ""], "--data: its value is empty; give one"),
        (["train", "--out", "x" * 300, "--steps", "1"], "use a shorter name"),
        (["train", "--config", "/dev/zero"], "is a pipe, a socket or a device"),
    ],
)
def test_mistakes_are_told_in_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    told = capsys.readouterr().err
    assert ended.value.code == 2 and told.startswith("error: ") and told.count("\n") == 1 and said in told


def test_what_may_be_repeated_or_empty_is_let_through(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        ["generate", "none", "--prompt", ""],
        ["train", "--quiet", "--quiet", "--resume", "none"],
    ):
        with pytest.raises(SystemExit):
            main(arguments)
        assert "error: run none: no such folder" in capsys.readouterr().err


def test_a_disk_that_fills_during_a_run_ends_it_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    append = MetricsLog.append

    def full(log: MetricsLog, row: Row) -> None:
        if row["step"] == 5:
            raise OSError(28, "No space left on device")
        append(log, row)

    monkeypatch.chdir(tmp_path)
    write_text(tmp_path)
    arguments = ["train", *[f"--set={setting}" for setting in SETTINGS], "--data", "text.txt", "--out", "run"]
    with monkeypatch.context() as broken, pytest.raises(SystemExit) as ended:
        broken.setattr(MetricsLog, "append", full)
        main([*arguments, "--steps", "6", "--save-every", "2"])
    checkpoint = Path("run", "checkpoints", "step-00000004")
    told = capsys.readouterr().err
    assert ended.value.code == 2 and told.count("\n") == 1
    assert told.startswith(
        "error: run: cannot be written (No space left on device); make room there, then go on from "
    )
    assert told.endswith(f"{checkpoint}: mlx-amort train --resume run\n") and checkpoint.is_dir()
    with pytest.raises(SystemExit) as ended:
        main(["train", "--resume", "run"])
    assert ended.value.code == 0


def test_a_disk_that_is_full_from_the_start_is_told_in_one_line(tmp_path: Path, train: str) -> None:
    ended = shell(f"ulimit -f 0; {train} --out run > /dev/null", tmp_path)
    assert ended.returncode == 2 and ended.stderr.count("\n") == 1
    # The first file that is written: the lock, or the configuration where there are no locks.
    assert ended.stderr.startswith("error: ") and "(File too large); name a place that takes" in ended.stderr
    assert shell(f"{train} --out run", tmp_path).returncode == 0


def test_a_checkpoint_that_cannot_be_written_leaves_no_half_of_it(tmp_path: Path, train: str) -> None:
    ended = shell(f"ulimit -f 16; {train} --out run", tmp_path)
    assert ended.returncode == 2 and ended.stderr.count("\n") == 1
    assert "go on from the beginning, for no checkpoint was saved yet" in ended.stderr
    assert list((tmp_path / "run" / "checkpoints").iterdir()) == []
    again = shell("amort train --resume run", tmp_path)
    assert again.returncode == 0, again.stderr
    assert "from the beginning: the run ended before its first checkpoint" in again.stdout


@pytest.mark.parametrize(
    "sizes", [["--set=step.batch=2000000000"], ["--accum", "2000000000"], ["--set=step.chunks=2000000000"]]
)
def test_a_hopeless_step_is_refused_before_anything_is_made(
    tmp_path: Path, sizes: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path)
    settings = [f"--set={setting}" for setting in SETTINGS]
    with pytest.raises(SystemExit) as ended:
        main(["train", *settings, "--data", "text.txt", "--steps", "2", "--out", "run", *sizes])
    told = capsys.readouterr().err
    # Either the rows themselves are too many, or the estimate is: then what would fit stands in lines below.
    first = told.splitlines()[0]
    assert ended.value.code == 2 and first.startswith("error: ")
    assert "lower --batch, --accum" in told or "--force goes ahead" in first
    assert not (tmp_path / "run").exists()


def test_an_error_that_may_be_a_bug_stays_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    assert user_error_of(FileNotFoundError(2, "No such file or directory", "x")) is None
    told = user_error_of(PermissionError(13, "Permission denied", "some/file"))
    assert str(told).startswith("some/file: cannot be read or written (Permission denied); ")

    def fail(*arguments: object, **extra: object) -> None:
        raise FileNotFoundError(2, "No such file or directory", "x")

    monkeypatch.setattr(click.Group, "invoke", fail)
    assert isinstance(program, click.Group)
    with pytest.raises(FileNotFoundError):
        main(["presets"])


@pytest.mark.parametrize(
    ("words", "wanted"),
    [("ev", ["evaluate"]), ("generate --top", ["--top-k", "--top-p"]), ("pro", ["profile"])],
)
def test_the_shell_completes_verbs_and_options(words: str, wanted: list[str], tmp_path: Path) -> None:
    asked = {"COMP_WORDS": f"mlx-amort {words}", "COMP_CWORD": str(len(words.split()))}
    ended = subprocess.run(
        COMMAND,
        env={**clean_environment(tmp_path), **asked, "_MLX_AMORT_COMPLETE": "bash_complete"},
        capture_output=True,
        text=True,
    )
    assert ended.stdout.splitlines() == [f"plain,{word}" for word in wanted], ended.stderr


def test_every_refusal_says_what_to_do() -> None:
    short = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for folder in ("mlx_amort", "tools")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "UserError"
        if len(node.args) + len(node.keywords) < 3 and not any(isinstance(a, ast.Starred) for a in node.args)
    ]
    assert short == []
