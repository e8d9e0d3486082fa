"""Where a corpus lies may change between sessions; what it holds, and what is held out of it, may not."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from mlx_amort.config.reading import load, resolve
from mlx_amort.config.values import Config, SourceConfig
from mlx_amort.data.validation import validation_targets
from mlx_amort.errors import UserError
from mlx_amort.train.header import header_lines
from mlx_amort.train.resume import resumed_run
from mlx_amort.train.run import Run, new_run
from tests.train.tiny import start, tiny_config, train_quietly, write_text

OF_0_1 = Path(__file__).parents[1] / "files_of_0_1" / "run"


def with_data(*paths: Path, validation: Path | None = None, steps: int = 6) -> Callable[[Config], Config]:
    given = [f"data.sources={json.dumps([str(path) for path in paths])}", f"run.steps={steps}"]
    if validation is not None:
        given.append(f"data.validation={validation}")
    return lambda config: resolve(base=config, overrides=given)


def resumed(folder: Path, asked: Callable[[Config], Config] = lambda config: config) -> Run:
    return resumed_run(folder, asked, ["test"])


@pytest.fixture
def moved(tmp_path: Path) -> Path:
    """A run of three steps and its corpus, both begun in another folder."""
    (tmp_path / "a").mkdir()
    start(tiny_config(write_text(tmp_path / "a")), tmp_path / "a" / "run", stop_after=3)
    (tmp_path / "a").rename(tmp_path / "b")
    return tmp_path / "b"


def test_the_same_content_goes_on_bit_for_bit(moved: Path, tmp_path: Path) -> None:
    whole, _ = start(tiny_config(moved / "text.txt"), tmp_path / "whole")
    with pytest.raises(
        UserError, match=r"its corpus '.*a/text\.txt' is not there; name where it lies now with --data"
    ):
        resumed(moved / "run")
    (moved / "text.txt").rename(moved / "renamed.txt")
    run = resumed(moved / "run", with_data(moved / "renamed.txt"))
    assert [str(change) for change in run.changed] == [
        f"data.sources: {tmp_path / 'a' / 'text.txt'} and {moved / 'renamed.txt'}"
    ]
    train_quietly(run)
    losses = [[row["loss_bits"] for row in log.log.rows() if "loss_bits" in row] for log in (whole, run)]
    assert losses[0] == losses[1]
    # From now on it is looked for there, also before the next checkpoint.
    assert load(moved / "run" / "config.yaml").data.sources == (SourceConfig(str(moved / "renamed.txt")),)
    assert resumed(moved / "run").state.step == 6


def test_it_is_found_there_after_a_kill_before_the_next_checkpoint(moved: Path) -> None:
    resumed(moved / "run", with_data(moved / "text.txt"))
    assert resumed(moved / "run").state.step == 3


def test_one_changed_byte_is_refused(moved: Path) -> None:
    content = bytearray((moved / "text.txt").read_bytes())
    content[2000] ^= 1
    (moved / "text.txt").write_bytes(content)
    before = (moved / "run" / "config.yaml").read_bytes()
    with pytest.raises(
        UserError, match=r"is not '.*a/text\.txt', which the run was trained on: 6,000 bytes as before"
    ):
        resumed(moved / "run", with_data(moved / "text.txt"))
    assert (moved / "run" / "config.yaml").read_bytes() == before


def test_other_shares_or_another_split_are_another_run(moved: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="trained with another value"):
        resumed(moved / "run", with_data(moved / "text.txt", moved / "text.txt"))
    with pytest.raises(UserError, match=r"data\.validation: null and"):
        resumed(moved / "run", with_data(moved / "text.txt", validation=moved / "text.txt"))
    for override in ("data.validation_split=tail", "data.raw=true"):
        asked = with_data(moved / "text.txt")
        with pytest.raises(UserError, match=override.partition("=")[0]):
            resumed(moved / "run", lambda config: resolve(base=asked(config), overrides=[override]))  # noqa: B023


def test_a_validation_corpus_may_move_and_not_change(tmp_path: Path) -> None:
    text = write_text(tmp_path)
    held_out = tmp_path / "held_out.txt"
    held_out.write_text("a text of its own, never trained on. " * 20, encoding="utf-8")
    plain = tiny_config(text)
    config = dataclasses.replace(plain, data=dataclasses.replace(plain.data, validation=str(held_out)))
    run, summary = start(config, tmp_path / "run", stop_after=3)
    assert run.corpora[0].validation_units == 0 and run.held_out[0].name == str(held_out)
    header = list(header_lines(run))
    assert f"data        {text}: 6,000 bytes to train on" in header
    assert f"validation  {held_out}: 740 bytes held out" in header
    assert summary.quality.zlib_bits == run.zlib_bits and run.zlib_bits < 2
    held_out.rename(tmp_path / "there.txt")
    with pytest.raises(UserError, match="with --validation"):
        resumed(tmp_path / "run")
    asked = with_data(text, validation=tmp_path / "there.txt")
    run = resumed(tmp_path / "run", asked)
    summary, _ = train_quietly(run)
    assert summary.quality.val_bytes == validation_targets(run.held_out) == 739
    (tmp_path / "there.txt").write_text("another text, as long. " * 20, encoding="utf-8")
    with pytest.raises(
        UserError, match=r"there\.txt' is not '.*held_out\.txt', which the run was trained on"
    ):
        resumed(tmp_path / "run", asked)


def test_a_run_of_0_1_keeps_its_tail_and_its_bytes(tmp_path: Path) -> None:
    shutil.copytree(OF_0_1, tmp_path / "run")
    config = load(tmp_path / "run" / "config.yaml")
    assert (config.data.validation_split, config.data.raw, config.data.validation) == ("tail", True, None)
    assert load_new(config) == config


def load_new(config: Config) -> Config:
    from mlx_amort.config.reading import dump, from_dict

    return from_dict(yaml.safe_load(dump(config)))


def test_a_record_of_0_1_is_held_against_its_fingerprint(moved: Path) -> None:
    record_file, config_file = moved / "run" / "run.json", moved / "run" / "config.yaml"
    record = json.loads(record_file.read_text(encoding="utf-8"))
    del record["corpora"][0]["content"]
    record_file.write_text(json.dumps(record), encoding="utf-8")
    assert config_file.exists()
    asked = with_data(moved / "text.txt")
    assert resumed(moved / "run", asked).state.step == 3
    (moved / "text.txt").write_bytes((moved / "text.txt").read_bytes()[:-1] + b"!")
    with pytest.raises(UserError, match="with another content"):
        resumed(moved / "run", asked)


def test_the_header_names_what_is_left_out_and_what_does_not_fit(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    text = write_text(folder)
    shutil.copy(text, folder / "text again.txt")
    (folder / "picture.txt").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")
    (folder / "chinese.txt").write_text("我们每天都学习新的东西" * 200, encoding="utf-8")
    header = list(header_lines(new_run(tiny_config(folder), tmp_path / "run", ["test"])))
    at = next(index for index, line in enumerate(header) if line.startswith("data "))
    assert "(its end, in 1 of 2 files: text again.txt)" in header[at]
    assert (
        header[at + 1] == "  left out  2 files: 1 a PNG picture (picture.txt), 1 a copy of another (text.txt)"
    )
    assert f"of the boundaries of {folder} get no slot" in header[at + 2]
