"""Rows of a profile and of a CSV, and what a wrong file is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mlx_amort.errors import UserError
from mlx_amort.profiler.rows import read_record, read_rows

GRID = Path(__file__).parents[1] / "data" / "published_grid.csv"


def test_published_grid_is_read_whole() -> None:
    rows = read_rows(GRID)
    assert len(rows) == 13
    chosen = rows[7]
    assert (chosen.batch, chosen.chunks, chosen.bytes_per_step) == (24, 4, 98_304)
    assert chosen.step_s == pytest.approx(6.947)
    assert chosen.peak_bytes == 4_200_000_000
    assert [row.activation_checkpointing for row in rows].count(True) == 1


def test_four_columns_and_a_time_are_enough(tmp_path: Path) -> None:
    file = tmp_path / "times.csv"
    file.write_text("optimizer, step_ms, batch, chunks, seq\nmuon, 12.5, 2, 3, 64\n")
    (row,) = read_rows(file)
    assert (row.step_s, row.accum, row.window, row.peak_bytes) == (0.0125, 1, None, None)


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
    first, second = read_rows(tmp_path)
    assert (first.bytes_per_step, first.chunks_per_step, first.samples_s) == (48, 3, (0.4, 0.6))
    assert first.is_measured and not second.is_measured
    assert second.status == "did not fit"
    assert read_record(tmp_path) == record


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batch,chunks,seq\n1,1,8\n", "optimizer, step_ms are missing"),
        ("batch,chunks,seq,optimizer,step_ms\n1,1,8,muon,fast\n", "'fast' is not a number"),
        ("batch,chunks,seq,optimizer,step_ms\n1,0,8,muon,3\n", "whole number"),
        ("batch,chunks,seq,optimizer,step_ms\n1,2,8,muon,-3\n", "not positive"),
        ("batch,chunks,seq,optimizer,step_ms\n1,2,8,muon\n", "as many fields"),
        ("batch,chunks,seq,optimizer,step_ms,checkpoint\n1,2,8,muon,3,maybe\n", "neither yes nor no"),
        ("batch,chunks,seq,optimizer,step_ms,bytes_per_step\n1,2,8,muon,3,17\n", "is not accum"),
        ("", "are missing"),
        ('{"rows": 3}', "no list named rows"),
        ('{"rows": [', "not valid JSON"),
    ],
)
def test_a_wrong_file_is_told_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "wrong.csv"
    file.write_text(text)
    with pytest.raises(UserError, match=message):
        read_rows(file)


def test_an_absent_file_is_told_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="mlx-amort profile"):
        read_rows(tmp_path)
