"""Byte after byte, a decoder says what the training forward says, in constant time and memory."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from functools import cache
from typing import get_args

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from mlx_amort.config.model import ModelConfig
from mlx_amort.model.byte_lm import ByteLM, Weights
from mlx_amort.model.decoding import Decoder, DecodeState
from mlx_amort.ops.constants import Backend, Precision
from mlx_amort.ops.paths import forced_path
from tests.reference.byte_lm import Shape
from tests.reference.make_golden import draw_parameters, draw_tokens
from tests.tolerances import assert_close

# Two and a half chunks are fed; the third is drawn whole, because the training forward takes whole chunks.
BASE = Shape("hybrid", hidden=16, layers=2, ffn=24, heads=2, seq=16, batch=1, chunks=3)
FED = 40

CASES: dict[str, tuple[Shape, str]] = {
    "dense": (dataclasses.replace(BASE, trunk="dense"), "words"),
    "recurrent": (dataclasses.replace(BASE, trunk="recurrent"), "words"),
    "patched": (dataclasses.replace(BASE, trunk="patched"), "words"),
    "hybrid": (BASE, "words"),
    "hybrid, more boundaries than slots": (BASE, "punctuation"),
    "patched, more boundaries than slots": (dataclasses.replace(BASE, trunk="patched"), "punctuation"),
    "hybrid, slots left empty": (BASE, "letters"),
    "hybrid, rule first": (dataclasses.replace(BASE, boundary_rule="first"), "punctuation"),
    "hybrid, stride 2": (dataclasses.replace(BASE, patch_stride=2), "bytes"),
}


@cache
def decoder_of(shape: Shape, precision: Precision = "fp32") -> Decoder:
    sizes = dataclasses.asdict(shape)
    del sizes["batch"], sizes["chunks"]
    return Decoder(ByteLM(ModelConfig(**sizes), precision))


def weights_of(shape: Shape) -> Weights:
    return {name: mx.array(value.astype(np.float32)) for name, value in draw_parameters(shape, 1).items()}


def trained_forward(decoder: Decoder, weights: Weights, text: bytes) -> NDArray[np.float32]:
    """Logits [bytes, V] by the forward that trains."""
    model = decoder.model
    return np.array(model.forward(weights, mx.array([list(text)]), model.zero_state(1))[0][0])


def fed(decoder: Decoder, weights: Weights, text: bytes, state: DecodeState) -> NDArray[np.float32]:
    """Logits [bytes, V] byte after byte."""
    return np.array(mx.stack([decoder.step(weights, byte, state) for byte in text]))


@pytest.fixture
def eager() -> Iterator[None]:
    """Nothing compiled: kernels made for one short test would take longer than the test."""
    mx.disable_compile()
    yield
    mx.enable_compile()


@pytest.mark.parametrize("name", CASES)
def test_decoding_equals_the_training_forward(name: str) -> None:
    shape, kind = CASES[name]
    decoder, weights = decoder_of(shape), weights_of(shape)
    text = draw_tokens(shape, kind, seed=1)[0, :-1].tobytes()
    expected = trained_forward(decoder, weights, text)
    logits = fed(decoder, weights, text[:FED], decoder.start())
    assert_close(logits, expected[:FED], "model", "logits")
    np.testing.assert_allclose(logits, expected[:FED], atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("prompt", [1, 15, 16, 17, 32, 33])
def test_a_prompt_read_by_chunks_goes_on_as_if_fed(name: str, prompt: int) -> None:
    shape, kind = CASES[name]
    decoder, weights = decoder_of(shape), weights_of(shape)
    text = draw_tokens(shape, kind, seed=2)[0, :-1].tobytes()
    expected = trained_forward(decoder, weights, text)
    first, state = decoder.read(weights, text[:prompt])
    rest = fed(decoder, weights, text[prompt:FED], state)
    np.testing.assert_allclose(np.array(first), expected[prompt - 1], atol=1e-4, rtol=0)
    np.testing.assert_allclose(rest, expected[prompt:FED], atol=1e-4, rtol=0)


def test_the_cases_overflow_and_underfill_their_slots() -> None:
    for name, is_full in (("hybrid, more boundaries than slots", True), ("hybrid, slots left empty", False)):
        shape, kind = CASES[name]
        decoder, weights, state = decoder_of(shape), weights_of(shape), decoder_of(shape).start()
        text = draw_tokens(shape, kind, seed=1)[0, : shape.seq].tobytes()
        fed(decoder, weights, text, state)
        boundaries = sum(not chr(byte).isalnum() for byte in text[1:]) + 1
        assert (boundaries > shape.slots) == is_full
        assert state.slots_used == min(boundaries, shape.slots)


def test_a_byte_without_a_slot_leaves_the_trunk_alone() -> None:
    decoder, weights = decoder_of(BASE), weights_of(BASE)
    _, state = decoder.read(weights, b"a. ")
    trunk, used = state.trunk, state.slots_used
    decoder.step(weights, ord("b"), state)
    assert state.trunk is trunk and state.slots_used == used
    decoder.step(weights, ord("."), state)
    assert state.trunk is not trunk and state.slots_used == used + 1
    # The rule `first` passes over a boundary that follows another.
    first = decoder_of(dataclasses.replace(BASE, boundary_rule="first"))
    _, state = first.read(weights, b"a.")
    first.step(weights, ord(" "), state)
    assert state.slots_used == 2


@pytest.mark.parametrize("trunk", ["dense", "hybrid"])
def test_memory_stays_and_nothing_is_traced_again(trunk: str) -> None:
    shape = dataclasses.replace(BASE, trunk=trunk)
    decoder, weights = Decoder(decoder_of(shape).model), weights_of(shape)
    _, state = decoder.read(weights, b"a. b c. d ")
    shapes = [array.shape for cache in (*state.local, *state.trunk) for array in cache]
    nbytes, active_bytes = state.nbytes, mx.get_active_memory()
    for position in range(10, 1000):
        decoder.step(weights, b"ab. "[position % 4], state)
    assert state.nbytes == nbytes > 0
    assert [array.shape for cache in (*state.local, *state.trunk) for array in cache] == shapes
    assert mx.get_active_memory() <= active_bytes + 4096
    assert set(decoder.traces.values()) == {1}
    assert set(decoder.traces) == ({"with trunk", "without trunk"} if shape.is_patched else {"with trunk"})


def test_a_snapshot_goes_its_own_way() -> None:
    decoder, weights = decoder_of(BASE), weights_of(BASE)
    _, state = decoder.read(weights, b"one, two")
    snapshot = copy.copy(state)
    expected = fed(decoder, weights, b", three", state)
    np.testing.assert_array_equal(fed(decoder, weights, b", three", snapshot), expected)


def test_bfloat16_and_weights_rounded_beforehand(eager: None) -> None:
    decoder, weights = decoder_of(BASE, "bf16"), weights_of(BASE)
    text = draw_tokens(BASE, "words", seed=1)[0, :-1].tobytes()
    logits = fed(decoder, weights, text[:FED], decoder.start())
    assert_close(logits, trained_forward(decoder, weights, text)[:FED], "bf16_model", "logits")
    prepared = decoder.prepare(weights)
    assert prepared["tok"].dtype == mx.bfloat16 and prepared["n_out"].dtype == mx.float32
    np.testing.assert_array_equal(fed(decoder, prepared, text[:FED], decoder.start()), logits)


@pytest.mark.parametrize("path", get_args(Backend))
def test_every_backend_path(path: Backend, eager: None) -> None:
    weights = weights_of(BASE)
    text = draw_tokens(BASE, "words", seed=1)[0, :-1].tobytes()
    decoder = Decoder(decoder_of(BASE).model)
    with forced_path(path):
        logits = fed(decoder, weights, text[:FED], decoder.start())
        expected = trained_forward(decoder, weights, text)
    np.testing.assert_allclose(logits, expected[:FED], atol=1e-4, rtol=0)
