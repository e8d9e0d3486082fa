"""Pictures and report are written from records, whatever is missing in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mlx_amort import plots
from mlx_amort.profiler.fit import fit_rows
from mlx_amort.profiler.report import write_report
from mlx_amort.profiler.rows import read_record, rows_from_records

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
            "step_s": 0.1 + 0.05 * chunks + 1e-5 * size,
            "peak_bytes": 10**8,
            "status": "ok",
            "samples_s": [0.1],
        }
        rows.append({**row, "phases": {"backward": 0.1, "update": 0.02}})
    rows.append(
        {
            **rows[0],
            "batch": 4096,
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
    made |= {"floors": {"c1_us_per_byte": 3.5}, "machine": {"processor": "a|b"}}
    made["model"] = {"parameters": 1234567}
    made["fit"] = fit_rows(rows_from_records(rows, "made")).to_record()
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
        "3.5",
    ):
        assert part in text


def test_report_without_a_fit_says_so(record: dict[str, Any], tmp_path: Path) -> None:
    text = write_report({"rows": record["rows"][:2]}, tmp_path).read_text(encoding="utf-8")
    assert "No fit" in text
    assert not (tmp_path / "cost_curve.png").exists()


def test_cost_curve_of_a_rejected_law_without_a_ceiling_is_drawn(tmp_path: Path) -> None:
    rows = [
        {"batch": batch, "chunks": 1, "seq": 1024, "optimizer": "muon", "step_s": 20.0 - batch / 10}
        for batch in (4, 8, 16, 32)
    ]
    fit = fit_rows(rows_from_records(rows, "made")).to_record()
    plots.cost_curve({"rows": rows, "fit": fit}, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(PNG)


@pytest.mark.parametrize("steps", [1, 2, 200])
def test_loss_and_rate_is_drawn_for_any_length(steps: int, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"step": step, "bytes": step * 512, "loss_bits": 8.0 / step, "step_s": 0.1}
        for step in range(1, steps + 1)
    ]
    rows[-1]["loss_bits"] = float("nan") if steps > 2 else 8.0
    rows.append({"step": steps, "bytes": steps * 512, "val_bits": 3.0})
    plots.loss_and_rate(rows, tmp_path / "plots" / "loss.png", zlib_bits=2.9, predicted_step_s=0.11)
    assert (tmp_path / "plots" / "loss.png").read_bytes().startswith(PNG)
