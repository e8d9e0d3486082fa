"""`fit` and `plan` through their commands."""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from mlx_amort.cli.fit import command as fit
from mlx_amort.cli.options import RequestedConfig, config_options
from mlx_amort.cli.plan import command as plan
from mlx_amort.config.reading import resolve
from mlx_amort.config.values import Config
from mlx_amort.cost.configuration import Configuration
from mlx_amort.cost.measure.sweep import run_sweep
from mlx_amort.cost.profile_store import identity_of, profiles_folder
from mlx_amort.cost.time.forecast import forecast_of
from mlx_amort.errors import UserError
from tests.cost.pretend import BASE, MACHINE, Killed, Lines, Machine, request_of

GRID = str(Path(__file__).parents[1] / "data" / "published_grid.csv")


def test_fit_prints_the_known_answer_and_what_was_kept_out() -> None:
    output = CliRunner().invoke(fit, [GRID], catch_exceptions=False).output
    assert output.startswith("The affine cost model holds")
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
    command = output.splitlines()[-1]
    assert command.startswith("  mlx-amort train --preset NAME --batch 24 --chunks 4 --seq 1024 ")
    assert command.endswith(" --bytes 2006000000")


def sweep_into(folder: Path, base: Config, machine: Machine) -> Path:
    """A pretended sweep around `base`; returns its profile.json."""
    run_sweep(replace(request_of(), base=base), folder, MACHINE, machine, Lines())
    return folder / "profile.json"


def test_the_command_of_a_plan_is_the_run_that_was_profiled(tmp_path: Path) -> None:
    """As typed, it resolves to the chosen configuration of the same model, which the profile forecasts."""
    settings = ["model.layers=3", "step.tbptt=last", "optimizer.coefficients=jordan", "step.window=1"]
    base = resolve(base=BASE, overrides=settings)
    file = sweep_into(tmp_path / "a folder", base, Machine(base))
    arguments = [str(file), "--bytes", "1e6", "--min-updates", "100", "--json"]
    planned = json.loads(CliRunner().invoke(plan, arguments, catch_exceptions=False).output)
    words = shlex.split(planned["command"])
    assert words[:2] == ["mlx-amort", "train"] and words[-2:] == ["--profile", str(file)]
    config = config_of(words[2:-2])
    assert identity_of(config) == identity_of(base)
    point, choice = Configuration.of(config).to_record(), planned["choice"]
    assert {key: choice[key] for key in point if key != "precision"} | {"precision": "fp32"} == point
    assert config.total_steps == choice["steps"] and config.run.bytes == 1_000_000
    assert forecast_of(file, config, MACHINE)[0] is not None


def config_of(words: list[str]) -> Config:
    """What a verb with the flags of a run makes of them."""
    found = []

    @click.command()
    @config_options()
    def verb(requested: RequestedConfig) -> None:
        found.append(requested.resolve())

    verb.main(words, standalone_mode=False)
    return found[0]


def test_a_rejected_cost_model_is_not_asked_for_a_forecast_and_has_no_ceiling(tmp_path: Path) -> None:
    file = sweep_into(tmp_path, BASE, Machine(BASE))
    record = json.loads(file.read_text())
    for row in record["measurements"]:
        if row["step_s"]:
            row["step_s"] = 1e-9 * row["bytes_per_step"] ** 2 + 0.1
    file.write_text(json.dumps(record))
    output = CliRunner().invoke(plan, [str(file), "--bytes", "1e6"], catch_exceptions=False).output
    assert "--profile" not in output.splitlines()[-1] and "% of the ceiling" not in output


def test_a_command_holds_only_what_differs_from_its_preset(tmp_path: Path) -> None:
    file = sweep_into(tmp_path, BASE, Machine(BASE))
    arguments = [str(file), "--bytes", "1e6", "--min-updates", "100", "--json"]
    planned = json.loads(CliRunner().invoke(plan, arguments, catch_exceptions=False).output)
    words = shlex.split(planned["command"])
    demo, choice = Configuration.of(resolve(preset="demo")).to_record(), planned["choice"]
    for key in ("batch", "chunks", "seq", "window", "accum", "optimizer"):
        assert (f"--{key}" in words) == (demo[key] != choice[key])
    assert "--accum" not in words and "--precision" not in words
    assert not any("activation" in word for word in words)


def test_without_a_file_the_newest_profile_with_a_cost_model_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    arguments = ["--bytes", "1e6", "--min-updates", "100"]
    with pytest.raises(UserError, match=r"no profile with a cost model is in .*profile --grid"):
        CliRunner().invoke(plan, arguments, catch_exceptions=False)
    for number, name in enumerate(("old", "new", "alone")):
        folder = profiles_folder() / name
        request = request_of(is_grid=name != "alone")
        run_sweep(request, folder, MACHINE, Machine(BASE), Lines())
        os.utime(folder / "profile.json", (number, number))
    output = CliRunner().invoke(plan, arguments, catch_exceptions=False).output
    newest = profiles_folder() / "new" / "profile.json"
    assert output.startswith(f"profile: {newest}\n")
    # `train` finds it there by itself.
    assert "--profile" not in output.splitlines()[-1]
    result = CliRunner().invoke(plan, [*arguments, "--json"], catch_exceptions=False)
    assert json.loads(result.stdout)["choice"] and str(newest) in result.stderr


