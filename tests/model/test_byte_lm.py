"""The four trunks against the float64 oracle, and what must hold of any of them."""

from __future__ import annotations

import dataclasses
import math
from functools import cache
from typing import Any, get_args

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mlx_amort.config.model import ModelConfig, Trunk
from mlx_amort.model.byte_lm import ByteLM
from mlx_amort.ops.constants import Backend, Precision
from mlx_amort.ops.paths import forced_path
from tests.reference.byte_lm import Result, Shape, run
from tests.reference.make_golden import draw_parameters, draw_tokens
from tests.tolerances import assert_close

Weights = dict[str, mx.array]
TRUNKS: tuple[Trunk, ...] = get_args(Trunk)
BASE = Shape("hybrid", hidden=16, layers=2, ffn=24, heads=2, seq=16, batch=2, chunks=2)

# name -> shape, text; `mixed` puts a row with fewer, one with exactly as many, and one with more boundaries
# than slots into one batch
CASES: dict[str, tuple[Shape, str]] = {
    **{trunk: (dataclasses.replace(BASE, trunk=trunk), "words") for trunk in TRUNKS},
    **{
        f"{trunk} mixed": (dataclasses.replace(BASE, trunk=trunk, batch=3), "mixed")
        for trunk in ("patched", "hybrid")
    },
    "hybrid first": (dataclasses.replace(BASE, boundary_rule="first", batch=3), "mixed"),
    "hybrid stride 1": (dataclasses.replace(BASE, patch_stride=1, seq=8), "bytes"),
    "hybrid stride 2 first": (
        dataclasses.replace(BASE, patch_stride=2, boundary_rule="first"),
        "punctuation",
    ),
    "hybrid stride 16": (dataclasses.replace(BASE, patch_stride=16, chunks=3), "punctuation"),
    "one row": (dataclasses.replace(BASE, batch=1, chunks=3), "words"),
    "one head": (dataclasses.replace(BASE, heads=1, layers=1), "words"),
    "as many heads as columns": (dataclasses.replace(BASE, heads=16, layers=1), "words"),
    "one slot, chunks shorter than the convolution": (dataclasses.replace(BASE, seq=4, chunks=5), "letters"),
    "chunks of two bytes": (dataclasses.replace(BASE, trunk="recurrent", seq=2, chunks=5), "bytes"),
    "chunks of one byte": (dataclasses.replace(BASE, trunk="recurrent", seq=1, chunks=5), "bytes"),
    "more slots than a sub-chunk": (dataclasses.replace(BASE, trunk="recurrent", seq=70, batch=1), "words"),
}


@cache
def _oracle(name: str) -> Result:
    shape, text = CASES[name]
    return run(shape, draw_parameters(shape, seed=1), draw_tokens(shape, text, seed=1))


def _config(shape: Shape) -> ModelConfig:
    sizes = dataclasses.asdict(shape)
    del sizes["batch"], sizes["chunks"]
    return ModelConfig(**sizes)


def _weights(shape: Shape, seed: int = 1) -> Weights:
    return {name: mx.array(value.astype(np.float32)) for name, value in draw_parameters(shape, seed).items()}


def _tokens(shape: Shape, text: str = "words", seed: int = 1) -> mx.array:
    return mx.array(draw_tokens(shape, text, seed))


def _loss_and_gradients(model: ByteLM, weights: Weights, tokens: mx.array) -> tuple[mx.array, Weights, Any]:
    (loss, state), gradients = mx.value_and_grad(
        lambda weights: model.loss(weights, tokens, model.zero_state(tokens.shape[0]))
    )(weights)
    return loss, gradients, state


def _walk(model: ByteLM, weights: Weights, tokens: mx.array, shape: Shape) -> tuple[NDArray[np.float32], Any]:
    """Logits [B, K, S, V] chunk after chunk, and the state after the last."""
    state, logits = model.zero_state(tokens.shape[0]), []
    for start in range(0, shape.chunks * shape.seq, shape.seq):
        chunk_logits, state = model.forward(weights, tokens[:, start : start + shape.seq], state)
        logits.append(chunk_logits)
    return np.array(mx.stack(logits, axis=1)), state


def _assert_states_close(state: Any, expected: Any, kind: str) -> None:
    assert len(state) == len(expected)
    for layer, (one, other) in enumerate(zip(state, expected, strict=True)):
        for part, computed, reference in zip(("S", "conv"), one, other, strict=True):
            assert_close(computed.astype(mx.float32), np.array(reference), kind, f"{part} of layer {layer}")


