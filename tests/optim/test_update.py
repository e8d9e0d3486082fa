"""Muon, AdamW and the update as a whole, against float64 loops over several steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from mlx_amort.config.values import OptimizerConfig, OptimizerName
from mlx_amort.optim.muon import muon_update
from mlx_amort.optim.update import apply_update, gradient_norm, init_optimizer_state
from tests.reference import optim as reference

Arrays = dict[str, NDArray[np.float64]]
MX = dict[str, mx.array]

SHAPES = {
    "tok": (24, 16),
    "pos": (8, 16),
    "blocks.0.qkv": (48, 16),
    "blocks.0.proj": (16, 16),
    "blocks.0.up": (64, 16),
    "blocks.0.down": (16, 64),
    "blocks.0.decay_w": (1, 16),
    "blocks.0.decay_b": (1,),
    "blocks.0.conv": (48, 4),
    "blocks.0.n1": (16,),
    "blocks.1.proj": (16, 16),
    "blocks.1.up": (64, 16),
}
MUON_NAMES = [name for name in SHAPES if name.split(".")[-1] in {"qkv", "proj", "up", "down", "decay_w"}]
UNDECAYED = {"pos", "blocks.0.decay_b", "blocks.0.n1"}
NEVER = 1e9  # a norm that no gradient here reaches
RATES = [0.01, 0.02, 0.02, 0.005]
# Float32 against float64 over four steps; Newton-Schulz adds 2e-4 of a step, itself a tenth of the weight.
ERROR_OF_FLOAT32 = 5e-5


def draw(seed: int, scale: float = 1.0) -> Arrays:
    generator = np.random.default_rng(seed)
    return {name: scale * generator.normal(size=shape) for name, shape in SHAPES.items()}


def to_mx(arrays: Arrays, dtype: mx.Dtype = mx.float32) -> MX:
    return {name: mx.array(array, dtype=mx.float32).astype(dtype) for name, array in arrays.items()}


def run(weights: MX, gradients: list[MX], config: OptimizerConfig) -> tuple[MX, MX, list[float]]:
    state = init_optimizer_state(weights, config)
    norms = []
    for gradient, rate in zip(gradients, RATES, strict=True):
        weights, state, norm = apply_update(weights, gradient, state, mx.array(rate), mx.array(True), config)
        norms.append(scalar(norm))
    return weights, state, norms


def relative_error(result: mx.array, expected: NDArray[np.float64]) -> float:
    return float(np.linalg.norm(np.array(result) - expected) / np.linalg.norm(expected))


def scalar(array: mx.array) -> float:
    return float(np.array(array))


def match_rms(rows: int, columns: int) -> float:
    return 0.2 * math.sqrt(max(rows, columns))


def aspect_ratio(rows: int, columns: int) -> float:
    return math.sqrt(max(1, rows / columns))


@pytest.mark.parametrize(
    ("config", "scale"),
    [
        (OptimizerConfig(clip_norm=NEVER), match_rms),
        (
            OptimizerConfig(clip_norm=NEVER, coefficients="jordan", muon_scale="aspect_ratio", momentum=0.8),
            aspect_ratio,
        ),
        (OptimizerConfig(clip_norm=2.0, weight_decay=1.0), match_rms),
    ],
)
def test_muon_and_adamw_follow_their_formulas(
    config: OptimizerConfig, scale: Callable[[int, int], float]
) -> None:
    start, gradients = draw(0), [draw(seed) for seed in (1, 2, 3, 4)]
    weights, state, norms = run(to_mx(start), [to_mx(gradient) for gradient in gradients], config)
    expected_norms = [reference.global_norm(list(gradient.values())) for gradient in gradients]
    assert norms == pytest.approx(expected_norms, rel=1e-6)
    if config.clip_norm < NEVER:
        assert min(norms) > config.clip_norm
        gradients = [
            {name: array * config.clip_norm / norm for name, array in gradient.items()}
            for gradient, norm in zip(gradients, expected_norms, strict=True)
        ]
    for name in SHAPES:
        own = [gradient[name] for gradient in gradients]
        decay = 0.0 if name in UNDECAYED else config.weight_decay
        expected: dict[str, NDArray[np.float64]]
        if name in MUON_NAMES:
            weight, buffer = reference.muon_steps(
                start[name],
                own,
                RATES,
                decay=decay,
                momentum=config.momentum,
                coefficients=config.coefficients,
                scale=scale,
            )
            expected = {"momentum": buffer}
        else:
            weight, first, second = reference.adamw_steps(
                start[name], own, RATES, decay=decay, beta1=config.beta1, beta2=config.beta2, eps=config.eps
            )
            expected = {"first": first, "second": second}
        assert relative_error(weights[name], weight) < ERROR_OF_FLOAT32, name
        for kind, array in expected.items():
            assert relative_error(state[f"{kind}/{name}"], array) < ERROR_OF_FLOAT32, (kind, name)
    assert state["updates"].item() == len(RATES)


def test_adamw_owns_all_when_asked() -> None:
    config = OptimizerConfig(name="adamw", clip_norm=NEVER, beta1=0.0, beta2=0.999)
    start, gradients = draw(0), [draw(seed) for seed in (1, 2, 3, 4)]
    weights, state, _ = run(to_mx(start), [to_mx(gradient) for gradient in gradients], config)
    assert set(state) == {"updates"} | {f"{kind}/{name}" for kind in ("first", "second") for name in SHAPES}
    name = "blocks.0.up"
    own = [gradient[name] for gradient in gradients]
    weight, _, _ = reference.adamw_steps(start[name], own, RATES, decay=0.1, beta1=0.0, beta2=0.999, eps=1e-8)
    assert relative_error(weights[name], weight) < ERROR_OF_FLOAT32


def test_first_adamw_step_has_the_size_of_the_learning_rate() -> None:
    config = OptimizerConfig(name="adamw", weight_decay=0.0, beta2=0.999, clip_norm=NEVER)
    weights = {"tok": mx.zeros((4, 4))}
    weights, _, _ = apply_update(
        weights,
        {"tok": mx.full((4, 4), 1e-3)},
        init_optimizer_state(weights, config),
        mx.array(0.01),
        mx.array(True),
        config,
    )
    np.testing.assert_allclose(np.array(weights["tok"]), -0.01, rtol=1e-4)


def test_a_muon_update_has_the_size_of_an_adamw_one() -> None:
    config = OptimizerConfig(weight_decay=0.0)
    weights = {"blocks.0.up": mx.zeros((256, 64)), "blocks.0.proj": mx.zeros((64, 64))}
    gradients = {name: mx.random.normal(w.shape, key=mx.random.key(5)) for name, w in weights.items()}
    moved, _ = muon_update(weights, gradients, weights, mx.array(1.0), config)
    for name in weights:
        rms = float(mx.sqrt(mx.square(moved[name]).mean()))
        assert rms == pytest.approx(0.2, rel=0.1), name


def test_stacks_larger_than_one_part_equal_matrices_alone() -> None:
    config = OptimizerConfig()
    names = [f"blocks.{index}.proj" for index in range(19)]
    weights = {name: mx.random.normal((8, 8), key=mx.random.key(i)) for i, name in enumerate(names)}
    gradients = {name: mx.random.normal((8, 8), key=mx.random.key(100 + i)) for i, name in enumerate(names)}
    zeros = {name: mx.zeros((8, 8)) for name in names}
    together, _ = muon_update(weights, gradients, zeros, mx.array(0.1), config)
    assert list(together) == names
    for name in names:
        alone, _ = muon_update(
            {name: weights[name]}, {name: gradients[name]}, {name: zeros[name]}, mx.array(0.1), config
        )
        np.testing.assert_allclose(np.array(together[name]), np.array(alone[name]), rtol=0, atol=1e-6)


def test_small_gradients_are_not_clipped() -> None:
    config = OptimizerConfig(name="adamw", clip_norm=1.0)
    weights = to_mx(draw(0))
    gradients = to_mx(draw(1, scale=1e-3))
    unclipped = replace(config, clip_norm=NEVER)
    clipped, state, norm = apply_update(
        weights, gradients, init_optimizer_state(weights, config), mx.array(0.1), mx.array(True), config
    )
    _, expected, _ = apply_update(
        weights, gradients, init_optimizer_state(weights, config), mx.array(0.1), mx.array(True), unclipped
    )
    assert scalar(norm) < 1.0
    assert all(mx.array_equal(state[name], expected[name]) for name in state)
    assert set(clipped) == set(weights)


@pytest.mark.parametrize("name", ["muon", "adamw"])
def test_zero_gradients_only_decay(name: str) -> None:
    config = OptimizerConfig(name="muon" if name == "muon" else "adamw")
    weights = to_mx(draw(0))
    zeros = {key: mx.zeros_like(array) for key, array in weights.items()}
    moved, _, norm = apply_update(
        weights, zeros, init_optimizer_state(weights, config), mx.array(0.1), mx.array(True), config
    )
    assert scalar(norm) == 0.0
    for key in weights:
        factor = 1.0 if key in UNDECAYED else 1 - 0.1 * config.weight_decay
        np.testing.assert_allclose(np.array(moved[key]), factor * np.array(weights[key]), rtol=1e-6)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize("fault", ["loss", "nan", "inf"])
def test_what_is_not_finite_changes_nothing(fault: str, dtype: mx.Dtype) -> None:
    config = OptimizerConfig()
    key = mx.random.key(7)

    @mx.compile
    def update(
        weights: MX, gradients: MX, state: MX, rate: mx.array, is_finite: mx.array
    ) -> tuple[MX, MX, mx.array]:
        return apply_update(weights, gradients, state, rate, is_finite, config, key)

    weights, gradients = to_mx(draw(0), dtype), to_mx(draw(1), dtype)
    state = init_optimizer_state(weights, config)
    weights, state, _ = update(weights, gradients, state, mx.array(0.1), mx.array(True))
    if fault != "loss":
        spoilt = np.array(gradients["blocks.0.up"].astype(mx.float32))
        spoilt[3, 4] = float(fault)
        gradients["blocks.0.up"] = mx.array(spoilt).astype(dtype)
    after, state_after, norm = update(weights, gradients, state, mx.array(0.1), mx.array(fault != "loss"))
    bits = mx.uint32 if dtype == mx.float32 else mx.uint16
    assert math.isfinite(scalar(norm)) == (fault == "loss")
    assert all(mx.array_equal(after[name].view(bits), weights[name].view(bits)) for name in weights)
    assert state_after.keys() == state.keys()
    assert state_after["updates"].item() == state["updates"].item() == 1
    for name in state.keys() - {"updates"}:
        assert mx.array_equal(state_after[name].view(bits), state[name].view(bits)), name


def test_a_refused_update_does_not_advance_the_bias_correction() -> None:
    config = OptimizerConfig(name="adamw")
    weights, gradients = to_mx(draw(0)), to_mx(draw(1))
    state = init_optimizer_state(weights, config)
    straight, _, _ = apply_update(weights, gradients, state, mx.array(0.1), mx.array(True), config)
    kept, state, _ = apply_update(weights, gradients, state, mx.array(0.1), mx.array(False), config)
    detour, _, _ = apply_update(kept, gradients, state, mx.array(0.1), mx.array(True), config)
    assert all(mx.array_equal(straight[name], detour[name]) for name in weights)


def test_a_changing_learning_rate_traces_once() -> None:
    config = OptimizerConfig()
    traces = 0

    def counted(weights: MX, gradients: MX, state: MX, rate: mx.array) -> tuple[MX, MX, mx.array]:
        nonlocal traces
        traces += 1
        return apply_update(weights, gradients, state, rate, mx.array(True), config)

    update = mx.compile(counted)
    weights, gradients = to_mx(draw(0)), to_mx(draw(1))
    state = init_optimizer_state(weights, config)
    for rate in RATES:
        weights, state, _ = update(weights, gradients, state, mx.array(rate))
        mx.eval(weights, state)
    assert traces == 1
    eager, _, _ = run(to_mx(draw(0)), [gradients] * len(RATES), config)
    for name in weights:
        np.testing.assert_allclose(np.array(weights[name]), np.array(eager[name]), rtol=0, atol=1e-5)


def test_weights_and_state_are_written_in_place() -> None:
    config = OptimizerConfig(name="adamw")
    shapes = {f"blocks.{index}.proj": (256, 256) for index in range(24)}

    @mx.compile
    def update(weights: MX, gradients: MX, state: MX, rate: mx.array) -> tuple[MX, MX, mx.array]:
        return apply_update(weights, gradients, state, rate, mx.array(True), config)

    weights = {key: mx.random.normal(shape) for key, shape in shapes.items()}
    state = init_optimizer_state(weights, config)
    elements = sum(weight.size for weight in weights.values())
    for _ in range(3):
        gradients = {key: mx.random.normal(shape) for key, shape in shapes.items()}
        mx.eval(weights, gradients, state)
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        weights, state, norm = update(weights, gradients, state, mx.array(0.1))
        del gradients
        mx.eval(weights, state, norm)
    # Bytes an element beside what was there; 12 when nothing is reused.
    assert (mx.get_peak_memory() - before) / elements < 0.5


@pytest.mark.parametrize(("optimizer", "most"), [("muon", 20), ("adamw", 16)])
def test_rounding_by_chance_holds_the_temporaries_of_one_tensor_at_a_time(
    optimizer: OptimizerName, most: int
) -> None:
    config = OptimizerConfig(name=optimizer)
    shapes = {f"blocks.{index}.up": (1024, 256) for index in range(12)}

    @mx.compile
    def update(weights: MX, gradients: MX, state: MX, key: mx.array) -> tuple[MX, MX, mx.array]:
        return apply_update(weights, gradients, state, mx.array(0.1), mx.array(True), config, key)

    weights = {name: mx.random.normal(shape).astype(mx.bfloat16) for name, shape in shapes.items()}
    state = init_optimizer_state(weights, config)
    for step in range(3):
        gradients = {name: mx.random.normal(shape).astype(mx.bfloat16) for name, shape in shapes.items()}
        mx.eval(weights, gradients, state)
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        weights, state, norm = update(weights, gradients, state, mx.random.key(step))
        del gradients
        mx.eval(weights, state, norm)
    # In float32 tensors; all twelve at once held twice as many.
    assert (mx.get_peak_memory() - before) / (1024 * 256 * 4) < most


def test_norm_of_many_elements_is_exact() -> None:
    gradients = {"tok": mx.full((2048, 4096), 0.5), "n1": mx.zeros((8,))}
    assert scalar(gradient_norm(gradients)) == pytest.approx(0.5 * math.sqrt(2048 * 4096), rel=1e-6)
    short = {"tok": mx.full((4096,), 100, dtype=mx.bfloat16)}
    assert scalar(gradient_norm(short)) == pytest.approx(6400, rel=1e-6)
