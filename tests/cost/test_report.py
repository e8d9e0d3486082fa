"""The report is written from records, whatever is missing in them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mlx_amort.cost.configuration import Configuration, Measurement
from mlx_amort.cost.measure.roofline import roofline_of
from mlx_amort.cost.profile import Cut, Drift, Prediction, Profile, SweepPlan
from mlx_amort.cost.profile_file import read_profile
from mlx_amort.cost.report import write_report
from mlx_amort.cost.time.fitting import fit_rows, refit
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
