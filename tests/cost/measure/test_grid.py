"""Which points a grid has, and what its lists change."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from mlx_amort.config.reading import resolve
from mlx_amort.cost.configuration import Configuration
from mlx_amort.cost.measure.grid import Lists, default_grid, doublings, product_grid
from mlx_amort.cost.measure.time_budget import (
    affordable_base,
    cut_to_budget,
    mixed_order,
    push_to_limit,
    repeats_within,
    roofline_seconds,
)

BIG = resolve(preset="veritate_200m")
BASE = Configuration.of(BIG)


def test_the_published_grid_is_in_the_default_one() -> None:
    points = {
        (p.batch, p.chunks, p.seq, p.optimizer, p.activation_checkpointing)
        for p in default_grid(BASE, Lists(), 4)
    }
    for batch in (4, 8, 12, 16, 24, 32, 48):
        assert (batch, 2, 1024, "muon", False) in points
    for chunks in (1, 2, 4, 8):
        assert (24, chunks, 1024, "muon", False) in points
    assert (24, 4, 1024, "adamw", False) in points
    assert (24, 2, 1024, "muon", True) in points
    assert (24, 2, 512, "muon", False) in points


def test_lists_replace_scans_and_leave_kinds_out() -> None:
    lists = Lists(
        batches=(2, 6), chunks=(2, 3), optimizers=("adamw",), seqs=(256,), activation_checkpointing=(False,)
    )
    points = default_grid(BASE, lists, 4)
    assert {p.batch for p in points} == {2, 6}
    assert {p.chunks for p in points} == {2, 3}
    assert {(p.optimizer, p.seq, p.activation_checkpointing) for p in points} == {("adamw", 256, False)}


def test_a_product_has_every_combination_once() -> None:
    lists = Lists(batches=(4, 8), chunks=(1, 2, 4), optimizers=("muon", "adamw"))
    points = product_grid(BASE, lists)
    assert len(points) == len(set(points)) == 12
    assert {p.precision for p in points} == {"bf16"}
    assert product_grid(BASE, Lists()) == [BASE]


def test_a_budget_halves_the_base_until_an_anchor_is_its_share() -> None:
    assert affordable_base(BASE, Lists(), 20.0, 5, None) == BASE
    assert affordable_base(BASE, Lists(), 20.0, 5, 1e6) == BASE
    assert affordable_base(BASE, Lists(), 20.0, 5, 300).batch == 6
    assert affordable_base(BASE, Lists(), 1e6, 5, 300).batch == 1


def test_a_halved_base_stays_among_the_given_batches() -> None:
    lists = Lists(batches=(8, 16))
    for batch in (24, 12, 1):
        points = default_grid(replace(BASE, batch=batch), lists, 4)
        assert {point.batch for point in points} == {8, 16}
        assert points[0].batch == (16 if batch == 24 else 8)
    assert affordable_base(replace(BASE, batch=16), lists, 20.0, 5, 1e6).batch == 16


def test_scans_double_up_to_what_memory_and_time_refuse() -> None:
    def push(
        left_s: float | None, lists: Lists | None = None, largest: int = 400, budget_s: float | None = None
    ) -> list[tuple[int, int]]:
        scans = doublings(BASE, lists or Lists())[: 1 if left_s is None else 2]
        seconds_of = partial(roofline_seconds, c1_roofline_us=1.0)
        points, cuts = push_to_limit(scans, lambda point: point.batch > largest, seconds_of, left_s, budget_s)
        return [(point.batch, point.chunks) for point in (*points, *(cut.configuration for cut in cuts))]

    # The grid ends at B 96 and at K 8; one step of B 24 K 16 is 1.57 s here.
    assert push(None) == [(192, 2), (384, 2), (768, 2)]
    assert push(10.0) == [(192, 2), (24, 16), (384, 2), (24, 32), (768, 2), (24, 64)]
    assert push(1.0) == [(192, 2), (24, 16)]
    # 6 % of a budget of 60 s is less than B 24 K 64 would take.
    assert push(1000.0, budget_s=60.0) == [(192, 2), (24, 16), (384, 2), (24, 32), (768, 2), (24, 64)]
    assert push(10.0, Lists(batches=(24,))) == [(24, 16), (24, 32), (24, 64)]
    assert push(10.0, Lists(batches=(24,), chunks=(2,))) == []


def test_the_time_left_repeats_the_cheapest_after_all_others() -> None:
    points = [replace(BASE, batch=batch) for batch in (24, 4, 48, 8)]
    again = repeats_within(points, lambda point: float(point.batch), 17.0)
    assert [point.batch for point in again] == [4, 8, 4]
    assert repeats_within(points, lambda point: 1.0, None) == []
    visits = mixed_order(points, points[0], again=[points[0], *again])
    assert (
        sorted(visit.configuration.batch for visit in visits[-4:]) == [4, 4, 8, 24] and visits[-1].is_anchor
    )
    assert sum(visit.configuration == points[0] for visit in visits) == 2  # beside its first measurement


def test_a_cut_keeps_the_first_and_what_still_fits() -> None:
    points = [replace(BASE, batch=batch) for batch in (1, 50, 2)]
    kept, cuts = cut_to_budget(points, lambda point: float(point.batch), 5.0)
    assert [point.batch for point in kept] == [1, 2]
    assert [cut.configuration.batch for cut in cuts] == [50]
    assert "50 s" in cuts[0].reason


def test_a_point_survives_its_record_and_configures_what_it_says() -> None:
    point = replace(BASE, batch=3, seq=512, optimizer="adamw", activation_checkpointing=True)
    assert Configuration.from_record(point.to_record()) == point
    config = point.configure(BIG)
    assert Configuration.of(config) == point
    assert config.bytes_per_step == point.bytes_per_step == point.to_record()["bytes_per_step"]
