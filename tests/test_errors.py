"""What a user sees of an error: one line that no name can forge, with advice that fits it."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from mlx_amort.cli import main
from mlx_amort.cli.tables import align
from mlx_amort.errors import (
    UserError,
    advice,
    assert_never,
    did_you_mean,
    printable,
    shortened,
    user_error_of,
)
from mlx_amort.files import make_folder
from mlx_amort.train.checkpoint_folders import how_to_go_on

FORGED = "x\nerror: all is well\x1b[2J\r\u2028\u202e\x07"


def test_user_error_is_one_line() -> None:
    assert str(UserError("what", "why")) == "what: why"
    assert str(UserError("what", "why", "what to do")) == "what: why; what to do"
    assert str(UserError("what", "why", "paste:", below=["one", "two"])) == "what: why; paste:\n  one\n  two"


def test_no_name_forges_a_line_or_drives_a_terminal() -> None:
    shown = r"x\nerror: all is well\x1b[2J\r\u2028\u202e\x07"
    assert printable(FORGED) == shown
    assert str(UserError(FORGED, FORGED, FORGED)) == f"{shown}: {shown}; {shown}"
    assert str(UserError("w", "y", "t", below=[FORGED])) == f"w: y; t\n  {shown}"
    assert align(["run"], [[FORGED]]) == f"run\n{shown}"


@pytest.mark.parametrize(
    "arguments",
    [
        ["generate", FORGED],
        ["evaluate", FORGED],
        ["train", "--resume", FORGED],
        ["train", "--config", FORGED],
        ["train", "--preset", FORGED],
        ["train", "--set", FORGED],
        ["train", "--set", f"model.{FORGED}=1"],
        ["train", "--set", f"model.trunk={FORGED}"],
        ["train", "--data", FORGED, "--steps", "1"],
        ["train", "--steps", FORGED],
        ["train", f"--{FORGED}"],
        ["train", "--out", f"--x={FORGED}"],
        ["train", "--stop-after", FORGED],
        ["train", "--memory-limit", FORGED],
        ["plan", FORGED, "--bytes", "1"],
        ["fit", FORGED],
        ["compare", FORGED, "b"],
        ["data", FORGED],
        [FORGED],
    ],
)
def test_what_is_typed_is_shown_escaped(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for each in (arguments, [argument.replace("x", "x" * 5000) for argument in arguments]):
        with pytest.raises(SystemExit) as ended:
            main(each)
        told = capsys.readouterr()
        assert (ended.value.code, told.out) == (2, "")
        assert told.err.startswith("error: ") and told.err.count("\n") == 1
        assert told.err[:-1].isprintable()
    assert list(tmp_path.iterdir()) == []


def test_long_names_and_reasons_are_cut_and_what_to_do_is_not() -> None:
    command = "mlx-amort train --resume " + "y" * 5000
    told = str(UserError("x" * 5000, "z" * 5000, command))
    assert len(told) < 900 + len(command) and told.endswith(f"; {command}")
    assert shortened("abcdefghijkl", 9) == "abc...jkl"
    assert shortened("abcdefghi", 9) == "abcdefghi"


def test_the_nearest_name() -> None:
    assert did_you_mean("MOUN", ["muon", "adamw"]) == "did you mean 'muon'?"
    assert did_you_mean("zzz", ["muon", "adamw"]) == "choose one of muon, adamw"


@pytest.mark.parametrize("number", sorted(errno.errorcode))
def test_only_a_full_disk_is_made_room_on(number: int) -> None:
    said = advice(OSError(number, os.strerror(number)))
    assert said
    assert ("room" in said) == (number in (errno.ENOSPC, errno.EDQUOT))
    assert "delete" not in said.replace("deleted", "")


def test_an_error_that_may_be_ours_is_none_of_the_users() -> None:
    for number in (errno.ENOENT, errno.EEXIST, errno.EINVAL, errno.EBADF, 0):
        assert user_error_of(OSError(number, "x", "y")) is None
    told = user_error_of(OSError(errno.EROFS, "Read-only file system", "y"))
    assert (
        str(told) == "y: cannot be read or written (Read-only file system); name a place that can be written"
    )


def test_a_folder_that_cannot_be_made_is_told_with_what_fits(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"^it: is not a folder; name another$"):
        make_folder(tmp_path / "file", "it")
    with pytest.raises(
        UserError, match=r"Not a directory\); a part of that path is a file, so name another,"
    ):
        make_folder(tmp_path / "file" / "sub", "it")
    with pytest.raises(UserError, match=r"^it: is not a folder .*too long\); use a shorter name, or name"):
        make_folder(tmp_path / ("x" * 300), "it")


def test_nobody_is_sent_to_a_run_that_is_gone(tmp_path: Path) -> None:
    assert how_to_go_on(tmp_path / "gone") == "start a new run, for the folder of this one is gone"


def test_a_name_that_nothing_deals_with_is_a_bug() -> None:
    unknown: Any = "spiral"
    with pytest.raises(AssertionError, match="'spiral' is dealt with nowhere"):
        assert_never(unknown)
