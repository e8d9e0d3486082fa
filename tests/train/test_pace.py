"""A forecast beside the steps of a run: what is said before, while it runs and after; no clock is asked."""

from __future__ import annotations

import io
import math
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from mlx_amort.data.validation import validation_targets
from mlx_amort.train.console import Console, step_line
from mlx_amort.train.interrupt import Interrupt
from mlx_amort.train.loop import TakenStep
from mlx_amort.train.metrics import is_timed, read_rows, steps_of
from mlx_amort.train.pace import (
    FIRST_STEPS,
    LEAST_WATCHED_STEPS,
    MOST_FIRST_STEPS,
    MOST_REPORTS,
    WATCHED_STEPS,
    Change,
    Forecast,
    Pace,
    forecast_from_steps,
)
from mlx_amort.train.run import new_run
from mlx_amort.train.session import report_step, train_run
from mlx_amort.train.step import StepResult
from mlx_amort.train.summary import Session, Summary, summarize
from mlx_amort.train.summary_lines import summary_lines
from mlx_amort.train.validation_budget import bytes_to_validate
from tests.train.tiny import tiny_config, write_text

NOON = datetime(2026, 3, 1, 12, 0)
PROFILED = Forecast(2.0, 4000, "a profile", ceiling_bytes_per_s=2500.0)


def changes(pace: Pace, *steps_s: float) -> list[Change | None]:
    return [pace.take(step_s, 4000) for step_s in steps_s]


def test_a_forecast_says_time_rate_ceiling_and_end() -> None:
    assert PROFILED.describe() == "2 s per step, 2,000 bytes/s, 80% of the ceiling of 2,500 (from a profile)"
    assert PROFILED.describe_end(900, 0, NOON) == "about 12:30: 900 steps in 30 min 0 s"
    # 600,000 bytes forward take 600,000 / 2,000 / 3 seconds.
    assert PROFILED.describe_end(850, 600_000, NOON).startswith(
        "about 12:30: 850 steps and their validations"
    )
    assert PROFILED.describe_end(43_200, 0, NOON).startswith("about Mon 2 Mar 12:00")


def test_first_steps_forecast_by_their_median() -> None:
    forecast = forecast_from_steps([1.0, 1.2, 9.0], 2400)
    assert (forecast.step_s, forecast.bytes_per_s, forecast.ceiling_fraction) == (1.2, 2000, None)
    assert "(from its first 3 steps)" in forecast.describe()


def test_without_a_profile_the_first_steps_forecast() -> None:
    pace = Pace()
    assert changes(pace, *[1.0] * (FIRST_STEPS - 1)) == [None] * (FIRST_STEPS - 1)
    assert pace.predicted_s is None
    assert changes(pace, 1.0) == ["forecast"] and pace.predicted_s == 1.0
    assert (pace.mean_s, pace.median_s) == (1.0, 1.0)


def test_short_steps_forecast_once_there_are_enough_of_them() -> None:
    assert changes(Pace(), *[0.3] * 17).index("forecast") == 17 - 1
    assert changes(Pace(), *[0.001] * 140).index("forecast") == MOST_FIRST_STEPS - 1
    assert changes(Pace(), *[9.0] * 40).index("forecast") == FIRST_STEPS - 1


def test_a_median_that_is_twice_as_far_off_is_told_again() -> None:
    pace = Pace(PROFILED)
    assert changes(pace, *[2.12] * WATCHED_STEPS).count("left") == 1
    assert changes(pace, *[2.22] * WATCHED_STEPS).count("left") == 0
    assert changes(pace, *[2.28] * WATCHED_STEPS).count("left") == 1
    assert changes(pace, *[3.0] * WATCHED_STEPS).count("left") == 1
    # Over to the other side, without being back between: that is told too.
    assert changes(pace, *[1.8] * WATCHED_STEPS).count("left") == 1


def test_a_median_is_watched_to_five_percent_and_told_once_until_it_returns() -> None:
    pace = Pace(PROFILED)
    assert set(changes(pace, *[2.09] * WATCHED_STEPS)) == {None}
    slow = changes(pace, *[2.2] * 3 * WATCHED_STEPS)
    assert slow.count("left") == 1 and set(slow) == {None, "left"}
    wavering = changes(pace, *[2.08] * WATCHED_STEPS, *[2.11] * WATCHED_STEPS)
    assert set(wavering) == {None}
    back = changes(pace, *[2.0] * WATCHED_STEPS)
    assert back.count("returned") == 1
    assert changes(pace, *[1.8] * WATCHED_STEPS).count("left") == 1


