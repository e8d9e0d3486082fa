"""Cost curve, residuals and memory of profiles with forty points and with four."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from mlx_amort import plots
from mlx_amort.cost.profile_file import read_profile
from mlx_amort.cost.time.fitting import refit
from mlx_amort.plots.configurations import fitted_model_of, key_of, not_fitted_of, peaks_of
from mlx_amort.plots.cost import interval_s
from tests.plots.conftest import Draw
from tests.plots.made import T_QUANTILE, design_of, fitted, legend_of, profile, row_of, y_of

PNG = b"\x89PNG\r\n\x1a\n"
GRID = Path(__file__).parents[1] / "data" / "published_grid.csv"
FOUR = [row_of(batch, 2, "muon", window_s=0.0) for batch in (2, 4, 8, 16)]


def line_of(axis: Axes, label: str) -> Line2D:
    """The line whose label begins so."""
    (line,) = [line for line in axis.get_lines() if str(line.get_label()).startswith(label)]
    return line


@pytest.mark.parametrize("record", [profile(0.01), fitted(FOUR)], ids=["forty", "four"])
def test_the_panels_of_the_cost_curve_hold_no_text_and_the_legend_lies_beside_them(
    record: dict[str, Any], draw: Draw
) -> None:
    figure = draw(plots.cost_curve, record)
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.x1
    for axis in figure.axes:
        assert not axis.texts
        assert not box.overlaps(axis.get_window_extent())
    texts = legend_of(figure)
    assert sum(text.startswith("configured: ") for text in texts) == 1
    assert sum(text.startswith("ceiling 1/c1") for text in texts) == 1
    assert figure.get_suptitle() == "demo, 1,234,567 parameters  ·  a processor, 2 cores, cpu"


def test_the_legend_tells_solid_from_dotted_in_one_unit_of_time(draw: Draw) -> None:
    texts = legend_of(draw(plots.cost_curve, profile()))
    assert "muon: 350 ms + 20 ms/window + 23 ms/kB · T\n(solid: 1 window per step)" in texts
    assert "adamw (dotted: 4 windows per step)" in texts
    rows = [{**row, "step_s": 10 * row["step_s"]} for row in FOUR]
    texts = legend_of(draw(plots.cost_curve, fitted(rows)))
    assert "muon: 3.5 s + 230 s/MB · T" in texts and not any("ms" in text for text in texts)


def test_bytes_have_ticks_at_powers_of_two_and_points_keep_off_the_corner(draw: Draw) -> None:
    figure = draw(plots.cost_curve, profile())
    times, rates = figure.axes
    for axis in (times, rates):
        ticks = [value for value in axis.get_xticks() if axis.get_xlim()[0] <= value <= axis.get_xlim()[1]]
        assert len(ticks) > 3 and all(np.log2(value).is_integer() for value in ticks)
    assert times.get_yscale() == "log"
    points = line_of(times, "muon, measured")
    shares = times.transAxes.inverted().transform(times.transData.transform(points.get_xydata()))
    in_corner = np.all(shares < 0.25, axis=1)
    assert in_corner.mean() < 0.2


def test_a_rejected_cost_model_is_drawn_faintly_without_interval_and_ceiling(draw: Draw) -> None:
    held = draw(plots.cost_curve, fitted(FOUR))
    rejected = [{**row, "step_s": 20.0 - row["batch"] / 10} for row in FOUR]
    faint = draw(plots.cost_curve, fitted(rejected, form="rejected"))
    assert "rejected" in faint.axes[0].get_title(loc="left")
    strong, weak = (line_of(figure.axes[0], "muon: ") for figure in (held, faint))
    assert (weak.get_alpha() or 1) < 0.5 < (strong.get_alpha() or 1)
    assert weak.get_linewidth() < strong.get_linewidth() and weak.get_linestyle() != strong.get_linestyle()
    assert len(held.axes[0].collections) == 1 and not faint.axes[0].collections
    assert not any("ceiling" in text for text in legend_of(faint))


@pytest.mark.parametrize(("unit", "window_s"), [(None, 0.0), ("window", 0.02)])
def test_the_band_is_the_interval_of_the_line(unit: str | None, window_s: float) -> None:
    record = profile(0.02, window_s)
    rows, sizes = record["measurements"], np.array([64.0, 1000.0, 40000.0])
    found = interval_s(fitted_model_of(record), "adamw", 2, sizes)
    design = design_of(rows, unit)
    errors = design @ np.linalg.lstsq(design, np.ones(len(rows)), rcond=None)[0] - 1
    variance = errors @ errors / (len(rows) - design.shape[1])
    # Of Muon and AdamW, T, and two windows.
    x = np.column_stack([np.zeros(3), np.ones(3), sizes, *([np.full(3, 2.0)] if unit else [])])
    spread = np.sqrt(variance * np.einsum("ni,ij,nj->n", x, np.linalg.inv(design.T @ design), x))
    assert found is not None
    np.testing.assert_allclose(found, T_QUANTILE * spread, rtol=1e-6)


@pytest.mark.parametrize("c0_s", [0.1, -0.02, 0.0005])
def test_a_ceiling_is_drawn_where_it_flattens_nothing(c0_s: float, draw: Draw) -> None:
    rows = [{**row, "step_s": c0_s + 1e-5 * row["bytes_per_step"]} for row in FOUR]
    rows = [{**row, "batch": row["batch"] * 16, "bytes_per_step": 16 * row["bytes_per_step"]} for row in rows]
    rows = [{**row, "step_s": c0_s + 1e-5 * row["bytes_per_step"]} for row in rows]
    figure = draw(plots.cost_curve, fitted(rows))
    rates = figure.axes[1]
    fastest = max(row["bytes_per_step"] / row["step_s"] for row in rows)
    assert fastest <= rates.get_ylim()[1] <= 3 * fastest


def test_rows_of_another_setting_are_drawn_as_not_fitted_and_rows_without_a_good_time_not_at_all() -> None:
    record = fitted(FOUR)
    other, scattered = {**FOUR[0], "window": 4}, {**FOUR[1], "precision": "bf16"}
    record["measurements"] = [*FOUR, other, scattered]
    record["cost_model"]["kept_out"] = [
        {**other, "reason": "window is 4, not 2"},
        {**scattered, "reason": "status is 'scattered'"},
    ]
    (found,) = not_fitted_of(record)
    assert found.measured_s == other["step_s"] and found.predicted_s is None


def test_a_row_of_another_window_or_precision_is_another_configuration() -> None:
    row = FOUR[0]
    others = [{**row, "window": 4}, {**row, "precision": "bf16"}, {**row, "accum": 2}]
    assert len({key_of(each) for each in (row, *others)}) == 4
    assert key_of({**row, "step_s": 9.0}) == key_of(row)


def test_residuals_say_how_their_rows_are_ordered(draw: Draw) -> None:
    record = profile(0.01)
    record["holdout"] = [{**FOUR[0], "predicted_s": 0.4, "measured_s": 0.41}]
    (axis,) = draw(plots.residuals, record).axes
    assert axis.get_ylabel() == "ordered by optimizer, then by bytes per step T"
    names = [label.get_text() for label in axis.get_yticklabels()][::-1]
    assert names[0].startswith("adamw  B 1 K 1  T 64") and names[-1].startswith("muon  B 2 K 2")
    assert len(names) == 41


def test_peaks_stand_at_their_rows_with_the_estimate_beside_them(draw: Draw) -> None:
    record = profile()
    record["measurements"].append(
        {**record["measurements"][0], "batch": 99, "peak_bytes": None, "status": "did not fit"}
    )
    record["measurements"].append({**record["measurements"][3], "seq": 2 * record["measurements"][0]["seq"]})
    estimates = [
        None if row["peak_bytes"] is None else 1.1 * row["peak_bytes"] for row in record["measurements"]
    ]
    figure = draw(plots.memory, record, estimates)
    (axis,) = figure.axes
    batches = {
        float(x) for line in axis.get_lines() for x in np.atleast_1d(line.get_xdata()) if np.isfinite(x)
    }
    assert batches == {1.0, 3.0, 8.0, 24.0, 64.0, 99.0}
    drawn = [y_of(line)[0] for line in axis.get_lines() if line.get_marker() == "_"]
    unit = 1e6 if "MB" in axis.get_ylabel() else 1e9
    assert sorted(drawn) == pytest.approx(sorted(value / unit for value in estimates if value))
    texts = legend_of(figure)
    assert {"the estimate", "did not fit", "K = 8", "S = 64 (open)", "S = 128", "muon", "adamw"} <= set(texts)
    assert [text.get_text() for text in axis.texts] == ["K 1"]
    assert len(peaks_of(record)) == len(record["measurements"])


def test_figures_of_a_csv_are_drawn(tmp_path: Path) -> None:
    published = read_profile(GRID)
    refit(published)
    record = published.to_record()
    plots.cost_curve(record, tmp_path / "cost.png")
    plots.residuals(record, tmp_path / "residuals.png")
    plots.memory(record, tmp_path / "memory.png")
    assert all(file.read_bytes().startswith(PNG) for file in tmp_path.iterdir())
    assert len(peaks_of(record)) == 13
