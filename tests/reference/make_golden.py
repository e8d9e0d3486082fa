"""Write a case in the golden format: `python -m tests.reference.make_golden OUT.npz --trunk hybrid`.

tests/golden/ was made by the `make_golden.sh` in it. Weights are drawn wider than the model's own
initialisation, so that every part of the network matters to the loss and shows in the gradients.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.reference.autodiff import Array
from tests.reference.byte_lm import Shape, run

ALPHABETS = {
    "words": b"abcdefghijklmnopqrstuvwxyz" + b" " * 6 + b".,\n",
    "letters": b"abcdefghijklmnopqrstuvwxyz0123456789",
    "punctuation": b"ab  (){}[];,.=+-*\n",
    "bytes": bytes(range(256)),
}
TRUNKS, RULES = ("dense", "recurrent", "patched", "hybrid"), ("every", "first")
TEXTS = (*ALPHABETS, "exact", "mixed")


def draw_tokens(shape: Shape, text: str, seed: int) -> NDArray[np.uint8]:
    """[B, S·K + 1] bytes; `letters` leaves slots empty, `exact` fills them, `punctuation` overflows them.

    `mixed` gives the rows of a batch these three in turn.
    """
    if text == "mixed":
        kinds = [draw_tokens(shape, kind, seed) for kind in ("letters", "exact", "punctuation")]
        return np.stack([kinds[row % 3][row] for row in range(shape.batch)])
    generator = np.random.default_rng([seed, 1])
    letters = np.frombuffer(ALPHABETS["letters" if text == "exact" else text], dtype=np.uint8)
    tokens = generator.choice(letters, size=(shape.batch, shape.seq * shape.chunks + 1))
    if text == "exact":
        for row in tokens:
            for start in range(0, shape.seq * shape.chunks, shape.seq):
                # every second position, so that no space follows another and both rules count alike
                chosen = generator.choice(np.arange(2, shape.seq, 2), shape.slots - 1, replace=False)
                row[start + chosen] = ord(" ")
    return tokens


def draw_parameters(shape: Shape, seed: int) -> dict[str, Array]:
    """Float32 values (as float64): what the model under test gets is exactly what the oracle gets."""
    generator = np.random.default_rng([seed, 2])
    parameters = {}
    for name, size in shape.of_parameters().items():
        kind = name.split(".")[-1]
        normal = generator.normal(size=size)
        if kind in ("n1", "n2", "n_out", "o_norm"):
            value = 1.0 + 0.1 * normal
        elif kind == "decay_b":
            value = np.linspace(-4.0, -0.5, shape.heads) + 0.1 * normal
        elif kind in ("tok", "pos", "slot", "conv"):
            value = 0.5 * normal
        else:
            value = normal * size[-1] ** -0.5
        parameters[name] = value.astype(np.float32).astype(np.float64)
    return parameters


def make_case(shape: Shape, text: str = "words", seed: int = 0) -> dict[str, NDArray[Any]]:
    """The arrays of a golden file, by the float64 oracle."""
    tokens, parameters = draw_tokens(shape, text, seed), draw_parameters(shape, seed)
    result = run(shape, parameters, tokens)
    sizes = [shape.hidden, shape.layers, shape.ffn, shape.heads, shape.seq, shape.batch, shape.chunks]
    case: dict[str, NDArray[Any]] = {
        "config": np.array(sizes),
        "trunk": np.array(shape.trunk),
        "patch_stride": np.array(shape.patch_stride),
        "boundary_rule": np.array(shape.boundary_rule),
        "tokens": tokens,
        "loss_nats": np.array(result.loss_nats),
        "logits": result.logits.astype(np.float32),
    }
    case |= {f"param/{name}": value.astype(np.float32) for name, value in parameters.items()}
    case |= {f"grad/{name}": value.astype(np.float32) for name, value in result.gradients.items()}
    if result.state_S is not None and result.state_conv is not None:
        case["state/S"] = result.state_S.astype(np.float32)
        case["state/conv"] = result.state_conv.astype(np.float32)
    return case


def check(shape: Shape, text: str) -> None:
    """Raises ValueError, as "what: why; what to do", for sizes that make no model or no such text."""
    for field in fields(Shape):
        value = getattr(shape, field.name)
        if isinstance(value, int) and value < 1:
            raise ValueError(f"--{field.name.replace('_', '-')} {value}: must be at least 1; give 1 or more")
    if shape.trunk not in TRUNKS:
        raise ValueError(f"--trunk {shape.trunk}: no such trunk; choose one of {', '.join(TRUNKS)}")
    if shape.boundary_rule not in RULES:
        raise ValueError(f"--boundary-rule {shape.boundary_rule}: no such rule; choose {' or '.join(RULES)}")
    if shape.hidden % shape.heads:
        raise ValueError(f"--heads {shape.heads}: does not divide --hidden {shape.hidden}; choose a divisor")
    if shape.is_patched and shape.seq % shape.patch_stride:
        raise ValueError(
            f"--seq {shape.seq}: is not divisible by --patch-stride {shape.patch_stride}; choose a multiple"
        )
    if shape.vocabulary < 256 or (shape.is_patched and shape.vocabulary != 256):
        raise ValueError(f"--vocabulary {shape.vocabulary}: does not fit bytes; leave it at 256")
    if text in ("exact", "mixed") and shape.slots - 1 > len(range(2, shape.seq, 2)):
        raise ValueError(f"--text {text}: needs two bytes a slot; choose a larger --patch-stride")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write a golden case computed by the float64 oracle.")
    parser.add_argument("out", type=Path)
    defaults = Shape("hybrid", hidden=16, layers=2, ffn=32, heads=2, seq=16, batch=2, chunks=2)
    for field in fields(Shape):
        default = getattr(defaults, field.name)
        parser.add_argument("--" + field.name.replace("_", "-"), type=type(default), default=default)
    parser.add_argument("--text", choices=TEXTS, default="words")
    parser.add_argument("--seed", type=int, default=0)
    options = vars(parser.parse_args(arguments))
    out, text, seed = options.pop("out"), options.pop("text"), options.pop("seed")
    try:
        check(Shape(**options), text)
        if seed < 0:
            raise ValueError(f"--seed {seed}: must be at least 0; 0 is usual")
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    case = make_case(Shape(**options), text, seed)
    try:
        np.savez_compressed(out, allow_pickle=False, **case)
    except OSError as error:
        print(f"error: {out}: {error.strerror}; name a file that can be written", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
