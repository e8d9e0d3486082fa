"""`mlx-amort memory-estimate`: what a step needs, part by part, and what fits."""

from __future__ import annotations

import json
import sys
from typing import Any, get_args

import click

from mlx_amort.amounts import format_size, parse_memory
from mlx_amort.backend import describe_machine
from mlx_amort.cli.memory_tables import (
    COMMON_SIZES_GB,
    LEVERS,
    PRECISIONS,
    describe_budget,
    describe_estimate,
    describe_fits,
    describe_presets,
)
from mlx_amort.cli.options import RequestedConfig, config_options
from mlx_amort.config.presets import DEFAULT_PRESET, preset_names
from mlx_amort.config.reading import resolve, to_dict
from mlx_amort.config.values import Config
from mlx_amort.cost.measure.worker_process import run_worker
from mlx_amort.cost.memory.budget import budget_bytes, largest_batch, recommend, room_bytes, with_step
from mlx_amort.cost.memory.estimate import Estimate, estimate, first_order_of, temporaries_of
from mlx_amort.errors import UserError
from mlx_amort.ops.constants import Backend


@click.command()
@click.option("--memory", metavar="48GB", help="What to take on a machine with this much memory.")
@click.option("--measure", is_flag=True, help="Run two real steps in a process of their own, and compare.")
@click.option(
    "--backend",
    type=click.Choice(get_args(Backend)),
    default="metal" if sys.platform == "darwin" else "cpu",
    show_default=True,
    help="What to estimate for.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@config_options(default_preset=DEFAULT_PRESET)
def command(
    requested: RequestedConfig, memory: str | None, measure: bool, backend: Backend, as_json: bool
) -> None:
    """Forecast a step's peak memory from the configuration alone.

    Without a configuration: every preset against what lowers its peak, and what fits common memory sizes.
    With the flags of `train`: that configuration by parts. Only --measure allocates anything.
    """
    memory_bytes = parse_memory(memory, "--memory") if memory is not None else None
    if not requested.gives_anything:
        if measure:
            raise UserError(
                "--measure", "needs a configuration", "try --preset veritate_10m --batch 4 --measure"
            )
        sizes = [memory_bytes] if memory_bytes else [size * 10**9 for size in COMMON_SIZES_GB]
        overview(sizes, backend, as_json)
        return
    config = requested.resolve()
    own = describe_machine()["backend"] if measure else backend
    if own != backend:
        raise UserError(
            f"--measure with --backend {backend}",
            f"measures on {own}, where this machine runs",
            f"give --backend {own}",
        )
    found = estimate(config, backend)
    record = _as_record(config, found)
    if memory_bytes is not None:
        record |= _fitting_record(config, memory_bytes, backend)
    if measure:
        record["measured"] = measured(config)
        record["estimate_over_measured"] = (
            estimate(config, record["measured"]["backend"]).peak_bytes / record["measured"]["peak_bytes"]
        )
    if as_json:
        click.echo(json.dumps(record, indent=2))
        return
    click.echo(describe_estimate(config, found))
    if memory_bytes is not None:
        click.echo(f"\n{describe_budget(memory_bytes, record)}")
    if measure:
        ratio = record["estimate_over_measured"]
        peak = format_size(record["measured"]["peak_bytes"])
        click.echo(f"\nmeasured: {peak} on {record['measured']['backend']}; estimate / measured {ratio:.3f}")


def overview(sizes: list[int], backend: Backend, as_json: bool) -> None:
    """Every preset against the levers, and the most rows of each that fit each memory size."""
    configs = sorted(
        (resolve(preset=name) for name in preset_names()), key=lambda each: each.model.parameters
    )
    peaks = [
        {levers: estimate(levers.of(config), backend).peak_bytes for levers in LEVERS} for config in configs
    ]
    fits = [
        {
            config.preset or "": tuple(
                largest_batch(
                    with_step(config, activation_checkpointing=recomputes),
                    size - room_bytes(size, backend),
                    backend,
                )
                for recomputes in (False, True)
            )
            for config in configs
        }
        for size in sizes
    ]
    if not as_json:
        click.echo(describe_presets(configs, peaks, backend))
        click.echo(f"\n{describe_fits(configs, sizes, fits, room_bytes(100, backend))}")
        return
    rows = [
        {
            "preset": config.preset,
            "parameters": config.model.parameters,
            "batch": config.step.batch,
            "window": config.step.effective_window,
            **levers._asdict(),
            "peak_bytes": peak,
        }
        for config, row in zip(configs, peaks, strict=True)
        for levers, peak in row.items()
    ]
    fitting = [
        {"memory_bytes": size, "preset": name, "batch": plain, "batch_checkpointed": recomputed}
        for size, row in zip(sizes, fits, strict=True)
        for name, (plain, recomputed) in row.items()
    ]
    click.echo(json.dumps({"backend": backend, "rows": rows, "fits": fitting}, indent=2))


def measured(config: Config) -> dict[str, Any]:
    """Peak memory of two real steps in a fresh process. Raises: UserError for what does not fit this machine."""
    machine = describe_machine()
    limit_bytes = config.run.memory_limit_bytes
    memory_bytes = budget_bytes(machine, limit_bytes)
    needed = estimate(config, machine["backend"]).peak_bytes
    advice = "take fewer rows" if config.step.batch > 1 else "take a shorter --seq, or a smaller model"
    if needed > memory_bytes:
        has = f"{'the limit is' if limit_bytes else 'this machine has'} {format_size(memory_bytes)}"
        raise UserError("--measure", f"it needs about {format_size(needed)}, and {has}", advice)
    outcome = run_worker({"job": "peak", "config": to_dict(config)}, memory_bytes)
    answer = outcome.answer
    if answer is None or answer["status"] != "ok":
        last = outcome.errors.strip().splitlines()[-1:] or ["it was stopped for the memory it used"]
        note = last[0] if answer is None else answer["note"]
        raise UserError("--measure", f"the step did not run ({note})", advice)
    return {"backend": machine["backend"], "mlx": machine["mlx"], **answer}


def _fitting_record(config: Config, memory_bytes: int, backend: Backend) -> dict[str, Any]:
    """What fits a machine: its room, what is recommended, and the most rows with each combination of levers."""
    room = room_bytes(memory_bytes, backend)
    limit = memory_bytes - room
    way = recommend(config, limit, backend)
    recommended = None
    if way is not None:
        step = way.config.step
        recommended = {
            "batch": step.batch,
            "accum": step.accum,
            "window": step.effective_window,
            "precision": step.precision,
            "activation_checkpointing": step.activation_checkpointing,
            "peak_bytes": way.peak_bytes,
            "largest_batch": largest_batch(way.config, limit, backend),
            "command": way.command,
        }
    return {
        "memory_bytes": memory_bytes,
        "room_bytes": room,
        "recommended": recommended,
        "largest_batches": _levers_record(config, limit, backend),
    }


def _levers_record(config: Config, limit: int, backend: Backend) -> list[dict[str, Any]]:
    found = []
    for precision in PRECISIONS:
        for recomputes in (False, True):
            for window in dict.fromkeys((config.step.effective_window, 1)):
                levers = {"precision": precision, "activation_checkpointing": recomputes, "window": window}
                batch = largest_batch(with_step(config, **levers), limit, backend)
                found.append({**levers, "batch": batch})
    return found


def _as_record(config: Config, found: Estimate) -> dict[str, Any]:
    return {
        "preset": config.preset,
        "parameters": config.model.parameters,
        "backend": found.backend,
        "counts": found.counts.source,
        "peak_bytes": found.peak_bytes,
        "phase": found.phase,
        "parts": dict(found.parts),
        "temporaries": temporaries_of(config, found.backend),
        "phase_bytes": dict(found.phase_bytes),
        "first_order_bytes": sum(first_order_of(config).values()),
        "first_order_parts": first_order_of(config),
    }
