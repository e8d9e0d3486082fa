"""Where a profile is kept and found, what it forecasts, and when it is not to be used."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from mlx_amort.config_io import resolve
from mlx_amort.errors import UserError
from mlx_amort.profiler.forecast import Forecast, find_profile, forecast_from_profile, forecast_from_steps
from mlx_amort.profiler.store import default_folder, profiles_folder
from mlx_amort.profiler.sweep import run_sweep
from tests.profiler.pretend import C0_S, C1_S_PER_BYTE, MACHINE, Lines, Machine, request_of

DEMO = resolve(preset="demo")


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pretended profile of the demo where `profile` leaves it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = default_folder(DEMO, MACHINE)
    run_sweep(request_of(), folder, MACHINE, Machine(DEMO), Lines())
    return folder / "profile.json"


def test_a_profile_is_found_by_model_and_machine_and_forecasts_what_was_not_measured(cached: Path) -> None:
    config = replace(DEMO, step=replace(DEMO.step, batch=10, chunks=4))
    assert cached.is_relative_to(profiles_folder())
    assert find_profile(config, MACHINE) == cached
    forecast = forecast_from_profile(cached, config)
    size = 10 * 4 * 256
    assert forecast.step_s == pytest.approx(C0_S["muon"] + C1_S_PER_BYTE * size)
    assert forecast.ceiling_fraction == pytest.approx(size * C1_S_PER_BYTE / forecast.step_s)
    assert forecast.run_s(100) == pytest.approx(100 * forecast.step_s)
    assert not forecast.is_extrapolated
    large = replace(DEMO, step=replace(DEMO.step, batch=1000))
    assert forecast_from_profile(cached, large).is_extrapolated


@pytest.mark.parametrize(
    "override", ["model.layers=3", "model.seq=512", "step.precision=bf16", "step.window=1", "step.tbptt=last"]
)
def test_a_profile_of_something_else_is_not_found_and_says_why(cached: Path, override: str) -> None:
    config = resolve(preset="demo", overrides=[override])
    assert find_profile(config, MACHINE) is None
    with pytest.raises(UserError, match=override.partition("=")[0].partition(".")[2]):
        forecast_from_profile(cached, config)


def test_a_profile_of_another_machine_or_half_a_file_is_not_found(cached: Path) -> None:
    assert find_profile(DEMO, {**MACHINE, "processor": "another"}) is None
    (cached.parent.parent / "half").mkdir()
    (cached.parent.parent / "half" / "profile.json").write_text('{"rows": [')
    assert find_profile(DEMO, MACHINE) == cached


def test_a_rejected_law_does_not_forecast(cached: Path) -> None:
    record = json.loads(cached.read_text())
    for row in record["rows"]:
        if row["step_s"]:
            row["step_s"] = 1e-9 * row["bytes_per_step"] ** 2 + 0.1
    cached.write_text(json.dumps(record))
    assert find_profile(DEMO, MACHINE) is None
    with pytest.raises(UserError, match="rejected"):
        forecast_from_profile(cached, DEMO)


def test_a_median_is_watched_to_five_percent() -> None:
    forecast = Forecast(2.0, 4000, "a profile")
    assert forecast.watch(2.09) is None and forecast.watch(1.91) is None
    slow, fast = forecast.watch(2.2), forecast.watch(1.8)
    assert slow is not None and "10% more" in slow and "another program" in slow
    assert fast is not None and "10% less" in fast
    assert forecast.summary(1.98) == "predicted 2 s, measured 1.98 s (-1.0 %)"
    assert forecast.ceiling_fraction is None


def test_without_a_profile_the_first_steps_forecast() -> None:
    forecast = forecast_from_steps([1.0, 1.2, 9.0], 2400)
    assert forecast.step_s == 1.2
    assert forecast.bytes_per_s == 2000
    assert "first 3 steps" in forecast.source
