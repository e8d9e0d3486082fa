"""Whole runs in this process: exact resumption, what is left on disk, what is refused, what is not finite."""

from __future__ import annotations

import dataclasses
import errno
import json
import math
import os
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mlx_amort.config.reading import load, resolve
from mlx_amort.config.values import Config, SourceConfig
from mlx_amort.errors import UserError
from mlx_amort.evaluate import CorpusQuality, Evaluation
from mlx_amort.optim.schedules import learning_rate
from mlx_amort.train import run as run_module
from mlx_amort.train import session, validation
from mlx_amort.train import validation_budget as due
from mlx_amort.train.checkpoint import load_latest
from mlx_amort.train.checkpoint_folders import complete_checkpoints
from mlx_amort.train.metrics import read_rows, steps_of
from mlx_amort.train.resume import resumed_run
from mlx_amort.train.run import new_run
from mlx_amort.train.state import TrainState, new_train_state
from mlx_amort.train.step import StepResult, TrainingStep
from mlx_amort.train.summary_lines import summary_lines
from tests.train.tiny import MODEL, go_on, is_equal, start, tiny_config, tiny_model, train_quietly, write_text

EXACT = ("step", "bytes", "loss_bits", "grad_norm", "lr", "applied", "val_bits", "val_bytes", "whole")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return write_text(tmp_path)


def exact_rows(folder: Path) -> list[dict[str, object]]:
    """The log without what depends on the clock and the allocator."""
    return [
        {key: value for key, value in row.items() if key in EXACT}
        for row in read_rows(folder / "metrics.jsonl")
    ]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-pure"])
def test_three_steps_and_three_more_are_six(tmp_path: Path, text: Path, precision: str) -> None:
    config = tiny_config(text, precision, eval_every=2)
    start(config, tmp_path / "whole")
    _, stopped = start(config, tmp_path / "halves", stop_after=3)
    assert (stopped.ending, stopped.step, stopped.exit_code) == ("stopped", 3, 0)
    _, ended = go_on(tmp_path / "halves")
    assert (ended.ending, ended.step) == ("complete", 6)

    whole, halves = load_latest(tmp_path / "whole"), load_latest(tmp_path / "halves")
    assert whole.state.step == halves.state.step == 6
    assert is_equal(whole.state.weights, halves.state.weights)
    assert is_equal(whole.state.optimizer, halves.state.optimizer)
    assert exact_rows(tmp_path / "whole") == exact_rows(tmp_path / "halves")


def test_a_run_is_the_steps_of_its_stream_at_the_rates_of_its_schedule(tmp_path: Path, text: Path) -> None:
    config = tiny_config(text, eval_every=2)
    run, _ = start(config, tmp_path / "run")
    model = tiny_model()
    state, step = (
        new_train_state(model, config.optimizer, config.run.seed),
        TrainingStep(model, config.step, config.optimizer),
    )
    nats = [
        step(state, run.stream.batch(n), learning_rate(n, 6, config.schedule)).loss_nats for n in range(6)
    ]
    assert is_equal(state.weights, run.state.weights)
    rows = [row for row in read_rows(tmp_path / "run" / "metrics.jsonl") if "loss_bits" in row]
    assert [row["loss_bits"] for row in rows] == pytest.approx([loss / math.log(2) for loss in nats])
    assert [row["lr"] for row in rows] == [learning_rate(n, 6, config.schedule) for n in range(6)]


def test_a_killed_run_that_logged_further_goes_on_from_its_checkpoint(tmp_path: Path, text: Path) -> None:
    config = tiny_config(text, save_every=2)
    start(config, tmp_path / "whole")
    start(config, tmp_path / "killed", stop_after=2)
    log = tmp_path / "killed" / "metrics.jsonl"
    with log.open("a", encoding="utf-8") as file:
        row = {"step": 3, "bytes": 1, "loss_bits": 1.0, "step_s": 1.0, "peak_bytes": 1, "applied": True}
        file.write(json.dumps(row) + '\n{"step": 4, "by')
    go_on(tmp_path / "killed")
    assert exact_rows(tmp_path / "killed") == exact_rows(tmp_path / "whole")


