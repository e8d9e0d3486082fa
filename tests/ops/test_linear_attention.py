"""The three forms of gated linear attention against the float64 loop over slots, and against each other."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_amort.ops.linear_attention import gla_chunkwise, gla_recurrent, gla_step
from mlx_amort.ops.paths import forced_path
from tests.reference import formulas
from tests.reference.autodiff import Array, Tensor, differentiate
from tests.tolerances import assert_close

Inputs = tuple[Array, ...]  # q, k, v, log_decay, state
Form = Callable[[mx.array, mx.array, mx.array, mx.array, mx.array], tuple[mx.array, mx.array]]

SUB_CHUNK = 4
NAMES = ("q", "k", "v", "log_decay", "state")
GATES: dict[str, Callable[[Array], Array]] = {
    "usual": lambda normal: -np.logaddexp(0.0, normal),
    "open": lambda normal: 0.0 * normal,
    "nearly open": lambda normal: -1e-6 * np.abs(normal),
    "nearly shut": lambda normal: -30.0 + 0.0 * normal,
    "shut": lambda normal: -1000.0 + 0.0 * normal,
    "open and shut by turns": lambda normal: np.where(normal > 0, -1e-6, -1000.0),
    "half open after shut": lambda normal: np.where(normal > -1, -0.1 * np.abs(normal), -1000.0),
}


def _draw(B: int, h: int, N: int, d: int, gate: str = "usual", seed: int = 0) -> Inputs:
    """Inputs that float32 holds exactly."""
    generator = np.random.default_rng([seed, B, h, N, d])
    q, k, v = (generator.normal(size=(B, h, N, d)) for _ in range(3))
    log_decay = GATES[gate](generator.normal(size=(B, h, N)))
    state = generator.normal(size=(B, h, d, d))
    return tuple(value.astype(np.float32).astype(np.float64) for value in (q, k, v, log_decay, state))


def _to_mlx(inputs: Inputs) -> list[mx.array]:
    return [mx.array(value.astype(np.float32)) for value in inputs]


def _chunkwise(
    q: mx.array, k: mx.array, v: mx.array, log_decay: mx.array, state: mx.array
) -> tuple[mx.array, mx.array]:
    return gla_chunkwise(q, k, v, log_decay, state, sub_chunk=SUB_CHUNK)


def _repeated_step(
    q: mx.array, k: mx.array, v: mx.array, log_decay: mx.array, state: mx.array
) -> tuple[mx.array, mx.array]:
    outputs = []
    for t in range(q.shape[2]):
        out, state = gla_step(q[:, :, t], k[:, :, t], v[:, :, t], log_decay[:, :, t], state)
        outputs.append(out)
    return mx.stack(outputs, axis=2), state


def _chunkwise_with_mlx_exp(
    q: mx.array, k: mx.array, v: mx.array, log_decay: mx.array, state: mx.array
) -> tuple[mx.array, mx.array]:
    with forced_path("cuda"):
        return _chunkwise(q, k, v, log_decay, state)


FORMS: dict[str, Form] = {
    "recurrent": gla_recurrent,
    "step": _repeated_step,
    "chunkwise": _chunkwise,
    "chunkwise with mlx's exp": _chunkwise_with_mlx_exp,
}


def _assert_form_matches_oracle(form: Form, inputs: Inputs, kind: str = "recurrence") -> None:
    """Output, final state, and the gradient of every input under a random weighting of both."""
    generator = np.random.default_rng(1)
    out_weighting = generator.normal(size=inputs[2].shape).astype(np.float32)
    state_weighting = generator.normal(size=inputs[4].shape).astype(np.float32)

    results: list[Array] = []

    def oracle_objective(*tensors: Tensor) -> Tensor:
        out, state = formulas.gla(*tensors)
        results[:] = [out.value, state.value]
        return (out * Tensor(out_weighting)).sum() + (state * Tensor(state_weighting)).sum()

    _, expected_gradients = differentiate(oracle_objective, inputs)

    def objective(*arrays: mx.array) -> mx.array:
        out, state = form(*arrays)
        return mx.sum(out * mx.array(out_weighting)) + mx.sum(state * mx.array(state_weighting))

    arrays = _to_mlx(inputs)
    out, state = form(*arrays)
    gradients = mx.grad(objective, argnums=(0, 1, 2, 3, 4))(*arrays)
    assert_close(out, results[0], kind, "out")
    assert_close(state, results[1], kind, "final state")
    for name, gradient, expected in zip(NAMES, gradients, expected_gradients, strict=True):
        # a shut gate has no slope left; rounding of the terms that cancel there is on the scale of the inputs
        assert_close(gradient, expected, kind, f"gradient of {name}", floor=1.0)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("length", [1, SUB_CHUNK - 1, SUB_CHUNK, SUB_CHUNK + 1, 2 * SUB_CHUNK, 11])
def test_form_matches_oracle(form: str, rows: int, length: int) -> None:
    _assert_form_matches_oracle(FORMS[form], _draw(rows, 2, length, 3))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("gate", GATES)
def test_gates_near_zero_and_one(form: str, gate: str) -> None:
    _assert_form_matches_oracle(FORMS[form], _draw(2, 2, 3 * SUB_CHUNK + 2, 3, gate))


@pytest.mark.parametrize("length", [1, 63, 64, 65, 130])
def test_default_sub_chunk(length: int) -> None:
    _assert_form_matches_oracle(gla_chunkwise, _draw(1, 2, length, 4))


@pytest.mark.parametrize("gate_scale", [1e-5, 1e-3])
def test_memory_over_thousands_of_slots(gate_scale: float) -> None:
    """Horizons of 1,000 and 100,000 slots over 3,000: what was written first still counts at the end."""
    q, k, v, log_decay, state = _draw(1, 1, 3000, 4)
    _assert_form_matches_oracle(gla_chunkwise, (q, k, v, log_decay * gate_scale, state), "large_exponents")


def test_half_open_gates_after_thousands_of_shut_ones() -> None:
    """A decay of -0.1 must not drown in the rounding of the thousands that were summed before it."""
    q, k, v, _, state = _draw(1, 1, 1000, 4)
    generator = np.random.default_rng(0)
    log_decay = np.where(
        generator.random((1, 1, 1000)) < 0.02, -1000.0, -0.03 * generator.random((1, 1, 1000))
    )
    log_decay = log_decay.astype(np.float32).astype(np.float64)
    _assert_form_matches_oracle(gla_chunkwise, (q, k, v, log_decay, state), "large_exponents")


def test_forgetting_over_thousands_of_slots() -> None:
    """The summed log decay passes -2,000, far beyond what exp() of a float32 can hold or invert."""
    _assert_form_matches_oracle(gla_chunkwise, _draw(1, 1, 3000, 4), "large_exponents")


@settings(deadline=None, max_examples=25)
@given(
    length=st.integers(1, 14),
    cut=st.integers(0, 14),
    sub_chunks=st.tuples(st.integers(1, 16), st.integers(1, 16)),
    gate=st.sampled_from(sorted(GATES)),
    seed=st.integers(0, 99),
)
def test_forms_agree_for_any_cut(
    length: int, cut: int, sub_chunks: tuple[int, int], gate: str, seed: int
) -> None:
    arrays = _to_mlx(_draw(1, 2, length, 3, gate, seed))
    expected_out, expected_state = gla_recurrent(*arrays)
    step_out, step_state = _repeated_step(*arrays)
    assert_close(step_out, np.array(expected_out), "reordered", "out of repeated steps")
    assert_close(step_state, np.array(expected_state), "reordered", "state of repeated steps")

    state, outputs = arrays[4], []
    cut = min(cut, length)
    for start, stop, sub_chunk in ((0, cut, sub_chunks[0]), (cut, length, sub_chunks[1])):
        if start < stop:
            q, k, v, log_decay = (x[:, :, start:stop] for x in arrays[:4])
            out, state = gla_chunkwise(q, k, v, log_decay, state, sub_chunk=sub_chunk)
            outputs.append(out)
    assert_close(mx.concatenate(outputs, axis=2), np.array(expected_out), "reordered", "out")
    assert_close(state, np.array(expected_state), "reordered", "state")


def test_a_slot_that_does_not_decay_or_write_leaves_the_state_alone() -> None:
    """Bit for bit: this is how slots without a boundary are passed over."""
    q, k, v, log_decay, state = _to_mlx(_draw(2, 2, 7, 3))
    for form in FORMS.values():
        _, after = form(q, mx.zeros_like(k), v, mx.zeros_like(log_decay), state)
        assert np.array_equal(np.array(after), np.array(state))


@pytest.mark.parametrize("form", FORMS)
def test_state_stays_float32_under_bfloat16_inputs(form: str) -> None:
    q, k, v, log_decay, state = _to_mlx(_draw(2, 2, 11, 4))
    q, k, v = (x.astype(mx.bfloat16) for x in (q, k, v))
    exact = [Tensor(np.array(x.astype(mx.float32))) for x in (q, k, v, log_decay, state)]
    expected_out, expected_state = formulas.gla(*exact)
    out, after = FORMS[form](q, k, v, log_decay, state)
    assert after.dtype == mx.float32
    assert_close(out.astype(mx.float32), expected_out.value, "bf16_operation", "out")
    # no rounding of the inputs is left to blame: the state is as good as float32
    assert_close(after, expected_state.value, "recurrence", "state")
