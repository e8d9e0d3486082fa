"""The command in the environments it is started in: closed streams, no account, foreign modules, read-only folders."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.train.tiny import start, tiny_config, write_text

INSTALLED = Path(sys.executable).with_name("mlx-amort")
# Modules of the user's that bear the names of ours, of the standard library and of packages we import.
FOREIGN = ("numpy", "statistics", "queue", "random", "click", "yaml", "matplotlib", "mlx", "signal", "json")
# Every verb once, where the current folder holds `run` and `text.txt`.
VERBS = {
    "train": "train --resume run --steps 3 --quiet",
    "evaluate": "evaluate run --whole",
    "generate": "generate run --bytes 2",
    "presets": "presets demo",
    "data": "data text.txt",
    "memory-estimate": "memory-estimate --preset demo",
    "compare": "compare run run",
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("environment")
    config = tiny_config(write_text(folder), steps=2, sample_bytes=0, eval_every=1)
    start(config, folder / "run")
    return folder


@pytest.fixture
def place(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path / "place")
    return tmp_path / "place"


def environment(**changed: str) -> dict[str, str]:
    """What a bare login has, and the cache of kernels of this machine's user."""
    bare = {"PATH": "/usr/bin:/bin", "HOME": os.path.expanduser("~"), "OPENBLAS_NUM_THREADS": "1"}
    return {**bare, **changed}


def run(
    line: str, place: Path, environ: Mapping[str, str], command: str = str(INSTALLED), after: str = ""
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["bash", "-c", f"'{command}' {line} {after}"],
        capture_output=True,
        check=False,
        cwd=place,
        env=dict(environ),
        timeout=300,
    )


def succeeds(ended: subprocess.CompletedProcess[bytes]) -> None:
    assert ended.returncode == 0, ended.stderr.decode(errors="replace")
    assert b"Traceback" not in ended.stderr and b"warning" not in ended.stderr.lower()


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("verb", ["generate", pytest.param("evaluate", marks=pytest.mark.slow)])
def test_closed_standard_streams(trained: Path, verb: str, closed: str) -> None:
    ended = run(VERBS[verb], trained, environment(), after=closed)
    succeeds(ended)
    assert bool(ended.stdout) == (">&-" not in closed.replace("2>&-", ""))


@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", pytest.param("<&-", marks=pytest.mark.slow)])
def test_a_run_is_resumed_with_closed_standard_streams(place: Path, closed: str) -> None:
    succeeds(run(VERBS["train"], place, environment(), after=closed))
    assert (place / "run" / "checkpoints" / "step-00000003").is_dir()


def test_a_prompt_from_a_closed_standard_input_is_refused(trained: Path) -> None:
    ended = run("generate run --prompt-file -", trained, environment(), after="<&-")
    assert ended.returncode == 2
    assert ended.stderr == b"error: --prompt-file -: standard input is closed; pipe the prompt in\n"
