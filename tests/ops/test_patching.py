"""Boundaries, slots, gathering and scattering against plain Python loops over bytes."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mlx_amort.ops.patching import BoundaryRule, assign_slots, gather_slots, is_boundary, scatter_slots
from tests.reference.patching import boundary_positions, owning_positions

RULES = ["every", "first"]
# few, exactly 4, and more than 4 boundaries under `every`
TEXTS = [
    b"abcdefghijklmnop",
    b"abc def ghi jklm",
    b"a, (b) = c[1:2];",
    b"    \t\n  x    y  ",
    "größe—été 日本".encode()[:16],
]


def _rows(texts: list[bytes]) -> NDArray[np.uint8]:
    return np.array([list(text) for text in texts], dtype=np.uint8)


def _expected_boundaries(tokens: NDArray[np.uint8], rule: BoundaryRule) -> NDArray[np.bool_]:
    expected = np.zeros(tokens.shape, dtype=bool)
    for row, chunk in enumerate(tokens.tolist()):
        expected[row, boundary_positions(chunk, rule)] = True
    return expected


@pytest.mark.parametrize("rule", RULES)
def test_every_pair_of_bytes(rule: BoundaryRule) -> None:
    pairs = np.array(
        [[ord("a"), first, second] for first in range(256) for second in range(256)], dtype=np.uint8
    )
    found = np.array(is_boundary(mx.array(pairs), rule))
    assert found.dtype == bool
    assert (found == _expected_boundaries(pairs, rule)).all()


@pytest.mark.parametrize("rule", RULES)
@settings(deadline=None, max_examples=40)
@given(chunk=st.binary(min_size=1, max_size=24), slots=st.integers(1, 24))
def test_boundaries_and_slots_of_any_bytes(rule: BoundaryRule, chunk: bytes, slots: int) -> None:
    tokens = _rows([chunk, chunk[::-1]])
    boundary = is_boundary(mx.array(tokens), rule)
    assert (np.array(boundary) == _expected_boundaries(tokens, rule)).all()
    slot_of_byte, position, valid = map(np.array, assign_slots(boundary, slots))
    assert slot_of_byte.shape == tokens.shape and position.shape == valid.shape == (2, slots)
    assert valid.dtype == bool
    for row, bytes_of_row in enumerate(tokens.tolist()):
        owners = owning_positions(bytes_of_row, slots, rule)
        assert valid[row].tolist() == [j < len(owners) for j in range(slots)]
        assert position[row, : len(owners)].tolist() == owners
        expected = [owners.index(t) if t in owners else slots for t in range(len(bytes_of_row))]
        assert slot_of_byte[row].tolist() == expected
        assert ((position[row] >= 0) & (position[row] < len(bytes_of_row))).all(), "a gather must stay inside"


def test_continuation_bytes_belong_to_their_letter() -> None:
    tokens = _rows(["aéb—c".encode()])  # 61 C3 A9 62 E2 80 94 63
    boundary = np.array(is_boundary(mx.array(tokens), "every"))
    assert np.flatnonzero(boundary[0]).tolist() == [0, 1, 4]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("slots", [1, 4, 16])
def test_gather_takes_the_owners_and_scatter_gives_back_to_them(rule: BoundaryRule, slots: int) -> None:
    tokens = _rows(TEXTS)
    B, S, H = *tokens.shape, 3
    generator = np.random.default_rng(slots)
    x = generator.normal(size=(B, S, H)).astype(np.float32)
    g = generator.normal(size=(B, slots, H)).astype(np.float32)
    weighting = generator.normal(size=(B, S, H)).astype(np.float32)
    slot_of_byte, position, valid = assign_slots(is_boundary(mx.array(tokens), rule), slots)
    owners = [owning_positions(row, slots, rule) for row in tokens.tolist()]

    gathered = np.array(gather_slots(mx.array(x), position, valid, slot_of_byte))
    expected_scattered, expected_g_gradient = x.copy(), np.zeros_like(g)
    for row in range(B):
        np.testing.assert_array_equal(gathered[row, : len(owners[row])], x[row, owners[row]])
        assert (gathered[row, len(owners[row]) :] == 0).all()
        for j, t in enumerate(owners[row]):
            expected_scattered[row, t] += g[row, j]
            expected_g_gradient[row, j] = weighting[row, t]
    scattered = np.array(scatter_slots(mx.array(x), mx.array(g), position, valid, slot_of_byte))
    np.testing.assert_array_equal(scattered, expected_scattered)

    def objective(x: mx.array, g: mx.array) -> mx.array:
        return mx.sum(scatter_slots(x, g, position, valid, slot_of_byte) * mx.array(weighting))

    x_gradient, g_gradient = mx.grad(objective, argnums=(0, 1))(mx.array(x), mx.array(g))
    np.testing.assert_array_equal(np.array(x_gradient), weighting)
    np.testing.assert_array_equal(np.array(g_gradient), expected_g_gradient)

    def gathered_objective(x: mx.array) -> mx.array:
        return mx.sum(gather_slots(x, position, valid, slot_of_byte) * mx.array(g))

    gather_gradient = np.array(mx.grad(gathered_objective)(mx.array(x)))
    expected_gather_gradient = np.zeros_like(x)
    for row in range(B):
        for j, t in enumerate(owners[row]):
            expected_gather_gradient[row, t] = g[row, j]
    np.testing.assert_array_equal(gather_gradient, expected_gather_gradient)


def test_what_stands_in_invalid_slots_never_reaches_a_byte() -> None:
    tokens = _rows([b"abcdefgh", b"a b c d "])
    slot_of_byte, position, valid = assign_slots(is_boundary(mx.array(tokens), "every"), 4)
    x, g = mx.zeros((2, 8, 3)), mx.where(valid[..., None], mx.ones((2, 4, 3)), mx.array(float("nan")))
    scattered = np.array(scatter_slots(x, g, position, valid, slot_of_byte))
    assert np.isfinite(scattered).all()
    assert scattered[..., 0].tolist() == [[1, *[0] * 7], [1, 1, 0, 1, 0, 1, 0, 0]]
