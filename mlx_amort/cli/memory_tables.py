"""The words and tables of `mlx-amort memory-estimate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple, get_args

from mlx_amort.amounts import format_size
from mlx_amort.cli.tables import align
from mlx_amort.config.model import BlockKind
from mlx_amort.config.values import Config, OptimizerName, Precision
from mlx_amort.cost.memory.budget import with_step
from mlx_amort.cost.memory.estimate import Estimate, Phase, first_order_of, temporaries_of
from mlx_amort.ops.constants import CPU_QUERY_BLOCK, GPU_QUERY_BLOCK

COMMON_SIZES_GB = (16, 24, 32, 48, 64, 96, 128, 192, 256, 512)
_MOST_SHOWN = 99
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16", "bf16-pure")


class Levers(NamedTuple):
    """What lowers a step's peak and leaves the model as it is; every preset is shown against each combination."""

    optimizer: OptimizerName
    precision: Precision
    activation_checkpointing: bool

    def of(self, config: Config) -> Config:
        """`config` with these."""
        config = replace(config, optimizer=replace(config.optimizer, name=self.optimizer))
        return with_step(
            config, precision=self.precision, activation_checkpointing=self.activation_checkpointing
        )


LEVERS = [Levers(*each) for each in product(get_args(OptimizerName), PRECISIONS, (False, True))]

_PARTS = {
    "weights": "weights",
    "optimizer_state": "optimizer state",
    "gradients": "gradients, one sum per weight",
    **{f"activations_{kind}": f"activations kept, {kind} blocks" for kind in get_args(BlockKind)},
    "recurrence_state": "recurrence states, before and after",
    "logits": "logits and their gradient",
    "low_precision_copy": "matrices of half a block, in compute form",
    "data": "bytes of the window",
    "temporaries": "largest temporaries",
}
_ASSUMED = {
    "cpu": f"attention's gradient in tiles of {CPU_QUERY_BLOCK} queries, products in float32, "
    "about 100 operations allocated ahead",
    "metal": f"attention's gradient in tiles of {GPU_QUERY_BLOCK} queries; not measured on Metal",
    "cuda": "attention fused in both directions; not measured on CUDA",
}
_PHASES = {"window": "the backward pass of a window", "update": "the update"}


def describe_estimate(config: Config, found: Estimate) -> str:
    """One configuration by parts, beside the first-order rule."""
    model, step = config.model, config.step
    recomputed = ", activations recomputed" if step.activation_checkpointing else ""
    title = (
        f"{config.preset or 'no preset'}: {model.parameters:,} parameters, {model.trunk} trunk, {step.batch} rows × "
        f"{step.effective_window} chunks of {model.seq:,} bytes,\n"
        f"{step.precision}, {config.optimizer.name}{recomputed}; {step.chunks} chunks per row and {step.accum} "
        f"micro-batches make no difference"
    )
    rows = [
        [_PARTS[name], format_size(size), f"{size / found.peak_bytes:.0%}"]
        for name, size in found.parts.items()
        if size
    ]
    rows.append(["peak", format_size(found.peak_bytes), ""])
    other: Phase = "update" if found.phase == "window" else "window"
    rule = first_order_of(config)
    rule_parts = " + ".join(format_size(size) for size in rule.values())
    largest = {name: format_size(size) for name, size in temporaries_of(config, found.backend).items()}
    return "\n".join(
        [
            title,
            "",
            align(["", "bytes", "share"], rows),
            "",
            f"the peak is in {_PHASES[found.phase]}; {_PHASES[other]} needs {format_size(found.phase_bytes[other])}",
            f"largest temporaries: {largest['backward']} in the backward pass of half a block, "
            f"{largest['newton_schulz']} in Newton-Schulz,",
            f"  {largest['logits']} of logits; no copy of the weights in lower precision is kept",
            f"assumed ({found.backend}): {_ASSUMED[found.backend]}",
            f"counts {found.counts.source}",
            f"first-order rule for plain float32: {rule_parts} = {format_size(sum(rule.values()))}",
            "  (weights + optimizer + gradients + 10 values per byte, unit of width and block; see docs/memory.md)",
        ]
    )


