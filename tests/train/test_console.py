"""What is printed: one moving line on a terminal, sparse plain lines elsewhere, little when quiet."""

from __future__ import annotations

import dataclasses
import functools
import io
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlx_amort.config.reading import resolve
from mlx_amort.config.values import ScheduleConfig
from mlx_amort.errors import UserError
from mlx_amort.train.console import Console, step_line
from mlx_amort.train.header import header_lines
from mlx_amort.train.interrupt import Interrupt
from mlx_amort.train.metrics import MetricsLog, StepRow, read_rows
from mlx_amort.train.resume import resumed_run
from mlx_amort.train.run import new_run
from mlx_amort.train.session import train_run
from mlx_amort.train.summary_lines import summary_lines
from tests.train.tiny import start, tiny_config, train_quietly, write_text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def row_of(step: int, loss_bits: float | None = 2.0, step_s: float = 0.5) -> StepRow:
    return {
        "step": step,
        "bytes": 100 * step,
        "loss_bits": loss_bits,
        "grad_norm": 1.0,
        "step_s": step_s,
        "peak_bytes": 512_000_000,
        "applied": loss_bits is not None,
    }


def test_the_step_line_says_what_is_asked_of_it() -> None:
    line = step_line([row_of(1, 3.0, 9.0), row_of(2, 2.0), row_of(3, 1.0)], last_step=123)
    assert line == "step 3/123  2.000 bits per byte  200 bytes/s  1 min 0 s left  peak 512 MB"
    assert "not finite" in step_line([row_of(4, None)], last_step=5)


def test_what_is_counted_is_named() -> None:
    line = step_line([row_of(1)], last_step=2, unit="id")
    assert "2.000 bits per id  200 ids/s" in line


def test_a_run_on_ids_speaks_of_ids(tmp_path: Path) -> None:
    np.random.default_rng(0).integers(0, 300, 4000, np.uint16).tofile(tmp_path / "ids.bin")
    config = tiny_config(tmp_path / "ids.bin", eval_every=2, sample_bytes=0)
    config = dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, trunk="dense", vocabulary=300),
        data=dataclasses.replace(config.data, dtype="uint16"),
    )
    run = new_run(config, tmp_path / "run", ["test"])
    progress, outcome = io.StringIO(), io.StringIO()
    console = Console(progress, outcome)
    summary = train_run(run, console, Interrupt())
    console.summary(summary)
    assert summary.unit == "id" and "768 ids" in outcome.getvalue() and "bits per id" in progress.getvalue()
    for printed in (progress.getvalue(), outcome.getvalue()):
        assert "bits per byte" not in printed and "bytes/s" not in printed


@pytest.mark.parametrize(
    ("steps", "schedule", "wanted"),
    [
        (
            400,
            {},
            "learning rate 0.003 to 0.0003 (wsd: 100 steps of warm-up, 220 steps at that rate, 80 steps of decay)",
        ),
        (6, {"name": "constant"}, "learning rate 0.003 (constant: 3 steps of warm-up, 3 steps at that rate)"),
        (
            3,
            {"name": "linear"},
            "learning rate 0.003 to 0.0003 (linear: 1 step of warm-up, 2 steps of decay)",
        ),
        (
            6,
            {"warmup_steps": 0, "min_lr": 3e-3, "name": "cosine"},
            "learning rate 0.003 (cosine: 6 steps of decay)",
        ),
    ],
)
def test_the_schedule_is_told_as_it_will_go(
    tmp_path: Path, steps: int, schedule: dict[str, Any], wanted: str
) -> None:
    config = tiny_config(write_text(tmp_path), steps=steps)
    config = dataclasses.replace(config, schedule=ScheduleConfig(**{"base_lr": 3e-3, **schedule}))
    lines = list(header_lines(new_run(config, tmp_path / "run", ["test"])))
    assert wanted in next(line for line in lines if line.startswith("optimizer"))


def test_a_window_longer_than_the_row_is_told(tmp_path: Path) -> None:
    config = tiny_config(write_text(tmp_path))
    config = dataclasses.replace(config, step=dataclasses.replace(config.step, window=5))
    (line,) = (
        found for found in header_lines(new_run(config, tmp_path / "run", ["test"])) if "rows" in found
    )
    assert "gradient through 2 (consecutive, window 5 cut to the chunks of a row)" in line


def test_a_longer_run_says_that_the_rate_goes_up_again(tmp_path: Path) -> None:
    config = tiny_config(write_text(tmp_path), steps=10)
    start(config, tmp_path / "run")
    for steps, wanted in [
        (
            20,
            "from 0.0003 back up to 0.003: the decay begins anew at step 16; ",
        ),
        (
            12,
            "from 0.0003 back up to 0.00109081: the decay now ends at step 12; ",
        ),
    ]:
        resolve_longer = functools.partial(resolve, None, None, [f"run.steps={steps}"])
        run = resumed_run(tmp_path / "run", resolve_longer, ["test"])
        todo = "to stay at the last rate, resume with --schedule constant --lr 0.0003"
        (note,) = [line for line in header_lines(run) if "note" in line]
        assert note == f"  note      learning rate goes {wanted}{todo}"
    steady = ["run.steps=20", "schedule.name=constant", "schedule.base_lr=3e-4"]
    run = resumed_run(tmp_path / "run", functools.partial(resolve, None, None, steady), ["test"])
    assert not [line for line in header_lines(run) if "note" in line]


