"""Studies: what they run, how they count and interpolate, with runs that are made up, and one that is not."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from mlx_amort.config.reading import resolve
from tools.study.__main__ import main
from tools.study.choices import RATES, STUDIES, Plan, Training, training
from tools.study.comparisons import compare_choices, compare_optimizers
from tools.study.runs import Results, run_training
from tools.study.tables import result_line, table_head, times_lines
from tools.study.timing import equal_seconds_steps, parse_seconds, seconds_per_step
from tools.study.tuning import token_advantage, tune

TINY = {
    "model.layers": "1",
    "model.hidden": "16",
    "model.heads": "2",
    "model.ffn": "32",
    "model.seq": "32",
    "run.sample_bytes": "0",
}


class FakeRunner:
    """Bits per byte by a formula, and what was asked for."""

    def __init__(self) -> None:
        self.asked: list[Training] = []

    def __call__(self, wanted: Training) -> float:
        self.asked.append(wanted)
        values = dict(override.split("=") for override in wanted.overrides)
        best = 0.02 if values.get("optimizer.name") == "muon" else 0.016
        rate = float(values.get("schedule.base_lr", best))
        if rate > 0.1:
            return math.inf
        start = 5.0 if values.get("optimizer.name") == "muon" else 5.2
        return start - math.log(wanted.steps / 100) + abs(math.log2(rate / best)) + 0.01 * wanted.seed


def plan(name: str, steps: int = 100) -> Plan:
    return Plan(STUDIES[name], {}, steps, (1, 2, 3), ("builtin:docs",))


def test_equal_seconds_are_steps_by_the_ratio_of_times_unless_it_is_nearly_one() -> None:
    assert equal_seconds_steps(150, 0.2, 0.16) == 188
    assert equal_seconds_steps(150, 0.2, 0.25) == 120
    assert equal_seconds_steps(150, 0.2, 0.197) == equal_seconds_steps(150, 0.2, 0.203) == 150
    assert equal_seconds_steps(1, 0.001, 1.0) == 1


def test_the_token_advantage_is_linear_in_the_logarithm_of_the_steps() -> None:
    curve = {100: 4.0, 200: 3.0, 130: 4.0 - math.log(1.3) / math.log(2)}
    assert token_advantage(100, 3.5, curve) == f"{math.sqrt(2):.2f}"
    assert token_advantage(100, 2.9, curve) == "more than 2"
    assert token_advantage(100, 4.1, curve) == "less than 1"
    assert token_advantage(100, 4.0, curve) == "1.00" and token_advantage(100, 3.0, curve) == "2.00"
    assert token_advantage(100, 3.5, {**curve, 160: math.inf}) == "1.41"
    assert token_advantage(100, 3.5, {100: math.inf}) == "unknown"


@pytest.mark.parametrize(
    ("best", "rates"),
    [
        (0.02, [0.01, 0.02, 0.04]),
        (0.08, [0.01, 0.02, 0.04, 0.08, 0.16]),
        (0.005, [0.0025, 0.005, 0.01, 0.02, 0.04]),
    ],
)
def test_tuning_goes_on_until_the_best_rate_is_inside(best: float, rates: list[float]) -> None:
    def bits_of(asked: Sequence[float]) -> list[float]:
        return [abs(math.log(rate / best)) for rate in asked]

    assert list(tune((0.01, 0.02, 0.04), bits_of)) == rates


def test_tuning_gives_up_on_a_slope_without_end() -> None:
    with pytest.raises(click.ClickException, match=r"between 0\.01 and 2\.56"):
        tune((0.01, 0.02), lambda rates: [-rate for rate in rates])


def test_lines_have_mean_range_and_the_difference_by_seed() -> None:
    line = result_line("builtin:docs", "first-8", "bytes", 150, [3.0, 3.2], [3.1, 3.2])
    assert line == (
        "| builtin:docs | first-8 | bytes | 150 | 3.1000 | 3.0000..3.2000 | -0.0500 (-0.1000..+0.0000) |"
    )
    assert "| diverged | 3.0000..diverged |  |" in result_line("x", "y", "z", 1, [3.0, math.inf], [3.0, 3.0])
    assert table_head("a", "b") == "| a | b |\n|---|---|"
    assert times_lines({"a": [1.0, 2.0, 4.0], "b": [2.0, 2.0, 2.0]})[1:] == [
        "| a | 2.0000 | 1.00 (1.00 to 1.00) |",
        "| b | 2.0000 | 1.00 (0.50 to 2.00) |",
    ]


@pytest.mark.parametrize("text", ["a=0.1", "a=0.1,b=x", "a=0.1,b=0", "a=0.1,b=0.2,c=0.3", ""])
def test_given_times_must_be_one_for_each_choice(text: str) -> None:
    with pytest.raises(click.BadParameter):
        parse_seconds(text, ["a", "b"])
    assert parse_seconds("a=0.1, b=0.2", ["a", "b"]) == {"a": [0.1], "b": [0.2]}


def test_an_interrupted_study_repeats_nothing_that_its_file_has(tmp_path: Path) -> None:
    file, runner = tmp_path / "runs.jsonl", FakeRunner()
    one, other = (training({"b.c": "1", "a.b": "2"}, 100, seed, "builtin:docs") for seed in (1, 2))
    diverged = training({"schedule.base_lr": "0.5"}, 100, 1, "builtin:docs")
    first = Results(file, runner, jobs=2)
    bits = first.bits([one, one, diverged])
    first.keep_times({"x": {"a.b": "2"}}, {"x": [0.1, 0.2]})
    assert len(runner.asked) == 2 and bits[2] == math.inf
    with file.open("a") as stream:
        stream.write('{"overrides": ["cut')

    again = FakeRunner()
    resumed = Results(file, again)
    assert resumed.bits([one, diverged]) == bits[1:] and not again.asked
    assert resumed.times({"x": {"a.b": "2"}}) == {"x": [0.1, 0.2]} and resumed.times({"x": {}}) is None
    resumed.bits([other, training({"a.b": "2"}, 100, 1, "builtin:docs")])
    assert len(again.asked) == 2
    assert len([json.loads(line) for line in file.read_text().splitlines()]) == 5


def test_choices_are_compared_at_equal_bytes_and_where_it_differs_at_equal_seconds() -> None:
    runner, lines = FakeRunner(), list[str]()
    times_s = {"every-4": 0.2, "first-4": 0.201, "first-8": 0.16}
    compare_choices(plan("boundary"), times_s, Results(None, runner), lines.append)
    compared = [[cell.strip() for cell in line.split("|")[2:5]] for line in lines[1:]]
    assert compared == [
        ["every-4", "bytes and seconds", "100"],
        ["first-4", "bytes and seconds", "100"],
        ["first-8", "bytes", "100"],
        ["first-8", "seconds", "125"],
    ]
    assert len(runner.asked) == 4 * 3

    polynomials, lines = FakeRunner(), []
    times_s = {"jordan": 0.2, "polar_express": 0.4, "polar_express_nonic": 0.1}
    compare_choices(plan("polynomials"), times_s, Results(None, polynomials), lines.append)
    assert {wanted.steps for wanted in polynomials.asked} == {100} and len(polynomials.asked) == 9


def test_a_large_corpus_holds_out_less_unless_told() -> None:
    assert "data.validation_fraction" not in plan("boundary").overrides("first-4", "builtin:docs")
    own = plan("boundary").overrides("first-4", "builtin:stdlib")
    assert own["data.validation_fraction"] == "0.005"


def test_optimizers_are_tuned_first_and_adamw_runs_longer() -> None:
    runner, lines = FakeRunner(), list[str]()
    times_s = {"muon": 0.2, "adamw": 0.18}
    compare_optimizers(plan("optimizers"), times_s, Results(None, runner), lines.append)
    text = "\n".join(lines)
    # AdamW's best lies one factor beyond its list, so the list grows by two.
    assert "| adamw | 0.016 (best) |" in text and "| adamw | 0.032 |" in text
    assert "| muon | 0.02 (best) |" in text
    # bits fall by log(steps) from 0.2 above Muon's.
    assert f"AdamW needs {math.exp(0.2):.2f} times the bytes" in text
    tuning = len(RATES["muon"]) + len(RATES["adamw"]) + 2
    assert {wanted.steps for wanted in runner.asked} == {100, 111, 130, 160, 200}
    # Seed 1 at the best rate is not repeated.
    assert len(runner.asked) == tuning + 2 + 4 * 3 + 2


def test_times_are_of_the_trainer_s_step_by_turns() -> None:
    overrides = [f"{key}={value}" for key, value in TINY.items()]
    configs = {
        name: resolve("demo", overrides=[*overrides, f"model.patch_stride={name[-1]}"])
        for name in ("first-4", "first-8")
    }
    found = seconds_per_step(configs, rounds=2, warm_up=1)
    assert list(found) == list(configs)
    assert all(len(samples) == 2 and min(samples) > 0 for samples in found.values())


# Of the longer text a run of two steps validates only a part itself.
@pytest.mark.parametrize("repeats", [200, 2000])
def test_a_run_of_the_command_gives_bits_over_the_whole_validation_part(tmp_path: Path, repeats: int) -> None:
    text = tmp_path / "text.txt"
    text.write_text("a rose is a rose is a rose. " * repeats, encoding="utf-8")
    bits = run_training(training({**TINY, "run.eval_every": "null"}, 2, 1, str(text)), threads=1)
    assert 0 < bits < 10


def test_mistakes_are_told_in_a_line() -> None:
    for arguments, told in (
        (["optimizers", "--lr", "0.1"], "finds the learning rate"),
        (["boundary", "--set", "model.hiden=3"], "model.hidden"),
        (["boundary", "--set", "model"], "SECTION.KEY=VALUE"),
        (["boundary", "--seeds", "one"], "1,2,3"),
        (["boundary", "--no-training", "--seconds-per-step", "first-4=1"], "each of every-4, first-4"),
    ):
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code != 0 and told in result.output, result.output
        assert isinstance(result.exception, SystemExit)


def test_given_times_are_printed_without_training() -> None:
    arguments = ["boundary", "--no-training", "--seconds-per-step", "every-4=0.2,first-4=0.2,first-8=0.15"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0 and "| first-8 | 0.1500 | 0.75 (0.75 to 0.75) |" in result.output
