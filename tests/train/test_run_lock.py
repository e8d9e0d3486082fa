"""One process at a time for a run's folder; the lock dies with its process, however that ends."""

from __future__ import annotations

import errno
import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from mlx_amort.errors import UserError
from mlx_amort.train.run_lock import LOCK, acquire, release

HOLDING = """
import sys, pathlib
from mlx_amort.train.run_lock import acquire
assert acquire(pathlib.Path(sys.argv[1]), "run") == ""
print("held", flush=True)
sys.stdin.read()
"""
PATIENCE_S = 60


def test_a_second_process_is_refused_by_the_number_of_the_first_until_it_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDING, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        with pytest.raises(UserError, match=rf"--resume run: process {holder.pid} on .* works on this run"):
            acquire(tmp_path, "--resume run")
        holder.kill()
        holder.wait(PATIENCE_S)
    assert acquire(tmp_path, "--resume run") == ""
    release(tmp_path)


def test_a_process_may_ask_again_and_let_go_twice(tmp_path: Path) -> None:
    assert acquire(tmp_path, "run") == acquire(tmp_path / ".", "run") == ""
    release(tmp_path)
    release(tmp_path)
    assert (tmp_path / LOCK).exists()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP])
def test_a_file_system_without_locks_is_said_and_not_fatal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def without_locks(descriptor: int, operation: int) -> None:
        raise OSError(number, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", without_locks)
    assert "its file system has no locks" in acquire(tmp_path, "run")


def test_a_folder_that_cannot_be_written_is_left_to_what_writes_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(*_: object) -> int:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("mlx_amort.train.run_lock.os.open", read_only)
    assert acquire(tmp_path, "run") == ""
