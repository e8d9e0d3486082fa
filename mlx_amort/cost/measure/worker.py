"""Measures one configuration in a process of its own, which cost/measure/worker_process.py starts.

One line of JSON on stdin, one on stdout. Its peak memory is its own, and when it dies the sweep continues.

    {"job": "step", "config": {...}, "steps": 5}     what is measured, by the trainer's own TrainingStep
    {"job": "peak", "config": {...}}                 the peak memory of two steps, and of their phases
    {"job": "rates", "config": {...}}                what the machine can do with this configuration's shapes

Weights and bytes are random: a step's time does not depend on values.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import threading
import time
from typing import Any

from mlx_amort.backend import load_blas, set_cpu_cache_limit

load_blas()  # before mlx is imported below: afterwards its own slow products are bound

import mlx.core as mx  # noqa: E402
import numpy as np  # noqa: E402

from mlx_amort.config.reading import from_dict  # noqa: E402
from mlx_amort.config.values import Config  # noqa: E402
from mlx_amort.cost.configuration import Configuration, Measurement  # noqa: E402
from mlx_amort.cost.measure.rates import measure_rates  # noqa: E402
from mlx_amort.cost.measure.time_budget import LEAST_TIMED_S, MOST_STEPS_FACTOR  # noqa: E402
from mlx_amort.model.blocks import Weights  # noqa: E402
from mlx_amort.model.byte_lm import ByteLM  # noqa: E402
from mlx_amort.train.state import TrainState, new_train_state  # noqa: E402
from mlx_amort.train.step import Tokens, TrainingStep  # noqa: E402

# Warm once two steps in a row agree this well, or after as many.
_SETTLED = 0.1
_MOST_WARM_UPS = 3
_LEARNING_RATE = 1e-4


class TimedStep(TrainingStep):
    """The trainer's step with its two parts timed apart; each ends evaluated, so the clock waits for it."""

    window_s = 0.0
    update_s = 0.0

    def accumulate(self, weights: Weights, batch: Tokens) -> tuple[mx.array, Weights]:
        started_at = time.perf_counter()
        result = super().accumulate(weights, batch)
        self.window_s = time.perf_counter() - started_at
        return result

    def update(self, state: TrainState, gradients: Weights, loss: mx.array, learning_rate: float) -> mx.array:
        started_at = time.perf_counter()
        norm = super().update(state, gradients, loss, learning_rate)
        self.update_s = time.perf_counter() - started_at
        return norm


def measure_step(config: Config, steps: int) -> Measurement:
    """Times and peak memory of at least `steps` whole steps of `config`, after it is compiled and settled.

    Units: seconds (medians; every sample in samples_s), bytes. compile_s is what the first step took more
    than a settled one. `phases` divides one step, the median one: data is the batch's way into an array, for
    reading overlaps with computing; rest is Python and reading the loss.
    """
    model = ByteLM(config.model, config.step.precision, config.step.activation_checkpointing)
    state = new_train_state(model, config.optimizer, seed=0)
    mx.eval(state.weights, state.optimizer)
    step = TimedStep(model, config.step, config.optimizer)
    batch = _random_batch(config)

    def timed() -> float:
        started_at = time.perf_counter()
        step(state, batch, _LEARNING_RATE)
        return time.perf_counter() - started_at

    first_s = timed()
    last_s = timed()
    for _ in range(_MOST_WARM_UPS - 1):
        before_s, last_s = last_s, timed()
        if abs(last_s / before_s - 1) < _SETTLED:
            break
    mx.reset_peak_memory()
    samples_s: list[float] = []
    window_s: list[float] = []
    update_s: list[float] = []
    while len(samples_s) < steps or (
        sum(samples_s) < LEAST_TIMED_S and len(samples_s) < MOST_STEPS_FACTOR * steps
    ):
        samples_s.append(timed())
        window_s.append(step.window_s)
        update_s.append(step.update_s)
    peak_bytes = mx.get_peak_memory()
    data_s = _data_s(batch)
    step_s, windows_s, updates_s = (statistics.median(values) for values in (samples_s, window_s, update_s))
    # The parts of one step, the nearest to the median: medians of parts need not sum to that of the whole.
    nearest = min(range(len(samples_s)), key=lambda index: abs(samples_s[index] - step_s))
    phases = {"windows": window_s[nearest] - data_s, "update": update_s[nearest], "data": data_s}
    phases["rest"] = samples_s[nearest] - window_s[nearest] - update_s[nearest]
    return Measurement(
        Configuration.of(config),
        step_s,
        tuple(samples_s),
        peak_bytes,
        compile_s=max(0.0, first_s - step_s),
        window_s=windows_s,
        update_s=updates_s,
        phases=phases,
    )


def measure_peak(config: Config) -> dict[str, Any]:
    """Peak memory of two steps of `config`, and of each phase in them. Units: bytes.

    Two, for the second finds everything compiled and its buffers in place.
    """
    model = ByteLM(config.model, config.step.precision, config.step.activation_checkpointing)
    state = new_train_state(model, config.optimizer, seed=0)
    mx.eval(state.weights, state.optimizer)
    step = TrainingStep(model, config.step, config.optimizer)
    batch = _random_batch(config)
    peaks: dict[str, list[int]] = {"window": [], "update": []}
    for _ in range(2):
        mx.reset_peak_memory()
        loss, gradients = step.accumulate(state.weights, batch)
        peaks["window"].append(mx.get_peak_memory())
        mx.reset_peak_memory()
        step.update(state, gradients, loss, _LEARNING_RATE)
        peaks["update"].append(mx.get_peak_memory())
        state.step += 1
    phase_bytes = {name: max(values) for name, values in peaks.items()}
    return {"peak_bytes": max(phase_bytes.values()), "phase_bytes": phase_bytes, "status": "ok"}


def _random_batch(config: Config) -> Tokens:
    step, model = config.step, config.model
    dtype = np.uint8 if model.vocabulary <= 256 else np.uint16
    shape = (step.accum * step.batch, step.chunks * model.seq + 1)
    return np.random.default_rng(0).integers(0, model.vocabulary, shape).astype(dtype)


def _data_s(batch: Tokens) -> float:
    started_at = time.perf_counter()
    mx.eval(mx.array(batch))
    return time.perf_counter() - started_at


def _die_with_the_sweep() -> None:
    """End when stdin does: a killed sweep must not leave a worker that eats the machine."""

    def wait() -> None:
        sys.stdin.read()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _is_about_memory(refusal: Exception) -> bool:
    # MLX has no exception of its own for an allocation that is refused.
    return isinstance(refusal, MemoryError) or "memory" in str(refusal) or "alloc" in str(refusal)


def main() -> None:
    request = json.loads(sys.stdin.readline())
    _die_with_the_sweep()
    set_cpu_cache_limit()
    config = from_dict(request["config"])
    if request["job"] == "rates":
        answer = measure_rates(config).to_record()
    else:
        try:
            if request["job"] == "peak":
                answer = measure_peak(config)
            else:
                answer = measure_step(config, request["steps"]).to_record()
        except (MemoryError, RuntimeError) as refusal:
            if not _is_about_memory(refusal):
                raise
            answer = {"status": "did not fit", "note": " ".join(str(refusal).split()) or "out of memory"}
    print(json.dumps(answer), flush=True)
    os._exit(0)  # the waiting thread holds stdin, and a normal exit would wait for it
