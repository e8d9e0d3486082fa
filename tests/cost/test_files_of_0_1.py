"""Profiles that 0.1 wrote are read, fitted, planned with, drawn and resumed as 0.1 did.

profile: a real sweep whose samples scattered; pretended_profile and interrupted_profile: of tests/cost/pretend.py's
machine with a deterministic disturbance, complete and killed at its seventh measurement. Expected values are what 0.1
printed of these files.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from mlx_amort.cli.fit import command as fit
from mlx_amort.cli.plan import command as plan
from mlx_amort.cost.measure.sweep import run_sweep
from mlx_amort.cost.profile_file import read_profile
from mlx_amort.cost.profile_store import identity_of, is_profile_of
from mlx_amort.cost.time.fitting import fit_profile
from mlx_amort.errors import UserError
from tests.cost.pretend import BASE, MACHINE, Lines, Machine, request_of

FILES = Path(__file__).parents[1] / "files_of_0_1"
REAL, PRETENDED, INTERRUPTED = (
    FILES / name for name in ("profile", "pretended_profile", "interrupted_profile")
)


@pytest.mark.parametrize("folder", [REAL, PRETENDED, INTERRUPTED])
def test_every_measurement_and_what_it_rests_on_is_read(folder: Path) -> None:
    record, profile = json.loads((folder / "profile.json").read_text()), read_profile(folder)
    assert len(profile.measurements) == len(record["rows"]) > 0
    for read, row in zip(profile.measurements, record["rows"], strict=True):
        again = read.to_record()
        # An empty note says nothing, and is not written again.
        assert {key: again[key] for key in row if key != "note" or row["note"]} == {
            key: value for key, value in row.items() if key != "note" or value
        }
    assert profile.machine == record["machine"]
    # What 0.1 called sliding is read under its name of today.
    assert profile.identity == {**record["identity"], "tbptt": "consecutive"}
    assert profile.anchor is not None and profile.anchor.to_record() == record["anchor"]
    assert profile.plan is not None and len(profile.plan.visits) == len(record["plan"]["visits"])
    assert profile.plan.measured_before == record["plan"]["rows_before"]
    assert [cut.reason for cut in profile.plan.cuts] == [cut["reason"] for cut in record["plan"]["cut"]]
    assert profile.roofline is not None
    floors = {key: value for key, value in record["floors"].items() if "times_floor" not in key}
    assert profile.roofline.to_record(None) == floors
    assert profile.rates is not None and profile.rates.to_record() == record["rates"]
    for prediction, entry in zip(profile.holdout, record["held_out"], strict=True):
        assert prediction.to_record() == {**entry, "note": entry["note"] or ""}


def test_a_profile_whose_samples_scattered_is_refused_as_it_was() -> None:
    why = r"muon 1.*13 rows were kept out: status is 'scattered'.*at least three different bytes"
    for command, arguments in ((fit, [str(REAL)]), (plan, [str(REAL), "--bytes", "1e6"])):
        with pytest.raises(UserError, match=why):
            CliRunner().invoke(command, arguments, catch_exceptions=False)


def test_fit_says_what_it_said() -> None:
    model = fit_profile(read_profile(PRETENDED))
    assert model.c1_s_per_byte * 1e6 == pytest.approx(50.189, abs=5e-4)
    assert model.c0_s == pytest.approx({"adamw": 0.1006, "muon": 0.4030}, abs=5e-5)
    assert model.ceiling_bytes_per_s == pytest.approx(19_925, abs=0.5)
    assert model.max_relative_error == pytest.approx(0.0069, abs=5e-5)
    assert model.leave_one_out_error == pytest.approx(0.0167, abs=5e-5)
    stored = json.loads((PRETENDED / "profile.json").read_text())["fit"]
    assert model.holdout_error == pytest.approx(stored["held_out_error"])
    assert [reason for _, reason in model.kept_out] == [each["reason"] for each in stored["kept_out"]]


def test_plan_says_what_it_said() -> None:
    arguments = [str(PRETENDED), "--bytes", "1e8", "--min-updates", "5000"]
    output = CliRunner().invoke(plan, arguments, catch_exceptions=False).output
    for part in (
        "choice: B 16 K 4 ",
        "16,384 bytes per step, 6,103 steps",
        "13,383 bytes/s, 67% of the ceiling of 19,925",
        "3,051 updates are fewer than 5,000",
        "muon needs 0.831 of adamw's time",
    ):
        assert part in output
    command = output.splitlines()[-1]
    # What the preset has already is not named.
    assert "--batch 16" in command and "--chunks 4" in command and "--bytes 100000000" in command


def test_a_report_of_it_has_its_pictures(tmp_path: Path) -> None:
    CliRunner().invoke(fit, [str(PRETENDED), "--out", str(tmp_path)], catch_exceptions=False)
    names = {"report.md", "cost_curve.png", "residuals.png", "memory.png"}
    assert names <= {file.name for file in tmp_path.iterdir()}
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "× its roofline" in text and "## Held out: predicted first" in text


def test_an_interrupted_sweep_is_resumed_and_written_with_the_new_keys(tmp_path: Path) -> None:
    shutil.copy(INTERRUPTED / "profile.json", tmp_path)
    before = read_profile(tmp_path)
    assert is_profile_of(before, BASE, MACHINE) and before.identity == identity_of(BASE)
    progress = Lines()
    machine = Machine(BASE)
    after, path = run_sweep(request_of(budget_s=240), tmp_path, MACHINE, machine, progress, machine.clock)
    assert progress.lines[0].startswith(f"resuming {path}: 6 measurements")
    assert after.measurements[:6] == before.measurements and len(after.measurements) > 6
    assert after.status == "complete" and after.cost_model is not None and len(after.holdout) >= 2
    record = json.loads(path.read_text())
    assert {"measurements", "cost_model", "holdout", "roofline"} <= set(record)
    assert not {"rows", "fit", "held_out", "floors", "fit_refused"} & set(record)
