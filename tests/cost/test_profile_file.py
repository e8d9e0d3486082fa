"""Rows of a profile and of a CSV, and what a wrong file is told."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from mlx_amort.cost.profile_file import LARGEST_FILE_BYTES, read_measurements, read_profile, write_profile
from mlx_amort.cost.time.fitting import fit_profile, refit
from mlx_amort.errors import UserError
from tests.cost.test_report import whole_profile

GRID = Path(__file__).parents[1] / "data" / "published_grid.csv"


def test_published_grid_is_read_whole() -> None:
    rows = read_measurements(GRID)
    assert len(rows) == 13
    chosen = rows[7]
    assert (chosen.configuration.batch, chosen.configuration.chunks, chosen.configuration.bytes_per_step) == (
        24,
        4,
        98_304,
    )
    assert chosen.step_s == pytest.approx(6.947)
    assert chosen.peak_bytes == 4_200_000_000
    assert [row.configuration.activation_checkpointing for row in rows].count(True) == 1


def test_four_columns_and_a_time_are_enough(tmp_path: Path) -> None:
    file = tmp_path / "times.csv"
    file.write_text("optimizer, step_ms, batch, chunks, seq\nmuon, 12.5, 2, 3, 64\n")
    (row,) = read_measurements(file)
    assert (row.step_s, row.configuration.accum, row.configuration.window, row.peak_bytes) == (
        0.0125,
        1,
        None,
        None,
    )


def test_profile_rows_keep_their_status_and_samples(tmp_path: Path) -> None:
    record = {
        "rows": [
            {
                "batch": 2,
                "chunks": 1,
                "seq": 8,
                "accum": 3,
                "optimizer": "adamw",
                "step_s": 0.5,
                "samples_s": [0.4, 0.6],
            },
            {
                "batch": 99,
                "chunks": 1,
                "seq": 8,
                "optimizer": "adamw",
                "step_s": None,
                "status": "did not fit",
            },
        ]
    }
    (tmp_path / "profile.json").write_text(json.dumps(record))
    first, second = read_measurements(tmp_path)
    assert (first.configuration.bytes_per_step, first.configuration.chunks_per_step, first.samples_s) == (
        48,
        3,
        (0.4, 0.6),
    )
    assert first.is_measured and not second.is_measured
    assert second.status == "did not fit"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batch,chunks,seq\n1,1,8\n", "optimizer, step_ms are missing"),
        ("batch,batch,chunks,seq,optimizer,step_ms\n1,1,1,8,muon,3\n", "the column batch twice"),
        ("batch,chunks,seq,optimizer,step_ms\n1,1,8,muon,fast\n", "'fast' is not a number"),
        ("batch,chunks,seq,optimizer,step_ms\n1,0,8,muon,3\n", "whole number"),
        ("batch,chunks,seq,optimizer,step_ms\n1,2,8,muon,-3\n", "not between"),
        ("batch,chunks,seq,optimizer,step_ms\n1,2,8,muon\n", "has 4 fields, and the heading has 5"),
        ("batch,chunks,seq,optimizer,step_ms,checkpoint\n1,2,8,muon,3,maybe\n", "neither yes nor no"),
        ("batch,chunks,seq,optimizer,step_ms,bytes_per_step\n1,2,8,muon,3,17\n", "is not accum"),
        ("", "are missing"),
        ('{"rows": 3}', "no list of measurements"),
        ('{"rows": [', "not valid JSON"),
    ],
)
def test_a_wrong_file_is_told_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "wrong.csv"
    file.write_text(text)
    with pytest.raises(UserError, match=message):
        read_measurements(file)


def test_an_absent_file_is_told_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="mlx-amort profile"):
        read_measurements(tmp_path)


HEADING = "batch,chunks,seq,optimizer,step_ms,memory_gb\n"
OTHERS = "".join(f"{batch},1,64,muon,{3 * batch},1\n" for batch in (1, 2, 4, 8))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("2,1,64,muon,1e308,1\n", "not between 1e-09 and 1e[+]09 s"),
        ("2,1,64,muon,1e-320,1\n", "not between"),
        ("2,1,64,muon,9e-8,1\n", "not between"),
        ("1e308,1,64,muon,3,1\n", "is over 2,147,483,647"),
        ("2147483647,2147483647,64,muon,3,1\n", "bytes per step: .* is over"),
        ("2,1,64,muon,3,1e308\n", "is not an amount of memory"),
        ("2,1,64,muon,3,-1\n", "is not an amount of memory"),
        ("2,1,64,muon,nan,1\n", "not finite"),
        (f"2,1,64,{'m' * 200_000},3,1\n", "line 6: is not CSV"),
        (f"2,1,64,{'m' * 100_000},3,1\n", "optimizer: .* is not a name"),
    ],
)
def test_an_impossible_number_is_told_with_its_row(tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "wrong.csv"
    file.write_text(HEADING + OTHERS + line)
    with pytest.raises(UserError, match=message) as refusal:
        fit_profile(read_profile(file))
    assert refusal.value.todo and "\n" not in str(refusal.value) and len(str(refusal.value)) < 400


def test_times_that_hide_each_other_are_no_cost_model(tmp_path: Path) -> None:
    file = tmp_path / "wild.csv"
    file.write_text(
        HEADING + "1,1,1,muon,1e-6,1\n100,1,1,muon,1e6,1\n1000,1,1,muon,1e12,1\n9,1,1,muon,1e11,1\n"
    )
    with pytest.raises(UserError, match="cannot be told apart"):
        fit_profile(read_profile(file))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"rows": ' + "[" * 100_000, "not valid JSON .too many brackets"),
        ('{"rows": [{"batch": ' + "9" * 10_000 + "}]}", "not valid JSON .a number of thousands of digits"),
        (
            '{"rows": [{"batch": 1' + "0" * 400 + ', "chunks": 1, "seq": 1, "optimizer": "muon"}]}',
            "not a number",
        ),
        ('{"rows": [{"batch": true, "chunks": 1, "seq": 1, "optimizer": "muon"}]}', "True is not"),
        (
            '{"rows": [{"batch": [1], "chunks": 1, "seq": 1, "optimizer": "muon"}]}',
            "kind list is not a number",
        ),
        (
            '{"rows": [{"batch": 1, "chunks": 1, "seq": 1, "optimizer": "muon", "samples_s": ["x"]}]}',
            "samples_s: 'x' is not a number",
        ),
        ('{"rows": [], "held_out": 3}', "held_out: 3 is not a list"),
    ],
)
def test_a_wrong_profile_is_told_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "profile.json").write_text(text)
    with pytest.raises(UserError, match=message):
        fit_profile(read_profile(tmp_path))


def test_what_has_no_end_and_what_is_too_large_are_not_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="/dev/zero: is not a regular file"):
        read_profile("/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="is not a regular file"):
        read_profile(tmp_path / "pipe")
    with open(tmp_path / "large.csv", "wb") as handle:
        handle.truncate(LARGEST_FILE_BYTES + 1)
    with pytest.raises(UserError, match=r"at most .* are read"):
        read_profile(tmp_path / "large.csv")


TIMES = [(4, 1, 0.5), (8, 1, 0.75), (16, 1, 1.25), (32, 1, 2.25)]


@pytest.mark.parametrize(
    "text",
    [
        "batch;chunks;seq;optimizer;step_s\n" + "".join(f"{b};{k};64;muon;{s}\n" for b, k, s in TIMES),
        "sep=;\nBatch;Chunks;Seq;Optimizer;Step_s\n"
        + "".join(f"{b};{k};64;Muon;{str(s).replace('.', ',')}\n" for b, k, s in TIMES),
        "batch\tchunks\tseq\toptimizer\tstep_s\n"
        + "".join(f"{b}\t{k}\t64\tmuon\t{str(s).replace('.', ',')}\n" for b, k, s in TIMES),
        "\ufeffBATCH,CHUNKS,SEQ,OPTIMIZER,STEP_S,,\r\n"
        + "".join(f"{b}.0,{k},64,muon,{s},,\r\n" for b, k, s in TIMES)
        + ",,,,,,\r\n\r\n",
    ],
    ids=["semicolons", "sep and decimal commas", "tabs and decimal commas", "capitals and empty columns"],
)
def test_what_a_spreadsheet_writes_is_read(tmp_path: Path, text: str) -> None:
    file = tmp_path / "sheet.csv"
    file.write_text(text, encoding="utf-8", newline="")
    rows = read_measurements(file)
    assert [(row.configuration.batch, row.configuration.chunks, row.step_s) for row in rows] == TIMES
    assert {row.configuration.optimizer for row in rows} == {"muon"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batch:chunks:seq:optimizer:step_ms\n1:1:8:muon:3\n", "separated by ','"),
        (
            "batch;chunks;seq;optimizer;step_ms\n1;1;8;muon;1.234,5\n",
            "line 2, step_ms: '1.234,5' is not a number",
        ),
        ('batch,chunks,seq,optimizer,step_ms\n1,1,8,muon,"2,1"\n', "'2,1' is not a number"),
        (
            "batch,chunks,seq,optimizer,step_ms\n\n1,1,8,muon,3,4\n",
            "line 3: has 6 fields, and the heading has 5",
        ),
        (
            "batch,chunks,seq,optimizer,step_ms\n1.5,1,8,muon,3\n",
            "line 2, batch: '1.5' is not a whole number",
        ),
    ],
)
def test_a_table_that_cannot_be_read_is_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "wrong.csv"
    file.write_text(text)
    with pytest.raises(UserError) as refusal:
        read_measurements(file)
    assert message in str(refusal.value) and "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("samples_s", [0, 0, 0], "samples_s: 0 s is not between"),
        ("samples_s", [-1.0], "samples_s: -1 s is not between"),
        ("samples_s", 3, "samples_s: 3 is not a list"),
        ("update_s", -0.1, "update_s: -0.1 s is not between 0 and"),
        ("compile_s", -1, "compile_s: -1 s is not between 0 and"),
        ("wall_s", 1e300, "wall_s: 1e[+]300 s is not between 0 and"),
        ("phases", {"update": "long"}, "phases, update: 'long' is not a number"),
        ("phases", [1], "phases: is a value of kind list instead of an object"),
        ("step_s", 0, "step time: 0 s is not between"),
        ("peak_bytes", -1, "peak memory: -1 bytes is not an amount of memory"),
        ("window", 0, "window: 0 is not a whole number"),
        ("note", 5, "note: 5 is not a text"),
        ("is_anchor", "perhaps", "is_anchor: 'perhaps' is neither yes nor no"),
    ],
)
def test_an_impossible_value_of_a_profile_is_refused_where_it_is_read(
    tmp_path: Path, key: str, value: object, message: str
) -> None:
    good = {"batch": 1, "chunks": 1, "seq": 8, "optimizer": "muon", "step_s": 1.0}
    (tmp_path / "profile.json").write_text(json.dumps({"measurements": [good, {**good, key: value}]}))
    with pytest.raises(UserError, match=message) as refusal:
        read_profile(tmp_path)
    assert "measurement 2" in str(refusal.value) and "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("plan", {"visits": 3}),
        ("plan", [1]),
        ("rates", {"products": [], "copy_bytes_per_s": 1.0}),
        ("rates", {"products": [{"name": "x"}], "copy_bytes_per_s": 1.0}),
        ("roofline", {"c1_us_per_byte": 0}),
        ("holdout", [{"batch": 1, "chunks": 1, "seq": 8, "optimizer": "muon"}]),
        ("anchor", {"batch": 1}),
        ("drift", {"visits": 3}),
        ("elapsed_s", "long"),
        ("machine", 7),
        ("status", 7),
    ],
)
def test_a_damaged_part_of_a_profile_is_refused_by_its_name(tmp_path: Path, key: str, value: object) -> None:
    (tmp_path / "profile.json").write_text(json.dumps({"measurements": [], key: value}))
    with pytest.raises(UserError) as refusal:
        read_profile(tmp_path)
    assert key in str(refusal.value).replace("held out", "holdout") and "\n" not in str(refusal.value)


def test_a_profile_survives_its_file(tmp_path: Path) -> None:
    made = whole_profile()
    write_profile(made, tmp_path / "profile.json")
    read = read_profile(tmp_path)
    assert read.cost_model is None
    refit(made)
    refit(read)
    assert read.to_record() == made.to_record()
