"""Progress on stderr: nothing of what is soon over, then a line now and then."""

from __future__ import annotations

import time

import pytest

from mlx_amort.cli.progress import Progress


def test_progress_is_told_after_two_seconds_and_seldom(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    progress = Progress("checking ids", "id")
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
