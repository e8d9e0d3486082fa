"""Which profile forecasts which run, and when one is not to be used."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from mlx_amort.config.reading import resolve
from mlx_amort.cost.measure.sweep import run_sweep
from mlx_amort.cost.profile_store import default_folder, profiles_folder
from mlx_amort.cost.time.forecast import find_forecast, forecast_from_profile, forecast_of
from mlx_amort.errors import UserError
from tests.cost.pretend import BASE, C0_S, C1_S_PER_BYTE, MACHINE, Lines, Machine, request_of


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pretended profile where `profile` leaves it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = default_folder(BASE, MACHINE)
    run_sweep(request_of(), folder, MACHINE, Machine(BASE), Lines())
    return folder / "profile.json"


def test_a_profile_is_found_by_model_and_machine_and_forecasts_what_was_not_measured(cached: Path) -> None:
    config = replace(BASE, step=replace(BASE.step, batch=10, chunks=4))
    assert cached.is_relative_to(profiles_folder())
    forecast, why_none = find_forecast(config, MACHINE)
    assert forecast is not None and (forecast.source, why_none) == (str(cached), "")
    size = 10 * 4 * 256
    assert forecast.step_s == pytest.approx(C0_S["muon"] + C1_S_PER_BYTE * size)
    assert forecast.ceiling_fraction == pytest.approx(size * C1_S_PER_BYTE / forecast.step_s)
    assert not forecast.is_extrapolated
    large = replace(BASE, step=replace(BASE.step, batch=1000))
    extrapolated = forecast_from_profile(cached.parent, large, MACHINE)[0]
    assert extrapolated is not None and extrapolated.is_extrapolated


@pytest.mark.parametrize(
    "override",
    [
        "model.layers=3",
        "step.tbptt=last",
        "optimizer.coefficients=jordan",
    ],
)
def test_a_profile_of_another_model_is_not_found_and_is_refused_by_the_keys(
    cached: Path, override: str
) -> None:
    config = resolve(base=BASE, overrides=[override])
    assert find_forecast(config, MACHINE) == (None, "there is no profile of this model on this machine")
    with pytest.raises(UserError, match=f"another model: {override.partition('=')[0]} "):
        forecast_of(cached, config, MACHINE)


@pytest.mark.parametrize("override", ["model.seq=512", "step.precision=bf16", "step.window=1"])
def test_a_profile_of_another_setting_is_not_used_and_says_why(cached: Path, override: str) -> None:
    config = resolve(base=BASE, overrides=[override])
    key = override.partition("=")[0].partition(".")[2]
    forecast, why_none = find_forecast(config, MACHINE)
    assert forecast is None and str(cached) in why_none and f"its {key} is" in why_none
    with pytest.raises(UserError, match=f"its {key} is"):
        forecast_of(cached, config, MACHINE)


def test_how_weights_are_drawn_is_no_other_model(cached: Path) -> None:
    config = resolve(base=BASE, overrides=["model.scale_residual_init=true"])
    assert find_forecast(config, MACHINE)[0] is not None
    assert default_folder(config, MACHINE) == cached.parent


def test_a_profile_without_the_runs_optimizer_is_not_used(cached: Path) -> None:
    record = json.loads(cached.read_text())
    record["measurements"] = [row for row in record["measurements"] if row["optimizer"] == "muon"]
    cached.write_text(json.dumps(record))
    config = resolve(base=BASE, overrides=["optimizer.name=adamw"])
    assert find_forecast(config, MACHINE)[0] is None
    with pytest.raises(UserError, match="its optimizer is adamw, not muon"):
        forecast_of(cached, config, MACHINE)


def test_a_profile_of_another_machine_is_not_found_and_is_refused_by_the_keys(cached: Path) -> None:
    machine = {**MACHINE, "processor": "another", "memory_bytes": 1}
    assert find_forecast(BASE, machine)[0] is None
    with pytest.raises(UserError, match="another machine: processor pretended and not another;"):
        forecast_of(cached, BASE, machine)


def test_half_a_file_is_passed_over(cached: Path) -> None:
    (cached.parent.parent / "half").mkdir()
    (cached.parent.parent / "half" / "profile.json").write_text('{"rows": [')
    assert find_forecast(BASE, MACHINE)[0] is not None


@pytest.mark.parametrize("is_named", [True, False])
@pytest.mark.parametrize("is_alone", [True, False])
def test_without_a_cost_model_the_measured_time_forecasts_with_a_warning_or_nothing_does(
    cached: Path, is_named: bool, is_alone: bool
) -> None:
    whole = json.loads(cached.read_text())
    for row in whole["measurements"]:
        if row["step_s"]:
            row["step_s"] = 1e-9 * row["bytes_per_step"] ** 2 + 0.1
    rows = whole["measurements"][:1] if is_alone else whole["measurements"]
    cached.write_text(json.dumps({**whole, "measurements": rows, "holdout": []}))
    profile = cached if is_named else None
    forecast, why_none = forecast_of(profile, BASE, MACHINE)
    assert forecast is not None and why_none == ""
    assert forecast.step_s == pytest.approx(1e-9 * BASE.bytes_per_step**2 + 0.1)
    why = f"{cached} has no cost model: too few" if is_alone else f"the cost model of {cached} is rejected"
    assert forecast.warning.startswith(why) and "not a prediction" in forecast.warning
    assert forecast.ceiling_fraction is None
    other = resolve(base=BASE, overrides=["step.batch=17"])
    none, why_none = forecast_of(profile, other, MACHINE)
    assert none is None and why_none.startswith(why) and "did not measure this configuration" in why_none


def test_a_cost_model_in_doubt_forecasts_with_its_uncertainty(cached: Path) -> None:
    record = json.loads(cached.read_text())
    for entry in record["holdout"]:
        entry["measured_s"] *= 1.15
    cached.write_text(json.dumps(record))
    forecast = forecast_of(cached, BASE, MACHINE)[0]
    assert forecast is not None and "s per step, give or take 13%, " in forecast.describe()
    assert "its cost model is in doubt" in forecast.describe()


def test_a_forecast_is_the_cost_model_s_times_what_other_programs_cost_on_average(cached: Path) -> None:
    quiet = forecast_of(cached, BASE, MACHINE)[0]
    assert quiet is not None and quiet.disturbance == pytest.approx(1)
    record = json.loads(cached.read_text())
    for row in [row for row in record["measurements"] if row["step_s"]]:
        slower = {"step_s": 1.2 * row["step_s"], "samples_s": [1.2 * sample for sample in row["samples_s"]]}
        record["measurements"] += [{**row, **slower}, dict(row)]
    cached.write_text(json.dumps(record))
    busy = forecast_of(cached, BASE, MACHINE)[0]
    # Of three visits one was 20 % slower; of the anchor's nine, three.
    assert busy is not None and busy.disturbance == pytest.approx(1 + 0.2 / 3)
    assert busy.undisturbed_s == pytest.approx(quiet.step_s) and busy.step_s == pytest.approx(
        quiet.step_s * busy.disturbance
    )
    assert busy.deviation(quiet.step_s) == pytest.approx(0, abs=1e-9)


def test_a_table_that_does_not_tell_its_model_does_not_forecast() -> None:
    grid = Path(__file__).parents[2] / "data" / "published_grid.csv"
    with pytest.raises(UserError, match="does not say which model"):
        forecast_of(grid, BASE, MACHINE)
