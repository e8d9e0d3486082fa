"""The files of a run that were edited or damaged: told in one line, before anything is written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from mlx_amort.compare import read_curve
from mlx_amort.config.reading import resolve
from mlx_amort.errors import UserError
from mlx_amort.train.checkpoint_folders import complete_checkpoints, newest_checkpoint
from mlx_amort.train.metrics import read_rows
from mlx_amort.train.resume import resumed_run
from tests.train.tiny import go_on, start, tiny_config, write_text


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    start(tiny_config(write_text(folder), eval_every=1, save_every=1), folder / "run", stop_after=2)
    return folder / "run"


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


def contents(run: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file()}


def refuses(run: Path, told: str) -> None:
    """Resuming is refused in one line, and leaves every file as it was."""
    before = contents(run)
    with pytest.raises(UserError, match=told) as refusal:
        go_on(run)
    assert refusal.value.todo and "\n" not in str(refusal.value)
    assert contents(run) == before


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b'{"step":"x"}', "neither loss_bits nor val_bits"),
        (
            b'{"step":1,"bytes":128,"loss_bits":"a","step_s":1,"applied":true,"peak_bytes":1}',
            'loss_bits is "a"',
        ),
        (
            b'{"step":1,"bytes":128,"loss_bits":NaN,"step_s":1,"applied":true,"peak_bytes":1}',
            "loss_bits is NaN",
        ),
        (b'{"step":"x","bytes":128,"loss_bits":1,"step_s":1,"applied":true,"peak_bytes":1}', 'step is "x"'),
        (b'{"step":true,"bytes":128,"loss_bits":1,"step_s":1,"applied":true,"peak_bytes":1}', "step is true"),
        (b'{"step":1,"bytes":128,"loss_bits":1,"step_s":1,"applied":"no","peak_bytes":1}', 'applied is "no"'),
        (b'{"step":1,"loss_bits":1}', "a step without bytes, step_s, peak_bytes, applied"),
        (b'{"step":1,"bytes":128,"val_bits":2}', "a validation without val_bytes, whole"),
        (b'{"step":1,"bytes":-1,"val_bits":2,"val_bytes":3,"whole":true}', "bytes is -1"),
        (b"[1]", "not an object"),
        (b"7", "not an object"),
        (b"", "is not a row"),
        (b'{"step": \xff\xfe}', "is not a row"),
        (b"[" * 100_000, "is not a row"),
    ],
)
def test_a_line_of_the_log_that_is_no_row(run: Path, line: bytes, told: str) -> None:
    log = run / "metrics.jsonl"
    first, _, rest = log.read_bytes().partition(b"\n")
    log.write_bytes(first + b"\n" + line + b"\n" + rest)
    told = (
        rf"metrics\.jsonl:2: is not a row of a log.*{told if 'row' not in told else ''}.*; delete that line"
    )
    refuses(run, told)
    with pytest.raises(UserError, match=told):
        read_curve(run)


@pytest.mark.parametrize("order", [[0, 0, 1, 2], [2, 0, 1], [0, 1, 2, 1]])
def test_a_log_that_two_processes_wrote(run: Path, order: list[int]) -> None:
    log = run / "metrics.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[index] for index in order))
    refuses(
        run, r"metrics\.jsonl:\d: step \d stands after step \d: two processes .* delete the lines that repeat"
    )


def test_a_folder_in_the_logs_place(run: Path) -> None:
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").mkdir()
    refuses(run, r"metrics\.jsonl: cannot be read as a log")


def test_what_a_run_writes_is_read_back(trained: Path) -> None:
    rows = read_rows(trained / "metrics.jsonl")
    assert [row["step"] for row in rows if "loss_bits" in row] == [1, 2]
    assert any("val_bits" in row for row in rows)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda record: {}, "no list named corpora"),
        (lambda record: [], "not an object"),
        (lambda record: {**record, "corpora": []}, "no list named corpora"),
        (lambda record: {**record, "corpora": 3}, "no list named corpora"),
        (lambda record: {**record, "corpora": [5]}, "corpus 1 has not name, units, fingerprint"),
        (lambda record: {**record, "corpora": 2 * record["corpora"]}, "tells of 2 corpora"),
        (lambda record: {**record, "resumed": 5}, "resumed is not a list"),
    ],
)
def test_an_edited_record(run: Path, change: Callable[[Any], Any], told: str) -> None:
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    (run / "run.json").write_text(json.dumps(change(record)), encoding="utf-8")
    refuses(run, rf"run\.json: .*{told}.*; restore it")


@pytest.mark.parametrize("step", [-3, True, 7, "2", 2.0, None])
def test_a_checkpoint_of_another_step_than_its_folder_says(run: Path, step: object) -> None:
    path = newest_checkpoint(run)
    record = json.loads((path / "checkpoint.json").read_text(encoding="utf-8"))
    (path / "checkpoint.json").write_text(json.dumps({**record, "step": step}), encoding="utf-8")
    refuses(run, f"take step-00000001, which is whole: .* train --resume once .*{path.name} is deleted")
    shutil.rmtree(path)
    assert resumed_run(run, lambda config: config, ["test"]).state.step == 1


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda text: "", "it lacks model"),
        (lambda text: text[: text.index("schedule:")], "it lacks schedule"),
        (lambda text: text[: text.index("steps: 6")], "run"),
        (lambda text: text[: text.index("hidden:") + 9], "does not divide model.hidden=1"),
        (lambda text: text.replace("hidden: 16", "hidden: 32"), "model.hidden: 16 and 32"),
        (lambda text: text.replace("batch: 2", "batch: [2"), "is not valid YAML"),
        (lambda text: text.replace("hidden: 16", "hidden: wide"), "must be a whole number"),
    ],
)
def test_a_damaged_configuration_names_the_whole_copy(
    run: Path, damage: Callable[[str], str], told: str
) -> None:
    config = run / "config.yaml"
    config.write_text(damage(config.read_text(encoding="utf-8")), encoding="utf-8")
    refuses(run, rf"config\.yaml: was changed or damaged.*{told}.*checkpoint\.json holds a whole copy")


def test_the_copy_in_a_checkpoint_may_be_pasted(run: Path) -> None:
    before = (run / "config.yaml").read_text(encoding="utf-8")
    record = json.loads((newest_checkpoint(run) / "checkpoint.json").read_text(encoding="utf-8"))
    (run / "config.yaml").write_text(json.dumps(record["config"]), encoding="utf-8")
    assert resumed_run(run, lambda config: config, ["test"]).state.step == 2
    assert yaml.safe_load(before) == yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))


def test_a_run_killed_after_it_was_resumed_with_other_flags_goes_on_with_them(run: Path) -> None:
    asked = lambda config: resolve(base=config, overrides=["schedule.base_lr=1e-4"])  # noqa: E731
    resumed_run(run, asked, ["test"])
    assert len(complete_checkpoints(run)) == 2
    assert resumed_run(run, lambda config: config, ["test"]).config.schedule.base_lr == 1e-4


def test_a_corpus_of_other_content_and_the_same_size_is_refused(tmp_path: Path) -> None:
    text = write_text(tmp_path)
    start(tiny_config(text), tmp_path / "run", stop_after=1)
    content = bytearray(text.read_bytes())
    content[3000] ^= 1
    text.write_bytes(content)
    refuses(tmp_path / "run", r"text\.txt' changed: 6,000 bytes as before, with another content")
