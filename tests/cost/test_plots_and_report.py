"""Pictures and report are written from records, whatever is missing in them."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlx_amort import plots
from mlx_amort.cost.configuration import Configuration, Measurement
from mlx_amort.cost.measure.roofline import roofline_of
from mlx_amort.cost.profile import Cut, Drift, Prediction, Profile, SweepPlan
from mlx_amort.cost.profile_file import read_profile
from mlx_amort.cost.report import write_report
from mlx_amort.cost.time.fitting import fit_rows, refit
from mlx_amort.plots.cost import _draw_others
from tests.cost.made import made
from tests.cost.pretend import BASE, Machine

GRID = Path(__file__).parents[1] / "data" / "published_grid.csv"
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def published() -> Profile:
    profile = read_profile(GRID)
    refit(profile)
    return profile


def whole_profile() -> Profile:
    measurements = []
    for batch, chunks in [(2, 2), (4, 2), (8, 2), (16, 2), (8, 1), (8, 4)]:
        configuration = Configuration(batch, chunks, 64, "muon", window=2)
        measurements.append(
            Measurement(
                configuration,
                0.1 + 0.05 * chunks + 1e-5 * configuration.bytes_per_step,
                samples_s=(0.1,),
                peak_bytes=10**8,
                phases={"backward": 0.1, "update": 0.02},
                update_s=0.1,
            )
        )
    too_large = Configuration(4096, 2, 64, "muon", window=2)
    held_out = Configuration(12, 2, 64, "muon")
    profile = Profile(
        [*measurements, Measurement(too_large, status="did not fit")],
        machine={"processor": "a|b"},
        model={"parameters": 1234567},
        roofline=roofline_of(BASE, Machine(BASE).rates(Configuration.of(BASE))),
        plan=SweepPlan([], [Cut(replace(Configuration.of(BASE), batch=99), "the time budget is used up")], 0),
        holdout=[Prediction(held_out, 0.21, Measurement(held_out, 0.22))],
        chosen=Measurement(Configuration(8, 4, 64, "muon")),
        drift=Drift(3, 0.021, 0.034),
    )
    profile.cost_model = fit_rows(profile.measurements)
    return profile


def test_report_of_a_csv_has_verdict_tables_and_pictures(published: Profile, tmp_path: Path) -> None:
    text = write_report(published, tmp_path / "new").read_text(encoding="utf-8")
    assert published.cost_model is not None and published.cost_model.verdict in text
    assert "| c0 muon | 1.657 s |" in text
    for name in ("cost_curve.png", "residuals.png", "memory.png"):
        assert f"({name})" in text
        assert (tmp_path / "new" / name).read_bytes().startswith(PNG)


def test_report_of_a_profile_has_all_its_parts(tmp_path: Path) -> None:
    text = write_report(whole_profile(), tmp_path).read_text(encoding="utf-8")
    for part in (
        "did not fit",
        "per chunk",
        "## Held out",
        "-4.55 %",
        "backward",
        "a\\|b",
        "1,234,567",
        "- c1 = 1.4 × its roofline: 10 against 7.03 µs/byte",
        "- muon: update timed alone 0.1 s, fitted c0 0.1 s",
        "- anchor measured 3 times: last to first +2.1 %, slowest to fastest +3.4 %",
        "## Left out of the sweep\n\n- B 99 K 2 S 256 muon fp32: the time budget is used up",
        "| c1 | 7.032 µs/byte |",
        "| configuration | backward ms | update ms |",
        "| B 2 K 2 S 64 muon | 100 | 20 |",
    ):
        assert part in text


def test_report_without_a_cost_model_says_so(published: Profile, tmp_path: Path) -> None:
    short = Profile(published.measurements[:2], why_no_cost_model="too few points")
    text = write_report(short, tmp_path).read_text(encoding="utf-8")
    assert "No cost model: too few points." in text
    assert not (tmp_path / "cost_curve.png").exists()


def test_cost_curve_of_a_rejected_cost_model_without_a_ceiling_is_drawn(tmp_path: Path) -> None:
    profile = Profile([made(batch, 1, 1024, "muon", 20.0 - batch / 10) for batch in (4, 8, 16, 32)])
    refit(profile)
    plots.cost_curve(profile.to_record(), tmp_path / "curve.png")
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


@pytest.mark.parametrize("window", [2, 4])
def test_fitted_points_are_not_drawn_as_not_fitted(window: int, tmp_path: Path) -> None:
    profile = whole_profile()
    others, known = [], []
    for index, each in enumerate(profile.measurements):
        bf16 = replace(each.configuration, precision="bf16")
        known.append(replace(each, configuration=bf16))
        if index < 2:
            fp32 = replace(bf16, precision="fp32", window=window)
            others.append(replace(each, configuration=fp32))
    profile.measurements = [*known, *others]
    refit(profile)
    record = profile.to_record()
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
    profile = Profile(
        [made(batch, 2, 64, "muon", c0_s + c1 * batch * 128) for batch in (32, 64, 96, 128, 256)]
    )
    refit(profile)
    record = profile.to_record()
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
