"""How near each part of a step is to what the machine can do, and where time goes by kind of operation."""

from __future__ import annotations

import os
import re
import shutil
import statistics
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import mlx.core as mx
import numpy as np

from mlx_amort.backend import set_cpu_cache_limit
from mlx_amort.config.values import Config, OptimizerConfig
from mlx_amort.cost.measure.rates import measure_rates
from mlx_amort.model.byte_lm import ByteLM, Weights
from mlx_amort.model.flops import forward_flops_per_byte, training_flops_per_byte
from mlx_amort.ops.orthogonalize import orthogonalize
from mlx_amort.optim.stacks import stack_size
from mlx_amort.optim.update import apply_update, init_optimizer_state
from mlx_amort.optim.update_cost import accumulation_bytes, orthogonalizations, update_bytes
from mlx_amort.train.state import new_train_state
from mlx_amort.train.step import TrainingStep

Tell = Callable[[str], None]
_WIDTH = 4


@dataclass(frozen=True)
class Report:
    """Prints how near a part of a step is to the machine's best. Units: FLOP/s and bytes/s."""

    tell: Tell
    turns: int
    best_flops_per_s: float
    copy_bytes_per_s: float

    def products(self, name: str, run: Callable[[], object], flops: float) -> None:
        """Time a part that multiplies, against the best product rate."""
        self._line(name, _timed(run, self.turns), flops, self.best_flops_per_s, "GFLOP/s")

    def traffic(self, name: str, run: Callable[[], object], moved_bytes: float) -> None:
        """Time a part that moves memory, against the copy's rate."""
        self._line(name, _timed(run, self.turns), moved_bytes, self.copy_bytes_per_s, "GB/s")

    def _line(self, name: str, seconds: float, done: float, limit: float, unit: str) -> None:
        rate = f"{done / seconds / 1e9:8.1f} {unit}, {done / seconds / limit:6.1%} of best"
        self.tell(f"  {name:28} {seconds:8.3f} s {rate}")


def compare_parts(config: Config, turns: int, tell: Tell) -> None:
    """Time the parts of a step apart; products against the best product rate, traffic against the copy's."""
    set_cpu_cache_limit()
    rates = measure_rates(config)
    best, copy = rates.best_flops_per_s, rates.copy_bytes_per_s
    tell(
        f"parts of a step of {config.preset}, B {config.step.batch} W {config.step.effective_window}, fp32; "
        f"best product {best / 1e9:,.0f} GFLOP/s, copy {copy / 1e9:.1f} GB/s"
    )
    report = Report(tell, turns, best, copy)
    model = ByteLM(config.model, activation_checkpointing=config.step.activation_checkpointing)
    state = new_train_state(model, config.optimizer, seed=0)
    mx.eval(state.weights, state.optimizer)
    _report_windows(report, config, model, state.weights)
    shapes = config.model.parameter_shapes()
    gradients = {name: mx.random.normal(shape) for name, shape in shapes.items()}
    mx.eval(gradients)
    _report_updates(report, config, gradients, state.weights)
    summed = mx.compile(lambda one, other: {name: one[name] + other[name] for name in one})
    report.traffic(
        "accumulation, were it apart",
        lambda: mx.eval(summed(gradients, state.weights)),
        accumulation_bytes(shapes, _WIDTH),
    )
    tell("")


def _report_windows(report: Report, config: Config, model: ByteLM, weights: Weights) -> None:
    step = TrainingStep(model, config.step, config.optimizer)
    shape = (config.step.batch, config.model.seq * config.step.chunks + 1)
    batch = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    tokens = mx.array(batch)
    forward = mx.compile(lambda weights: model.loss(weights, tokens, model.zero_state(config.step.batch))[0])
    flops = forward_flops_per_byte(config.model) * config.bytes_per_step
    report.products("window, forward", lambda: mx.eval(forward(weights)), flops)
    flops = training_flops_per_byte(config) * config.bytes_per_step
    report.products("window, forward and backward", lambda: mx.eval(step.accumulate(weights, batch)), flops)


