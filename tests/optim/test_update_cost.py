"""FLOPs and bytes of an update against hand counts."""

from __future__ import annotations

from dataclasses import replace

from mlx_amort.config.reading import resolve
from mlx_amort.config.values import OptimizerConfig
from mlx_amort.ops.newton_schulz import count_flops, takes_gram_form
from mlx_amort.optim.stacks import stack_size
from mlx_amort.optim.update_cost import accumulation_bytes, orthogonalizations, update_bytes

BIG = resolve(preset="veritate_200m").model.parameter_shapes()
PARAMETERS = 270_510_336


def flops(overrides: list[str], config: OptimizerConfig) -> float:
    found = orthogonalizations(resolve(overrides=overrides).model.parameter_shapes(), config)
    return sum(each.long_flops + each.square_flops for each in found)


def test_newton_schulz_takes_the_cheaper_form_of_each_shape() -> None:
    shape = ["model.trunk=dense", "model.layers=2", "model.hidden=64", "model.ffn=256"]
    m, config = 64, OptimizerConfig(coefficients="polar_express")
    gram = 2 * (4 * m * m * 3 * m + 34 * m**3) + 4 * (4 * m * m * 4 * m + 34 * m**3)
    square = 2 * (20 * m**3 + 10 * m**3)
    assert flops(shape, config) == gram + square
    standard = 2 * (20 * m * m * 3 * m + 10 * m**3) + 4 * (20 * m * m * 4 * m + 10 * m**3)
    assert flops(shape, replace(config, muon_dtype="bfloat16")) == standard + square
    assert flops(shape, replace(config, name="adamw")) == 0


def test_degree_nine_takes_two_products_a_step_and_three_steps() -> None:
    m = 64
    plain = 3 * 4 * m**3 + 3 * 2 * 2 * m**3
    assert sum(count_flops(m, m, is_float32=True, coefficients="polar_express_nonic")) == plain
    # R, then Z twice a step, Q from the second step on, R twice but for the last step, and Q X.
    gram = 4 * m * m * 3 * m + 2 * (3 * 2 + 2 + 2 * 2) * m**3
    assert sum(count_flops(m, 3 * m, is_float32=True, coefficients="polar_express_nonic")) == gram


def test_stacks_are_even_and_within_their_bounds() -> None:
    square = 1024 * 1024
    assert stack_size(40, square, is_on_cpu=False) == 14  # three stacks: 16 at most, 40 = 14 + 14 + 12
    assert stack_size(40, square, is_on_cpu=True) == 1
    assert stack_size(8, 128 * 128, is_on_cpu=True) == 8
    assert stack_size(3, 4 * square, is_on_cpu=False) == 3
    assert stack_size(1, 100 * square, is_on_cpu=False) == 1


def test_the_form_is_the_cheaper_one_on_both_sides_of_the_border() -> None:
    for m, n in [(64, 64), (64, 95), (64, 97), (128, 512)]:
        gram, steps = 4 * m * m * n + 34 * m**3, 20 * m * m * n + 10 * m**3
        assert sum(count_flops(m, n, is_float32=True, coefficients="polar_express")) == min(gram, steps)
        assert takes_gram_form(n, m, is_float32=True) == (gram < steps)
        assert sum(count_flops(m, n, is_float32=False, coefficients="polar_express")) == steps


def test_the_published_model_by_hand() -> None:
    # Units of 1024³: a recurrent block's qkv 46, gate and proj 30, up and down 50; a local one has no gate.
    units = 16 * (46 + 30 + 30 + 50 + 50) + 4 * (46 + 30 + 50 + 50)
    found = orthogonalizations(BIG, OptimizerConfig(coefficients="polar_express"))
    blocks = sum(each.long_flops + each.square_flops for each in found if each.m == 1024)
    assert blocks == units * 1024**3


def test_bytes_of_an_update_and_of_an_accumulation() -> None:
    assert update_bytes(BIG, "adamw", 4) == 28 * PARAMETERS
    assert update_bytes(BIG, "adamw", 2) == 14 * PARAMETERS
    assert 20 * PARAMETERS < update_bytes(BIG, "muon", 4) < 20.1 * PARAMETERS
    assert accumulation_bytes(BIG, 4) == 12 * PARAMETERS
