"""The verb: its lists and durations, and a sweep through the command line against the pretended machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mlx_amort.cli import profile
from mlx_amort.config.values import Config
from mlx_amort.errors import UserError
from tests.cost.pretend import MACHINE, Machine


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    def measurer(base: Config, steps: int, memory_bytes: int, backend: str) -> Machine:
        return Machine(base)

    monkeypatch.setattr(profile, "describe_machine", lambda: MACHINE)
    monkeypatch.setattr(profile, "ProcessMeasurer", measurer)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_a_grid_prints_its_cost_model_roofline_and_holdout_and_writes_a_report(pretended: Path) -> None:
    out = pretended / "out"
    arguments = ["--grid", "--preset", "demo", "--time-budget", "1h", "--out", str(out)]
    result = CliRunner().invoke(profile.command, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    for part in (
        "c0 muon",
        "ceiling 1/c1",
        "× its roofline",
        "held out B",
        "anchor measured",
        "update timed alone",
    ):
        assert part in result.stdout
    assert "measuring" in result.stderr and "measuring" not in result.stdout
    last = result.stdout.splitlines()[-1]
    assert last == f"next  mlx-amort plan {out / 'profile.json'} --bytes D --min-updates U"
    for name in ("profile.json", "report.md", "cost_curve.png", "residuals.png", "memory.png"):
        assert (out / name).exists()


def test_json_is_the_file_and_its_place_the_cache(pretended: Path) -> None:
    arguments = [
        "--preset",
        "demo",
        "--batches",
        "2,4,8",
        "--chunks",
        "1,2",
        "--optimizers",
        "muon,adamw",
        "--json",
    ]
    result = CliRunner().invoke(profile.command, arguments, catch_exceptions=False)
    (file,) = (pretended / "cache" / "mlx-amort" / "profiles").glob("demo-*/profile.json")
    record = json.loads(result.stdout)
    assert record == json.loads(file.read_text())
    assert len({(row["batch"], row["chunks"], row["optimizer"]) for row in record["measurements"]}) == 12
    keys = {"batch", "chunks", "window", "accum", "seq", "optimizer", "precision", "activation_checkpointing"}
    keys |= {
        "bytes_per_step",
        "step_s",
        "samples_s",
        "peak_bytes",
        "status",
        "compile_s",
        "window_s",
        "update_s",
    }
    assert all(keys <= set(row) for row in record["measurements"])
    assert {"measurements", "cost_model", "roofline", "holdout", "machine", "model"} <= set(record)


def test_one_configuration_without_grid_and_lists(pretended: Path) -> None:
    arguments = ["--preset", "demo", "--batch", "4", "--chunks", "4", "--json"]
    result = CliRunner().invoke(profile.command, arguments, catch_exceptions=False)
    (row,) = json.loads(result.stdout)["measurements"]
    assert (row["batch"], row["chunks"]) == (4, 4)


def test_one_row_replaces_no_sweep_and_no_report_and_says_what_to_do_next(pretended: Path) -> None:
    out = pretended / "out"
    for arguments in (["--grid"], ["--batch", "4"]):
        arguments = [*arguments, "--preset", "demo", "--out", str(out)]
        result = CliRunner().invoke(profile.command, arguments, catch_exceptions=False)
    assert json.loads((out / "profile.json").read_text())["cost_model"] is not None
    assert "No cost model" not in (out / "report.md").read_text()
    assert "No cost model" in (out / "profile.latest" / "report.md").read_text()
    assert result.stdout.splitlines()[-1] == f"next  mlx-amort profile --grid --preset demo --out {out}"


def test_without_a_law_the_next_command_is_of_the_same_model(pretended: Path) -> None:
    arguments = ["--preset", "demo", "--batch", "4", "--seq", "256", "--set", "model.layers=3"]
    result = CliRunner().invoke(profile.command, arguments, catch_exceptions=False)
    command = "next  mlx-amort profile --grid --preset demo --set model.layers=3 --seq 256"
    assert result.stdout.splitlines()[-1] == command


def test_lists_narrow_a_grid_and_a_single_value_is_the_configurations(pretended: Path) -> None:
    arguments = [
        "--grid",
        "--preset",
        "demo",
        "--batches",
        "4,8",
        "--chunks",
        "1,2",
        "--precisions",
        "bf16-pure",
    ]
    result = CliRunner().invoke(profile.command, [*arguments, "--json"], catch_exceptions=False)
    record = json.loads(result.stdout)
    assert {row["batch"] for row in record["measurements"]} == {4, 8}
    assert {row["chunks"] for row in record["measurements"]} == {1, 2}
    assert record["anchor"]["batch"] == 4
    assert (record["request"]["base"]["batch"], record["request"]["base"]["chunks"]) == (4, 1)
    assert record["request"]["base"]["precision"] == record["chosen"]["precision"] == "bf16-pure"


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("10m", 600), ("1.5h", 5400), ("2 min", 120)]
)
def test_durations(text: str, seconds: float) -> None:
    assert profile.parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "ten", "10 days", "-5m", "0", "9" * 400 + "s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="is not a duration"):
        profile.parse_duration(text)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--batches", "4,x"], "'x'"),
        (["--batches", "0"], "'0'"),
        (["--batches", "1," + "9" * 5000], "9999[.][.][.]' is not one of its values"),
        (["--optimizers", "moun"], "did you mean 'muon'"),
        (["--activation-checkpointing", "maybe"], "off, on"),
    ],
)
def test_a_value_that_is_none_is_named(arguments: list[str], told: str) -> None:
    with pytest.raises(UserError, match=told):
        CliRunner().invoke(profile.command, ["--preset", "demo", *arguments], catch_exceptions=False)


@pytest.mark.parametrize("out", ["/dev/null", "/proc/x"])
def test_a_place_that_cannot_be_written_is_refused_before_anything_is_measured(
    pretended: Path, monkeypatch: pytest.MonkeyPatch, out: str
) -> None:
    monkeypatch.setattr(profile, "run_sweep", lambda *arguments: pytest.fail("was measured"))
    with pytest.raises(UserError, match=f"--out {out}: is not a folder.*name another"):
        CliRunner().invoke(profile.command, ["--preset", "demo", "--out", out], catch_exceptions=False)


@pytest.mark.parametrize(
    "damage",
    [
        lambda record: "{",
        lambda record: "[]",
        lambda record: json.dumps({**record, "measurements": [{"batch": 2}]}),
        lambda record: json.dumps(
            {
                **record,
                "status": "incomplete",
                "measurements": [{**record["measurements"][0], "window": None}],
            }
        ),
        lambda record: json.dumps(
            {key: record[key] for key in record if key != "elapsed_s"} | {"status": "incomplete"}
        ),
    ],
)
def test_a_damaged_profile_says_how_to_get_past_it(pretended: Path, damage: Callable[[Any], str]) -> None:
    out = pretended / "out"
    arguments = ["--preset", "demo", "--out", str(out)]
    CliRunner().invoke(profile.command, arguments, catch_exceptions=False)
    file = out / "profile.json"
    file.write_text(damage(json.loads(file.read_text())))
    before = file.read_bytes()
    with pytest.raises(
        UserError,
        match=r"profile\.json: is not a complete profile, so it cannot be resumed.*; delete it, or name another --out",
    ):
        CliRunner().invoke(profile.command, arguments, catch_exceptions=False)
    assert file.read_bytes() == before
    file.unlink()
    assert CliRunner().invoke(profile.command, arguments, catch_exceptions=False).exit_code == 0
