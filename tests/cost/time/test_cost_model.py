"""The fit: the published known answer, honest intervals, and that it can fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_amort.config.reading import resolve
from mlx_amort.cost.configuration import Configuration, Measurement
from mlx_amort.cost.measure.grid import Lists, default_grid
from mlx_amort.cost.profile_file import read_measurements
from mlx_amort.cost.time.cost_model import CostModel
from mlx_amort.cost.time.diagnostics import describe_outlier
from mlx_amort.cost.time.fitting import fit_rows
from mlx_amort.cost.time.spread import drift_of
from mlx_amort.errors import UserError
from tests.cost.made import made

GRID = Path(__file__).parents[2] / "data" / "published_grid.csv"
SHAPES = [(4, 2), (8, 2), (16, 2), (32, 2), (24, 1), (24, 4), (48, 4)]
Law = Callable[[float, int, int], float]


def made_rows(
    law: Law, noise: float = 0.0, seed: int = 0, shapes: list[tuple[int, int]] = SHAPES
) -> list[Measurement]:
    """Rows at S = 1024 whose time is law(bytes, batch, chunks) with relative Gaussian noise."""
    random = np.random.default_rng(seed)
    rows = []
    for batch, chunks in shapes:
        step_s = law(batch * chunks * 1024, batch, chunks) * (1 + noise * random.normal())
        rows.append(made(batch, chunks, 1024, "muon", step_s))
    return rows


def _with(row: Measurement, precision: str, window: int) -> Measurement:
    configuration = replace(row.configuration, precision=precision, window=window)
    return replace(row, configuration=configuration)


def affine(size: float, batch: int, chunks: int) -> float:
    return 1.6 + 54e-6 * size


def test_published_grid_has_the_known_answer() -> None:
    fit = fit_rows(read_measurements(GRID))
    assert fit.c0_s["muon"] == pytest.approx(1.6568, abs=5e-5)
    assert fit.c1_s_per_byte * 1e6 == pytest.approx(53.147, abs=5e-4)
    assert fit.ceiling_bytes_per_s == pytest.approx(18_816, abs=0.5)
    assert fit.max_relative_error == pytest.approx(0.0182, abs=5e-5)
    assert fit.form == "affine"
    assert fit.third_cost_s == 0


def test_a_lone_adamw_row_has_its_own_c0_and_moves_nothing() -> None:
    rows = read_measurements(GRID)
    both, muon_only = fit_rows(rows), fit_rows([row for row in rows if row.configuration.optimizer == "muon"])
    assert both.c1_s_per_byte == pytest.approx(muon_only.c1_s_per_byte, rel=1e-12)
    assert both.c0_s["adamw"] == pytest.approx(5.986 - both.c1_s_per_byte * 98_304)
    (alone,) = [point for point in both.points if point.measurement.configuration.optimizer == "adamw"]
    assert alone.leave_one_out_error is None
    assert any("adamw has one point" in warning for warning in both.warnings)


def test_rows_of_another_setting_are_kept_out_and_named() -> None:
    kept_out = {row.configuration.label: reason for row, reason in fit_rows(read_measurements(GRID)).kept_out}
    assert kept_out == {
        "B 24 K 2 S 1024 muon checkpointed": "activation checkpointing is on",
        "B 24 K 4 S 512 muon": "seq is 512, not 1024",
    }


def test_the_setting_that_most_configurations_have_is_fitted_and_named() -> None:
    plain, *_ = made_rows(affine)
    rows = [
        replace(row, configuration=replace(row.configuration, activation_checkpointing=True))
        for row in made_rows(affine)
    ]
    # Visits of one configuration are one: the anchor does not outvote a grid.
    fit = fit_rows([*[plain] * 9, *rows])
    assert fit.setting.activation_checkpointing and len(fit.points) == len(rows)
    assert {reason for _, reason in fit.kept_out} == {"activation checkpointing is off"}
    (warning,) = (warning for warning in fit.warnings if "the setting of most" in warning)
    assert "the 7 configurations of S 1024 with checkpointing are fitted" in warning
    assert "1 of other settings are kept out" in warning
    # A tie goes to the steps without checkpointing.
    assert not fit_rows([*rows, *made_rows(affine)]).setting.activation_checkpointing


def test_precision_window_and_status_are_kept_apart_too() -> None:
    rows = [_with(row, precision="bf16", window=2) for row in made_rows(affine)]
    odd = [
        _with(rows[0], precision="fp32", window=2),
        _with(rows[5], precision="bf16", window=4),
        replace(rows[0], status="scattered"),
        replace(rows[0], status="did not fit", step_s=None),
    ]
    # Windows longer than the chunks are the same step: the row with K = 1 stays.
    rows[4] = _with(rows[4], precision="bf16", window=1)
    fit = fit_rows([*odd, *rows])
    assert len(fit.points) == len(rows)
    assert [reason for _, reason in fit.kept_out] == [
        "precision is fp32, not bf16",
        "window is 4, not 2",
        "status is 'scattered'",
        "status is 'did not fit'",
    ]


def test_left_out_errors_are_those_of_fits_without_the_point() -> None:
    rows = [row for row in read_measurements(GRID) if row.configuration.optimizer == "muon"]
    fit = fit_rows(rows)
    for point in fit.points:
        without = fit_rows([row for row in rows if row is not point.measurement])
        predicted_s = without.predict_s(point.measurement.configuration)
        assert point.measurement.step_s is not None
        assert point.leave_one_out_error == pytest.approx(predicted_s / point.measurement.step_s - 1)


def test_repeats_of_an_anchor_are_left_out_together() -> None:
    rows = made_rows(affine, noise=0.01)
    repeated = [*rows, replace(rows[6], step_s=(rows[6].step_s or 0) * 1.001)]
    first = fit_rows(rows).points[6].leave_one_out_error
    assert fit_rows(repeated).points[6].leave_one_out_error == pytest.approx(first)


@settings(max_examples=25, deadline=None)
@given(c0=st.floats(0.01, 5), c1=st.floats(1e-7, 1e-3), chunk=st.sampled_from([0.0, 0.2]))
def test_an_exact_law_is_recovered(c0: float, c1: float, chunk: float) -> None:
    fit = fit_rows(made_rows(lambda size, batch, chunks: c0 + c1 * size + chunk * chunks))
    assert not fit.is_rejected
    for point in fit.points:
        assert point.predicted_s == pytest.approx(point.measurement.step_s, rel=1e-4)
    if chunk == 0:
        assert fit.c0_s["muon"] == pytest.approx(c0, rel=1e-6)
        assert fit.c1_s_per_byte == pytest.approx(c1, rel=1e-6)


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    covered = np.zeros(2)
    draws = 300
    for seed in range(draws):
        fit = fit_rows(made_rows(affine, noise=0.02, seed=seed))
        low, high = fit.c1_interval_s_per_byte
        covered += [low <= 54e-6 <= high, fit.c0_interval_s["muon"][0] <= 1.6 <= fit.c0_interval_s["muon"][1]]
    assert np.all(covered / draws >= 0.90)
    assert np.all(covered / draws <= 0.99)


def laws_of(law: Law, noise: float) -> list[CostModel]:
    return [fit_rows(made_rows(law, noise, seed)) for seed in range(40)]


def test_noise_alone_asks_for_nothing() -> None:
    assert sum(fit.form != "affine" for fit in laws_of(affine, 0.03)) <= 2


@pytest.mark.parametrize(
    ("law", "phrase"),
    [
        (lambda size, batch, chunks: 1.6 + 40e-6 * size + 2e-10 * size**2, "T² term"),
        (lambda size, batch, chunks: 0.02 * size**0.5, "The cost model is rejected"),
        (lambda size, batch, chunks: 1.6 + 40e-6 * size + 0.05 * batch, "B alone"),
    ],
)
def test_a_law_that_is_no_line_is_rejected(law: Law, phrase: str) -> None:
    fits = laws_of(law, 0.01)
    assert all(fit.is_rejected for fit in fits)
    assert all(phrase in fit.verdict for fit in fits)


def test_times_that_do_not_depend_on_bytes_are_no_law() -> None:
    fit = fit_rows(made_rows(lambda size, batch, chunks: 0.007))
    assert fit.is_rejected and "do not depend on bytes" in fit.verdict
    assert fit.disturbance == 1.0


def test_a_cost_per_chunk_is_found_reported_and_used() -> None:
    fit = fit_rows(made_rows(lambda size, batch, chunks: 1.6 + 50e-6 * size + 0.3 * chunks, noise=0.005))
    assert fit.form == "affine with a cost per chunk"
    assert fit.third_cost_s == pytest.approx(0.3, rel=0.1)
    assert fit.predict_s(made(24, 4, 1024, "muon", None).configuration) == pytest.approx(
        1.6 + 50e-6 * 98_304 + 1.2, rel=0.01
    )
    assert fit.to_record()["third_term"]["s"] == fit.third_cost_s


def test_accumulation_pays_a_chunk_for_each_micro_batch() -> None:
    rows = []
    for accum, batch, chunks in [
        (1, 4, 1),
        (1, 4, 2),
        (1, 4, 4),
        (2, 4, 2),
        (4, 4, 1),
        (1, 16, 1),
        (1, 32, 2),
        (2, 16, 2),
    ]:
        size = accum * batch * chunks * 1024
        step_s = 1.0 + 20e-6 * size + 0.2 * accum * chunks
        rows.append(made(batch, chunks, 1024, "muon", step_s, accum=accum))
    fit = fit_rows(rows)
    assert fit.third_cost_s == pytest.approx(0.2)
    assert fit.max_relative_error < 1e-9


WINDOWED = [(4, 2), (8, 2), (12, 2), (16, 2), (24, 1), (24, 2), (24, 4), (24, 8), (32, 2), (48, 2), (96, 2)]


def windowed_rows(cost_s: float, window: int, shapes: list[tuple[int, int]] = WINDOWED) -> list[Measurement]:
    rows = made_rows(lambda size, batch, chunks: 1.0 + 5e-5 * size, shapes=shapes)
    rows = [_with(row, "bf16", window) for row in rows]
    return [
        replace(row, step_s=(row.step_s or 0) + cost_s * row.configuration.windows_per_step) for row in rows
    ]


@pytest.mark.parametrize("window", [2, 3, 4])
def test_a_cost_per_window_is_found_and_predicts_other_chunks(window: int) -> None:
    fit = fit_rows(windowed_rows(0.5, window))
    assert fit.form == "affine with a cost per window"
    assert fit.to_record()["third_term"]["unit"] == "window"
    assert fit.third_cost_s == pytest.approx(0.5)
    assert fit.leave_one_out_error < 1e-6
    unseen = windowed_rows(0.5, window, [(20, 7)])[0]
    assert fit.predict_s(unseen.configuration) == pytest.approx(unseen.step_s)


def test_k_one_and_two_cost_the_same_windows() -> None:
    several = [Configuration(4, chunks, 8, "muon", window=2, accum=3) for chunks in (1, 2, 3, 8)]
    assert [each.windows_per_step for each in several] == [3, 3, 6, 12]
    assert replace(several[3], window=None).windows_per_step == several[3].chunks_per_step == 24


def test_windows_of_one_chunk_are_chunks() -> None:
    fit = fit_rows(windowed_rows(0.5, 1))
    assert fit.form == "affine with a cost per chunk"
    assert fit.third_cost_s == pytest.approx(0.5)
    assert all(
        "the same as A·K" in term.note for term in fit.terms if term.name == "A·⌈K/W⌉" and not term.beside
    )


def test_a_large_cross_validated_error_puts_the_model_in_doubt_and_a_larger_one_rejects_it() -> None:
    mild, doubtful, rejected = (fit_rows(made_rows(affine, noise, seed=3)) for noise in (0.01, 0.05, 0.3))
    assert not mild.is_doubtful and mild.verdict.startswith("The affine cost model holds")
    assert 0.05 < doubtful.cross_validated_error < 0.15 and not doubtful.is_rejected
    assert doubtful.is_doubtful and doubtful.to_record()["is_doubtful"]
    assert doubtful.verdict.startswith("The cost model is in doubt: the cross-validated error is")
    assert "the other points predict B" in doubtful.verdict and "Measure again" in doubtful.verdict
    assert doubtful.uncertainty >= doubtful.leave_one_out_error
    assert rejected.cross_validated_error > 0.15 and rejected.is_rejected
    assert "the cross-validated error is" in rejected.verdict


def test_one_outlier_among_many_does_not_reject_the_model_and_is_named_with_a_reason_that_fits() -> None:
    for factor, told, reason in (
        (1.29, "longer than the cost model says", "another program or throttling slowed it"),
        (0.71, "less than the cost model says", "nothing makes a step faster than the machine is"),
    ):
        rows = made_rows(affine, 0.005, 1, [*SHAPES, (12, 2), (20, 2), (28, 2), (40, 2), (12, 4), (8, 4)])
        rows[3] = replace(rows[3], step_s=(rows[3].step_s or 0) * factor)
        fit = fit_rows(rows)
        assert not fit.is_rejected
        assert fit.suspects == (rows[3].configuration,)
        (warning,) = (warning for warning in fit.warnings if "than the cost model says" in warning)
        assert told in warning and reason in warning
        assert ("another program" in warning) == (factor > 1)


def test_an_outlier_that_alone_would_reject_the_model_is_kept_out_and_puts_it_in_doubt() -> None:
    rows = made_rows(affine, 0.002, 1)
    rows[6] = replace(rows[6], step_s=(rows[6].step_s or 0) * 0.5)
    fit = fit_rows(rows)
    assert fit.is_doubtful and not fit.is_rejected and "is an outlier" in fit.verdict
    assert fit.suspects == fit.outliers == (rows[6].configuration,)
    assert [row for row, reason in fit.kept_out if reason.startswith("outlier")] == [rows[6]]
    assert fit.c1_s_per_byte == pytest.approx(54e-6, rel=0.02)
    # A curve is no outlier: its ends do not agree with each other either.
    assert fit_rows(made_rows(lambda size, batch, chunks: 0.02 * size**0.5)).is_rejected


def test_where_no_outlier_is_told_the_worst_points_are_suspects() -> None:
    fit = fit_rows(made_rows(affine, noise=0.05, seed=3))
    worst = max(fit.points, key=lambda point: abs(point.leave_one_out_error or 0))
    assert len(fit.suspects) == 3 and fit.suspects[0] == worst.measurement.configuration
    assert not any(point.is_outlier for point in fit.points)
    assert fit_rows(made_rows(affine, noise=0.001)).suspects == ()


def test_a_lone_fast_visit_is_not_fitted_where_two_others_agree() -> None:
    rows = made_rows(affine)
    fast = replace(rows[3], step_s=(rows[3].step_s or 0) * 0.71)
    assert fit_rows([*rows, fast]).suspects == (rows[3].configuration,)
    again = fit_rows([*rows, fast, rows[3]])
    assert again.max_relative_error < 1e-9 and not again.is_doubtful
    assert any("was 29.0% faster than two that agree" in warning for warning in again.warnings)
    # Two slow visits that differ were slowed: the fastest is the machine's own time.
    slowed = [replace(rows[3], step_s=(rows[3].step_s or 0) * factor) for factor in (1.3, 1.6)]
    assert fit_rows([*rows, *slowed]).max_relative_error < 1e-9


def test_of_several_visits_the_fastest_is_fitted_and_a_busy_while_does_not_spoil_the_law() -> None:
    rows = made_rows(affine)
    busy = [replace(row, step_s=(row.step_s or 0) * 1.4) for row in rows]
    again = [replace(row) for row in rows]
    third = len(rows) // 3
    disturbed = fit_rows([*busy[:third], *rows[third:], *again[: 2 * third], *busy[2 * third :]])
    assert not disturbed.is_rejected and disturbed.c1_s_per_byte == pytest.approx(
        fit_rows(rows).c1_s_per_byte
    )
    assert len(disturbed.points) == len(disturbed.slower_visits) == len(rows)
    assert {round(excess, 6) for _, excess in disturbed.slower_visits} == {0.0, 0.4}
    assert "0.0% to 40.0% slower" in disturbed.describe_visits
    assert disturbed.disturbance == pytest.approx(1 + 0.2 * 5 / 7)
    changed = fit_rows([*rows, *busy])
    assert changed.is_doubtful and "the machine changed by 40% during the sweep" in changed.verdict


def test_rows_of_another_setting_are_no_visits_of_the_same_configuration() -> None:
    rows = made_rows(affine)
    checkpointed = [replace(row.configuration, activation_checkpointing=True) for row in rows]
    slower = [
        replace(row, configuration=configuration, step_s=(row.step_s or 0) * 1.5)
        for row, configuration in zip(rows, checkpointed, strict=True)
    ]
    fit = fit_rows([*rows, *slower])
    assert fit.drift is None and fit.slower_visits == () and len(fit.kept_out) == len(rows)
    assert drift_of([*rows, *slower]) is None
    assert drift_of([*rows, *rows]) == 0.0


UPDATE_S = {"muon": 0.0245, "adamw": 0.0073}


def grid_rows(window_s: float, noise: float, seed: int) -> list[Measurement]:
    """A default grid by a cost model with a cost per window, updates timed alone among them."""
    shape = ["model.seq=256", "step.batch=4", "step.chunks=2", "step.window=2"]
    config, random = resolve(preset="demo", overrides=shape), np.random.default_rng(seed)
    rows: list[Measurement] = []
    for each in default_grid(Configuration.of(config), Lists(), config.model.patch_stride):
        alone_s = UPDATE_S[each.optimizer]
        own_s = alone_s * (1 + noise * random.normal())
        step_s = alone_s + window_s * each.windows_per_step + 73.5e-6 * each.bytes_per_step
        step_s *= 1 + noise * random.normal()
        rows.append(Measurement(replace(each, precision=None), step_s, update_s=own_s))
    return rows


def test_the_default_grid_tells_a_window_s_cost_from_the_others() -> None:
    for seed in range(8):
        rows = [replace(row, update_s=None) for row in grid_rows(0.013, 0.005, seed)]
        assert sum((row.configuration.batch, row.configuration.chunks) == (1, 8) for row in rows) == 1
        fit = fit_rows(rows)
        assert fit.form == "affine with a cost per window"
        assert fit.third_cost_s == pytest.approx(0.013, rel=0.15)


def test_with_updates_timed_alone_a_window_s_cost_is_told_from_c0_in_noise() -> None:
    told = [fit_rows(grid_rows(0.013, 0.025, seed)) for seed in range(8)]
    assert {fit.third_unit for fit in told} == {"window"}
    for fit in told:
        assert fit.third_cost_s == pytest.approx(0.013, rel=0.3)
        for name, alone_s in UPDATE_S.items():
            assert abs(fit.c0_s[name] - alone_s) < 0.2 * alone_s
    # Where a window costs nothing, noise is taken for a cost about once in twenty fits.
    free = [fit_rows(grid_rows(0.0, 0.025, seed)) for seed in range(40)]
    assert sum(fit.third_unit is not None for fit in free) <= 6


def test_without_updates_timed_alone_noise_may_hide_a_window_s_cost() -> None:
    silent = [
        fit_rows([replace(row, update_s=None) for row in grid_rows(0.013, 0.025, seed)]) for seed in range(8)
    ]
    assert any(fit.third_unit is None for fit in silent)


def test_intervals_with_updates_timed_alone_cover_the_truth_as_often_as_they_say() -> None:
    fits = [fit_rows(grid_rows(0.013, 0.02, seed)) for seed in range(60)]
    truth = {"c1": 73.5e-6, "muon": UPDATE_S["muon"], "window": 0.013}
    intervals = {
        "c1": [fit.c1_interval_s_per_byte for fit in fits],
        "muon": [fit.c0_interval_s["muon"] for fit in fits],
        "window": [fit.third_cost_interval_s or (0.0, 0.0) for fit in fits],
    }
    for name, found in intervals.items():
        covered = sum(low <= truth[name] <= high for low, high in found) / len(found)
        assert 0.85 <= covered <= 1.0, name


def test_a_line_that_misses_everything_is_rejected() -> None:
    fit = fit_rows(made_rows(affine, noise=0.4, seed=3))
    assert fit.is_rejected


def test_three_points_at_one_size_are_refused() -> None:
    rows = [made(batch, chunks, 1024, "muon", 2.0) for batch, chunks in [(4, 4), (8, 2), (16, 1)]]
    with pytest.raises(UserError, match="same 16,384 bytes per step"):
        fit_rows(rows)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(4, 2)], "too few"),
        ([(4, 2), (8, 2)], "too few"),
        ([(4, 2), (8, 2), (8, 2), (4, 2)], "too few different"),
        ([(100, 1), (105, 1), (110, 1)], "factor of 1.10"),
    ],
)
def test_what_cannot_be_fitted_is_refused(shapes: list[tuple[int, int]], message: str) -> None:
    with pytest.raises(UserError, match=message):
        fit_rows(made_rows(affine, shapes=shapes))


def test_no_measured_row_is_refused() -> None:
    with pytest.raises(UserError, match="no row"):
        fit_rows([replace(row, status="did not fit") for row in made_rows(affine)])


def test_impossible_coefficients_are_said() -> None:
    negative_c0 = fit_rows(made_rows(lambda size, batch, chunks: -0.05 + 54e-6 * size))
    assert any("c0 of muon is negative" in warning for warning in negative_c0.warnings)
    negative_c1 = fit_rows(made_rows(lambda size, batch, chunks: 20 - 54e-6 * size))
    assert negative_c1.is_rejected
    assert "c1 is -54" in negative_c1.verdict
    assert negative_c1.ceiling_bytes_per_s is None


def test_a_spoiled_point_is_named() -> None:
    rows = made_rows(affine, noise=0.003)
    rows[3] = replace(rows[3], step_s=(rows[3].step_s or 0) * 1.12)
    assert any("B 32 K 2 S 1024 muon took" in warning for warning in fit_rows(rows).warnings)


def test_an_optimizer_that_was_not_measured_is_refused() -> None:
    with pytest.raises(UserError, match="was not measured"):
        fit_rows(made_rows(affine)).predict_s(made(24, 4, 1024, "sgd", None).configuration)


def test_json_has_the_keys_others_read() -> None:
    record = fit_rows(read_measurements(GRID)).to_record()
    assert {
        "c1_us_per_byte",
        "c0_s",
        "ceiling_bytes_per_s",
        "max_relative_error",
        "leave_one_out_error",
        "intervals",
        "points",
        "third_term",
        "verdict",
        "kept_out",
    } <= set(record)
    assert set(record["intervals"]["c0_s"]) == {"muon", "adamw"}


def test_a_cost_of_an_update_that_is_not_positive_is_no_law_that_holds() -> None:
    fit = fit_rows(made_rows(lambda size, batch, chunks: -0.05 + 54e-6 * size))
    assert fit.is_doubtful and "c0 of muon is -0.05 s" in fit.verdict and "too noisy" not in fit.verdict


def test_held_out_rows_lower_the_verdict_and_never_raise_it() -> None:
    rows, unseen = made_rows(affine), made(20, 2, 1024, "muon", affine(40_960, 20, 2))
    assert not fit_rows(rows, [unseen]).is_doubtful
    off = fit_rows(rows, [replace(unseen, step_s=(unseen.step_s or 0) * 1.15)])
    assert off.is_doubtful and off.uncertainty == off.holdout_error == pytest.approx(1 - 1 / 1.15)
    # The median of three decides.
    assert not fit_rows(rows, [unseen, unseen, replace(unseen, step_s=9.0)]).is_doubtful
    assert fit_rows(rows, [replace(unseen, step_s=9.0)]).is_rejected
    bent = made_rows(lambda size, batch, chunks: 1.6 + 40e-6 * size + 2e-10 * size**2)
    assert fit_rows(bent, [unseen]).is_rejected


def test_one_slow_visit_again_is_no_machine_that_changed() -> None:
    rows = made_rows(affine)
    slow = [replace(row, step_s=(row.step_s or 0) * 1.63) for row in rows]
    assert fit_rows([*rows, slow[2]]).drift is None
    assert not fit_rows([*rows, slow[2]]).is_doubtful
    assert fit_rows([*rows, *slow[:3]]).drift == pytest.approx(0.63)


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ("did not fit", "no row fitted in memory; try a smaller --batch"),
        ("too slow", "no row ended within its time; give a longer --time-budget or try a smaller --batch"),
        ("scattered", "the samples of every row are too scattered; measure again on an idle machine"),
    ],
)
def test_without_a_measured_row_the_reason_is_no_circle(status: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        fit_rows([replace(row, status=status) for row in made_rows(affine)])


@pytest.mark.parametrize(
    ("error", "part"), [(1.0, "50.0% less"), (-0.5, "100.0% longer"), (-1 / 11, "10.0% longer")]
)
def test_an_outlier_is_measured_against_the_cost_model(error: float, part: str) -> None:
    assert part in describe_outlier("B 1", error)
