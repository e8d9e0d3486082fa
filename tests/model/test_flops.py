"""FLOPs of a window against the hand counts of docs/cost_model.md."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlx_amort.config.reading import resolve
from mlx_amort.config.values import Config
from mlx_amort.model.flops import (
    forward_flops_per_byte,
    training_flops_per_byte,
    window_products,
)

BIG = resolve(preset="veritate_200m")


def share(config: Config, start: str, end: str = "") -> float:
    products = window_products(config)
    return sum(p.share_flops for p in products if p.name.startswith(start) and p.name.endswith(end))


def test_a_byte_of_the_published_model_by_hand() -> None:
    attention = share(BIG, "bytes", "attention")
    assert share(BIG, "bytes") - attention == pytest.approx(100.7e6, rel=1e-3)
    # Half of the 16.8 MFLOP that all 1024 keys take: a byte sees those before it.
    assert attention == pytest.approx(16.8e6 / 2, rel=2e-3)
    recurrence = share(BIG, "slots", "recurrence")
    assert share(BIG, "slots") - recurrence == pytest.approx(109.2e6, rel=2e-3)
    assert recurrence == pytest.approx(16 / 4 * 2 * 2 * 64 * 1024)
    assert share(BIG, "output") == 2 * 1024 * 256
    assert forward_flops_per_byte(BIG.model) == pytest.approx(0.22e9, rel=2e-3)


def test_backward_is_twice_forward_and_recomputing_all_but_last_products_and_head() -> None:
    recomputing = replace(BIG, step=replace(BIG.step, activation_checkpointing=True))
    forward = forward_flops_per_byte(BIG.model)
    assert training_flops_per_byte(BIG) == pytest.approx(3 * forward)
    # In units of 2 H²: qkv and up of 4 local blocks, qkv, gate and up of 16 recurrent ones on a quarter of the places.
    matrices = 2 * 1024**2 * (4 * (3 + 4) + 16 / 4 * (3 + 1 + 4))
    mixing = share(BIG, "bytes", "attention") + share(BIG, "slots", "recurrence")
    assert training_flops_per_byte(recomputing) == pytest.approx(3 * forward + matrices + mixing)


def test_windows_without_a_gradient_go_forward_only_and_without_the_head() -> None:
    step = replace(BIG.step, tbptt="last", chunks=8, window=2)
    forward, head = forward_flops_per_byte(BIG.model), share(BIG, "output")
    found = training_flops_per_byte(replace(BIG, step=step))
    assert found == pytest.approx(0.25 * 3 * forward + 0.75 * (forward - head))


@pytest.mark.parametrize("trunk", ["hybrid", "dense", "recurrent", "patched"])
def test_linear_products_are_two_flops_a_weight_and_place(trunk: str) -> None:
    model = resolve(overrides=[f"model.trunk={trunk}"]).model
    expected = 2.0 * model.hidden * model.vocabulary
    for index, length in enumerate(model.block_lengths):
        places = 1.0 if length == "bytes" else model.slots / model.seq
        shapes = model.parameter_shapes()
        for name in ("qkv", "gate", "proj", "up", "down"):
            out, into = shapes.get(f"blocks.{index}.{name}", (0, 0))
            expected += 2.0 * out * into * places
    linear = sum(
        p.share_flops
        for p in window_products(replace(BIG, model=model))
        if not p.name.endswith(("attention", "recurrence"))
    )
    assert linear == pytest.approx(expected)