def _report_updates(report: Report, config: Config, gradients: Weights, weights: Weights) -> None:
    shapes = config.model.parameter_shapes()
    adamw = OptimizerConfig(name="adamw")
    for name, own in (("update, Muon and AdamW", config.optimizer), ("update, AdamW alone", adamw)):
        optimizer = init_optimizer_state(weights, own)
        update = mx.compile(
            lambda gradients, weights, optimizer, own=own: apply_update(
                weights, gradients, optimizer, mx.array(1e-4), mx.array(True), own
            )
        )
        apply = partial(_apply, update, gradients, weights, optimizer)
        if own.name == "muon":
            flops = sum(each.long_flops + each.square_flops for each in orthogonalizations(shapes, own))
            report.products(name, apply, flops)
        else:
            report.traffic(name, apply, update_bytes(shapes, own.name, _WIDTH))
    for each in orthogonalizations(shapes, config.optimizer):
        count = stack_size(each.matrices, each.m * each.n, mx.default_device() == mx.Device(mx.cpu))
        stack = mx.random.normal((count, each.m, each.n))
        mx.eval(stack)
        apart = partial(_orthogonalize, stack, config)
        flops = (each.long_flops + each.square_flops) * count / each.matrices
        report.products(f"Newton-Schulz {count} × {each.m} × {each.n}", apart, flops)


def _apply(update: Callable[..., object], gradients: Weights, weights: Weights, optimizer: Weights) -> None:
    mx.eval(update(gradients, weights, optimizer))


def _orthogonalize(stack: mx.array, config: Config) -> None:
    mx.eval(orthogonalize(stack, config.optimizer.coefficients))


def _timed(run: Callable[[], object], turns: int) -> float:
    """Median seconds, after one run that compiles."""
    run()
    samples = []
    for _ in range(turns):
        started_at = time.perf_counter()
        run()
        samples.append(time.perf_counter() - started_at)
    return statistics.median(samples)


# By the first pattern that a sample's symbol or library matches. Compiled kernels are libraries in MLX's cache.
_KINDS = (
    ("products (BLAS)", r"openblas|gemm"),
    ("fused elementwise (compiled)", r"/mlx/[^/]+/cpu/lib"),
    ("page faults and system calls", r"\[kernel|\[vdso"),
    ("copies, transposes", r"copy|memcpy|memmove|memset|Concatenate|Pad"),
    ("reductions and scans", r"[Rr]educ|[Ss]can"),
    ("gathers", r"[Gg]ather|[Ss]catter|[Tt]ake"),
    ("other elementwise", r"binary|unary|ternary|Select|detail::|libm\.so"),
    ("Python and dispatch", r"python|libmlx|libstdc|libc\.so|ld-linux"),
)


def compare_kinds(config: Config, tell: Tell, seconds: float = 10.0) -> None:
    """Sample a window forward and backward with Linux's `perf`, and sum its samples by kind of operation."""
    if shutil.which("perf") is None:
        tell("time by kind of operation: needs Linux's `perf`, which is not installed here\n")
        return
    model = ByteLM(config.model, activation_checkpointing=config.step.activation_checkpointing)
    state = new_train_state(model, config.optimizer, seed=0)
    step = TrainingStep(model, config.step, config.optimizer)
    batch = np.zeros((config.step.batch, config.model.seq * config.step.chunks + 1), dtype=np.uint8)
    mx.eval(step.accumulate(state.weights, batch))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "perf.data"
        command = ["perf", "record", "-q", "-F", "499", "-o", str(file), "-p", str(os.getpid())]
        recorder = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(0.5)
        started_at = time.monotonic()
        while time.monotonic() - started_at < seconds:
            mx.eval(step.accumulate(state.weights, batch))
        recorder.terminate()
        recorder.wait()
        script = ["perf", "script", "-i", str(file), "-F", "sym,dso,ip"]
        found = subprocess.run(script, capture_output=True, text=True, check=False)
    counts = Counter(kind_of(line) for line in found.stdout.splitlines() if line.strip())
    total = sum(counts.values())
    if not total:
        tell(f"time by kind of operation: perf recorded nothing: {found.stderr.strip().splitlines()[-1:]}\n")
        return
    tell(f"CPU time of a window of {config.preset} by kind of operation ({total:,} samples)")
    for kind, count in counts.most_common():
        tell(f"  {kind:30} {count / total:6.1%}")
    tell("")


def kind_of(line: str) -> str:
    """The kind of one line of `perf script -F ip,sym,dso`."""
    for kind, pattern in _KINDS:
        if re.search(pattern, line):
            return kind
    return "other"