def test_a_run_leaves_all_that_it_promises(tmp_path: Path, text: Path) -> None:
    out = tmp_path / "run"
    config = tiny_config(text, eval_every=2, save_every=2, keep_checkpoints=2)
    run, summary = start(config, out)
    assert load(out / "config.yaml") == run.config
    record = json.loads((out / "run.json").read_text(encoding="utf-8"))
    assert {"versions", "machine", "command", "started_at", "corpora"} <= set(record)
    rows = read_rows(out / "metrics.jsonl")
    steps = [row for row in rows if "loss_bits" in row]
    wanted = {
        "step",
        "bytes",
        "loss_bits",
        "grad_norm",
        "lr",
        "step_s",
        "predicted_s",
        "peak_bytes",
        "applied",
    }
    assert [row["step"] for row in steps] == [1, 2, 3, 4, 5, 6] and all(
        set(row) - {"compiled"} == wanted for row in steps
    )
    assert [row["bytes"] for row in steps] == [128 * n for n in range(1, 7)]
    validations = [row for row in rows if "val_bits" in row]
    assert [row["step"] for row in validations] == [2, 4, 6]
    assert all({"step", "bytes", "val_bits"} <= set(row) for row in validations)
    assert [path.name for path in complete_checkpoints(out)] == ["step-00000004", "step-00000006"]
    assert (out / "plots" / "loss_and_rate.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "sample.txt").read_bytes().startswith(b"th") and (out / "sample.txt").stat().st_size == 6
    assert summary.quality.val_is_whole and summary.quality.val_bits == validations[-1]["val_bits"]
    assert summary.quality.train_bits == pytest.approx(np.mean([row["loss_bits"] for row in steps]))


def test_the_first_loss_is_that_of_guessing(tmp_path: Path, text: Path) -> None:
    start(tiny_config(text), tmp_path / "run")
    losses = [row["loss_bits"] or 0.0 for row in steps_of(read_rows(tmp_path / "run" / "metrics.jsonl"))]
    assert losses[0] == pytest.approx(8, abs=0.05) and losses[5] < losses[0]


def test_resuming_a_finished_run_takes_no_step_and_measures_nothing_twice(tmp_path: Path, text: Path) -> None:
    _, first = start(tiny_config(text), tmp_path / "run")
    before = exact_rows(tmp_path / "run")
    _, second = go_on(tmp_path / "run")
    assert exact_rows(tmp_path / "run") == before
    assert (second.step, second.quality, second.files) == (6, first.quality, first.files)


def content(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_validates_at_its_end_also_what_it_did_on_the_way(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(due, "CAP_STEPS", 2)
    start(tiny_config(text, eval_every=2), tmp_path / "run")
    rows = [row for row in read_rows(tmp_path / "run" / "metrics.jsonl") if "val_bits" in row]
    assert [(row["step"], row["whole"]) for row in rows] == [(2, False), (4, False), (6, False), (6, True)]
    assert len({row["val_bytes"] for row in rows[:3]}) == 1
    start(tiny_config(text), tmp_path / "unwatched")
    rows = [row for row in read_rows(tmp_path / "unwatched" / "metrics.jsonl") if "val_bits" in row]
    assert [(row["step"], row["whole"]) for row in rows] == [(6, True)]


def test_resuming_a_finished_run_writes_nothing(tmp_path: Path, text: Path) -> None:
    start(tiny_config(text, eval_every=2), tmp_path / "run")
    before = content(tmp_path / "run")
    run = resumed_run(tmp_path / "run", lambda config: config, ["test"])
    _, printed = train_quietly(run)
    assert content(tmp_path / "run") == before
    assert "nothing is left to do and nothing was written" in printed
    with pytest.raises(UserError, match=r"complete at step 6: .* --steps 12"):
        resumed_run(tmp_path / "run", asked("schedule.base_lr=1e-4"), ["test"])
    assert content(tmp_path / "run") == before


def test_a_finished_run_whose_sample_is_missing_writes_it(tmp_path: Path, text: Path) -> None:
    start(tiny_config(text), tmp_path / "run")
    (tmp_path / "run" / "sample.txt").unlink()
    go_on(tmp_path / "run")
    assert (tmp_path / "run" / "sample.txt").exists()


def test_a_run_may_be_closed_where_it_stopped(tmp_path: Path, text: Path) -> None:
    start(tiny_config(text), tmp_path / "run", stop_after=4)
    run = resumed_run(tmp_path / "run", asked("run.steps=4"), ["test"])
    assert train_quietly(run)[0].ending == "complete"
    assert load(tmp_path / "run" / "config.yaml").run.steps == 4


def asked(*overrides: str) -> Callable[[Config], Config]:
    return lambda saved: resolve(base=saved, overrides=overrides)


@pytest.mark.parametrize(
    "override",
    [
        "model.ffn=64",
        "step.batch=3",
        "step.chunks=4",
        "step.accum=2",
        "step.precision=bf16",
        "optimizer.name=adamw",
        "data.validation_fraction=0.2",
        "run.seed=1",
    ],
)
def test_another_run_is_refused_by_the_key(tmp_path: Path, text: Path, override: str) -> None:
    start(tiny_config(text), tmp_path / "run", stop_after=1)
    before = (tmp_path / "run" / "config.yaml").read_bytes()
    with pytest.raises(UserError, match=override.partition("=")[0]):
        resumed_run(tmp_path / "run", asked(override), ["test"])
    assert (tmp_path / "run" / "config.yaml").read_bytes() == before


def test_a_longer_run_and_another_rate_are_taken_and_said(tmp_path: Path, text: Path) -> None:
    start(tiny_config(text), tmp_path / "run", stop_after=1)
    run = resumed_run(tmp_path / "run", asked("run.steps=4", "schedule.base_lr=1e-4"), ["test"])
    summary, printed = train_quietly(run)
    assert summary.step == summary.total_steps == 4
    assert "run.steps: 6 -> 4" in printed and "schedule.base_lr: 0.003 -> 0.0001" in printed
    assert steps_of(read_rows(tmp_path / "run" / "metrics.jsonl"))[-1]["lr"] < 2e-4
    assert load(tmp_path / "run" / "config.yaml").run.steps == 4
    with pytest.raises(UserError, match=r"2 steps: the run in .* is already at step 4"):
        resumed_run(tmp_path / "run", asked("run.steps=2"), ["test"])


def test_a_corpus_that_changed_is_refused(tmp_path: Path, text: Path) -> None:
    start(tiny_config(text), tmp_path / "run", stop_after=1)
    text.write_text(text.read_text(encoding="utf-8") + "more", encoding="utf-8")
    with pytest.raises(UserError, match=r"text\.txt' changed: 6,000 bytes"):
        go_on(tmp_path / "run")


def test_a_run_does_not_start_in_another_runs_folder(tmp_path: Path, text: Path) -> None:
    start(tiny_config(text), tmp_path / "run", stop_after=1)
    with pytest.raises(
        UserError, match="already holds a run; name another, or go on: mlx-amort train --resume "
    ):
        new_run(tiny_config(text), tmp_path / "run", ["test"])


def test_a_run_does_not_start_among_other_files(tmp_path: Path, text: Path) -> None:
    (tmp_path / "empty").mkdir()
    new_run(tiny_config(text), tmp_path / "empty", ["test"])
    with pytest.raises(UserError, match=r"holds other files \(.*\); name a new or an empty folder"):
        new_run(tiny_config(text), tmp_path, ["test"])
    assert not (tmp_path / "config.yaml").exists()


def test_a_refused_corpus_is_told_as_a_path(tmp_path: Path, text: Path) -> None:
    (tmp_path / "sub").mkdir()
    start(tiny_config(tmp_path / "sub" / ".." / "text.txt"), tmp_path / "run", stop_after=1)
    (tmp_path / "other.txt").write_bytes(text.read_bytes() + b".")
    other = f"data.sources={tmp_path / 'sub' / '..' / 'other.txt'}"
    with pytest.raises(UserError) as caught:
        resumed_run(tmp_path / "run", asked(other), ["test"])
    assert f"corpus '{tmp_path / 'other.txt'}' is not '{text}', which the run was trained on" in str(
        caught.value
    )


def test_the_default_folder_is_named_after_preset_and_time(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = dataclasses.replace(tiny_config(text), preset="demo")
    folders = [new_run(config, None, ["test"]).folder.path for _ in range(2)]
    assert folders[0] != folders[1] and all(path.is_relative_to("runs") for path in folders)
    assert all(path.name.startswith("demo-") and path.is_dir() for path in folders)


def test_sources_are_found_from_any_folder(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = tiny_config(Path(text.name))
    run = new_run(config, tmp_path / "run", ["test"])
    assert run.config.data.sources == (SourceConfig(str(text)),)
    # Naming it as before is no change.
    train_quietly(run, stop_after=1)
    resumed_run(tmp_path / "run", lambda saved: dataclasses.replace(saved, data=config.data), ["test"])


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-pure"])
@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_state_bytes_counts_the_arrays(text: Path, precision: str, optimizer: str) -> None:
    config = resolve(base=tiny_config(text, precision), overrides=[f"optimizer.name={optimizer}"])
    model = run_module.model_of(config)
    state = new_train_state(model, config.optimizer, 0)
    batch = np.zeros((2, 2 * MODEL.seq + 1), np.uint8)
    _, gradients = TrainingStep(model, config.step, config.optimizer).accumulate(state.weights, batch)
    arrays = [*state.weights.values(), *state.optimizer.values(), *gradients.values()]
    count = state.optimizer["updates"].nbytes
    assert run_module.state_bytes(config) == sum(array.nbytes for array in arrays) - count


class FailingStep(TrainingStep):
    """A step whose loss is not finite at the chosen steps."""

    failing: tuple[int, ...] = ()

    def __call__(self, state: TrainState, batch: np.ndarray, learning_rate: float) -> StepResult:
        if state.step not in self.failing:
            return super().__call__(state, batch, learning_rate)
        # The norm of one gain overflows the logits: the loss itself, not only the report, is not finite.
        good = state.weights["n_out"]
        state.weights["n_out"] = good * math.inf
        result = super().__call__(state, batch, learning_rate)
        state.weights["n_out"] = good
        return result


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> type[FailingStep]:
    monkeypatch.setattr(session, "TrainingStep", FailingStep)
    return FailingStep


def test_a_step_that_is_not_finite_is_reported_and_not_applied(
    tmp_path: Path, text: Path, failing: type[FailingStep], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failing, "failing", (2,))
    run = new_run(tiny_config(text), tmp_path / "run", ["test"])
    train_quietly(run, stop_after=2)
    before = load_latest(tmp_path / "run").state
    run = resumed_run(tmp_path / "run", lambda config: config, ["test"])
    _, printed = train_quietly(run, stop_after=3)
    after = load_latest(tmp_path / "run").state
    assert "step 3 skipped: its loss is not finite" in printed
    assert is_equal(before.weights, after.weights) and is_equal(before.optimizer, after.optimizer)
    row = steps_of(read_rows(tmp_path / "run" / "metrics.jsonl"))[-1]
    assert (row["step"], row["applied"], row["loss_bits"]) == (3, False, None)
    _, ended = go_on(tmp_path / "run")
    assert (ended.ending, ended.skipped_steps) == ("complete", 1)
    weights = load_latest(tmp_path / "run").state.weights.values()
    assert all(bool(mx.isfinite(weight).all()) for weight in weights)


def test_three_in_a_row_end_the_run_and_name_the_last_good_checkpoint(
    tmp_path: Path, text: Path, failing: type[FailingStep], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failing, "failing", (1, 3, 4, 5))
    run = new_run(tiny_config(text, steps=20, save_every=1), tmp_path / "run", ["test"])
    summary, _ = train_quietly(run)
    assert (summary.ending, summary.exit_code, summary.step) == ("diverged", 1, 6)
    assert summary.files.checkpoint == str(tmp_path / "run" / "checkpoints" / "step-00000003")
    assert load_latest(tmp_path / "run").state.step == 3


def test_stopping_between_failures_does_not_forgive_them(
    tmp_path: Path, text: Path, failing: type[FailingStep], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failing, "failing", (1, 2, 3))
    start(tiny_config(text, steps=20), tmp_path / "run", stop_after=3)
    _, summary = go_on(tmp_path / "run")
    assert (summary.ending, summary.step) == ("diverged", 4)


def test_a_run_that_ends_on_a_skipped_step_deletes_no_older_checkpoint(
    tmp_path: Path, text: Path, failing: type[FailingStep], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights may have been lost before the step that was not finite: what is saved already stays."""
    monkeypatch.setattr(failing, "failing", (3,))
    config = tiny_config(text, steps=20, save_every=1, keep_checkpoints=1)
    _, printed = train_quietly(new_run(config, tmp_path / "run", ["test"]), stop_after=4)
    saved = sorted(path.name for path in (tmp_path / "run" / "checkpoints").glob("step-*"))
    assert saved == ["step-00000003", "step-00000004"]
    assert "the last 1 steps were skipped; older checkpoints are kept" in printed


def test_a_run_killed_before_its_first_checkpoint_starts_again(tmp_path: Path, text: Path) -> None:
    config = tiny_config(text, eval_every=2)
    start(config, tmp_path / "whole")
    for name in ("before_the_first_step", "without_a_record", "after_some_steps"):
        run = new_run(config, tmp_path / name, ["test"])
        if name == "without_a_record":
            run.folder.record.unlink()
        if name == "after_some_steps":
            rows = (tmp_path / "whole" / "metrics.jsonl").read_text(encoding="utf-8").splitlines(True)
            run.folder.metrics.write_text("".join(rows[:3]), encoding="utf-8")
        resumed, summary = go_on(tmp_path / name)
        assert resumed.resumed_from is None and summary.ending == "complete"
        assert exact_rows(tmp_path / name) == exact_rows(tmp_path / "whole")
        whole, again = load_latest(tmp_path / "whole").state, load_latest(tmp_path / name).state
        assert is_equal(whole.weights, again.weights) and is_equal(whole.optimizer, again.optimizer)


def test_a_run_whose_only_checkpoint_is_damaged_does_not_start_again(tmp_path: Path, text: Path) -> None:
    start(tiny_config(text), tmp_path / "run", stop_after=2)
    (tmp_path / "run" / "checkpoints" / "step-00000002" / "weights.safetensors").unlink()
    with pytest.raises(UserError, match="holds no checkpoint"):
        go_on(tmp_path / "run")
    assert len(read_rows(tmp_path / "run" / "metrics.jsonl")) == 2


def test_a_state_that_is_not_finite_is_never_the_last_good_one(tmp_path: Path, text: Path) -> None:
    """Momentum that holds NaN makes NaN of the weights in a step whose loss and gradient are finite."""
    config = tiny_config(text, steps=20, save_every=1, keep_checkpoints=1)
    start(config, tmp_path / "run", stop_after=2)
    for stop_after in (3, None):
        run = resumed_run(tmp_path / "run", lambda saved: saved, ["test"])
        name = "momentum/blocks.2.qkv"
        run.state.optimizer[name] = run.state.optimizer[name] * math.nan
        summary, printed = train_quietly(run, stop_after)
        assert (summary.ending, summary.exit_code, summary.step) == ("diverged", 1, 3)
        assert "step 3 not saved: weights or optimizer state are not finite" in printed
        assert [path.name for path in complete_checkpoints(tmp_path / "run")] == ["step-00000002"]


@pytest.mark.parametrize("how", ["moved", "link to nothing", "unreadable"])
def test_checkpoints_that_cannot_be_listed_are_not_none(
    tmp_path: Path, text: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(tiny_config(text), tmp_path / "run", stop_after=3)
    folder = tmp_path / "run" / "checkpoints"
    folder.rename(tmp_path / "elsewhere")
    if how == "link to nothing":
        folder.symlink_to(tmp_path / "unmounted")
    if how == "unreadable":
        folder.mkdir()
        listdir = os.listdir

        def refusing(path: Path) -> list[str]:
            if path == folder:
                raise PermissionError(errno.EACCES, "Permission denied")
            return listdir(path)

        monkeypatch.setattr(os, "listdir", refusing)
    before = content(tmp_path / "run")
    with pytest.raises(UserError, match=r"checkpoints: (cannot be listed|is not there).*; .*(mount|bring)"):
        go_on(tmp_path / "run")
    assert content(tmp_path / "run") == before and len(read_rows(tmp_path / "run" / "metrics.jsonl")) == 3


def test_a_run_of_0_1_killed_before_its_first_checkpoint_starts_again(tmp_path: Path, text: Path) -> None:
    run = new_run(tiny_config(text), tmp_path / "run", ["test"])
    (run.folder.path / "checkpoints").rmdir()
    assert go_on(tmp_path / "run")[1].ending == "complete"


def test_all_is_checked_before_anything_is_written(tmp_path: Path, text: Path) -> None:
    for settings, told in (
        (["run.steps=null"], "length of the run"),
        (["run.steps=null", "run.bytes=1"], "less than one step"),
    ):
        with pytest.raises(UserError, match=told):
            new_run(resolve(base=tiny_config(text), overrides=settings), tmp_path / "new", ["test"])
        assert not (tmp_path / "new").exists()
    start(tiny_config(text), tmp_path / "run", stop_after=2)
    before = content(tmp_path / "run")
    with pytest.raises(UserError, match="--stop-after 1: the run is already at step 2"):
        resumed_run(tmp_path / "run", asked("run.steps=100"), ["test"], stop_after=1)
    assert content(tmp_path / "run") == before


def test_the_best_validation_is_told_and_kept(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = iter([4.5, 4.25, 4.75, 5.0])

    def scored(*_: object, **__: object) -> Evaluation:
        return Evaluation((CorpusQuality("text", next(found) * math.log(2) * 100, 100),), False)

    monkeypatch.setattr(validation, "evaluate", scored)
    config = tiny_config(text, steps=8, eval_every=2, keep_checkpoints=1, keep_best=True)
    _, summary = start(config, tmp_path / "run")
    assert summary.quality.best_val_step == 4 and summary.quality.best_val_bits == pytest.approx(4.25)
    assert summary.files.best_checkpoint == str(tmp_path / "run" / "best" / "step-00000004")
    printed = "\n".join(summary_lines(summary))
    assert "4.2500 bits per byte at step 4; over the same text the last is 5.0000, worse by 0.7500" in printed
    assert "--best" in printed and "longer" not in printed
