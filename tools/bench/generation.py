"""Bytes per second of generation after a short and after a long context, by turns: the state is of constant size."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import mlx.core as mx
import numpy as np

from mlx_amort.config.values import Config
from mlx_amort.model.byte_lm import ByteLM
from mlx_amort.model.decoding import Decoder
from tools.bench.turns import spread

Tell = Callable[[str], None]
CONTEXTS = (1_024, 102_400)


def compare_contexts(config: Config, turns: int, tell: Tell) -> None:
    """Read both contexts, then generate a chunk after each, turn by turn; print bytes per second and their ratio."""
    seq = config.model.seq
    # Whole chunks: both turns then do the same work.
    contexts = [max(1, length // seq) * seq for length in CONTEXTS]
    model = ByteLM(config.model)
    decoder = Decoder(model)
    weights = decoder.prepare(model.init_weights(0))
    # Letters and spaces, so that slots open as they do in text.
    letters = np.frombuffer(b"etaoin shrdlu ", dtype=np.uint8)
    text = bytes(np.random.default_rng(0).choice(letters, contexts[-1] + (turns + 1) * seq))
    states = [decoder.read(weights, text[:length])[1] for length in contexts]
    found: list[list[float]] = [[] for _ in contexts]
    for turn in range(turns + 1):
        piece = text[turn * seq : (turn + 1) * seq]
        for state, own in zip(states, found, strict=True):
            started_at = time.perf_counter()
            for byte in piece:
                mx.eval(decoder.step(weights, byte, state))
            if turn:
                own.append(len(piece) / (time.perf_counter() - started_at))
    tell(f"generation with {config.preset}, {config.model.parameters:,} parameters, fp32")
    for length, state, own in zip(contexts, states, found, strict=True):
        tell(
            f"  after {length:7,} bytes of context: {statistics.median(own):,.0f} bytes/s, "
            f"state {state.nbytes / 1e6:.2f} MB"
        )
    ratios = [long / short for short, long in zip(*found, strict=True)]
    tell(f"  long over short, turn by turn: {spread(ratios)}\n")
