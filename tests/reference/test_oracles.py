"""The oracles themselves: gradients against central differences, the model against cases made elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import ArrayLike

from tests.reference import formulas
from tests.reference.autodiff import Array, Tensor, central_difference, concatenate, differentiate
from tests.reference.byte_lm import Shape, run
from tests.reference.make_golden import draw_parameters, draw_tokens, make_case
from tests.reference.patching import boundary_positions, owning_positions
from tests.tolerances import assert_close

ROOT = Path(__file__).resolve().parents[2]
SUPPLIED = sorted((ROOT.parent / "shared" / "golden").glob("*.npz"))
ABSENT = pytest.param(
    None, marks=pytest.mark.skip(reason="no ../shared/golden: the oracle is held to central differences only")
)
OWN = sorted((ROOT / "tests" / "golden").glob("*.npz"))


def _normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).normal(size=shape)


def _gla_in_one_piece(*inputs: Tensor) -> Tensor:
    out, state = formulas.gla(*inputs)
    return concatenate([out, state], axis=2)


OPERATIONS: dict[str, tuple[Callable[..., Tensor], list[Array]]] = {
    "gelu": (formulas.gelu, [_normal(3, 4) * 3]),
    "sigmoid": (formulas.sigmoid, [_normal(3, 4) * 3]),
    "silu": (formulas.silu, [_normal(3, 4) * 3]),
    "softplus": (formulas.softplus, [_normal(3, 4) * 3]),
    "rms_norm": (formulas.rms_norm, [_normal(3, 4), _normal(4)]),
    "linear": (formulas.linear, [_normal(2, 3, 4), _normal(5, 4)]),
    "attention": (formulas.attend_causally, [_normal(2, 5, 3, seed=seed) for seed in range(3)]),
    "gla": (
        _gla_in_one_piece,
        [
            *(_normal(2, 2, 4, 3, seed=seed) for seed in range(3)),
            -np.abs(_normal(2, 2, 4)),
            _normal(2, 2, 3, 3),
        ],
    ),
    "cross_entropy": (lambda logits: formulas.cross_entropy(logits, np.array([1, 0, 3])), [_normal(3, 4)]),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_gradient_of_an_oracle_is_the_central_difference(name: str) -> None:
    function, inputs = OPERATIONS[name]
    weighting = _normal(*function(*map(Tensor, inputs)).shape, seed=9)
    _, gradients = differentiate(function, inputs, weighting)
    for index, gradient in enumerate(gradients):

        def objective(x: Array, index: int = index) -> float:
            replaced: list[ArrayLike] = [*inputs[:index], x, *inputs[index + 1 :]]
            return float((function(*map(Tensor, replaced)).value * weighting).sum())

        assert_close(
            gradient, central_difference(objective, inputs[index]), "central_difference", f"input {index}"
        )


def test_gla_is_the_sum_written_out() -> None:
    """out_t = Σ_{s≤t} exp(Σ_{s<r≤t} log a_r) (q_t·k_s) v_s + exp(Σ_{r≤t} log a_r) q_t S_0."""
    q, k, v = (_normal(1, 1, 6, 3, seed=seed) for seed in range(3))
    log_decay, initial = -np.abs(_normal(1, 1, 6)), _normal(1, 1, 3, 3)
    out, _ = formulas.gla(*map(Tensor, (q, k, v, log_decay, initial)))
    for t in range(6):
        expected = np.exp(log_decay[0, 0, : t + 1].sum()) * q[0, 0, t] @ initial[0, 0]
        for s in range(t + 1):
            decay = np.exp(log_decay[0, 0, s + 1 : t + 1].sum())
            expected = expected + decay * (q[0, 0, t] @ k[0, 0, s]) * v[0, 0, s]
        np.testing.assert_allclose(out.value[0, 0, t], expected, rtol=1e-12, atol=1e-12)


def test_boundaries_of_a_text_counted_by_hand() -> None:
    chunk = list("ab, c  é(1)".encode())  # a b , _ c _ _ C3 A9 ( 1 )
    assert boundary_positions(chunk, "every") == [0, 2, 3, 5, 6, 7, 9, 11]
    assert boundary_positions(chunk, "first") == [0, 2, 5, 9, 11]
    assert owning_positions(chunk, slots=3) == [0, 2, 3]


@pytest.mark.parametrize("trunk", ["dense", "recurrent", "patched", "hybrid"])
def test_gradient_of_the_whole_model_is_the_central_difference(trunk: str) -> None:
    """Along one random direction a parameter."""
    shape = Shape(trunk, hidden=8, layers=1, ffn=8, heads=2, seq=8, batch=1, chunks=2, vocabulary=256)
    parameters, tokens = draw_parameters(shape, seed=3), draw_tokens(shape, "words", seed=3)
    result = run(shape, parameters, tokens)
    for name, value in parameters.items():
        direction = _normal(*value.shape, seed=5)

        def objective(x: Array, name: str = name, direction: Array = direction) -> float:
            moved = parameters[name] + x * direction
            return run(shape, {**parameters, name: moved}, tokens).loss_nats

        expected = central_difference(objective, 0.0, step=1e-6)
        # along a direction the slope may nearly vanish; float64 resolves 1e-9 of it at this loss and step
        assert_close(
            (result.gradients[name] * direction).sum(), expected, "central_difference", name, floor=0.1
        )


@pytest.mark.parametrize("path", SUPPLIED or [ABSENT])
def test_oracle_reproduces_cases_made_by_others(path: Path) -> None:
    with np.load(path) as archive:
        case = {key: archive[key] for key in archive.files}
    names = ("hidden", "layers", "ffn", "heads", "seq", "batch", "chunks")
    sizes = dict(zip(names, (int(size) for size in case["config"]), strict=True))
    shape = Shape(trunk=str(case["trunk"]), **sizes)  # type: ignore[arg-type]
    parameters = {
        key[6:]: value.astype(np.float64) for key, value in case.items() if key.startswith("param/")
    }
    assert {name: value.shape for name, value in parameters.items()} == shape.of_parameters()
    result = run(shape, parameters, case["tokens"])
    assert_close(result.loss_nats, case["loss_nats"], "stored_float32", "loss")
    assert_close(result.logits, case["logits"], "stored_float32", "logits")
    for name, gradient in result.gradients.items():
        assert_close(gradient, case[f"grad/{name}"], "stored_float32", name)
    if shape.is_recurrent:
        assert_close(result.state_S, case["state/S"], "stored_float32", "S")
        assert_close(result.state_conv, case["state/conv"], "stored_float32", "conv")


def test_stored_cases_are_what_the_oracle_says() -> None:
    with np.load(ROOT / "tests" / "golden" / "hybrid.npz") as stored:
        made = make_case(
            Shape("hybrid", hidden=16, layers=2, ffn=32, heads=2, seq=16, batch=3, chunks=2), "mixed"
        )
        assert sorted(made) == sorted(stored.files)
        for key, value in made.items():
            if value.dtype.kind == "f":
                assert_close(value, stored[key], "stored_float32", key)
            else:
                assert (value == stored[key]).all(), key


def test_stored_cases_cover_the_trunks_and_the_counts_of_boundaries() -> None:
    trunks, fills = set(), set()
    for path in OWN:
        with np.load(path) as case:
            trunks.add(str(case["trunk"]))
            seq, slots = int(case["config"][4]), int(case["config"][4]) // int(case["patch_stride"])
            for row in case["tokens"]:
                for start in range(0, len(row) - 1, seq):
                    chunk = [int(byte) for byte in row[start : start + seq]]
                    fills.add(np.sign(len(boundary_positions(chunk, str(case["boundary_rule"]))) - slots))
    assert trunks == {"dense", "recurrent", "patched", "hybrid"}
    assert fills == {-1, 0, 1}