def test_a_stopped_run_tells_spans_and_its_last_validation(tmp_path: Path) -> None:
    config = tiny_config(write_text(tmp_path), eval_every=2)
    _, first = start(config, tmp_path / "run", stop_after=1)
    assert any("not validated yet" in line for line in summary_lines(first))
    run = resumed_run(tmp_path / "run", lambda saved: saved, ["test"])
    second, _ = train_quietly(run, stop_after=3)
    assert second.speed.session_s < second.speed.train_s
    (quality,) = (line for line in summary_lines(second) if "quality" in line)
    assert quality.endswith("at step 2")
    # The next session validates nothing, and tells that of the one before.
    third, _ = train_quietly(resumed_run(tmp_path / "run", lambda saved: saved, ["test"]), stop_after=4)
    spans = dataclasses.replace(third, speed=dataclasses.replace(third.speed, train_s=25.0, session_s=12.0))
    assert any("25 s in all, 12 s this time, peak" in line for line in summary_lines(spans))
    assert third.quality.val_step == 2


def test_plain_lines_are_the_first_the_last_and_few_between(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    printed = io.StringIO()
    console = Console(printed, printed)
    for step in range(1, 101):
        console.step(row_of(step))
        now += 0.3
    console.steps_ended()
    steps = [int(line.split()[1].split("/")[0]) for line in printed.getvalue().splitlines()]
    assert (steps[0], steps[-1]) == (1, 100) and 5 <= len(steps) <= 9
    assert "\r" not in printed.getvalue()


def test_a_terminal_has_one_moving_line_and_standing_ones_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    printed = Terminal()
    console = Console(printed, printed)
    console.step(row_of(1))
    console.validated({"step": 1, "bytes": 100, "val_bits": 3.0, "val_bytes": 10, "whole": False}, 20)
    console.step(row_of(2))
    console.step(row_of(3))
    console.steps_ended()
    standing = [line.split("\r")[-1].replace("\x1b[K", "") for line in printed.getvalue().split("\n")[:-1]]
    assert [line.split("  ")[0] for line in standing] == ["step 1", "step 3/0"]
    assert "over the first 10 held-out bytes of 20" in standing[0]
    moving = [piece for line in printed.getvalue().split("\n") for piece in line.split("\r")[1:-1]]
    assert moving and all(len(piece.replace("\x1b[K", "")) < 100 for piece in moving)


@pytest.mark.parametrize("setting", [("TERM", "dumb"), ("NO_COLOR", "1"), ("COLUMNS", "40")])
def test_a_terminal_that_cannot_replace_a_line_has_whole_plain_ones(
    setting: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("TERM", "xterm"), ("COLUMNS", "100"), setting):
        monkeypatch.setenv(name, value)
    printed = Terminal()
    console = Console(printed, printed)
    for step in range(1, 4):
        console.step(row_of(step))
    console.steps_ended()
    # The first at once, the last when the steps end; no other within five seconds.
    lines = printed.getvalue().splitlines()
    assert [line.split("/")[0] for line in lines] == ["step 1", "step 3"]
    assert all(" left  peak " in line for line in lines) and "\x1b" not in printed.getvalue()


def printed_by(tmp_path: Path, **how: bool) -> tuple[str, str]:
    run = new_run(tiny_config(write_text(tmp_path), eval_every=2), tmp_path / "run", ["test"])
    progress, outcome = io.StringIO(), io.StringIO()
    console = Console(progress, outcome, **how)
    console.summary(train_run(run, console, Interrupt()))
    return progress.getvalue(), outcome.getvalue()


def test_a_run_says_what_it_resolved_how_it_goes_and_what_came_of_it(tmp_path: Path) -> None:
    progress, outcome = printed_by(tmp_path)
    subjects = [line[:11].strip() for line in progress.split("\n\n")[0].splitlines()]
    assert subjects == [
        "model",
        "step",
        "run",
        "optimizer",
        "data",
        "machine",
        "memory",
        "folder",
        "forecast",
        "",
    ]
    assert "128 bytes: 2 rows × 2 chunks × 32 bytes" in progress and "6 steps, 768 bytes" in progress
    for said in ("bits per byte", "zlib -9", "bytes/s", "peak memory", "plot", "checkpoint", "generate"):
        assert said in outcome
    assert outcome.isprintable() or all(line.isprintable() for line in outcome.splitlines())


def test_quiet_leaves_only_the_outcome(tmp_path: Path) -> None:
    progress, outcome = printed_by(tmp_path, is_quiet=True)
    assert progress == "" and "done at step 6 of 6" in outcome


def test_json_is_one_object(tmp_path: Path) -> None:
    progress, outcome = printed_by(tmp_path, as_json=True)
    summary = json.loads(outcome)
    assert (summary["ending"], summary["step"], summary["bytes"]) == ("complete", 6, 768)
    wanted = {"val_bits", "zlib_bits", "bytes_per_s", "train_s", "peak_bytes", "checkpoint", "plot"}
    wanted |= {"predicted_step_s", "predicted_from", "measured_step_s", "median_step_s"}
    assert wanted <= set(summary)
    assert "step 6/6" in progress


def test_the_log_counts_skipped_steps_and_passes_over_a_torn_line(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    for step, loss_bits in enumerate([1.0, None, None], start=1):
        log.append(row_of(step, loss_bits))
    log.append({"step": 3, "bytes": 300, "val_bits": 1.0, "val_bytes": 5, "whole": True})
    assert log.skipped_in_a_row() == MetricsLog(log.path).skipped_in_a_row() == 2
    assert [row["step"] for row in log.validations()] == [3]
    with log.path.open("a", encoding="utf-8") as file:
        file.write('{"step": 4')
    assert [row["step"] for row in read_rows(log.path)] == [1, 2, 3, 3]
    with log.path.open("a", encoding="utf-8") as file:
        file.write("\n")
    with pytest.raises(UserError, match=r"metrics\.jsonl:5: is not a row"):
        read_rows(log.path)