def test_few_steps_are_not_judged_and_one_slow_step_is_no_trend() -> None:
    pace = Pace(PROFILED)
    assert set(changes(pace, *[3.0] * (LEAST_WATCHED_STEPS - 1))) == {None}
    steady = Pace(PROFILED)
    assert set(changes(steady, *([2.0] * 5 + [9.0]) * 5)) == {None}


def test_a_warning_says_how_far_and_why() -> None:
    slow, fast = PROFILED.warn(2.2), PROFILED.warn(1.8)
    assert "10% more than the 2 s predicted: another program on the machine, or heat" in slow
    assert "10% less" in fast and "profile again" in fast
    assert "profile" not in forecast_from_steps([2.0], 4000).warn(1.8)


def run_with(
    tmp_path: Path, pace: Pace | None, monkeypatch: pytest.MonkeyPatch, steps: int = FIRST_STEPS + 3
) -> tuple[Summary, str, float]:
    """A tiny run with a forecast: its summary, what was printed, and the step time that the plot was told."""
    drawn = []
    monkeypatch.setattr(
        "mlx_amort.plots.loss_and_rate", lambda *rows, **told: drawn.append(told["predicted_step_s"])
    )
    run = new_run(tiny_config(write_text(tmp_path), steps=steps), tmp_path / "run", ["test"])
    printed = io.StringIO()
    summary = train_run(run, Console(printed, printed), Interrupt(), pace=pace)
    return summary, printed.getvalue(), drawn[-1]


def test_a_run_with_a_forecast_says_it_logs_it_draws_it_and_sums_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forecast = Forecast(100.0, 128, "a profile", ceiling_bytes_per_s=2.0, warning="no prediction")
    summary, printed, drawn = run_with(tmp_path, Pace(forecast), monkeypatch)
    header = printed.partition("\n\n")[0]
    assert "forecast    100 s per step, 1 bytes/s, 64% of the ceiling of 2 (from a profile)" in header
    assert "warning     no prediction" in header
    assert "end         about " in header and "8 steps and their validations" in header
    rows = steps_of(read_rows(tmp_path / "run" / "metrics.jsonl"))
    assert [row["predicted_s"] for row in rows] == [100.0] * len(rows) and drawn == 100.0
    assert rows[0]["compiled"]
    counted = [row["step_s"] for row in rows if is_timed(row)]
    assert summary.speed.predicted_step_s == 100.0 and summary.speed.predicted_from == "a profile"
    assert summary.speed.measured_step_s == pytest.approx(sum(counted) / len(counted), abs=1e-6)
    line = next(line for line in summary_lines(summary) if "forecast" in line)
    assert "predicted 100 s per step, measured " in line and "median " in line


def test_a_run_without_a_profile_says_how_to_get_one_and_forecasts_from_its_first_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As many steps as it takes, however slow the machine is.
    monkeypatch.setattr("mlx_amort.train.pace.FIRST_STEPS_S", math.inf)
    pace, steps = Pace(why_none="there is no profile"), MOST_FIRST_STEPS + 8
    summary, printed, drawn = run_with(tmp_path, pace, monkeypatch, steps)
    header, _, after = printed.partition("\n\n")
    assert "forecast    after the first steps: there is no profile" in header
    assert f"mlx-amort profile --grid --config {tmp_path / 'run' / 'config.yaml'}" in header
    assert f"(from its first {MOST_FIRST_STEPS} steps)" in after and "end         about " in after
    rows = steps_of(read_rows(tmp_path / "run" / "metrics.jsonl"))
    predicted = [row["predicted_s"] for row in rows]
    # The steps that compile forecast nothing, and are more when the kernels of this suite are cold.
    forecast_at = [row["step"] for row in rows if is_timed(row)][MOST_FIRST_STEPS - 1]
    assert predicted[:forecast_at] == [None] * forecast_at and None not in predicted[forecast_at:]
    line = next(line for line in summary_lines(summary) if "  forecast" in line)
    assert f"s per step from its first {MOST_FIRST_STEPS} steps, measured" in line and "predicted" not in line
    assert (
        predicted[-1] == pytest.approx(summary.speed.predicted_step_s, abs=1e-6)
        and drawn == summary.speed.predicted_step_s
    )