@pytest.mark.parametrize("name", CASES)
def test_forward_matches_oracle(name: str) -> None:
    shape, text = CASES[name]
    expected = _oracle(name)
    logits, state = _walk(ByteLM(_config(shape)), _weights(shape), _tokens(shape, text), shape)
    assert_close(logits, expected.logits, "model", "logits")
    if expected.state_S is not None and expected.state_conv is not None:
        expected_state = list(zip(expected.state_S, expected.state_conv, strict=True))
        _assert_states_close(state, expected_state, "model")
    else:
        assert state == []


@pytest.mark.parametrize("name", CASES)
def test_chunks_in_one_call_equal_chunks_one_by_one(name: str) -> None:
    """Empty slots leave gaps between the chunks of a window; the streams must not notice."""
    shape, text = CASES[name]
    model, weights, tokens = ByteLM(_config(shape)), _weights(shape), _tokens(shape, text)
    expected, expected_state = _walk(model, weights, tokens, shape)
    logits, state = model.forward(weights, tokens[:, :-1], model.zero_state(shape.batch))
    assert_close(logits, expected.reshape(shape.batch, -1, shape.vocabulary), "reordered", "logits")
    _assert_states_close(state, expected_state, "reordered")


@pytest.mark.parametrize("path", get_args(Backend))
@pytest.mark.parametrize("trunk", TRUNKS)
def test_every_backend_path_matches_oracle(trunk: str, path: Backend) -> None:
    shape, text = CASES[trunk]
    expected = _oracle(trunk)
    with forced_path(path):
        loss, gradients, _ = _loss_and_gradients(
            ByteLM(_config(shape)), _weights(shape), _tokens(shape, text)
        )
    assert_close(loss, expected.loss_nats, "model", "loss")
    for parameter, gradient in gradients.items():
        assert_close(gradient, expected.gradients[parameter], "model", parameter, floor=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradients_match_oracle(name: str) -> None:
    shape, text = CASES[name]
    expected = _oracle(name)
    loss, gradients, state = _loss_and_gradients(
        ByteLM(_config(shape)), _weights(shape), _tokens(shape, text)
    )
    assert_close(loss, expected.loss_nats, "model", "loss")
    assert sorted(gradients) == sorted(expected.gradients)
    for parameter, gradient in gradients.items():
        # the q and k of attention over a single byte or slot have no slope: their rounding errors
        # are held against a small one; the RMS of the other parameters' gradients is 1e-3 to 1e-1
        assert_close(gradient, expected.gradients[parameter], "model", parameter, floor=1e-4)
    if expected.state_S is not None:
        assert_close(mx.stack([S for S, _ in state]), expected.state_S, "model", "S")


@pytest.mark.parametrize("trunk", TRUNKS)
def test_a_window_is_its_chunks_with_the_state_handed_on(trunk: str) -> None:
    shape = dataclasses.replace(BASE, trunk=trunk, chunks=3)
    model, weights, tokens = ByteLM(_config(shape)), _weights(shape), _tokens(shape)
    whole_loss, whole_state = model.loss(weights, tokens, model.zero_state(shape.batch))
    state, losses = model.zero_state(shape.batch), []
    for start in range(0, shape.chunks * shape.seq, shape.seq):
        loss, state = model.loss(weights, tokens[:, start : start + shape.seq + 1], state)
        losses.append(float(np.array(loss)))
    assert_close(whole_loss, np.mean(losses), "reordered", "loss")
    _assert_states_close(state, whole_state, "reordered")


@pytest.mark.parametrize("trunk", ["recurrent", "hybrid"])
def test_a_row_does_not_depend_on_its_neighbours(trunk: str) -> None:
    """Rows with fewer, as many and more boundaries than slots, together and alone."""
    shape = dataclasses.replace(BASE, trunk=trunk, batch=3)
    model, weights, tokens = ByteLM(_config(shape)), _weights(shape), _tokens(shape, "mixed")
    logits, state = _walk(model, weights, tokens, shape)
    for row in range(3):
        alone_logits, alone_state = _walk(model, weights, tokens[row : row + 1], shape)
        assert_close(logits[row : row + 1], alone_logits, "reordered", f"logits of row {row}")
        of_row = [(S[row : row + 1], conv[row : row + 1]) for S, conv in state]
        _assert_states_close(of_row, alone_state, "reordered")


def test_slots_without_a_boundary_leave_the_state_untouched() -> None:
    """Whether a row has 3 or 15 empty slots behind its only boundary, the carried state is the same."""
    narrow, wide = dataclasses.replace(BASE, patch_stride=4), dataclasses.replace(BASE, patch_stride=1)
    tokens, weights = _tokens(BASE, "letters"), _weights(wide)
    states = []
    for shape in (narrow, wide):
        model = ByteLM(_config(shape))
        of_shape = weights | {"slot": weights["slot"][: shape.slots]}
        states.append(_walk(model, of_shape, tokens, shape)[1])
    _assert_states_close(states[0], states[1], "reordered")


@settings(deadline=None, max_examples=15)
@given(trunk=st.sampled_from(TRUNKS), rule=st.sampled_from(["every", "first"]), data=st.data())
def test_bytes_before_t_do_not_see_bytes_after_t(trunk: str, rule: str, data: st.DataObject) -> None:
    shape = dataclasses.replace(BASE, trunk=trunk, boundary_rule=rule, batch=1, chunks=2, layers=1)
    length = shape.seq * shape.chunks
    t = data.draw(st.integers(1, length - 1))
    first, second = (data.draw(st.binary(min_size=length, max_size=length)) for _ in range(2))
    tokens = np.array([list(first), list(first[:t] + second[t:])], dtype=np.uint8)
    logits, _ = _walk(ByteLM(_config(shape)), _weights(shape), mx.array(tokens), shape)
    flat = logits.reshape(2, length, -1)
    assert_close(flat[1, :t], flat[0, :t], "reordered", f"logits before byte {t}")


@pytest.mark.parametrize("trunk", TRUNKS)
def test_later_bytes_do_see_earlier_ones(trunk: str) -> None:
    """The counterpart: the first byte moves the last logits, past the chunk's end where state is carried."""
    shape = dataclasses.replace(BASE, trunk=trunk, batch=1)
    tokens = np.array(_tokens(shape))
    changed = tokens.copy()
    changed[0, 0] ^= 1
    model, weights = ByteLM(_config(shape)), _weights(shape)
    kept, moved = (_walk(model, weights, mx.array(t), shape)[0] for t in (tokens, changed))
    assert np.abs(moved[0, 0, -1] - kept[0, 0, -1]).max() > 1e-4
    assert (np.abs(moved[0, 1, -1] - kept[0, 1, -1]).max() > 1e-6) == shape.is_recurrent


@pytest.mark.parametrize("trunk", TRUNKS)
def test_uniform_logits_cost_eight_bits(trunk: str) -> None:
    shape = dataclasses.replace(BASE, trunk=trunk)
    weights = _weights(shape) | {"n_out": mx.zeros(shape.hidden)}
    model = ByteLM(_config(shape))
    loss, _ = model.loss(weights, _tokens(shape, "bytes"), model.zero_state(shape.batch))
    assert loss.dtype == mx.float32 and loss.shape == ()
    assert float(np.array(loss)) / math.log(2) == pytest.approx(8.0, abs=1e-5)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-pure"])
@pytest.mark.parametrize("trunk", TRUNKS)
def test_every_trunk_learns_one_line(trunk: str, precision: Precision) -> None:
    """Plain gradient descent from the model's own initialisation starts near 8 bits and falls well below."""
    shape = dataclasses.replace(BASE, trunk=trunk)
    model = ByteLM(_config(shape), precision=precision)
    weights = model.init_weights(0)
    line = b"the quick brown fox jumps over the lazy dog"[: shape.seq * shape.chunks + 1]
    tokens = mx.array(np.array([list(line)] * shape.batch, dtype=np.uint8))
    losses = []
    for _ in range(12):
        loss, gradients, state = _loss_and_gradients(model, weights, tokens)
        weights = {
            name: (weight - 0.5 * gradients[name]).astype(weight.dtype) for name, weight in weights.items()
        }
        mx.eval(weights, state)
        losses.append(float(np.array(loss)) / math.log(2))
    assert losses[0] == pytest.approx(8.0, abs=0.1)
    assert losses[-1] < 6.5, losses


@pytest.mark.parametrize("trunk", TRUNKS)
def test_activation_checkpointing_gives_the_same_gradients(trunk: str) -> None:
    shape = dataclasses.replace(BASE, trunk=trunk)
    weights, tokens = _weights(shape), _tokens(shape)
    plain_loss, plain, plain_state = _loss_and_gradients(ByteLM(_config(shape)), weights, tokens)
    loss, gradients, state = _loss_and_gradients(
        ByteLM(_config(shape), activation_checkpointing=True), weights, tokens
    )
    assert_close(loss, np.array(plain_loss), "reordered", "loss")
    _assert_states_close(state, plain_state, "reordered")
    for name, gradient in gradients.items():
        assert_close(gradient, np.array(plain[name]), "reordered", name)


@pytest.mark.parametrize("trunk", ["recurrent", "hybrid"])
def test_gradient_flows_through_the_carried_state(trunk: str) -> None:
    """The second chunk's loss has a slope by what stood in the state before the first."""
    shape = dataclasses.replace(BASE, trunk=trunk)
    model, weights, tokens = ByteLM(_config(shape)), _weights(shape), _tokens(shape)

    def second_loss(S: mx.array) -> mx.array:
        state = model.zero_state(shape.batch)
        _, state = model.forward(weights, tokens[:, : shape.seq], [(S, state[0][1]), *state[1:]])
        return model.loss(weights, tokens[:, shape.seq :], state)[0]

    slope = np.array(mx.grad(second_loss)(model.zero_state(shape.batch)[0][0]))
    assert np.isfinite(slope).all() and np.abs(slope).max() > 1e-6


@pytest.mark.parametrize("precision", ["bf16", "bf16-pure"])
@pytest.mark.parametrize("trunk", TRUNKS)
def test_bfloat16_stays_near_float32(trunk: str, precision: Precision) -> None:
    shape = dataclasses.replace(BASE, trunk=trunk)
    weights, tokens = _weights(shape), _tokens(shape)
    model = ByteLM(_config(shape), precision=precision)
    rounded = {name: weight.astype(model.init_weights(0)[name].dtype) for name, weight in weights.items()}
    expected, _ = _walk(ByteLM(_config(shape)), weights, tokens, shape)
    logits, state = _walk(model, rounded, tokens, shape)
    assert logits.dtype == np.float32
    assert all(S.dtype == mx.float32 for S, _ in state)
    assert_close(logits, expected, "bf16_model", "logits")
    assert not np.allclose(logits, expected, rtol=1e-5, atol=1e-5), "nothing was rounded"
    loss, gradients, _ = _loss_and_gradients(model, rounded, tokens)
    assert loss.dtype == mx.float32
    assert all(gradients[name].dtype == weight.dtype for name, weight in rounded.items())
    assert all(np.isfinite(np.array(gradient.astype(mx.float32))).all() for gradient in gradients.values())


@pytest.mark.parametrize("trunk", TRUNKS)
def test_initial_weights(trunk: str) -> None:
    config = _config(dataclasses.replace(BASE, trunk=trunk, hidden=64, ffn=128, heads=4, layers=3))
    weights = ByteLM(config).init_weights(seed=3)
    assert {name: weight.shape for name, weight in weights.items()} == config.parameter_shapes()
    for name, weight in weights.items():
        kind, value = name.split(".")[-1], np.array(weight)
        assert weight.dtype == mx.float32
        if kind in ("n1", "n2", "n_out", "o_norm"):
            assert (value == 1).all(), name
        elif kind == "decay_w":
            assert (value == 0).all(), name
        elif kind == "decay_b":
            np.testing.assert_allclose(value, np.linspace(-6.9, -2.2, config.heads), rtol=1e-6)
        else:
            spread = 5 * 0.02 / math.sqrt(2 * value.size)  # five standard errors
            assert value.std() == pytest.approx(0.02, abs=spread), name
            assert abs(value.mean()) < 5 * 0.02 / math.sqrt(value.size), name
    drawn = {np.array(weight).tobytes() for name, weight in weights.items() if name.endswith("qkv")}
    assert len(drawn) == len(config.block_kinds), "every block draws its own numbers"


def test_initial_weights_are_a_function_of_the_seed() -> None:
    model = ByteLM(_config(BASE))
    first, again, other = model.init_weights(1), model.init_weights(1), model.init_weights(2)
    assert all(np.array_equal(np.array(first[name]), np.array(again[name])) for name in first)
    assert not np.array_equal(np.array(first["tok"]), np.array(other["tok"]))


def test_scaled_residual_initialisation() -> None:
    plain = ByteLM(_config(BASE)).init_weights(1)
    scaled = ByteLM(dataclasses.replace(_config(BASE), scale_residual_init=True)).init_weights(1)
    factor = 1 / math.sqrt(2 * BASE.blocks)
    for name in plain:
        expected = factor if name.split(".")[-1] in ("proj", "down") else 1.0
        assert_close(scaled[name], np.array(plain[name]) * expected, "elementwise", name)


def test_a_larger_vocabulary_of_wide_ids() -> None:
    config = _config(dataclasses.replace(BASE, trunk="dense", vocabulary=1000))
    model = ByteLM(config)
    weights = model.init_weights(0)
    tokens = mx.array(np.random.default_rng(0).integers(0, 1000, size=(2, config.seq + 1)).astype(np.uint16))
    loss, gradients, _ = _loss_and_gradients(model, weights, tokens)
    assert float(np.array(loss)) == pytest.approx(math.log(1000), abs=0.05)
    seen = np.unique(np.array(tokens)[:, :-1])
    unseen_size = np.abs(np.delete(np.array(gradients["tok"]), seen, axis=0)).max()
    assert np.abs(np.array(gradients["tok"])[seen]).max() > unseen_size, "ids above 255 find their own row"
