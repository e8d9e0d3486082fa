"""`mlx-amort train` finds the profile that holds for its run, and refuses another that it is given."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mlx_amort.backend import describe_machine
from mlx_amort.config.reading import resolve
from mlx_amort.cost.measure.grid import Lists
from mlx_amort.cost.measure.request import SweepRequest
from mlx_amort.cost.measure.sweep import run_sweep
from mlx_amort.cost.profile_store import default_folder
from tests.cli.test_train_verb import amort
from tests.cost.pretend import C0_S, C1_S_PER_BYTE, Lines, Machine
from tests.train.tiny import SETTINGS, write_text

BYTES_PER_STEP = 2 * 2 * 32


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pretended profile of the tiny run on this machine, where `profile` would leave it."""
    write_text(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))
    base, machine = resolve(preset="demo", overrides=SETTINGS), describe_machine()
    lists = Lists(batches=(1, 2, 4, 8, 16), optimizers=("muon", "adamw"))
    folder = default_folder(base, machine)
    run_sweep(SweepRequest(base, lists, False, 5, None), folder, machine, Machine(base), Lines())
    return folder / "profile.json"


@pytest.fixture
def tiny() -> list[str]:
    return [f"--set={setting}" for setting in SETTINGS] + [
        "--data",
        "text.txt",
        "--steps",
        "3",
        "--out",
        "run",
    ]


def test_a_profile_is_found_kept_to_and_summed_up_on_resume_too(
    tmp_path: Path, profile: Path, tiny: list[str]
) -> None:
    predicted_s = C0_S["muon"] + C1_S_PER_BYTE * BYTES_PER_STEP
    first = amort(*tiny, "--stop-after", "2", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert f"forecast    {predicted_s:.4g} s per step, " in first.stdout and str(profile) in first.stdout
    assert f"  forecast    predicted {predicted_s:.4g} s per step, measured " in first.stdout
    resumed = amort("--resume", "run", "--json", cwd=tmp_path)
    summary = json.loads(resumed.stdout)
    assert summary["predicted_step_s"] == pytest.approx(predicted_s)
    assert summary["predicted_from"] == str(profile)
    # The one step of this session compiles, and is no measurement.
    assert summary["measured_step_s"] is None and summary["median_step_s"] is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("model.ffn=64", "another model: model.ffn 32 and not 64"),
        ("step.precision=bf16", "its precision is bf16"),
    ],
)
def test_another_profile_is_not_used_unasked_and_refused_when_asked(
    tmp_path: Path, profile: Path, tiny: list[str], change: str, said: str
) -> None:
    refused = amort(*tiny, "--set", change, "--profile", str(profile), cwd=tmp_path)
    assert refused.returncode == 2
    assert said in refused.stderr and refused.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()
    unasked = amort(*tiny, "--set", change, "--json", cwd=tmp_path)
    assert json.loads(unasked.stdout)["predicted_step_s"] is None
    assert "forecast    after the first steps: " in unasked.stderr


def test_a_rejected_cost_model_stops_no_run_and_its_measurement_forecasts(
    tmp_path: Path, profile: Path, tiny: list[str]
) -> None:
    record = json.loads(profile.read_text())
    for row in record["measurements"]:
        row["step_s"] = 1e-6 * row["bytes_per_step"] ** 2 + 0.1
    profile.write_text(json.dumps({**record, "holdout": []}))
    measured = amort(*tiny, "--profile", str(profile), cwd=tmp_path)
    assert measured.returncode == 0, measured.stderr
    predicted_s = 1e-6 * BYTES_PER_STEP**2 + 0.1
    assert f"forecast    {predicted_s:.4g} s per step, " in measured.stdout
    assert f"warning     the cost model of {profile} is rejected; " in measured.stdout
    tiny = [word.replace("step.batch=2", "step.batch=3") for word in tiny[:-1]]
    other = [*tiny, "other", "--profile", str(profile)]
    unmeasured = amort(*other, cwd=tmp_path)
    assert unmeasured.returncode == 0, unmeasured.stderr
    assert (
        f"forecast    after the first steps: the cost model of {profile} is rejected, and"
        in unmeasured.stdout
    )
