"""What grows how: a window's time per byte as one quantity after the other is varied, and in bfloat16."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import mlx.core as mx

from mlx_amort.backend import set_cpu_cache_limit
from mlx_amort.config.reading import resolve
from mlx_amort.config.values import Config
from mlx_amort.model.byte_lm import ByteLM
from mlx_amort.model.flops import training_flops_per_byte
from mlx_amort.train.state import new_train_state
from mlx_amort.train.step import TrainingStep
from tools.bench.side import random_batch

Tell = Callable[[str], None]
Times = list[tuple[float, float]]

BASE = {
    "model.trunk": "hybrid",
    "model.layers": "4",
    "model.hidden": "256",
    "model.heads": "4",
    "model.ffn": "1024",
    "model.seq": "512",
    "step.batch": "2",
    "step.chunks": "2",
    "step.window": "2",
    "step.accum": "1",
    "step.precision": "fp32",
}
VARIED: dict[str, list[dict[str, str]]] = {
    "B": [{"step.batch": value} for value in ("1", "2", "4", "8")],
    "K": [{"step.chunks": value} for value in ("1", "2", "4", "8")],
    "S": [{"model.seq": value} for value in ("256", "512", "1024", "2048")],
    "H": [
        {"model.hidden": str(width), "model.heads": str(width // 64), "model.ffn": str(4 * width)}
        for width in (128, 256, 512, 1024)
    ],
    "layers": [{"model.layers": value} for value in ("2", "4", "8", "16")],
}
PRESETS = ("demo", "veritate_10m", "veritate_80m", "veritate_200m")
PRECISE_WIDTHS = (96, 256, 512, 1024)


def configurations() -> dict[str, list[Config]]:
    """The configurations of each table, the base among those of every varied quantity."""

    def of(overrides: dict[str, str], preset: str | None = None) -> Config:
        return resolve(preset=preset, overrides=[f"{key}={value}" for key, value in overrides.items()])

    found = {name: [of({**BASE, **values}) for values in varied] for name, varied in VARIED.items()}
    small = {
        "step.batch": "1",
        "step.chunks": "2",
        "step.window": "2",
        "step.accum": "1",
        "step.precision": "fp32",
    }
    found["preset"] = [of(small, preset) for preset in PRESETS]
    return found


def compare_scaling(turns: int, tell: Tell) -> None:
    """Print a table: microseconds per byte of windows, over the base's, FLOPs per byte and the rate that makes."""
    set_cpu_cache_limit()
    tell("| varied | | windows, µs/byte | over the first | MFLOP per byte | GFLOP/s | update, s |")
    tell("|---|---|---|---|---|---|---|")
    for name, configs in configurations().items():
        times = times_by_turns(configs, turns)
        first = _per_byte(configs[0], times[0])
        for config, own in zip(configs, times, strict=True):
            per_byte = _per_byte(config, own)
            flops = training_flops_per_byte(config)
            update = statistics.median(sample[1] for sample in own)
            tell(
                f"| {name} | {_value(name, config)} | {1e6 * per_byte:,.0f} | {per_byte / first:.2f} | "
                f"{flops / 1e6:,.1f} | {flops / per_byte / 1e9:.0f} | {update:.3f} |"
            )
    tell("")


def compare_precisions(turns: int, tell: Tell) -> None:
    """Print a bfloat16 window's time over a float32 one's, taken by turns, for several widths."""
    set_cpu_cache_limit()
    tell("| H | bf16 over fp32, a window |\n|---|---|")
    for width in PRECISE_WIDTHS:
        heads = max(1, width // 64) if width % 64 == 0 else 3
        shape = {"model.hidden": str(width), "model.heads": str(heads), "model.ffn": str(4 * width)}
        configs = [
            resolve(overrides=[f"{k}={v}" for k, v in {**BASE, **shape, "step.precision": name}.items()])
            for name in ("fp32", "bf16")
        ]
        exact, rounded = times_by_turns(configs, turns)
        ratios = [b[0] / a[0] for a, b in zip(exact, rounded, strict=True)]
        tell(f"| {width} | {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) |")
    tell("")


def times_by_turns(configs: Sequence[Config], turns: int, warm_up: int = 1) -> list[Times]:
    """Seconds of the windows and of the update of each configuration's steps, taken by turns."""
    steps = [_stepper(config) for config in configs]
    found: list[Times] = [[] for _ in configs]
    for turn in range(warm_up + turns):
        for step, own in zip(steps, found, strict=True):
            sample = step()
            if turn >= warm_up:
                own.append(sample)
    return found


def _stepper(config: Config) -> Callable[[], tuple[float, float]]:
    model = ByteLM(config.model, config.step.precision, config.step.activation_checkpointing)
    state = new_train_state(model, config.optimizer, seed=0)
    compiled = TrainingStep(model, config.step, config.optimizer)
    batch = random_batch(config)

    def step() -> tuple[float, float]:
        started_at = time.perf_counter()
        loss, gradients = compiled.accumulate(state.weights, batch)
        mx.eval(loss, gradients)
        between = time.perf_counter()
        compiled.update(state, gradients, loss, 1e-4)
        return between - started_at, time.perf_counter() - between

    return step


def _per_byte(config: Config, times: Times) -> float:
    return statistics.median(sample[0] for sample in times) / config.bytes_per_step


def _value(name: str, config: Config) -> str:
    model, step = config.model, config.step
    values = {"B": step.batch, "K": step.chunks, "S": model.seq, "H": model.hidden, "layers": model.layers}
    return f"{config.preset}, {model.parameters / 1e6:,.1f} M" if name == "preset" else str(values[name])
