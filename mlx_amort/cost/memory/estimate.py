"""The peak memory of one optimizer step, part by part, from the configuration alone; arithmetic only.

    peak = max(window, update)
    window = weights + optimizer + gradients + states + data + max over the halves of blocks, from the last back, of
             (what earlier halves keep + what this one keeps + its workspace [+ the head, for the last])
    update = weights + optimizer + gradients + the larger of Newton-Schulz' stacks and, if rounded by chance, AdamW's
             tensors

K and A do not appear: a window's activations are gone before the next begins. Every line is explained, and compared
with measured steps, in docs/memory.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from mlx_amort.config.model import ModelConfig
from mlx_amort.config.values import Config, OptimizerConfig
from mlx_amort.cost.memory.blocks import WIDE, halves_of, head_at_work
from mlx_amort.ops.constants import CONVOLUTION_TAIL, WIDTHS, Backend, Precision
from mlx_amort.ops.newton_schulz import takes_gram_form
from mlx_amort.optim.partition import owners
from mlx_amort.optim.stacks import stack_size

Phase = Literal["window", "update"]

# Arrays of its size that live together while a stack is orthogonalised, counted in measured updates: of one square
# matrix, whose polynomials are as large as itself, of several, of one rectangle and of several.
_ONE_SQUARE, _SQUARES, _ONE_RECTANGLE, _RECTANGLES = 36.5, 16.0, 9.0, 13.2
# The same when results are rounded by chance (bf16-pure), rectangles of a few stacks and of many; and with products
# in bfloat16, which float32 copies surround.
_SQUARES_PURE, _FEW_RECTANGLES_PURE, _RECTANGLES_PURE = 18.0, 10.0, 15.0
_FEW_STACKS = 5
_COPIES_IN_BFLOAT16 = 21.5
# Of AdamW's two largest tensors, rounded by chance; else AdamW works in the buffers it replaces.
_LARGEST_PURE, _SECOND_PURE = 8.5, 4.5


@dataclass(frozen=True)
class Estimate:
    """Bytes of a step at its peak. `parts` sum to `peak_bytes`; `phase_bytes` has the peak of either phase."""

    peak_bytes: int
    phase: Phase
    parts: Mapping[str, int]
    phase_bytes: Mapping[Phase, int]
    backend: Backend

    @property
    def always_bytes(self) -> int:
        """What is there from the first step to the last."""
        return sum(self.parts[name] for name in ("weights", "optimizer_state", "gradients"))


def estimate(config: Config, backend: Backend = "cpu") -> Estimate:
    """The peak memory of a step of `config`; nothing is allocated. Units: bytes."""
    always = _always(config.model, config.step.precision, config.optimizer.name)
    phases: dict[Phase, dict[str, int]] = {
        "window": {**always, **_window(config, backend)},
        "update": {
            **always,
            "temporaries": max(
                _update_temporaries(config.model, config.step.precision, config.optimizer, backend)
            ),
        },
    }
    totals: dict[Phase, int] = {name: sum(parts.values()) for name, parts in phases.items()}
    phase: Phase = max(totals, key=lambda name: totals[name])
    return Estimate(totals[phase], phase, phases[phase], totals, backend)


def temporaries_of(config: Config, backend: Backend = "cpu") -> dict[str, int]:
    """The largest temporaries of each kind, in bytes; they do not live together and are no further parts of the peak.

    backward: the most that one half of a block adds to what is kept while it is differentiated. newton_schulz: the
    largest stack's. logits: one float32 array of them. low_precision_copy: 0, for a weight is cast where it is
    multiplied, and that is in `backward`.
    """
    halves = halves_of(config, backend)
    recomputes = config.step.activation_checkpointing
    positions = config.step.batch * config.step.effective_window * config.model.seq
    backward = max(
        half.at_work(recomputes, is_last=False) - (half.entry if recomputes else half.kept) for half in halves
    )
    muon, _ = _update_temporaries(config.model, config.step.precision, config.optimizer, backend)
    return {
        "backward": backward,
        "newton_schulz": muon,
        "logits": positions * config.model.vocabulary * WIDE,
        "low_precision_copy": 0,
    }


@lru_cache
def _always(model: ModelConfig, precision: Precision, optimizer: str) -> Mapping[str, int]:
    widths = WIDTHS[precision]
    shapes = model.parameter_shapes()
    # Muon keeps one number a parameter, AdamW two.
    kept = {"muon": 1, "adamw": 2}
    state = sum(kept[owner] * math.prod(shapes[name]) for name, owner in owners(shapes, optimizer).items())
    return {
        "weights": model.parameters * widths.weights,
        "optimizer_state": state * widths.weights,
        "gradients": model.parameters * widths.gradients,
    }


def _window(config: Config, backend: Backend) -> dict[str, int]:
    """The parts of the moment of the backward pass that needs most."""
    step, model = config.step, config.model
    halves = halves_of(config, backend)
    recomputes = step.activation_checkpointing
    stored = [half.entry if recomputes else half.kept for half in halves]
    most, at, temporaries, before = 0, 0, 0, 0
    for index, half in enumerate(halves):
        is_last = index == len(halves) - 1
        needed = head_at_work(config, backend, half) if is_last else half.at_work(recomputes, is_last=False)
        if before + needed > most:
            most, at, temporaries = before + needed, index, needed - stored[index]
        before += stored[index]
    activations = {"attention": 0, "recurrent": 0}
    for half, size in zip(halves[: at + 1], stored[: at + 1], strict=True):
        activations[half.block] += size
    return {
        "activations_attention": activations["attention"],
        "activations_recurrent": activations["recurrent"],
        "recurrence_state": _state_bytes(config),
        "data": step.batch * (model.seq * step.effective_window + 1) * (1 if model.vocabulary <= 256 else 2),
        "temporaries": temporaries,
    }


def _state_bytes(config: Config) -> int:
    """The streams' states before and after a window: S [B, h, d, d] in float32 and the convolution's last inputs."""
    model = config.model
    blocks = sum(kind == "recurrent" for kind in model.block_kinds)
    memory = model.hidden * model.head_width * WIDE
    tail = CONVOLUTION_TAIL * 3 * model.hidden * WIDTHS[config.step.precision].compute
    return 2 * blocks * config.step.batch * (memory + tail)


@lru_cache
def _update_temporaries(
    model: ModelConfig, precision: str, optimizer: OptimizerConfig, backend: Backend
) -> tuple[int, int]:
    """What orthogonalising the stack that needs most takes, and AdamW's tensors; one is gone before the other."""
    shapes = model.parameter_shapes()
    is_pure = precision == "bf16-pure"
    owner_of = owners(shapes, optimizer.name)
    counts = Counter(shapes[name] for name, owner in owner_of.items() if owner == "muon")
    muon = 0.0
    for (rows, columns), matrices in counts.items():
        size = stack_size(matrices, rows * columns, backend == "cpu")
        stacks = math.ceil(matrices / size)
        copies = _copies(stacks, size, rows, columns, is_pure, optimizer.muon_dtype)
        muon = max(muon, copies * size * rows * columns * WIDE)
    tensors = sorted(
        (math.prod(shapes[name]) for name, owner in owner_of.items() if owner == "adamw"), reverse=True
    )
    largest, second = [*tensors, 0, 0][:2]
    adamw = (_LARGEST_PURE * largest + _SECOND_PURE * second) * WIDE if is_pure else 0.0
    return round(muon), round(adamw)


