"""At any instant the newest complete checkpoint loads; a damaged one is refused in one line."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx
import pytest

from mlx_amort import files
from mlx_amort.config.values import Config
from mlx_amort.errors import UserError
from mlx_amort.train import checkpoint
from mlx_amort.train.checkpoint_folders import (
    OPTIMIZER,
    RECORD,
    WEIGHTS,
    best_checkpoint,
    complete_checkpoints,
)
from mlx_amort.train.state import TrainState, new_train_state
from tests.train.tiny import is_equal, tiny_config, tiny_model


class Killed(BaseException):
    """Ends the code under test where a kill would."""


@pytest.fixture
def config() -> Config:
    return tiny_config(Path("text.txt"))


def state_of(config: Config, step: int) -> TrainState:
    state = new_train_state(tiny_model(config.step.precision), config.optimizer, seed=step)
    state.step = step
    return state


@pytest.mark.parametrize("precision", ["fp32", "bf16-pure"])
def test_a_checkpoint_holds_state_step_configuration_and_versions(tmp_path: Path, precision: str) -> None:
    config = tiny_config(Path("text.txt"), precision)
    saved = state_of(config, 123)
    path = checkpoint.save(tmp_path, saved, config)
    assert path == tmp_path / "checkpoints" / "step-00000123"
    loaded = checkpoint.load_latest(tmp_path)
    assert (loaded.state.step, loaded.config, loaded.path) == (123, config, path)
    assert is_equal(loaded.state.weights, saved.weights) and is_equal(loaded.state.optimizer, saved.optimizer)
    assert is_equal(checkpoint.load_weights(path), saved.weights)
    record = json.loads((path / "checkpoint.json").read_text(encoding="utf-8"))
    assert set(record["versions"]) == {"mlx_amort", "mlx", "numpy", "python"}


def test_only_the_newest_are_kept_and_step_numbers_sort_as_numbers(tmp_path: Path, config: Config) -> None:
    for step in (7, 99_999_999, 100_000_000):
        checkpoint.save(tmp_path, state_of(config, step), config)
    names = [path.name for path in complete_checkpoints(tmp_path)]
    assert names == ["step-99999999", "step-100000000"]
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == sorted(names)
    assert checkpoint.load_latest(tmp_path).state.step == 100_000_000


When = Literal["before", "during", "after"]


def killed_at(monkeypatch: pytest.MonkeyPatch, call: int, when: When) -> list[str]:
    """Let what touches the disk end the program at its `call`-th use; "during" leaves a file cut in half."""
    calls: list[str] = []

    def deadly(name: str, act: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            calls.append(name)
            is_last = len(calls) == call
            if is_last and when == "before":
                raise Killed
            result = act(*arguments, **named)
            if is_last and when == "during" and name in ("save_safetensors", "write_text"):
                os.truncate(arguments[0], os.path.getsize(arguments[0]) // 2)
            if is_last:
                raise Killed
            return result

        return wrapped

    touches: list[tuple[Any, str]] = [
        (mx, "save_safetensors"),
        (Path, "mkdir"),
        (Path, "write_text"),
        (os, "fsync"),
        (os, "rename"),
        (os, "unlink"),
        (os, "rmdir"),
    ]
    for home, name in touches:
        monkeypatch.setattr(home, name, deadly(name, getattr(home, name)))
    return calls


@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_a_kill_at_any_write_leaves_a_checkpoint_that_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: Config, when: When
) -> None:
    config = dataclasses.replace(config, run=dataclasses.replace(config.run, keep_checkpoints=1))
    old, new = state_of(config, 1), state_of(config, 2)
    outcomes = []
    for call in range(1, 100):
        run_folder = tmp_path / f"killed-{call}"
        checkpoint.save(run_folder, old, config)
        was_killed = False
        with monkeypatch.context() as patch:
            killed_at(patch, call, when)
            try:
                checkpoint.save(run_folder, new, config)
            except Killed:
                was_killed = True
        loaded = checkpoint.load_latest(run_folder)
        expected = {1: old, 2: new}[loaded.state.step]
        assert is_equal(loaded.state.weights, expected.weights)
        assert is_equal(loaded.state.optimizer, expected.optimizer)
        outcomes.append(loaded.state.step)
        # What the killed run left behind disturbs neither saving nor pruning afterwards.
        checkpoint.save(run_folder, new, config)
        assert [path.name for path in (run_folder / "checkpoints").iterdir()] == ["step-00000002"]
        if not was_killed:
            break
    assert len(outcomes) > 15, "the patched calls were not all reached"
    assert outcomes == sorted(outcomes) and outcomes[0] == 1 and outcomes[-1] == 2


def test_everything_is_on_disk_before_it_bears_its_name_and_before_an_older_one_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: Config
) -> None:
    config = dataclasses.replace(config, run=dataclasses.replace(config.run, keep_checkpoints=1))
    checkpoint.save(tmp_path, state_of(config, 1), config)
    never = 0
    calls = killed_at(monkeypatch, never, "before")
    checkpoint.save(tmp_path, state_of(config, 2), config)
    named = calls.index("rename")
    assert calls[named - 4 : named + 2] == ["fsync"] * 4 + ["rename", "fsync"]
    assert calls[named + 2] == "rename" and set(calls[named + 3 :]) == {"unlink", "rmdir"}


@pytest.mark.parametrize("length", [0, 7, 500])
@pytest.mark.parametrize("name", [WEIGHTS, OPTIMIZER, RECORD])
def test_a_truncated_file_is_refused_by_name(tmp_path: Path, config: Config, name: str, length: int) -> None:
    checkpoint.save(tmp_path, state_of(config, 1), config)
    path = checkpoint.save(tmp_path, state_of(config, 2), config)
    os.truncate(path / name, length)
    with pytest.raises(UserError, match=f"{name}: is not .* take step-00000001, which is whole"):
        checkpoint.load_latest(tmp_path)


def test_a_checkpoint_with_a_file_missing_is_passed_over(tmp_path: Path, config: Config) -> None:
    for step in (1, 2):
        path = checkpoint.save(tmp_path, state_of(config, step), config)
    (path / OPTIMIZER).unlink()
    assert checkpoint.load_latest(tmp_path).state.step == 1
    checkpoint.save(tmp_path, state_of(config, 2), config)
    assert checkpoint.load_latest(tmp_path).state.step == 2


def test_loaded_arrays_outlive_their_files(tmp_path: Path, config: Config) -> None:
    saved = state_of(config, 1)
    path = checkpoint.save(tmp_path, saved, config)
    loaded = checkpoint.load_latest(tmp_path)
    for name in (WEIGHTS, OPTIMIZER):
        os.truncate(path / name, 0)
    assert is_equal(loaded.state.weights, saved.weights) and is_equal(loaded.state.optimizer, saved.optimizer)


def test_arrays_that_do_not_fit_the_configuration_are_refused(tmp_path: Path, config: Config) -> None:
    state = state_of(config, 1)
    state.weights["tok"] = mx.zeros((256, 8))
    checkpoint.save(tmp_path, state, config)
    with pytest.raises(UserError, match=r"tok is .*\[256, 8\]"):
        checkpoint.load_latest(tmp_path)
    del state.weights["tok"]
    state.step = 2
    checkpoint.save(tmp_path, state, config)
    with pytest.raises(UserError, match="does not fit its configuration: tok"):
        checkpoint.load_latest(tmp_path)


def test_no_checkpoint_and_no_folder_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no checkpoint"):
        checkpoint.load_latest(tmp_path)
    with pytest.raises(UserError, match="no such folder"):
        checkpoint.load_latest(tmp_path / "none")


def test_a_full_disk_is_told_and_leaves_the_checkpoint_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: Config
) -> None:
    checkpoint.save(tmp_path, state_of(config, 1), config)

    def full(path: str, arrays: dict[str, mx.array]) -> None:
        raise RuntimeError("[write] Unable to write 4096 bytes to file.")

    monkeypatch.setattr(mx, "save_safetensors", full)
    with pytest.raises(UserError, match=r"step-00000002: cannot be written \(\[write\] Unable"):
        checkpoint.save(tmp_path, state_of(config, 2), config)
    assert checkpoint.load_latest(tmp_path).state.step == 1


def test_a_small_file_is_replaced_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.json"
    files.write_whole(path, "old")
    calls = killed_at(monkeypatch, 2, "before")
    with pytest.raises(Killed):
        files.write_whole(path, "new")
    assert calls == ["write_text", "fsync"] and path.read_text(encoding="utf-8") == "old"


@pytest.mark.parametrize("name", ["n_out", "momentum/blocks.0.qkv", "second/tok"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_state_that_is_not_finite_is_known(config: Config, name: str, value: float) -> None:
    state = state_of(config, 1)
    assert checkpoint.is_finite(state)
    arrays = state.weights if name in state.weights else state.optimizer
    arrays[name] = arrays[name].at[..., 0].add(value)
    assert not checkpoint.is_finite(state)


def test_only_what_we_made_is_deleted(tmp_path: Path, config: Config) -> None:
    """What macOS lays beside our folders, a user's own folders and notes, and links, are left alone."""
    config = dataclasses.replace(config, run=dataclasses.replace(config.run, keep_checkpoints=1))
    kept = checkpoint.save(tmp_path, state_of(config, 1), config)
    (kept / "notes.txt").write_text("the good one", encoding="utf-8")
    folder = kept.parent
    (folder / "._step-00000002").write_bytes(b"attributes")
    for name in (".step-mine", "step-00000001-copy", ".old-step-00000007"):
        (folder / name).mkdir()
        (folder / name / "mine.txt").write_text("mine", encoding="utf-8")
    (folder / "step-00000009").symlink_to(kept, target_is_directory=True)
    (folder / ".step-00000002").mkdir()
    (folder / ".step-00000002" / "._weights.safetensors").write_bytes(b"attributes")
    (folder / ".step-00000002" / WEIGHTS).write_bytes(b"half")
    before = sorted(path.relative_to(folder) for path in folder.rglob("*"))
    for step in (2, 3):
        checkpoint.save(tmp_path, state_of(config, step), config)
    after = {str(path.relative_to(folder)) for path in folder.rglob("*")}
    assert {str(path) for path in before if ".step-00000002" not in str(path)} <= after
    assert [path.name for path in complete_checkpoints(tmp_path)] == ["step-00000001", "step-00000003"]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_a_folder_that_cannot_be_flushed_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: Config, number: int
) -> None:
    fsync = os.fsync

    def not_of_folders(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", not_of_folders)
    checkpoint.save(tmp_path, state_of(config, 1), config)
    files.write_whole(tmp_path / "run.json", "new")
    assert checkpoint.load_latest(tmp_path).state.step == 1

    def never(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", never)
    with pytest.raises(OSError):
        files.write_whole(tmp_path / "run.json", "newer")


def test_the_best_state_is_kept_apart(tmp_path: Path, config: Config) -> None:
    with pytest.raises(UserError, match=r"no best checkpoint; train with .*keep_best=true"):
        best_checkpoint(tmp_path)
    for step in (1, 2):
        checkpoint.save_best(tmp_path, state_of(config, step), config)
    checkpoint.save(tmp_path, state_of(config, 3), config)
    assert best_checkpoint(tmp_path) == tmp_path / "best" / "step-00000002"
    assert checkpoint.load(best_checkpoint(tmp_path)).state.step == 2
    assert checkpoint.load_latest(tmp_path).state.step == 3
    assert len(list((tmp_path / "best").iterdir())) == 1
    # Resumed from an earlier checkpoint, an earlier step may be the best; and a step's state may be another.
    for step in (1, 1):
        checkpoint.save_best(tmp_path, state_of(config, step), config)
    assert [path.name for path in (tmp_path / "best").iterdir()] == ["step-00000001"]
