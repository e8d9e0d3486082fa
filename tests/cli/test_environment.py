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
    "evaluate": "evaluate run --data text.txt",
    "generate": "generate run --bytes 2",
    "presets": "presets demo",
    "data": "data text.txt",
    "memory-estimate": "memory-estimate --preset demo",
    "compare": "compare run run_again",
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("environment")
    config = tiny_config(write_text(folder), steps=2, sample_bytes=0, eval_every=1)
    start(config, folder / "run")
    shutil.copytree(folder / "run", folder / "run_again")
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


def foreign_modules(folder: Path, names: tuple[str, ...]) -> None:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / f"{name}.py").write_text("raise SystemExit('a foreign module was imported')\n")


@pytest.mark.parametrize("verb", ["generate", *(pytest.param(v, marks=pytest.mark.slow) for v in VERBS)])
@pytest.mark.parametrize("command", ["installed", "-m", "empty part of PYTHONPATH"])
def test_modules_in_the_current_folder_are_not_imported(place: Path, command: str, verb: str) -> None:
    foreign_modules(place, FOREIGN)
    started = [str(INSTALLED)] if command != "-m" else [sys.executable, "-m", "mlx_amort"]
    environ = environment(PYTHONPATH=":/nowhere") if command.startswith("empty") else environment()
    succeeds(
        subprocess.run(
            [*started, *VERBS[verb].split()], capture_output=True, cwd=place, env=environ, check=False
        )
    )


def test_names_of_our_own_modules_in_pythonpath_are_not_imported(place: Path) -> None:
    foreign_modules(
        place / "foreign", ("files", "errors", "streams", "cli", "config", "data", "train", "model")
    )
    succeeds(run(VERBS["generate"], place, environment(PYTHONPATH=str(place / "foreign"))))


SURROUNDINGS = {
    "C": {"LC_ALL": "C", "TERM": "dumb"},
    "POSIX without UTF-8": {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "notebook": {"MPLBACKEND": "module://matplotlib_inline.backend_inline", "NO_COLOR": "1"},
    "no home": {"HOME": ""},
    "home is not there": {"HOME": "/nowhere/at/all", "XDG_CACHE_HOME": "relative"},
}


@pytest.mark.parametrize("verb", ["train", *(pytest.param(v, marks=pytest.mark.slow) for v in VERBS)])
@pytest.mark.parametrize("name", SURROUNDINGS)
def test_surroundings(place: Path, name: str, verb: str) -> None:
    succeeds(run(VERBS[verb], place, environment(**SURROUNDINGS[name])))


@pytest.fixture
def stranger(place: Path) -> Iterator[list[str]]:
    """A command prefix that runs as a user id without an account, who may read `place` and write nothing in it."""
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("not run as root: a user without an account stays untried")
    for folder in (place, *place.parents):
        if folder.stat().st_mode & 0o005 != 0o005 and folder.is_relative_to("/tmp"):
            folder.chmod(folder.stat().st_mode | 0o055)
    yield ["setpriv", "--reuid", "54321", "--clear-groups", str(INSTALLED)]


@pytest.mark.parametrize("verb", [v for v in VERBS if v != "train"])
def test_a_user_without_account_and_home_in_a_folder_that_is_read_only(
    place: Path, stranger: list[str], verb: str
) -> None:
    environ = {name: value for name, value in environment().items() if name != "HOME"}
    before = sorted(place.rglob("*"))
    line = [*stranger, *VERBS[verb].split()]
    succeeds(subprocess.run(line, capture_output=True, cwd=place, env=environ, check=False))
    assert sorted(place.rglob("*")) == before
