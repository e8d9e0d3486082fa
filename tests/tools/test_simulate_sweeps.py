"""The simulation draws what it says, and its table tells a rule that pays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mlx_amort.cost.time.fitting import fit_rows
from tools.simulate_sweeps import RULES, judge, main
from tools.simulated_machine import NOISES, SIZES, TRUTHS, Machine, Noise, draw

SILENT = Noise("silent", sigma=0.0)


def test_without_noise_every_visit_is_the_truth_and_the_model_is_found() -> None:
    for truth in TRUTHS:
        rows, held_out, _ = draw(truth, SILENT, SIZES[2], np.random.default_rng(0))
        for row in [*rows, *held_out]:
            assert row.step_s == pytest.approx(truth.step_s(row.configuration))
            assert row.update_s == pytest.approx(
                truth.update_share * truth.update_s(row.configuration.optimizer)
            )
        assert fit_rows(rows, held_out).is_rejected != truth.is_line, truth.name


def test_a_spoiled_visit_is_one_and_a_throttling_machine_slows_down() -> None:
    slower = next(noise for noise in NOISES if noise.outlier > 1)
    rows, _, machine = draw(TRUTHS[0], replace(slower, sigma=0.0), SIZES[3], np.random.default_rng(1))
    shares = [(row.step_s or 0) / machine.truth.step_s(row.configuration) for row in rows]
    assert sorted(shares)[-2:] == pytest.approx([1.0, 1.4])
    hot = Machine(TRUTHS[0], Noise("hot", sigma=0.0, throttle=0.5), np.random.default_rng(0), sweep_s=100.0)
    visits = [hot.visit(rows[0].configuration) for _ in range(60)]
    times_s = [visit.step_s or 0.0 for visit in visits]
    assert times_s == sorted(times_s) and times_s[-1] == pytest.approx(
        1.5 * hot.truth.step_s(rows[0].configuration)
    )


def test_bursts_make_steps_slower_and_the_fastest_visit_is_the_machines_own() -> None:
    noise = Noise("busy", sigma=0.0, gap_s=30.0, burst_s=30.0)
    machine = Machine(TRUTHS[0], noise, np.random.default_rng(2), sweep_s=100.0)
    each = SIZES[0].configurations[0]
    times_s = [machine.visit(each).step_s or 0.0 for _ in range(40)]
    assert min(times_s) == pytest.approx(machine.truth.step_s(each)) and max(times_s) > 1.05 * min(times_s)


def test_visiting_suspects_again_pays_where_a_visit_was_fast() -> None:
    faster = next(noise for noise in NOISES if noise.outlier < 1)
    rules = {rule.name: rule for rule in RULES}
    good = {}
    for name in ("as it is", "suspects not visited again"):
        scores = [
            judge(rules[name], *draw(TRUTHS[0], faster, SIZES[1], np.random.default_rng(seed)))
            for seed in range(12)
        ]
        good[name] = sum(score.is_good and score.verdict == "holds" for score in scores)
    assert good["as it is"] >= 11 > good["suspects not visited again"] + 3


def test_the_table_has_a_line_for_each_rule_and_noise(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--sweeps", "1", "--noise", "quiet", "--rule", "as it is", "--rule", "no third cost"])
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if line.startswith(("as it is", "no third cost"))]) == 2