def describe_budget(memory_bytes: int, record: Mapping[str, Any]) -> str:
    """What to take on a machine with so much memory."""
    room = record["room_bytes"]
    heading = (
        f"of {format_size(memory_bytes)}, {format_size(room)} are left to the system and MLX's cache; within "
        f"{format_size(memory_bytes - room)}:"
    )
    recommended = record["recommended"]
    if recommended is None:
        return f"{heading}\n  nothing fits at the same bytes per step; take a smaller preset"
    return "\n".join(
        [
            heading,
            f"  {recommended['command']}  # {format_size(recommended['peak_bytes'])}",
            f"  with these settings up to {recommended['largest_batch']:,} rows fit; --json has every combination",
        ]
    )


def describe_presets(configs: Sequence[Config], peaks: Sequence[Mapping[Levers, int]], backend: str) -> str:
    """Every preset against the levers, in GB."""
    own = [
        [
            _short(config),
            f"{config.step.batch}×{config.step.effective_window}",
            *[_gigabytes(row[levers]) for levers in LEVERS],
        ]
        for config, row in zip(configs, peaks, strict=True)
    ]
    columns = ["ckpt" if levers.activation_checkpointing else "plain" for levers in LEVERS]
    table = align(["preset", "B×W", *columns], own).split("\n")
    width = max(len(line) for line in table)
    starts = _column_starts(["preset", "B×W", *columns], own)
    names, precisions = [" "] * width, [" "] * width
    for place, levers in zip(starts[2:], LEVERS, strict=True):
        if not levers.activation_checkpointing:
            _write(precisions, place, levers.precision)
            if levers.precision == PRECISIONS[0]:
                _write(names, place, levers.optimizer)
    return "\n".join(
        [
            f"Peak of one step in GB ({backend}), at each preset's own rows B × window W;",
            "plain, and ckpt: with --activation-checkpointing",
            "",
            "".join(names).rstrip(),
            "".join(precisions).rstrip(),
            *table,
        ]
    )


def describe_fits(
    configs: Sequence[Config],
    sizes: Sequence[int],
    fits: Sequence[Mapping[str, tuple[int, ...]]],
    room_percent: int,
) -> str:
    """For each memory size the most rows of each preset."""
    rows = [
        [
            f"{size / 1e9:g} GB" if size >= 1e8 else format_size(size),
            *[_rows(*row[config.preset or ""]) for config in configs],
        ]
        for size, row in zip(sizes, fits, strict=True)
    ]
    heading = ["memory", *[_shorter(config) for config in configs]]
    return "\n".join(
        [
            "Most rows B that fit, plain/ckpt, with the preset's own precision, optimizer and window (-: none);",
            f"{room_percent} % of the memory are left to the system and MLX's cache",
            "",
            align(heading, rows),
            "",
            "One configuration by parts: mlx-amort memory-estimate --preset NAME [--batch B ...] [--memory 48GB]",
        ]
    )


def _gigabytes(size: int) -> str:
    return (
        f"{size / 1e9:.2f}"
        if size < 9.995e9
        else f"{size / 1e9:.1f}"
        if size < 99.95e9
        else f"{size / 1e9:.0f}"
    )


def _rows(plain: int, recomputed: int) -> str:
    if plain > _MOST_SHOWN:
        return f"{_MOST_SHOWN}+"
    shown = [
        str(batch or "-") if batch <= _MOST_SHOWN else f"{_MOST_SHOWN}+" for batch in (plain, recomputed)
    ]
    return "/".join(shown)


def _short(config: Config) -> str:
    return config.preset or config.model.trunk


def _shorter(config: Config) -> str:
    return _short(config).removeprefix("veritate_")


def _column_starts(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    widths = [max(len(line[i]) for line in [heading, *rows]) for i in range(len(heading))]
    return [sum(widths[:i]) + 2 * i for i in range(len(widths))]


def _write(line: list[str], place: int, text: str) -> None:
    line[place : place + len(text)] = list(text)
