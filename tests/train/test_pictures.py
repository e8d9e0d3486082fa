"""Pictures take a hundredth of the time, and never end a run."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from mlx_amort.train.pictures import FIRST_PICTURE_S, MOST_OF_THE_TIME, Pictures
from mlx_amort.train.run import new_run
from tests.train.tiny import tiny_config, train_quietly, write_text


@pytest.mark.parametrize("error", [RuntimeError("latex is missing"), KeyError("serif"), ImportError("x")])
def test_a_picture_that_cannot_be_drawn_is_one_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr("mlx_amort.plots.loss_and_rate", lambda *_, **__: (_ for _ in ()).throw(error))
    monkeypatch.setattr("mlx_amort.train.pictures.FIRST_PICTURE_S", 0.0)
    run = new_run(tiny_config(write_text(tmp_path), eval_every=1), tmp_path / "run", ["test"])
    summary, printed = train_quietly(run)
    assert (summary.ending, summary.files.plot) == ("complete", None)
    assert printed.count("no picture: ") == 1 and str(error).strip("'") in printed
    assert summary.files.checkpoint is not None


def test_pictures_on_the_way_take_a_hundredth_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, drawn_at = 1000.0, []

    def drawing(*_: object, **__: object) -> None:
        nonlocal now
        drawn_at.append(now)
        now += 7.0

    monkeypatch.setattr("mlx_amort.plots.loss_and_rate", drawing)
    run = new_run(tiny_config(write_text(tmp_path)), tmp_path / "run", ["test"])
    train_quietly(run)
    drawn_at.clear()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    pictures = Pictures(run, lambda: None, print)
    for _ in range(4000):
        now += 1.0
        pictures.draw_if_cheap()
    assert drawn_at[0] - 1000.0 >= FIRST_PICTURE_S / MOST_OF_THE_TIME
    assert len(drawn_at) >= 3 and 7.0 * len(drawn_at) <= MOST_OF_THE_TIME * (now - 1000.0)
