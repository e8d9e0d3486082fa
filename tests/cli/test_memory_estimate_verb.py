"""`mlx-amort memory-estimate` as it is typed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from mlx_amort.cli.memory_estimate import command
from mlx_amort.config.presets import preset_names
from mlx_amort.config.reading import resolve
from mlx_amort.cost.memory.budget import room_bytes
from mlx_amort.cost.memory.estimate import estimate
from tests.environment import clean_environment

ROOT = Path(__file__).parents[2]
CPU = ["--backend", "cpu"]


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(command, [*CPU, *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_without_arguments_every_preset_and_size_fit_a_terminal() -> None:
    shown = invoke()
    assert all(len(line) <= 100 for line in shown.split("\n"))
    for preset in preset_names():
        assert preset in shown
    for size in (16, 24, 32, 48, 64, 96, 128, 192, 256, 512):
        assert f"\n{size} GB " in shown


def test_json_without_a_preset_has_a_row_for_every_lever() -> None:
    record = json.loads(invoke("--json"))
    assert len(record["rows"]) == len(preset_names()) * 2 * 3 * 2
    row = next(
        row
        for row in record["rows"]
        if (row["preset"], row["optimizer"], row["precision"], row["activation_checkpointing"])
        == ("veritate_80m", "adamw", "fp32", True)
    )
    config = resolve(
        preset="veritate_80m",
        overrides=["optimizer.name=adamw", "step.precision=fp32", "step.activation_checkpointing=true"],
    )
    assert row["peak_bytes"] == estimate(config).peak_bytes
    assert {"memory_bytes", "preset", "batch", "batch_checkpointed"} == set(record["fits"][0])


def test_one_configuration_by_parts_with_the_flags_of_train() -> None:
    record = json.loads(invoke("--json", "--preset", "veritate_10m", "--batch", "3", "--window", "1"))
    found = estimate(resolve(preset="veritate_10m", overrides=["step.batch=3", "step.window=1"]))
    assert record["peak_bytes"] == found.peak_bytes == sum(record["parts"].values())
    assert record["phase"] == found.phase and record["parts"] == dict(found.parts)
    shown = invoke("--preset", "veritate_10m", "--batch", "3", "--window", "1")
    for part in ("weights", "optimizer state", "gradients", "activations kept", "peak", "first-order rule"):
        assert part in shown


def test_memory_leaves_room_and_recommends_one_command() -> None:
    record = json.loads(invoke("--json", "--preset", "veritate_200m", "--batch", "24", "--memory", "16GB"))
    room, recommended = record["room_bytes"], record["recommended"]
    assert 2_000_000_000 < room < 5_000_000_000
    assert recommended["peak_bytes"] <= 16_000_000_000 - room
    assert recommended["batch"] * recommended["accum"] == 24
    shown = invoke("--preset", "veritate_200m", "--batch", "24", "--memory", "16GB")
    assert "of 16.0 GB, 3.20 GB are left to the system and MLX's cache; within 12.8 GB:" in shown
    assert shown.count("mlx-amort train") == 1 and recommended["command"] in shown
    assert "nothing fits" in invoke("--preset", "titan", "--memory", "2GB")


def test_the_table_of_fits_leaves_room_too() -> None:
    record = json.loads(invoke("--json"))
    limit = 16e9 - room_bytes(16 * 10**9, "cpu")
    batch = next(
        row["batch"]
        for row in record["fits"]
        if (row["memory_bytes"], row["preset"]) == (16 * 10**9, "veritate_200m")
    )
    config = resolve(preset="veritate_200m", overrides=[f"step.batch={batch}"])
    more = resolve(preset="veritate_200m", overrides=[f"step.batch={batch + 1}"])
    assert estimate(config).peak_bytes <= limit < estimate(more).peak_bytes
    assert "20 % of the memory are left to the system" in invoke()


def test_json_has_the_most_rows_with_each_lever() -> None:
    record = json.loads(invoke("--json", "--preset", "veritate_200m", "--memory", "48GB"))
    batches = {
        (each["precision"], each["activation_checkpointing"], each["window"]): each["batch"]
        for each in record["largest_batches"]
    }
    assert 0 < batches["fp32", False, 2] < batches["fp32", True, 2] < batches["fp32", True, 1]


def test_measure_holds_it_against_real_steps() -> None:
    small = ["--set=model.layers=1", "--set=model.hidden=64", "--set=model.ffn=128", "--set=model.heads=2"]
    record = json.loads(invoke("--json", "--measure", "--precision", "fp32", *small))
    assert record["measured"]["peak_bytes"] > 4 * record["parameters"]
    assert 0.8 < record["estimate_over_measured"] < 1.25


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--measure"], "error: --measure: needs a configuration"),
        (["--memory", "16"], "error: --memory 16: has no unit; write 16GB or 16MB"),
        (["--memory", "much"], "error: --memory 'much': is not an amount of bytes"),
        (["--measure", "--preset", "titan", "--batch", "4000"], "error: --measure: it needs about "),
        (
            ["--measure", "--preset", "demo", "--batch", "1", "--set", "run.memory_limit_bytes=1000"],
            "and the limit is 1.00 kB; take a shorter --seq, or a smaller model",
        ),
        (["--preset", "veritate_80n"], "did you mean 'veritate_80m'?"),
    ],
)
def test_mistakes_are_told_in_one_line(arguments: list[str], said: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "mlx_amort", "memory-estimate", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert ended.returncode == 2
    assert said in ended.stderr and ended.stderr.count("\n") == 1


def test_train_refuses_what_does_not_fit_before_anything_is_allocated(tmp_path: Path) -> None:
    ended = subprocess.run(
        [
            sys.executable,
            "-m",
            "mlx_amort",
            "train",
            "--preset",
            "titan",
            "--batch",
            "64",
            "--memory-limit",
            "16GB",
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=clean_environment(tmp_path),
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: titan with 64 rows: a step needs about ")
    assert "\n  mlx-amort train --preset titan " in ended.stderr
    assert not (tmp_path / "runs").exists()


def test_force_goes_ahead_and_the_peak_is_held_against_the_estimate(tmp_path: Path) -> None:
    small = ["--set=model.layers=1", "--set=model.hidden=64", "--set=model.ffn=128", "--set=model.heads=2"]
    arguments = [
        "train",
        *small,
        "--steps",
        "1",
        "--memory-limit",
        "8MB",
        "--force",
        "--json",
        "--out",
        "run",
    ]
    ended = subprocess.run(
        [sys.executable, "-m", "mlx_amort", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=clean_environment(tmp_path),
    )
    assert ended.returncode == 0, ended.stderr
    summary = json.loads(ended.stdout)
    assert summary["estimated_peak_bytes"] > 8_000_000
    assert 0.8 < summary["estimated_peak_bytes"] / summary["session_peak_bytes"] < 1.25
