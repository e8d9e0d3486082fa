"""Every tool says what it does before it does anything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"
# A module without a command is imported by one.
FILES = sorted(file for file in TOOLS.glob("[!_]*.py") if "__main__" in file.read_text(encoding="utf-8"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_help_runs_nothing(file: Path, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, str(file), "--help"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("usage: ") and not list(tmp_path.iterdir())
