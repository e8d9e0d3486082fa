"""Pictures and report are written from records, whatever is missing in them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlx_amort import plots
from mlx_amort.cost.configuration import point_of
from mlx_amort.cost.measure.roofline import compare_with_floors, floors_of
from mlx_amort.cost.profile_file import read_record, rows_from_records
from mlx_amort.cost.report import write_report
from mlx_amort.cost.time.cost_model import fit_rows
from mlx_amort.plots.configurations import key_of
from mlx_amort.plots.cost import _draw_others
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


def test_a_row_of_another_window_or_precision_is_another_row(tmp_path: Path) -> None:
    row = {"batch": 8, "chunks": 4, "window": 2, "seq": 64, "optimizer": "muon", "precision": "bf16"}
    others = [{**row, "window": 4}, {**row, "precision": "fp32"}, {**row, "accum": 2}]
    assert len({key_of(each) for each in (row, *others)}) == 4
    assert key_of({**row, "window": "2", "batch": "8", "precision": " bf16"}) == key_of(row)


@pytest.mark.parametrize("window", [2, 4])
def test_fitted_points_are_not_drawn_as_not_fitted(window: int, tmp_path: Path) -> None:
    record = profile_record()
    others = [{**row, "window": window, "precision": "fp32"} for row in record["rows"][:2] if row["step_s"]]
    rows = [{**row, "precision": "bf16"} for row in record["rows"]] + others
    record |= {"rows": rows, "fit": fit_rows(rows_from_records(rows, "made")).to_record()}
    drawn: list[int] = []

    class Panel:
        def plot(self, x: Any, y: Any, **style: Any) -> None:
            drawn.append(len(x) if "not fitted" in style["label"] else 0)

    panel: Any = Panel()
    _draw_others(panel, panel, record)
    assert max(drawn) == len(others) == 2


@pytest.mark.parametrize(
    ("c0_s", "c1"), [(0.1, 1e-5), (-0.02, 1e-5), (-0.003, 1e-5), (-0.001, 1e-5), (0.0005, 1e-5), (1.0, 1e-6)]
)
def test_the_ceilings_label_lies_on_no_curve_and_no_point(
    c0_s: float, c1: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[dict[str, Any]] = []
    for batch in (32, 64, 96, 128, 256):
        size = batch * 128
        row = {"batch": batch, "chunks": 2, "seq": 64, "optimizer": "muon", "step_s": c0_s + c1 * size}
        rows.append({**row, "bytes_per_step": size})
    record = {"rows": rows, "fit": fit_rows(rows_from_records(rows, "made")).to_record()}
    drawn: list[Any] = []
    monkeypatch.setattr("mlx_amort.plots.cost.save_figure", lambda figure, path: drawn.append(figure))
    plots.cost_curve(record, tmp_path / "curve.png")
    (figure,) = drawn
    figure.canvas.draw()
    rates = figure.axes[1]
    (label,) = [text for text in rates.texts if "ceiling" in text.get_text()]
    box = label.get_window_extent()
    for line in rates.get_lines():
        x, y = line.get_xdata(), line.get_ydata()
        across = [(0.0, y[0]), (1.0, y[0])] if list(x) == [0, 1] else None
        pixels = rates.transData.transform(list(zip(x, y, strict=True)))
        if across:
            pixels[:, 0] = rates.bbox.x0, rates.bbox.x1
        many = np.concatenate([np.linspace(a, b, 50) for a, b in itertools.pairwise(pixels)])
        assert not any(box.contains(*pixel) for pixel in many)
