"""`fit` and `plan` through their commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from mlx_amort.cli.fit import command as fit
from mlx_amort.cli.plan import command as plan
from mlx_amort.errors import UserError

GRID = str(Path(__file__).parents[1] / "data" / "published_grid.csv")


def test_fit_prints_the_known_answer_and_what_was_kept_out() -> None:
    output = CliRunner().invoke(fit, [GRID], catch_exceptions=False).output
    assert output.startswith("The affine law holds")
    for part in (
        "53.147 µs/byte",
        "1.6568 s",
        "18,816 bytes/s",
        "largest error 1.82%",
        "seq is 512, not 1024",
    ):
        assert part in output


def test_fit_json_is_the_record() -> None:
    record = json.loads(CliRunner().invoke(fit, [GRID, "--json"], catch_exceptions=False).output)
    assert record["c0_s"]["muon"] == pytest.approx(1.6568, abs=5e-5)
    assert len(record["points"]) == 11


def test_fit_out_writes_the_report(tmp_path: Path) -> None:
    CliRunner().invoke(fit, [GRID, "--out", str(tmp_path)], catch_exceptions=False)
    assert {"report.md", "cost_curve.png"} <= {file.name for file in tmp_path.iterdir()}


def test_plan_prints_the_published_example() -> None:
    arguments = [GRID, "--bytes", "2.006e9", "--min-updates", "20000", "--prefer", "muon"]
    output = CliRunner().invoke(plan, arguments, catch_exceptions=False).output
    for part in (
        "choice: B 24 K 4 S 1024 muon",
        "98,304",
        "20,406 steps",
        "39.4 hours",
        "0.725 of adamw's time",
    ):
        assert part in output
    assert "10,203 updates are fewer than 20,000" in output
    assert "published at 10M from one seed" in output


def test_plan_json_has_the_choice() -> None:
    arguments = [GRID, "--bytes", "2.006GB", "--noise-scale", "200k", "--memory", "48GB", "--json"]
    record = json.loads(CliRunner().invoke(plan, arguments, catch_exceptions=False).output)
    keys = {"batch", "chunks", "seq", "optimizer", "bytes_per_step", "steps", "hours", "ceiling_fraction"}
    assert keys <= set(record["choice"])
    assert record["noise"]["best_bytes_per_step"]["muon"] > record["noise"]["best_bytes_per_step"]["adamw"]


def test_plan_shows_the_configurations_around_the_best_size() -> None:
    arguments = [GRID, "--bytes", "2.006e9", "--noise-scale", "200k"]
    output = CliRunner().invoke(plan, arguments, catch_exceptions=False).output
    assert "best bytes a step, sqrt(T_crit c0 / c1): adamw 53,530, muon 78,960" in output
    assert "around it" in output


@pytest.mark.parametrize(
    ("option", "value"),
    [("--memory", "lots"), ("--noise-scale", "2b"), ("--prefer", "sgd"), ("--token-advantage", "0")],
)
def test_plan_names_the_option_that_is_wrong(option: str, value: str) -> None:
    with pytest.raises(UserError, match=option):
        CliRunner().invoke(plan, [GRID, "--bytes", "1e9", option, value], catch_exceptions=False)
