"""Both sides step by turns, and what came of it: rows for our own fit, and paired ratios."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from mlx_amort.config.reading import to_dict
from mlx_amort.config.values import Config
from mlx_amort.cost.configuration import Configuration, Measurement

SIDES = ("mlx", "torch")
_THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


class Worker:
    """A process of one side (side.py), which waits while the other works."""

    def __init__(self, name: str, threads: int) -> None:
        environment = {**os.environ, **{variable: str(threads) for variable in _THREAD_VARIABLES}}
        command = [sys.executable, "-m", "tools.bench.side", name, str(threads)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send one request and wait for its answer. Raises: RuntimeError when the process has ended."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"a side of the bench ended with {self.process.wait()}")
        found: dict[str, Any] = json.loads(answer)
        return found

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()


@dataclass(frozen=True)
class Comparison:
    """Steps of one configuration on both sides, taken by turns. Units: seconds."""

    config: Config
    samples: dict[str, list[dict[str, float]]]

    def median_s(self, side: str, part: str) -> float:
        return statistics.median(sample[part] for sample in self.samples[side])

    def ratios(self, part: str) -> list[float]:
        """PyTorch's time over ours, turn by turn: above 1 we are faster."""
        ours, theirs = (self.samples[side] for side in SIDES)
        return [other[part] / own[part] for own, other in zip(ours, theirs, strict=True)]

    def measurement(self, side: str, part: str = "step_s") -> Measurement:
        return Measurement(
            Configuration.of(self.config),
            self.median_s(side, part),
            samples_s=tuple(sample[part] for sample in self.samples[side]),
        )


def take_turns(
    workers: dict[str, Worker], configs: Sequence[Config], folder: Path, turns: int, warm_up: int
) -> list[Comparison]:
    """Step both sides by turns through all configurations, round after round, after rounds that settle them.

    What slows the machine for a while then slows a sample of each.
    """
    keys = [str(index) for index in range(len(configs))]
    for key, config in zip(keys, configs, strict=True):
        for worker in workers.values():
            worker.ask(job="setup", key=key, config=to_dict(config), folder=str(folder))
    found = [Comparison(config, {name: [] for name in workers}) for config in configs]
    for turn in range(warm_up + turns):
        for key, comparison in zip(keys, found, strict=True):
            for name, worker in workers.items():
                answer = worker.ask(job="step", key=key)
                if turn >= warm_up:
                    comparison.samples[name].append(answer)
    return found


@dataclass(frozen=True)
class Agreement:
    """How far two sides are from each other: the loss's difference, and the worst gradient's, relatively."""

    loss_difference: float
    gradient_difference: float
    worst_name: str


def compare_gradients(workers: dict[str, Worker], config: Config, folder: Path) -> Agreement:
    """One window's loss and gradients of both sides; a gradient's difference is relative to its largest value."""
    losses = {}
    for name, worker in workers.items():
        worker.ask(job="setup", key="agreement", config=to_dict(config), folder=str(folder))
        losses[name] = worker.ask(job="gradients", key="agreement")["loss"]
    ours, theirs = (np.load(folder / f"{name}.npz") for name in SIDES)
    if set(ours.files) != set(theirs.files):
        raise RuntimeError(f"only one side has a gradient of {sorted(set(ours.files) ^ set(theirs.files))}")
    errors = {
        name: float(np.abs(ours[name] - theirs[name]).max() / np.abs(theirs[name]).max())
        for name in ours.files
    }
    worst = max(errors, key=lambda name: errors[name])
    return Agreement(abs(losses["mlx"] - losses["torch"]), errors[worst], worst)


def spread(values: Sequence[float]) -> str:
    """Median and range in words."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"
