"""The peak memory of one optimizer step, part by part, from the configuration alone; arithmetic only.

    peak = max(window, update)
    window = weights + optimizer + gradients + states + data + max over the halves of blocks, from the last back, of
             (what earlier halves keep + what this one keeps + its workspace [+ the head, for the last])
    update = weights + optimizer + gradients + the larger of Newton-Schulz' stacks and, if rounded stochastically,
             AdamW's tensors

K and A do not appear: a window's activations are gone before the next begins. docs/memory.md explains every line and
compares it with measured steps.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

from mlx_amort.config.model import BlockKind, ModelConfig
from mlx_amort.config.values import Config, MuonDtype, OptimizerConfig, OptimizerName
from mlx_amort.cost.memory.blocks import WIDE, halves_of, head_at_work
from mlx_amort.cost.memory.counts import Counts, UpdateCounts, counts_of
from mlx_amort.ops.constants import CONVOLUTION_TAIL, WIDTHS, Backend, Precision
from mlx_amort.ops.newton_schulz import takes_gram_form
from mlx_amort.optim.partition import BUFFERS, owners, state_numbers
from mlx_amort.optim.stacks import stack_size

Phase = Literal["window", "update"]

_FEW_STACKS = 5


@dataclass(frozen=True)
class Estimate:
    """Bytes of a step at its peak. `parts` sum to `peak_bytes`; `phase_bytes` has the peak of either phase."""

    peak_bytes: int
    phase: Phase
    parts: Mapping[str, int]
    phase_bytes: Mapping[Phase, int]
    counts: Counts

    @property
    def backend(self) -> Backend:
        """The backend that it is for."""
        return self.counts.backend

    @property
    def always_bytes(self) -> int:
        """What is there from the first step to the last."""
        return sum(self.parts[name] for name in ("weights", "optimizer_state", "gradients"))


def estimate(config: Config, backend: Backend = "cpu") -> Estimate:
    """The peak memory of a step of `config`; nothing is allocated. Units: bytes."""
    return estimate_with(config, counts_of(backend))


def estimate_with(config: Config, counts: Counts) -> Estimate:
    """`estimate` with given counts, for their backend."""
    always = _always(config.model, config.step.precision, config.optimizer.name)
    phases: dict[Phase, dict[str, int]] = {
        "window": {**always, **_window(config, counts)},
        "update": {
            **always,
            "temporaries": max(
                _update_temporaries(config.model, config.step.precision, config.optimizer, counts)
            ),
        },
    }
    totals: dict[Phase, int] = {name: sum(parts.values()) for name, parts in phases.items()}
    phase: Phase = max(totals, key=lambda name: totals[name])
    return Estimate(totals[phase], phase, phases[phase], totals, counts)


def temporaries_of(config: Config, backend: Backend = "cpu") -> dict[str, int]:
    """The largest temporaries of each kind, in bytes; they do not live together and are not further parts of the peak.

    backward: the most that one half of a block adds to what is kept while it is differentiated. newton_schulz: the
    largest stack's. logits: one float32 array of them. low_precision_copy: 0, for a weight is cast where it is
    multiplied, and that is in `backward`.
    """
    counts = counts_of(backend)
    halves = halves_of(config, backend, counts)
    recomputes = config.step.activation_checkpointing
    positions = config.step.batch * config.step.effective_window * config.model.seq
    backward = max(
        half.at_work(recomputes, is_last=False) - (half.entry if recomputes else half.kept) for half in halves
    )
    muon, _ = _update_temporaries(config.model, config.step.precision, config.optimizer, counts)
    return {
        "backward": backward,
        "newton_schulz": muon,
        "logits": positions * config.model.vocabulary * WIDE,
        "low_precision_copy": 0,
    }


@lru_cache
def _always(model: ModelConfig, precision: Precision, optimizer: OptimizerName) -> Mapping[str, int]:
    widths = WIDTHS[precision]
    return {
        "weights": model.parameters * widths.weights,
        "optimizer_state": state_numbers(model.parameter_shapes(), optimizer) * widths.weights,
        "gradients": model.parameters * widths.gradients,
    }


def _window(config: Config, counts: Counts) -> dict[str, int]:
    """The parts of the moment of the backward pass that needs most."""
    step, model = config.step, config.model
    halves = halves_of(config, counts.backend, counts)
    head = counts.of_compute(WIDTHS[step.precision].compute).head
    recomputes = step.activation_checkpointing
    stored = [half.entry if recomputes else half.kept for half in halves]
    most, at, temporaries, before = 0, 0, 0, 0
    for index, half in enumerate(halves):
        is_last = index == len(halves) - 1
        needed = head_at_work(config, head, half) if is_last else half.at_work(recomputes, is_last=False)
        if before + needed > most:
            most, at, temporaries = before + needed, index, needed - stored[index]
        before += stored[index]
    activations = dict.fromkeys(get_args(BlockKind), 0)
    for half, size in zip(halves[: at + 1], stored[: at + 1], strict=True):
        activations[half.block] += size
    return {
        **{f"activations_{kind}": size for kind, size in activations.items()},
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
    model: ModelConfig, precision: Precision, optimizer: OptimizerConfig, counts: Counts
) -> tuple[int, int]:
    """What orthogonalising the stack that needs most takes, and AdamW's tensors; one is gone before the other."""
    shapes = model.parameter_shapes()
    # With weights in bfloat16 results are rounded stochastically.
    is_pure = WIDTHS[precision].weights != WIDE
    owner_of = owners(shapes, optimizer.name)
    matrices_of = Counter(shapes[name] for name, owner in owner_of.items() if owner == "muon")
    muon = 0.0
    for (rows, columns), matrices in matrices_of.items():
        size = stack_size(matrices, rows * columns, counts.backend == "cpu")
        stacks = math.ceil(matrices / size)
        copies = _copies(counts.update, stacks, size, rows, columns, is_pure, optimizer.muon_dtype)
        muon = max(muon, copies * size * rows * columns * WIDE)
    tensors = sorted(
        (math.prod(shapes[name]) for name, owner in owner_of.items() if owner == "adamw"), reverse=True
    )
    largest, second = [*tensors, 0, 0][:2]
    adamw = counts.update.adamw_largest_pure * largest + counts.update.adamw_second_pure * second
    return round(muon), round(adamw * WIDE) if is_pure else 0


def _copies(
    counts: UpdateCounts, stacks: int, matrices: int, rows: int, columns: int, is_pure: bool, dtype: MuonDtype
) -> float:
    """Arrays as large as a stack that orthogonalising it holds."""
    if dtype == "bfloat16":
        return counts.bfloat16_products
    if not takes_gram_form(rows, columns, is_float32=True):
        return counts.one_square if matrices == 1 else counts.squares_pure if is_pure else counts.squares
    if is_pure:
        return counts.few_rectangles_pure if stacks <= _FEW_STACKS else counts.rectangles_pure
    return counts.one_rectangle if matrices == 1 else counts.rectangles


def first_order_rule(
    parameters: int, batch: int, seq: int, hidden: int, layers: int, optimizer: OptimizerName = "adamw"
) -> dict[str, int]:
    """The rule of thumb for plain float32, in bytes: 4 P, 8 P (Muon 4 P), 4 P, 10 values per byte, unit and layer.

    It knows neither slots, windows nor what is recomputed; shown beside the estimate. Source: docs/memory.md.
    """
    return {
        "weights": WIDE * parameters,
        "optimizer_state": BUFFERS[optimizer] * WIDE * parameters,
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
