"""Progress on stderr: nothing of what is soon over, then lines that fit the terminal, or whole ones now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from mlx_amort.cli.progress import ProgressLine
from tests.cli.terminal import on_terminal

ROOT = Path(__file__).parents[2]
# Three lines at once, then one that stays, as a sweep or a run shows them.
SHOW = """
import sys
from mlx_amort.streams import MovingLine
line = MovingLine(sys.stderr, plain_every_s={every_s})
for number in range(3):
    line.show(f"step {{number}} of 3, a line of 44 characters 2 s left")
line.stay("done")
"""
LINES = [f"step {number} of 3, a line of 44 characters 2 s left\n" for number in range(3)]


def test_progress_is_told_after_two_seconds_and_seldom(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    progress = ProgressLine("checking ids", "id")
    for done in range(1, 31):
        now = 100.0 + done / 2
        progress(1000 * done, 100_000)
        if done == 3:
            assert capsys.readouterr().err == ""
    progress.close()
    assert capsys.readouterr().err.splitlines() == [
        "checking ids: id 4,000 of 100,000, 48 s left",
        "checking ids: id 24,000 of 100,000, 38 s left",
    ]


def shown(
    tmp_path: Path, every_s: float = 0.0, columns: int = 80, environment: Mapping[str, str] | None = None
) -> str:
    command = [sys.executable, "-c", SHOW.format(every_s=every_s)]
    return on_terminal(command, tmp_path, columns, {"PYTHONPATH": str(ROOT), **(environment or {})}).decode()


def test_a_terminal_has_one_line_that_moves(tmp_path: Path) -> None:
    moving = "".join(f"\r{line[:-1]}\x1b[K" for line in LINES)
    assert shown(tmp_path) == f"{moving}\r\x1b[Kdone\n"


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"TERM": ""}, {"NO_COLOR": "1"}])
def test_a_dumb_terminal_has_plain_whole_lines(environment: dict[str, str], tmp_path: Path) -> None:
    assert shown(tmp_path, environment=environment) == "".join([*LINES, "done\n"])
    assert shown(tmp_path, every_s=60.0, environment=environment) == f"{LINES[0]}done\n"


def test_a_line_that_is_wider_than_the_terminal_is_not_cut(tmp_path: Path) -> None:
    assert shown(tmp_path, columns=40) == "".join([*LINES, "done\n"])
    assert shown(tmp_path, every_s=60.0, columns=40) == f"{LINES[0]}done\n"
