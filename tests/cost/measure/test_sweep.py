"""A sweep on a machine that obeys the cost model: what is measured, in which order, what survives a kill."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mlx_amort.config.reading import resolve
from mlx_amort.cost.configuration import Configuration, Measurement
from mlx_amort.cost.measure.grid import Lists
from mlx_amort.cost.measure.holdout import VISITS
from mlx_amort.cost.measure.request import SweepRequest
from mlx_amort.cost.measure.roofline import Rates, roofline_of
from mlx_amort.cost.measure.sweep import run_sweep
from mlx_amort.cost.profile import Profile
from mlx_amort.cost.sentences import describe_outcome
from mlx_amort.errors import UserError
from mlx_amort.model.flops import forward_flops_per_byte, training_flops_per_byte
from tests.cost.pretend import (
    BASE,
    C0_S,
    C1_S_PER_BYTE,
    MACHINE,
    RATE,
    Killed,
    Lines,
    Machine,
    request_of,
)

CENTER = Configuration.of(BASE)


def profiled(folder: Path, request: SweepRequest, machine: Machine, progress: Lines | None = None) -> Profile:
    return run_sweep(request, folder, MACHINE, machine, progress or Lines(), machine.clock)[0]


def sweep(
    folder: Path, request: SweepRequest, machine: Machine, progress: Lines | None = None
) -> dict[str, Any]:
    """The record of a sweep."""
    return profiled(folder, request, machine, progress).to_record()


def test_grid_has_the_published_shape_and_the_cost_model_comes_out(tmp_path: Path) -> None:
    record = sweep(tmp_path, request_of(), Machine(BASE))
    points = [Configuration.from_record(row) for row in record["measurements"]]
    assert {p.batch for p in points if p.chunks == 2 and p.optimizer == "muon"} >= {
        3,
        5,
        8,
        11,
        16,
        21,
        32,
        64,
    }
    assert {p.chunks for p in points if p.batch == 16} == {1, 2, 4, 8}
    assert Counter(p.optimizer for p in points)["adamw"] == 3
    assert sum(p.activation_checkpointing for p in points) == 1
    assert sum(p.seq == 128 for p in points) == 1
    assert record["cost_model"]["c1_us_per_byte"] == pytest.approx(C1_S_PER_BYTE * 1e6)
    assert record["cost_model"]["c0_s"] == pytest.approx(C0_S)
    assert record["plan"]["cuts"] == []
    assert json.loads((tmp_path / "profile.json").read_text()) == record
    assert record["status"] == "complete"


def test_order_is_mixed_fixed_and_visits_the_anchor_three_times(tmp_path: Path) -> None:
    first, second = Machine(BASE), Machine(BASE)
    record = sweep(tmp_path / "a", request_of(), first)
    sweep(tmp_path / "b", request_of(), second)
    assert first.measured == second.measured
    sizes = [row["bytes_per_step"] for row in record["measurements"]]
    assert sizes != sorted(sizes)
    anchors = [index for index, row in enumerate(record["measurements"]) if row["is_anchor"]]
    assert len(anchors) == 3
    assert anchors[0] == 0 and anchors[-1] == len(record["measurements"]) - 1
    assert {Configuration.from_record(record["measurements"][index]) for index in anchors} == {CENTER}


def test_drift_of_the_anchor_is_reported(tmp_path: Path) -> None:
    machine = Machine(BASE, slowdown=1.01)
    profile = profiled(tmp_path, request_of(), machine)
    record = profile.to_record()
    places = [index for index, row in enumerate(record["measurements"]) if row["is_anchor"]]
    assert record["drift"]["last_to_first"] == pytest.approx(1.01 ** (places[-1] - places[0]) - 1)
    assert record["drift"]["spread"] == pytest.approx(record["drift"]["last_to_first"])
    assert any("anchor measured 3 times" in line for line in describe_outcome(profile))


@pytest.mark.parametrize("dies_at", [0, 1, 5, 16, 17])
def test_a_killed_sweep_goes_on_and_ends_the_same(tmp_path: Path, dies_at: int) -> None:
    whole = sweep(tmp_path / "whole", request_of(budget_s=600), Machine(BASE))
    assert len(whole["measurements"]) + len(whole["holdout"]) > 17
    killed = Machine(BASE, dies_at=dies_at)
    with pytest.raises(Killed):
        sweep(tmp_path / "killed", request_of(budget_s=600), killed)
    goes_on = Machine(BASE)
    progress = Lines()
    record = sweep(tmp_path / "killed", request_of(budget_s=600), goes_on, progress)
    assert progress.lines[0].startswith("resuming")
    assert len(killed.measured) + len(goes_on.measured) == len(whole["measurements"]) + VISITS * len(
        whole["holdout"]
    )
    for key in ("measurements", "cost_model", "holdout", "plan", "status"):
        assert record[key] == whole[key]
    assert record["elapsed_s"] == pytest.approx(whole["elapsed_s"])


def test_a_grid_is_cut_to_its_budget_and_says_what_was_cut(tmp_path: Path) -> None:
    machine, progress = Machine(BASE), Lines()
    record = sweep(tmp_path, request_of(budget_s=180), machine, progress)
    assert record["elapsed_s"] <= 180
    assert record["plan"]["cuts"]
    for cut in record["plan"]["cuts"]:
        label = Configuration.from_record(cut).label
        assert any(line.startswith(f"left out {label}") for line in progress.lines)
    assert {row["optimizer"] for row in record["measurements"]} == {"muon", "adamw"}
    assert record["cost_model"]["c0_s"] == pytest.approx(C0_S)
    assert len(record["holdout"]) >= 2


def test_a_grid_is_centred_where_the_budget_can_pay_for_it(tmp_path: Path) -> None:
    progress = Lines()
    record = sweep(tmp_path, request_of(budget_s=60), Machine(BASE), progress)
    assert record["anchor"]["batch"] < CENTER.batch
    assert any("centred on B" in line for line in progress.lines)


def test_rows_slower_than_planned_are_cut_when_the_budget_is_used_up(tmp_path: Path) -> None:
    record = sweep(tmp_path, request_of(budget_s=180), Machine(BASE, slowdown=1.2))
    assert any("used up" in cut["reason"] for cut in record["plan"]["cuts"])
    assert record["status"] == "complete"


@pytest.mark.parametrize("budget_s", [None, 600.0])
def test_what_does_not_fit_is_a_row_and_the_sweep_ends(tmp_path: Path, budget_s: float | None) -> None:
    lists = Lists(batches=(1, 2, 4, 8, 100_000))
    record = sweep(tmp_path, request_of(budget_s, False, lists), Machine(BASE, too_large=10_000))
    statuses = {row["batch"]: row["status"] for row in record["measurements"]}
    assert statuses == {1: "ok", 2: "ok", 4: "ok", 8: "ok", 100_000: "did not fit"}
    assert record["cost_model"]["c0_s"]["muon"] == pytest.approx(C0_S["muon"])
    assert record["status"] == "complete"


def test_a_grid_whose_centre_does_not_fit_moves_it(tmp_path: Path) -> None:
    record = sweep(tmp_path, request_of(), Machine(BASE, too_large=5_000))
    assert [row["status"] for row in record["measurements"][:2]] == ["did not fit", "ok"]
    assert record["anchor"]["batch"] == 8
    assert record["cost_model"] is not None


def test_a_budget_too_small_for_anything_is_kept(tmp_path: Path) -> None:
    machine = Machine(BASE)
    record = sweep(tmp_path, request_of(budget_s=2), machine)
    assert [row["status"] for row in record["measurements"]] == ["too slow"]
    # The first may compile for as long as the budget.
    assert machine.seconds == 4 and record["status"] == "complete" and record["cost_model"] is None


def test_a_grid_of_which_nothing_fits_ends_without_a_fit(tmp_path: Path) -> None:
    profile = profiled(tmp_path, request_of(), Machine(BASE, too_large=1))
    record = profile.to_record()
    assert {row["status"] for row in record["measurements"]} == {"did not fit"}
    assert record["cost_model"] is None and record["status"] == "complete"
    assert any(line.startswith("no cost model") for line in describe_outcome(profile))


@pytest.mark.parametrize(("times", "status"), [(1, "ok"), (2, "scattered")])
def test_a_scattered_row_is_measured_once_more_then_flagged(tmp_path: Path, times: int, status: str) -> None:
    point = replace(CENTER, batch=8)
    machine = Machine(BASE, scatters={point: times})
    record = sweep(tmp_path, request_of(is_grid=False, lists=Lists(batches=(4, 8, 16, 32))), machine)
    assert machine.measured.count(point) == 2
    row = next(row for row in record["measurements"] if row["batch"] == 8)
    assert row["status"] == status
    assert len(row["discarded_samples_s"]) == 5
    reasons = [kept["reason"] for kept in record["cost_model"]["kept_out"]]
    assert reasons == (["status is 'scattered'"] if status == "scattered" else [])


def test_held_out_is_predicted_on_disk_before_it_is_measured(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []

    class Watching(Machine):
        def step(self, point: Configuration, limit_s: float | None) -> Measurement:
            if (tmp_path / "profile.json").exists():
                seen.append(json.loads((tmp_path / "profile.json").read_text()))
            return super().step(point, limit_s)

    record = sweep(tmp_path, request_of(), Watching(BASE))
    measured = {Configuration.from_record(row) for row in record["measurements"]}
    assert 2 <= len(record["holdout"]) <= 3
    assert {entry["optimizer"] for entry in record["holdout"]} == {"muon", "adamw"}
    before = seen[-VISITS * len(record["holdout"])]["holdout"]
    for entry, written in zip(record["holdout"], before, strict=True):
        assert Configuration.from_record(entry) not in measured
        assert written["predicted_s"] == entry["predicted_s"] and written["measured_s"] is None
        assert entry["relative_error"] == pytest.approx(0, abs=1e-6)
        assert len(entry["visits_s"]) == VISITS and entry["measured_s"] == min(entry["visits_s"])


def test_one_configuration_is_one_row(tmp_path: Path) -> None:
    record = sweep(tmp_path, request_of(is_grid=False), Machine(BASE))
    assert [Configuration.from_record(row) for row in record["measurements"]] == [CENTER]
    assert record["cost_model"] is None and record["why_no_cost_model"]


def test_a_complete_profile_is_kept_and_one_of_another_model_is_refused(tmp_path: Path) -> None:
    request = request_of(is_grid=False)
    sweep(tmp_path, request, Machine(BASE))
    machine = Machine(BASE)
    sweep(tmp_path, request, machine)
    assert len(machine.measured) == 1
    assert (tmp_path / "profile.previous.json").exists()
    other = resolve(base=BASE, overrides=["model.layers=2"])
    with pytest.raises(UserError, match="another model"):
        sweep(tmp_path, replace(request, base=other), Machine(other))


def test_a_grid_doubles_until_memory_and_time_are_used(tmp_path: Path) -> None:
    machine, budget_s = Machine(BASE), 1000.0
    record = sweep(tmp_path, request_of(budget_s), machine)
    rows = {(row["batch"], row["chunks"]): row["status"] for row in record["measurements"]}
    assert rows[128, 2] == "ok" and rows[256, 2] == "did not fit"
    assert rows[16, 16] == "ok"
    cuts = {(cut["batch"], cut["chunks"]) for cut in record["plan"]["cuts"]}
    longest = max(chunks for batch, chunks in rows if batch == 16)
    assert cuts == {(16, 2 * longest)}
    assert record["elapsed_s"] <= budget_s


def test_what_is_larger_than_what_did_not_fit_is_not_tried(tmp_path: Path) -> None:
    record = sweep(tmp_path, request_of(), Machine(BASE, too_large=100 * 2 * 256))
    assert [row["batch"] for row in record["measurements"] if row["status"] == "did not fit"] == [128]
    (cut,) = record["plan"]["cuts"]
    assert cut["batch"] == 256 and "B 128 K 2" in cut["reason"] and "did not fit" in cut["reason"]


@pytest.mark.parametrize(
    ("lists", "key"),
    [
        (Lists(precisions=("bf16-pure",)), "precision"),
        (Lists(activation_checkpointing=(True,)), "activation_checkpointing"),
        (Lists(seqs=(128,)), "seq"),
        (Lists(windows=(1,)), "window"),
        (Lists(batches=(8,)), "batch"),
    ],
)
def test_a_single_value_is_the_configurations(tmp_path: Path, lists: Lists, key: str) -> None:
    (value,) = next(values for values in vars(lists).values() if values)
    request = request_of(lists=lists)
    record = sweep(tmp_path, request, Machine(BASE))
    assert record["chosen"][key] == record["request"]["base"][key] == value
    assert record["chosen"]["step_s"] is not None
    assert {row[key] for row in record["measurements"]} == {value}
    assert record["model"]["training_flops_per_byte"] == training_flops_per_byte(request.base)
    rates = Machine(BASE).rates(Configuration.of(request.base))
    assert record["roofline"]["c0_s"] == roofline_of(request.base, rates).c0_s
    assert record["roofline"]["c1_us_per_byte"] == roofline_of(request.base, rates).c1_us_per_byte


def test_the_roofline_is_that_of_the_fitted_setting(tmp_path: Path) -> None:
    # The first of the list is the configuration; the fit leaves checkpointed rows out.
    lists = Lists(batches=(4, 8, 16), activation_checkpointing=(True, False))
    record = sweep(tmp_path, request_of(lists=lists, is_grid=False), Machine(BASE))
    assert record["request"]["base"]["activation_checkpointing"]
    assert not record["cost_model"]["setting"]["activation_checkpointing"]
    roofline = record["roofline"]
    assert roofline["c1_us_per_byte"] == pytest.approx(3 * roofline["forward_flops_per_byte"] / RATE * 1e6)
    # Most rows are of the second seq: its own products are the ones that count.
    lists = Lists(batches=(4, 8, 16), seqs=(256, 128))
    record = sweep(tmp_path / "seq", request_of(lists=lists, is_grid=False), Machine(BASE))
    seq = record["cost_model"]["setting"]["seq"]
    assert record["roofline"]["forward_flops_per_byte"] == forward_flops_per_byte(
        replace(BASE.model, seq=seq)
    )


def test_the_chosen_point_of_a_grid_that_moved_was_measured(tmp_path: Path) -> None:
    record = sweep(tmp_path, request_of(budget_s=60), Machine(BASE))
    assert record["anchor"]["batch"] < CENTER.batch
    measured = {Configuration.from_record(row) for row in record["measurements"] if row["step_s"]}
    assert CENTER not in measured
    assert Configuration.from_record(record["chosen"]) in measured and record["chosen"]["step_s"]


def test_nothing_measured_is_nothing_chosen(tmp_path: Path) -> None:
    assert sweep(tmp_path, request_of(), Machine(BASE, too_large=1))["chosen"] is None


def test_the_roofline_is_the_better_of_two_measurements(tmp_path: Path) -> None:
    class Busy(Machine):
        def rates(self, point: Configuration) -> Rates:
            share = 1.0 if self.measured else 0.1
            found = super().rates(point)
            products = [replace(each, flops_per_s=share * each.flops_per_s) for each in found.products]
            return Rates(tuple(products), found.copy_bytes_per_s / share)

    record = sweep(tmp_path, request_of(), Busy(BASE))
    assert record["roofline"]["best_flops_per_s"] == RATE
    assert record["roofline"]["copy_bytes_per_s"] == 1e10


def test_every_cost_stands_beside_its_roofline(tmp_path: Path) -> None:
    profile = profiled(tmp_path, request_of(), Machine(BASE))
    record = profile.to_record()
    roofline = record["roofline"]
    assert roofline["c1_us_per_byte"] == pytest.approx(3 * roofline["forward_flops_per_byte"] / RATE * 1e6)
    assert roofline["c1_ratio"] == pytest.approx(C1_S_PER_BYTE * 1e6 / roofline["c1_us_per_byte"])
    assert set(roofline["c0_ratios"]) == {"muon", "adamw"}
    lines = describe_outcome(profile)
    assert any(line.startswith("c1 = ") and "× its roofline" in line for line in lines)
    assert any(line.startswith("c0 of muon = ") for line in lines)
    own = [row for row in record["measurements"] if row["optimizer"] == "muon" and row["step_s"]]
    largest = max(own, key=lambda row: row["bytes_per_step"])
    share = C0_S["muon"] / largest["step_s"]
    told = f"windows {1 - share:.1%}, update {share:.1%}"
    assert any(told in line and "accumulation" in line for line in lines)
    assert any("update timed alone" in line and "fitted c0" in line for line in lines)


def test_a_profile_with_a_cost_model_is_replaced_by_another_only(tmp_path: Path) -> None:
    good = sweep(tmp_path, request_of(), Machine(BASE))
    progress = Lines()
    alone, path = run_sweep(request_of(is_grid=False), tmp_path, MACHINE, Machine(BASE), progress)
    assert alone.cost_model is None and path == tmp_path / "profile.latest.json"
    assert json.loads(path.read_text()) == alone.to_record()
    assert json.loads((tmp_path / "profile.json").read_text()) == good
    assert any("stays until this one has a cost model" in line for line in progress.lines)
    with pytest.raises(Killed):
        sweep(tmp_path, request_of(), Machine(BASE, dies_at=5))
    assert json.loads((tmp_path / "profile.json").read_text()) == good
    better, path = run_sweep(request_of(), tmp_path, MACHINE, Machine(BASE), progress)
    assert path == tmp_path / "profile.json" and json.loads(path.read_text()) == better.to_record()
    assert any(line.startswith("resuming") for line in progress.lines)
    assert json.loads((tmp_path / "profile.previous.json").read_text()) == good
    assert not (tmp_path / "profile.latest.json").exists()


class Held(Machine):
    """Obeys the cost model until so many configurations are measured, and then takes half as long again, or more."""

    after = 10**9
    factor = 1.6

    def step(self, point: Configuration, limit_s: float | None) -> Measurement:
        found = super().step(point, limit_s)
        if len(self.measured) <= self.after or found.step_s is None:
            return found
        samples_s = tuple(self.factor * sample for sample in found.samples_s)
        return replace(found, step_s=self.factor * found.step_s, samples_s=samples_s)


@pytest.mark.parametrize(("factor", "law"), [(1.05, "affine"), (1.15, "affine"), (1.6, "rejected")])
def test_what_was_held_out_lowers_the_verdict(tmp_path: Path, factor: float, law: str) -> None:
    machine = Held(BASE)
    machine.after = len(sweep(tmp_path / "whole", request_of(), Machine(BASE))["measurements"])
    machine.factor = factor
    fit = sweep(tmp_path / "held", request_of(), machine)["cost_model"]
    assert (fit["form"], fit["is_doubtful"]) == (law, factor == 1.15)
    assert ("held-out configurations are missed" in fit["verdict"]) == (factor > 1.1)
    assert fit["holdout_error"] == pytest.approx(1 - 1 / factor)


def test_a_machine_that_changed_fits_nothing_says_so_first_and_has_no_ratios(tmp_path: Path) -> None:
    machine = Machine(BASE, slowdown=1.03)
    profile = profiled(tmp_path, request_of(), machine)
    record = profile.to_record()
    change = f"the machine changed by {record['cost_model']['drift']:.0%} during the sweep"
    assert record["cost_model"]["form"] == "rejected" and change in record["cost_model"]["verdict"]
    assert record["holdout"] == [] and record["cost_model"]["ceiling_bytes_per_s"] is None
    assert "c1_ratio" not in record["roofline"]
    lines = describe_outcome(profile)
    assert change in lines[0]
    assert not any("× its roofline" in line or "fitted c0" in line for line in lines)


class Odd(Machine):
    """One visit of one configuration takes `factor` of its time."""

    factor = 0.71
    odd = Configuration(32, 2, 256, "muon", window=2, precision="fp32")

    def step(self, point: Configuration, limit_s: float | None) -> Measurement:
        found = super().step(point, limit_s)
        if point != self.odd or self.measured.count(point) > 1 or found.step_s is None:
            return found
        samples_s = tuple(self.factor * sample for sample in found.samples_s)
        return replace(found, step_s=self.factor * found.step_s, samples_s=samples_s)


@pytest.mark.parametrize(("factor", "visits"), [(0.71, 3), (1.4, 2)])
def test_an_outlier_in_either_direction_is_visited_again_before_the_model_is_judged(
    tmp_path: Path, factor: float, visits: int
) -> None:
    machine, progress = Odd(BASE), Lines()
    machine.factor = factor
    profile, _ = run_sweep(request_of(), tmp_path, MACHINE, machine, progress)
    model = profile.cost_model
    assert model is not None and not model.is_rejected and not model.is_doubtful
    assert machine.measured.count(Odd.odd) == visits
    assert model.c1_s_per_byte == pytest.approx(C1_S_PER_BYTE)
    assert any(line.startswith(f"visited again: {Odd.odd.label}") for line in progress.lines)
    told = f"a visit of {Odd.odd.label} was 29.0% faster than two that agree: it is not fitted"
    assert (told in model.warnings) == (factor < 1)


def test_a_sweep_whose_budget_is_used_up_names_the_suspect_and_does_not_visit_it(tmp_path: Path) -> None:
    class Slow(Odd):
        def clock(self) -> float:
            return self.seconds + (10_000.0 if len(set(self.measured)) == 5 else 0.0)

    machine, progress = Slow(BASE), Lines()
    lists = Lists(batches=(4, 8, 16, 24, 32))
    request = request_of(budget_s=5_000.0, lists=lists, is_grid=False)
    run_sweep(request, tmp_path, MACHINE, machine, progress, machine.clock)
    assert machine.measured.count(Odd.odd) == 1
    assert any("does not agree with the rest; no time to visit it again" in line for line in progress.lines)


def test_compiling_does_not_use_up_the_time_budget(tmp_path: Path) -> None:
    class Compiles(Machine):
        def step(self, point: Configuration, limit_s: float | None) -> Measurement:
            found = super().step(point, None if limit_s is None else limit_s - 60.0)
            self.seconds += 60.0
            return replace(found, compile_s=61.0, wall_s=(found.wall_s or 0.0) + 60.0)

    plain = sweep(tmp_path / "plain", request_of(budget_s=300.0), Machine(BASE))
    compiled = sweep(tmp_path / "compiled", request_of(budget_s=300.0), Compiles(BASE))
    measured = [len(record["measurements"]) for record in (plain, compiled)]
    assert measured[0] == measured[1] > 10
    assert compiled["cost_model"]["form"] == "affine"


def test_half_of_a_sequence_without_patches_is_half(tmp_path: Path) -> None:
    base = resolve(preset="demo", overrides=["model.trunk=dense", "model.seq=6", "step.batch=16"])
    request = SweepRequest(base, Lists(), is_grid=True, steps=5, budget_s=None)
    record = sweep(tmp_path, request, Machine(base))
    assert {row["seq"] for row in record["measurements"]} == {6, 3}


def test_no_row_that_fits_says_what_to_try(tmp_path: Path) -> None:
    profile = profiled(tmp_path, request_of(), Machine(BASE, too_large=1))
    assert describe_outcome(profile)[-1] == "no cost model: no row fitted in memory; try a smaller --batch"


def test_a_larger_budget_resumes_a_sweep_that_had_too_few_measurements(tmp_path: Path) -> None:
    lists = Lists(batches=(4, 8, 16, 32))
    first = Machine(BASE)
    short = profiled(tmp_path, request_of(14.0, is_grid=False, lists=lists), first)
    assert short.cost_model is None and short.is_complete and 0 < len(short.measurements) < 4
    second, progress = Machine(BASE), Lines()
    longer = profiled(tmp_path, request_of(600.0, is_grid=False, lists=lists), second, progress)
    kept = [each for each in short.measurements if each.status != "too slow"]
    assert longer.measurements[: len(kept)] == kept and kept
    assert progress.lines[0].startswith(f"resuming {tmp_path / 'profile.json'} with a larger time budget")
    assert longer.cost_model is not None and longer.status == "complete"
    assert {each.configuration.batch for each in longer.measurements} == {4, 8, 16, 32}
    # A smaller budget, or another list, is another sweep.
    profiled(tmp_path, request_of(60.0, is_grid=False, lists=Lists(batches=(4, 8))), Machine(BASE), progress)
    assert (tmp_path / "profile.latest.json").exists()
