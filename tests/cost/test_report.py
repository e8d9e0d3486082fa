"""The report is written from records, whatever is missing in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mlx_amort.cost.configuration import point_of
from mlx_amort.cost.measure.roofline import compare_with_floors, floors_of
from mlx_amort.cost.profile_file import read_record, rows_from_records
from mlx_amort.cost.report import write_report
from mlx_amort.cost.time.cost_model import fit_rows
from tests.cost.pretend import BASE, Machine

GRID = Path(__file__).parents[1] / "data" / "published_grid.csv"
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def record() -> dict[str, Any]:
    made = read_record(GRID)
    made["fit"] = fit_rows(rows_from_records(made["rows"], "grid")).to_record()
    return made


def profile_record() -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for batch, chunks in [(2, 2), (4, 2), (8, 2), (16, 2), (8, 1), (8, 4)]:
        size = batch * chunks * 64
        row = {"batch": batch, "chunks": chunks, "window": 2, "accum": 1, "seq": 64, "optimizer": "muon"}
        row |= {
            "bytes_per_step": size,
            "step_s": 0.1 + 0.05 * chunks + 1e-5 * size,
            "peak_bytes": 10**8,
            "status": "ok",
            "samples_s": [0.1],
        }
        rows.append({**row, "phases": {"backward": 0.1, "update": 0.02}, "update_s": 0.1})
    rows.append(
        {
            **rows[0],
            "batch": 4096,
            "bytes_per_step": 4096 * 2 * 64,
            "step_s": None,
            "peak_bytes": None,
            "status": "did not fit",
            "phases": None,
        }
    )
    held_out = {
        "batch": 12,
        "chunks": 2,
        "seq": 64,
        "optimizer": "muon",
        "predicted_s": 0.21,
        "measured_s": 0.22,
    }
    made: dict[str, Any] = {"rows": rows, "held_out": [{**held_out, "relative_error": -0.045}]}
    cut = {**point_of(BASE).to_record(), "batch": 99, "reason": "the time budget is used up"}
    made |= {"machine": {"processor": "a|b"}, "model": {"parameters": 1234567}}
    made |= {
        "plan": {"cut": [cut]},
        "drift": {"visits": 3, "last_to_first": 0.021, "spread": 0.034},
    }
    made["fit"] = fit_rows(rows_from_records(rows, "made")).to_record()
    made["floors"] = compare_with_floors(floors_of(BASE, Machine(BASE).rates(point_of(BASE))), made["fit"])
    made["chosen"] = {"batch": 8, "chunks": 4, "seq": 64, "optimizer": "muon"}
    return made


def test_report_of_a_csv_has_verdict_tables_and_pictures(record: dict[str, Any], tmp_path: Path) -> None:
    text = write_report(record, tmp_path / "new").read_text(encoding="utf-8")
    assert record["fit"]["verdict"] in text
    assert "| c0 muon | 1.657 s |" in text
    for name in ("cost_curve.png", "residuals.png", "memory.png"):
        assert f"({name})" in text
        assert (tmp_path / "new" / name).read_bytes().startswith(PNG)


def test_report_of_a_profile_has_all_its_parts(tmp_path: Path) -> None:
    text = write_report(profile_record(), tmp_path).read_text(encoding="utf-8")
    for part in (
        "did not fit",
        "per chunk",
        "## Held out",
        "-4.50 %",
        "backward",
        "a\\|b",
        "1,234,567",
        "- c1 = 1.4 × its floor: 10 against 7.03 µs/byte",
        "- muon: update timed alone 0.1 s, fitted c0 0.1 s",
        "- anchor measured 3 times: last to first +2.1 %, slowest to fastest +3.4 %",
        "## Left out of the sweep\n\n- B 99 K 2 S 256 muon fp32: the time budget is used up",
        "| c1 | 7.032 µs/byte |",
        "| configuration | backward ms | update ms |",
        "| B 2 K 2 S 64 muon | 100 | 20 |",
    ):
        assert part in text


def test_report_without_a_fit_says_so(record: dict[str, Any], tmp_path: Path) -> None:
    made = {"rows": record["rows"][:2], "fit": None, "fit_refused": "too few points"}
    text = write_report(made, tmp_path).read_text(encoding="utf-8")
    assert "No fit: too few points." in text
    assert not (tmp_path / "cost_curve.png").exists()