def test_a_sweep_that_is_not_complete_says_how_far_it_is(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        sweep_into(tmp_path, BASE, Machine(BASE, dies_at=2))
    planned = 1 + len(json.loads((tmp_path / "profile.json").read_text())["plan"]["visits"])
    for command, arguments in ((fit, [str(tmp_path)]), (plan, [str(tmp_path), "--bytes", "1e6"])):
        with pytest.raises(
            UserError, match=f"its sweep is not complete, 2 of {planned} measurements are done"
        ):
            CliRunner().invoke(command, arguments, catch_exceptions=False)


def test_tables_of_a_plan_say_times_as_people_do() -> None:
    output = CliRunner().invoke(plan, [GRID, "--bytes", "2.006e9"], catch_exceptions=False).output
    assert " hours " not in output.partition("faster")[2] and " min" in output.partition("faster")[2]


def test_memory_is_only_spoken_of_where_it_was_given() -> None:
    asked = [GRID, "--bytes", "2.006e9", "--min-updates", "1000000"]
    with pytest.raises(UserError) as refused:
        CliRunner().invoke(plan, asked, catch_exceptions=False)
    assert refused.value.todo == "ask for fewer updates or measure smaller configurations"
    with pytest.raises(UserError, match="allow more memory"):
        CliRunner().invoke(plan, [*asked, "--memory", "1GB"], catch_exceptions=False)


def test_plan_json_has_the_choice() -> None:
    arguments = [GRID, "--bytes", "2.006GB", "--noise-scale", "200k", "--memory", "48GB", "--json"]
    record = json.loads(CliRunner().invoke(plan, arguments, catch_exceptions=False).output)
    keys = {"batch", "chunks", "seq", "optimizer", "bytes_per_step", "steps", "hours", "ceiling_fraction"}
    assert keys <= set(record["choice"])
    assert record["noise"]["best_bytes_per_step"]["muon"] > record["noise"]["best_bytes_per_step"]["adamw"]


def test_plan_shows_the_configurations_around_the_best_size() -> None:
    arguments = [GRID, "--bytes", "2.006e9", "--noise-scale", "200k"]
    output = CliRunner().invoke(plan, arguments, catch_exceptions=False).output
    assert "best bytes per step, sqrt(T_crit c0 / c1): adamw 53,530, muon 78,960" in output
    assert "around it" in output


@pytest.mark.parametrize(
    ("option", "value"),
    [("--memory", "lots"), ("--noise-scale", "2b"), ("--prefer", "sgd"), ("--token-advantage", "0")],
)
def test_plan_names_the_option_that_is_wrong(option: str, value: str) -> None:
    with pytest.raises(UserError, match=option):
        CliRunner().invoke(plan, [GRID, "--bytes", "1e9", option, value], catch_exceptions=False)


@pytest.mark.parametrize("advantage", ["0", "-1", "inf", "nan", "1e300", "100.5"])
def test_a_token_advantage_is_a_figure_that_can_be(advantage: str) -> None:
    arguments = [GRID, "--bytes", "1e9", "--token-advantage", advantage]
    with pytest.raises(UserError, match=r"--token-advantage .* at most 100; 1 means no advantage"):
        CliRunner().invoke(plan, arguments, catch_exceptions=False)


def test_no_command_is_printed_that_train_would_refuse(tmp_path: Path) -> None:
    file = tmp_path / "lion.csv"
    file.write_text(Path(GRID).read_text().replace("muon", "lion").replace("Muon", "lion"))
    arguments = [str(file), "--bytes", "2e9", "--prefer", "lion"]
    output = CliRunner().invoke(plan, arguments, catch_exceptions=False).output
    assert output.splitlines()[-1] == "no command to run it: `mlx-amort train` has no optimizer lion"
    record = json.loads(CliRunner().invoke(plan, [*arguments, "--json"], catch_exceptions=False).output)
    assert record["command"] is None and record["choice"]["optimizer"] == "lion"


def test_a_report_goes_into_a_folder(tmp_path: Path) -> None:
    file = tmp_path / "taken"
    file.write_text("mine")
    for out in (str(file), "/proc/x", str(file / "below")):
        with pytest.raises(UserError, match=f"--out {out}: is not a folder.*name another"):
            CliRunner().invoke(fit, [GRID, "--out", out], catch_exceptions=False)
    assert file.read_text() == "mine"
