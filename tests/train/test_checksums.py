"""What differs from what was written is refused by its name, with the newest checkpoint that is whole."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlx_amort import cli
from mlx_amort.errors import UserError
from mlx_amort.train import checkpoint
from mlx_amort.train.checkpoint_folders import FILES, OPTIMIZER, RECORD, WEIGHTS, newest_checkpoint
from mlx_amort.train.checkpoint_record import read_record
from mlx_amort.train.resume import resumed_run
from tests.train.tiny import start, tiny_config, train_quietly, write_text

OF_0_1 = Path(__file__).parents[1] / "files_of_0_1"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    config = tiny_config(write_text(folder), save_every=1, keep_checkpoints=3, sample_bytes=0)
    start(config, folder / "run", stop_after=3)
    return folder / "run"


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_anywhere_is_found(run: Path, name: str) -> None:
    path = newest_checkpoint(run) / name
    content = path.read_bytes()
    is_found = 0
    for bit in random.Random(name).sample(range(8 * len(content)), 60):
        flip(path, bit)
        try:
            checkpoint.load(path.parent)
        except UserError as refusal:
            is_found += 1
            assert "\n" not in str(refusal) and refusal.todo
        else:
            # Between the values of a JSON text a blank may become another blank.
            assert name == RECORD and json.loads(path.read_bytes()) == json.loads(content)
        path.write_bytes(content)
    assert is_found == 60 or (name == RECORD and is_found > 50)
    checkpoint.load(path.parent)


@pytest.mark.parametrize("name", [WEIGHTS, OPTIMIZER])
def test_the_file_of_another_step_is_named(run: Path, name: str) -> None:
    folder = run / "checkpoints"
    shutil.copy(folder / "step-00000001" / name, folder / "step-00000003" / name)
    with pytest.raises(
        UserError, match=f"step-00000003/{name}: is not what was written: it is that of step-"
    ):
        checkpoint.load_latest(run)


@pytest.mark.parametrize("name", [WEIGHTS, OPTIMIZER])
def test_the_file_of_another_run_is_refused(run: Path, tmp_path: Path, name: str) -> None:
    config = tiny_config(write_text(tmp_path), seed=5, sample_bytes=0)
    start(config, tmp_path / "other", stop_after=3)
    shutil.copy(newest_checkpoint(tmp_path / "other") / name, newest_checkpoint(run) / name)
    with pytest.raises(UserError, match=f"{name}: is not what was written: its checksum is [0-9a-f]{{12}}"):
        checkpoint.load_latest(run)


@pytest.mark.parametrize(
    "verb", [("evaluate",), ("generate", "--bytes", "1"), ("train", "--quiet", "--resume")]
)
def test_every_verb_refuses_a_changed_weight(
    run: Path, capsys: pytest.CaptureFixture[str], verb: tuple[str, ...]
) -> None:
    flip(newest_checkpoint(run) / WEIGHTS, 8 * 3000)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(SystemExit) as end:
        cli.main([*verb, str(run)] if verb[0] == "train" else [verb[0], str(run), *verb[1:]])
    told = capsys.readouterr().err
    assert end.value.code == 2 and told.count("\n") == 1
    assert f"{WEIGHTS}: is not what was written" in told and "step-00000002, which is whole" in told
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_what_older_ones_are_whole_is_looked_up(run: Path) -> None:
    for step in (3, 2):
        flip(run / "checkpoints" / f"step-{step:08d}" / OPTIMIZER, 8 * 3000)
    with pytest.raises(UserError, match=r"take step-00000001, which is whole: .* --checkpoint 1,"):
        checkpoint.load_latest(run)
    (run / "checkpoints" / "step-00000001" / RECORD).write_bytes(b"{}")
    with pytest.raises(UserError, match="restore it from a copy; no older checkpoint") as refusal:
        checkpoint.load_latest(run)
    assert "delete" not in refusal.value.todo


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record["config"]["schedule"].update(base_lr=1.0),
        lambda record: record["versions"].update(mlx="0.0"),
        lambda record: record.update(step=2),
        lambda record: record.pop("checksums"),
        lambda record: record["checksums"].pop("files"),
        lambda record: record["checksums"].update(files=5),
        lambda record: record["checksums"].update(algorithm="none"),
        lambda record: record.update(format=1),
        lambda record: record.update(more=1),
    ],
)
def test_a_record_that_was_edited_is_refused(run: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    path = newest_checkpoint(run) / RECORD
    record = json.loads(path.read_text(encoding="utf-8"))
    change(record)
    path.write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(UserError, match=r"checkpoint\.json: .*checksum.*; restore it from a copy"):
        checkpoint.load_latest(run)


def test_a_record_laid_out_anew_is_the_same(run: Path) -> None:
    path = newest_checkpoint(run) / RECORD
    record = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(record, sort_keys=True), encoding="utf-8")
    assert checkpoint.load_latest(run).state.step == 3


def test_a_format_of_the_future_is_told(run: Path) -> None:
    path = newest_checkpoint(run) / RECORD
    path.write_text(path.read_text(encoding="utf-8").replace('"format": 2', '"format": 3'), encoding="utf-8")
    with pytest.raises(
        UserError, match="has format 3; this version reads format 2: use the one that wrote it"
    ):
        checkpoint.load_latest(run)


def test_a_checkpoint_of_0_1_loads_and_says_once_that_it_was_not_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(OF_0_1 / "run", tmp_path / "run")
    assert read_record(newest_checkpoint(tmp_path / "run"))["checksums"] == {}
    monkeypatch.chdir(OF_0_1)
    with pytest.raises(SystemExit) as end:
        cli.main(["generate", str(tmp_path / "run"), "--bytes", "1"])
    assert end.value.code == 0
    assert capsys.readouterr().err.count("has no checksums (mlx-amort 0.1 wrote none)") == 1


def test_resuming_a_checkpoint_of_0_1_says_so_and_its_next_one_has_checksums(run: Path) -> None:
    path = newest_checkpoint(run)
    record = json.loads((path / RECORD).read_text(encoding="utf-8"))
    del record["checksums"]
    (path / RECORD).write_text(json.dumps({**record, "format": 1}), encoding="utf-8")
    resumed = resumed_run(run, lambda config: config, ["test"])
    _, printed = train_quietly(resumed, stop_after=4)
    assert printed.count("has no checksums") == 1
    assert set(read_record(newest_checkpoint(run))["checksums"]) == {WEIGHTS, OPTIMIZER}