def _copies(stacks: int, matrices: int, rows: int, columns: int, is_pure: bool, dtype: str) -> float:
    """Arrays as large as a stack that orthogonalising it holds."""
    if dtype == "bfloat16":
        return _COPIES_IN_BFLOAT16
    if not takes_gram_form(rows, columns, is_float32=True):
        return _ONE_SQUARE if matrices == 1 else _SQUARES_PURE if is_pure else _SQUARES
    if is_pure:
        return _FEW_RECTANGLES_PURE if stacks <= _FEW_STACKS else _RECTANGLES_PURE
    return _ONE_RECTANGLE if matrices == 1 else _RECTANGLES


def first_order_rule(
    parameters: int, batch: int, seq: int, hidden: int, layers: int, optimizer: str = "adamw"
) -> dict[str, int]:
    """The rule of thumb for plain float32, in bytes: 4 P, 8 P (Muon 4 P), 4 P and 10 values a byte, unit and layer.

    It knows neither slots, windows nor what is recomputed; shown beside the estimate. Source: docs/memory.md.
    """
    return {
        "weights": WIDE * parameters,
        "optimizer_state": (1 if optimizer == "muon" else 2) * WIDE * parameters,
        "gradients": WIDE * parameters,
        "activations": batch * seq * hidden * layers * 10 * WIDE,
    }


def first_order_of(config: Config) -> dict[str, int]:
    """`first_order_rule` of a configuration."""
    model = config.model
    layers = len(model.block_kinds)
    return first_order_rule(
        model.parameters, config.step.batch, model.seq, model.hidden, layers, config.optimizer.name
    )