def test_leaving_the_forecast_is_said_with_the_new_end_and_not_to_who_asked_for_quiet(tmp_path: Path) -> None:
    run = new_run(tiny_config(write_text(tmp_path)), tmp_path / "run", ["test"])
    pace = Pace(PROFILED)
    changes(pace, *[2.2] * WATCHED_STEPS)
    printed, quiet = io.StringIO(), io.StringIO()
    Console(quiet, quiet, is_quiet=True).pace_changed("left", run, pace)
    assert quiet.getvalue() == ""
    console = Console(printed, printed)
    console.header(run, run.config.total_steps, pace)
    console.pace_changed("left", run, pace)
    warned, end = printed.getvalue().splitlines()[-2:]
    assert "10% more than the 2 s predicted" in warned
    assert end.startswith("end         now about ") and f"{run.config.total_steps} steps" in end


def noisy_steps(count: int, seed: int) -> list[float]:
    """Steps of 50 ms on a machine that others use: 15 % of noise, and busy times of some seconds."""
    random = np.random.default_rng(seed)
    busy = np.zeros(count)
    for start in random.integers(0, count, count // 200):
        busy[start : start + random.integers(20, 80)] = random.uniform(0.1, 0.5)
    return list(0.05 * (1 + 0.15 * np.abs(random.standard_normal(count)) + busy))


@pytest.mark.parametrize("seed", range(8))
def test_noise_and_busy_seconds_are_reported_a_few_times_at_most(seed: int) -> None:
    found = changes(Pace(), *noisy_steps(1360, seed))
    assert found.count("left") <= 3


@pytest.mark.parametrize("seed", range(8))
def test_a_slowdown_that_lasts_is_reported_within_half_a_minute(seed: int) -> None:
    pace = Pace()
    changes(pace, *noisy_steps(600, seed))
    slower = [1.25 * step_s for step_s in noisy_steps(500, seed + 100)]
    assert "left" in changes(pace, *slower)


def test_a_step_that_stands_still_is_not_reported() -> None:
    pace = Pace()
    changes(pace, *[0.05] * 600)
    assert set(changes(pace, 30.0, *[0.08] * 40, *[0.05] * 400)) == {None}


def test_one_session_reports_no_more_than_so_often() -> None:
    pace, found = Pace(PROFILED), []
    for _ in range(10):
        found += changes(pace, *[2.3] * 2 * WATCHED_STEPS, *[2.0] * 2 * WATCHED_STEPS)
    assert found.count("left") == found.count("returned") == MOST_REPORTS


def test_the_end_counts_the_validations_that_are_still_to_come(tmp_path: Path) -> None:
    config = tiny_config(write_text(tmp_path), steps=6, eval_every=2)
    run = new_run(config, tmp_path / "run", ["test"])
    summary = train_run(run, Console(io.StringIO(), io.StringIO()), Interrupt(), stop_after=1)
    held_out = validation_targets(run.corpora)
    # Two on the way (steps 2, 4), each capped, and one at the end; none at the end of a session that stops.
    assert summary.step == 1 and held_out < 8 * config.bytes_per_step
    assert bytes_to_validate(config, run.corpora, 1, 6) == 3 * held_out
    assert bytes_to_validate(config, run.corpora, 1, 3) == held_out


def test_a_step_that_compiles_or_naps_is_in_no_figure(tmp_path: Path) -> None:
    times_s = [60.0, 1.0, 45.0, 2.0, 900.0, 3.0]
    config = tiny_config(write_text(tmp_path), steps=len(times_s))
    run = new_run(config, tmp_path / "run", ["test"])
    printed = io.StringIO()
    console, pace = Console(printed, printed), Pace(PROFILED)
    for number, step_s in enumerate(times_s, start=1):
        run.state.step = number
        result = StepResult(loss_nats=1.0, gradient_norm=1.0)
        taken = TakenStep(number, result, 0.1, step_s, 1000, number in (1, 3), number == 5)
        report_step(run, console, pace, taken)
        if number == 1:
            console.steps_ended()
            assert "left" not in printed.getvalue() and "bytes/s" not in printed.getvalue()
    assert (pace.mean_s, pace.median_s) == (2.0, 2.0)
    speed = summarize(run, Session(pace, 0, Interrupt()), "stopped").speed
    assert speed.bytes_per_s == config.bytes_per_step / 2.0 and speed.train_s == sum(times_s)
    assert [row["step"] for row in steps_of(run.log.rows()) if is_timed(row)] == [2, 4, 6]
    assert step_line(steps_of(run.log.rows()), 10).split("  ")[3] == "8 s left"
