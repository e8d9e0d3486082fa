"""The plan: the published example, what refuses a configuration, and the noise scale."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mlx_amort.cost.configuration import Measurement
from mlx_amort.cost.profile_file import read_measurements
from mlx_amort.cost.time.candidates import PlanRequest, best_bytes_per_step
from mlx_amort.cost.time.fitting import fit_rows
from mlx_amort.cost.time.planner import Plan, plan_run
from mlx_amort.errors import UserError
from tests.cost.made import made

GRID = Path(__file__).parents[2] / "data" / "published_grid.csv"
PUBLISHED = PlanRequest(budget_bytes=2_006_000_000, min_updates=20_000)


def plan_of(request: PlanRequest, rows: list[Measurement] | None = None) -> Plan:
    rows = read_measurements(GRID) if rows is None else rows
    return plan_run(rows, fit_rows(rows), request)


@pytest.mark.parametrize("prefer", [None, "muon"])
def test_published_example_is_chosen(prefer: str | None) -> None:
    plan = plan_of(replace(PUBLISHED, prefer=prefer))
    choice = plan.choice
    assert (
        choice.configuration.batch,
        choice.configuration.chunks,
        choice.configuration.seq,
        choice.configuration.optimizer,
    ) == (24, 4, 1024, "muon")
    assert (choice.configuration.bytes_per_step, choice.steps, choice.source) == (98_304, 20_406, "measured")
    assert choice.hours == pytest.approx(39.4, abs=0.05)
    assert choice.bytes_per_s == pytest.approx(14_150, abs=1)
    assert choice.ceiling_fraction == pytest.approx(0.752, abs=5e-4)
    assert plan.worth_measuring == ()


def test_what_is_faster_is_named_with_its_reason() -> None:
    reasons = {
        candidate.configuration.label: why
        for candidate, why in plan_of(replace(PUBLISHED, prefer="muon")).faster
    }
    assert list(reasons) == ["B 24 K 4 S 1024 adamw", "B 48 K 4 S 1024 muon", "B 32 K 4 S 1024 muon"]
    assert "muon is preferred" in reasons["B 24 K 4 S 1024 adamw"]
    assert reasons["B 48 K 4 S 1024 muon"] == "10,203 updates are fewer than 20,000"


def test_time_to_quality_is_the_published_ratio() -> None:
    times = plan_of(PUBLISHED).time_to_quality
    assert times is not None
    assert times.muon_to_adamw == pytest.approx(0.725, abs=5e-4)
    assert (times.muon_source, times.adamw_source) == ("measured", "measured")


def test_without_a_token_advantage_the_faster_optimizer_is_chosen() -> None:
    assert plan_of(replace(PUBLISHED, token_advantage=1.0)).choice.configuration.optimizer == "adamw"
    assert plan_of(replace(PUBLISHED, prefer="adamw")).choice.configuration.optimizer == "adamw"


def test_next_best_satisfies_the_request_too() -> None:
    next_best = plan_of(PUBLISHED).next_best
    assert next_best is not None
    assert (
        next_best.configuration.batch,
        next_best.configuration.chunks,
        next_best.configuration.optimizer,
    ) == (32, 2, "muon")


def test_memory_refuses_and_says_by_how_much() -> None:
    plan = plan_of(replace(PUBLISHED, memory_bytes=4_000_000_000))
    assert plan.choice.configuration.label == "B 32 K 2 S 1024 muon"
    reasons = {candidate.configuration.label: why for candidate, why in plan.faster}
    assert "its peak of 4.20 GB is over 4.00 GB" in reasons["B 24 K 4 S 1024 muon"]


def test_another_context_is_never_chosen_for_speed() -> None:
    rows = read_measurements(GRID)
    rows.append(made(24, 4, 512, "muon", 0.01))
    assert plan_of(PUBLISHED, rows).choice.configuration.seq == 1024


def test_nothing_that_satisfies_is_an_error_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"nearest is B 4 K 2 S 1024 muon: 244,873 updates"):
        plan_of(replace(PUBLISHED, min_updates=1_000_000))


def test_an_absurd_noise_scale_is_refused() -> None:
    with pytest.raises(UserError, match=r"--noise-scale 1e[+]308: is over 1e[+]18 bytes"):
        plan_of(replace(PUBLISHED, noise_scale_bytes=1e308))


def test_an_unmeasured_preference_is_refused() -> None:
    with pytest.raises(UserError, match="did you mean 'muon'"):
        plan_of(replace(PUBLISHED, prefer="muom"))


def test_without_a_measured_one_a_prediction_is_chosen_and_labelled() -> None:
    rows = [
        row
        for row in read_measurements(GRID)
        if row.configuration.optimizer == "muon" and row.configuration.seq == 1024
    ]
    # Only B 4 K 1 to B 4 K 2 lie between these updates, and none of them was measured within them.
    rows = [row for row in rows if row.configuration.batch > 8 or row.configuration.chunks != 2]
    rows.append(made(2, 4, 1024, "muon", 2.1, peak_bytes=9_000_000_000))
    request = PlanRequest(2_006_000_000, min_updates=130_000, memory_bytes=5_000_000_000)
    plan = plan_of(request, rows)
    assert plan.choice.source == "predicted"
    assert plan.choice.steps >= 130_000
    assert any("measure it first" in warning for warning in plan.warnings)


def test_a_much_better_neighbour_is_worth_measuring_but_not_chosen() -> None:
    rows = [made(batch, 1, 1024, "muon", 1.0 + 50e-6 * batch * 1024) for batch in (4, 8, 16, 64)]
    plan = plan_of(PlanRequest(10**9, min_updates=20_000), rows)
    assert plan.choice.configuration.batch == 16
    (better, *_) = plan.worth_measuring
    assert (better.configuration.batch, better.source) == (48, "predicted")
    assert better.steps >= 20_000


def test_a_rejected_cost_model_predicts_nothing() -> None:
    rows = [made(batch, 1, 1024, "muon", 1e-4 * batch**2) for batch in (4, 8, 16, 32, 64)]
    plan = plan_of(PlanRequest(10**9, min_updates=20_000), rows)
    assert all(candidate.source == "measured" for candidate in plan.candidates)
    assert any("rejected" in warning for warning in plan.warnings)


def curved(optimizer: str, batches: tuple[int, ...] = (4, 8, 16, 32, 64)) -> list[Measurement]:
    own_s = 1.6 if optimizer == "muon" else 0.8
    sizes = [batch * 1024 for batch in batches]
    times_s = [own_s + 40e-6 * size + 4e-10 * size**2 for size in sizes]
    return [made(batch, 1, 1024, optimizer, step_s) for batch, step_s in zip(batches, times_s, strict=True)]


def test_a_rejected_cost_model_has_no_ceiling_and_no_best_size_and_compares_measured_pairs_only() -> None:
    request = PlanRequest(10**9, min_updates=20_000, noise_scale_bytes=1e5, prefer="muon")
    rows = curved("muon") + curved("adamw")
    fit = fit_rows(rows)
    assert fit.is_rejected and min(fit.c0_s.values()) > 0 and fit.c1_s_per_byte > 0
    pair = plan_of(request, rows)
    assert any("rejected" in warning for warning in pair.warnings)
    assert pair.choice.ceiling_fraction is None
    assert pair.noise is not None and pair.noise.best_bytes_per_step == {"adamw": None, "muon": None}
    assert pair.time_to_quality is not None
    assert (pair.time_to_quality.muon_source, pair.time_to_quality.adamw_source) == (
        "measured",
        "measured",
    )
    assert pair.choice.configuration.batch == 32
    alone = plan_of(request, curved("muon") + curved("adamw", (4, 8, 16, 64)))
    assert alone.choice.configuration.batch == 32 and alone.time_to_quality is None


def test_best_size_is_where_the_derivative_is_zero() -> None:
    best = best_bytes_per_step(2e5, 1.6568, 53.147e-6)
    assert best is not None

    def time(size: float) -> float:
        return (1 + 2e5 / size) * (1.6568 + 53.147e-6 * size)

    assert time(best) < min(time(0.99 * best), time(1.01 * best))
    assert best_bytes_per_step(2e5, -0.1, 53e-6) is None


def test_a_noise_scale_chooses_near_the_best_size_without_updates() -> None:
    plan = plan_of(PlanRequest(2_006_000_000, noise_scale_bytes=200_000, prefer="muon"))
    assert plan.noise is not None
    assert plan.noise.best_bytes_per_step["muon"] == pytest.approx(78_960, rel=1e-3)
    # The neighbours on both sides of T* are 65,536 and 98,304.
    assert plan.choice.configuration.bytes_per_step in (65_536, 98_304)
    sizes = [candidate.configuration.bytes_per_step for candidate in plan.noise.around]
    assert min(sizes) <= 78_960 <= max(sizes)
    larger = plan_of(PlanRequest(2_006_000_000, noise_scale_bytes=5_000_000, prefer="muon"))
    assert larger.choice.configuration.bytes_per_step == 196_608


def test_repeats_of_a_configuration_are_one_candidate_with_their_fastest_as_in_the_fit() -> None:
    rows = read_measurements(GRID)
    alone = plan_of(PUBLISHED, rows)
    rows += [replace(rows[7], step_s=6.9), replace(rows[7], step_s=8.0)]
    plan = plan_of(PUBLISHED, rows)
    measured = [
        c
        for c in plan.candidates
        if c.configuration.label == rows[7].configuration.label and c.source == "measured"
    ]
    assert [candidate.step_s for candidate in measured] == [6.9]
    disturbance = (6.9 + 6.947 + 8.0) / 3 / 6.9
    assert measured[0].hours == pytest.approx(
        disturbance * measured[0].configuration.bytes_per_step ** -1 * 2.006e9 * 6.9 / 3600
    )
    assert any("5.5% by which other programs slowed" in warning for warning in plan.warnings)
    assert not any("other programs" in warning for warning in alone.warnings)


def test_optimizers_are_compared_in_one_precision() -> None:
    rows = []
    for precision, factor in (("fp32", 2.0), ("bf16", 1.0)):
        for name, c0_s in (("muon", 0.2), ("adamw", 0.1)):
            for batch in (4, 8, 16, 32):
                step_s = factor * (c0_s + 50e-6 * batch * 1024)
                rows.append(made(batch, 1, 1024, name, step_s, window=1, precision=precision))
    # The cost model is of the setting with the most rows; equal here, of the first.
    plan = plan_of(PlanRequest(10**9, prefer="muon"), rows)
    times = plan.time_to_quality
    assert times is not None
    size = 1024 * plan.choice.configuration.batch
    factor = 2.0 if plan.choice.configuration.precision == "fp32" else 1.0
    assert times.muon_step_s == pytest.approx(factor * (0.2 + 50e-6 * size))
    assert times.adamw_step_s == pytest.approx(factor * (0.1 + 50e-6 * size))
    reverse = plan_of(PlanRequest(10**9, prefer="muon"), rows[::-1]).time_to_quality
    assert reverse is not None
    assert reverse.muon_step_s / times.muon_step_s == pytest.approx(reverse.adamw_step_s / times.adamw_step_s)


def test_a_recomputed_prediction_borrows_the_peak_of_its_own_batch_only() -> None:
    rows = [
        made(
            batch,
            chunks,
            1024,
            "muon",
            1.0 + 50e-6 * batch * chunks * 1024,
            window=1,
            peak_bytes=batch * 10**8,
        )
        for batch, chunks in ((4, 1), (8, 1), (16, 1), (64, 1), (4, 4))
    ]
    rows = [
        replace(row, configuration=replace(row.configuration, activation_checkpointing=True)) for row in rows
    ]
    predicted = plan_of(PlanRequest(10**9, min_updates=20_000), rows).candidates
    peaks = {
        (c.configuration.batch, c.configuration.chunks): c.peak_bytes
        for c in predicted
        if c.source == "predicted"
    }
    assert peaks[(8, 4)] == 800_000_000 and peaks[(48, 1)] is None


def test_a_prediction_borrows_the_peak_of_a_larger_batch_only() -> None:
    rows = [
        made(batch, 1, 1024, "muon", 1.0 + 50e-6 * batch * 1024, window=1, peak_bytes=batch * 10**8)
        for batch in (4, 8, 16, 64)
    ]
    predicted = [
        c for c in plan_of(PlanRequest(10**9, min_updates=20_000), rows).candidates if c.source == "predicted"
    ]
    assert [(candidate.configuration.batch, candidate.peak_bytes) for candidate in predicted] == [
        (48, 6_400_000_000)
    ]


def test_a_checkpointed_choice_is_compared_with_a_measured_pair_only() -> None:
    rows = read_measurements(GRID)
    (checkpointed,) = [row for row in rows if row.configuration.activation_checkpointing]
    small = replace(PUBLISHED, min_updates=None, noise_scale_bytes=1e6, memory_bytes=6_000_000_000)
    alone = [row for row in rows if row is not checkpointed]
    light = replace(checkpointed, step_s=1.0, peak_bytes=1_000_000_000)
    plan = plan_of(small, [*alone, light])
    assert plan.choice.configuration == checkpointed.configuration
    # The fit is of steps without checkpointing: it says nothing about AdamW's, nor about the best size or a ceiling.
    assert plan.time_to_quality is None and plan.choice.ceiling_fraction is None
    assert plan.noise is not None and set(plan.noise.best_bytes_per_step.values()) == {None}
    adamw = replace(light, configuration=replace(light.configuration, optimizer="adamw"), step_s=0.9)
    times = plan_of(small, [*alone, light, adamw]).time_to_quality
    assert times is not None and (times.muon_source, times.adamw_source) == ("measured", "measured")


def test_a_choice_that_does_not_agree_with_the_rest_is_said() -> None:
    rows = read_measurements(GRID)
    (index,) = [
        index
        for index, row in enumerate(rows)
        if (row.configuration.batch, row.configuration.chunks) == (32, 4)
    ]
    rows[index] = replace(rows[index], step_s=(rows[index].step_s or 0) * 0.71)
    plan = plan_of(replace(PUBLISHED, min_updates=10_000), rows)
    assert plan.choice.configuration == rows[index].configuration
    label = rows[index].configuration.label
    assert any(warning.startswith(f"{label} does not agree with the other") for warning in plan.warnings)
    assert not any("does not agree" in warning for warning in plan_of(PUBLISHED).warnings)
