"""One side of the comparison in a process of its own: `python -m tools.bench.side mlx|torch`.

One line of JSON in, one out, so that the parent can have both sides step by turns on the same cores.

    {"job": "setup", "key": K, "config": {...}, "folder": F}   a step under a name of its own; all of them have the
                                                  weights of F/weights.npz (made by mlx, if it is not there)
    {"job": "gradients", "key": K}                loss and gradients of a step into F/SIDE.npz
    {"job": "step", "key": K}                     {"step_s": ..., "window_s": ..., "update_s": ...}
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from mlx_amort.config.reading import from_dict
from mlx_amort.config.values import Config, OptimizerConfig

LEARNING_RATE = 1e-4


class Side(Protocol):
    """What either framework does on request."""

    def gradients(self) -> tuple[float, dict[str, Any]]: ...

    def step(self) -> tuple[float, float]: ...


def random_batch(config: Config) -> Any:
    """[A·B, S·K + 1] bytes, the same on either side."""
    step = config.step
    shape = (step.accum * step.batch, config.model.seq * step.chunks + 1)
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def mlx_side(config: Config, folder: Path, held: dict[str, Any]) -> Side:
    """The trainer's own step. held: one state per optimizer, for a step's time does not depend on its values."""
    from mlx_amort.backend import load_blas, set_cpu_cache_limit

    load_blas()
    import mlx.core as mx

    from mlx_amort.model.byte_lm import ByteLM
    from mlx_amort.optim.update import init_optimizer_state
    from mlx_amort.train.state import TrainState
    from mlx_amort.train.step import TrainingStep

    set_cpu_cache_limit()
    model = ByteLM(config.model, config.step.precision, config.step.activation_checkpointing)
    file = folder / "weights.npz"
    if not file.exists():
        fresh = model.init_weights(0)
        # Drawn, for a gate that is zero everywhere hides mistakes.
        fresh = {name: w + 0.02 * mx.random.normal(w.shape) for name, w in fresh.items()}
        mx.savez(str(file), **fresh)
    if config.optimizer.name not in held:
        weights = dict(mx.load(str(file)))  # type: ignore[arg-type]
        held[config.optimizer.name] = TrainState(
            weights, init_optimizer_state(weights, config.optimizer), step=0
        )

    class Mlx:
        def __init__(self) -> None:
            self.state: TrainState = held[config.optimizer.name]
            self.compiled = TrainingStep(model, config.step, config.optimizer)
            self.batch = random_batch(config)

        def gradients(self) -> tuple[float, dict[str, Any]]:
            loss, gradients = self.compiled.accumulate(self.state.weights, self.batch)
            return loss.item(), {name: np.array(value) for name, value in gradients.items()}  # type: ignore[return-value]

        def step(self) -> tuple[float, float]:
            started_at = time.perf_counter()
            loss, gradients = self.compiled.accumulate(self.state.weights, self.batch)
            between = time.perf_counter()
            self.compiled.update(self.state, gradients, loss, LEARNING_RATE)
            return between - started_at, time.perf_counter() - between

    return Mlx()


def _torch_state(own: OptimizerConfig, folder: Path) -> tuple[dict[str, Any], list[Any]]:
    import torch

    from mlx_amort.optim.partition import has_weight_decay, owners

    with np.load(folder / "weights.npz") as stored:
        weights = {name: torch.tensor(stored[name], requires_grad=True) for name in stored.files}
    owner_of = owners({name: tuple(value.shape) for name, value in weights.items()}, own.name)
    groups = [
        {
            "params": [
                w for n, w in weights.items() if owner_of[n] == "adamw" and has_weight_decay(n) == decays
            ],
            "weight_decay": own.weight_decay if decays else 0.0,
        }
        for decays in (True, False)
    ]
    optimizers: list[Any] = [
        torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=LEARNING_RATE,
            betas=(own.beta1, own.beta2),
            fused=True,
        )
    ]
    matrices = [w for n, w in weights.items() if owner_of[n] == "muon"]
    if matrices:
        optimizers.append(
            torch.optim.Muon(
                matrices,
                lr=LEARNING_RATE,
                weight_decay=own.weight_decay,
                momentum=own.momentum,
                adjust_lr_fn="match_rms_adamw",
            )
        )
    return weights, optimizers


def torch_side(config: Config, folder: Path, threads: int, held: dict[str, Any]) -> Side:
    """PyTorch: eager, fused AdamW, torch.optim.Muon for the blocks' matrices. held: see `mlx_side`."""
    import torch

    from mlx_amort.train.step import window_lengths
    from tools.bench.torch_model import window_loss, zero_state

    torch.set_num_threads(threads)
    model, step, own = config.model, config.step, config.optimizer
    if own.name not in held:
        held[own.name] = _torch_state(own, folder)
    weights, optimizers = held[own.name]

    class Torch:
        def __init__(self) -> None:
            self.batch = torch.tensor(random_batch(config).astype(np.int64))

        def accumulate(self) -> float:
            lengths = window_lengths(step.chunks, step.effective_window)
            losses = []
            for rows in self.batch.chunk(step.accum):
                state, start = zero_state(model, len(rows)), 0
                for length in lengths:
                    piece = rows[:, start * model.seq : (start + length) * model.seq + 1]
                    loss, state = window_loss(model, weights, piece, state)
                    loss = loss * (length / (step.chunks * step.accum))
                    loss.backward()
                    state = [(memory.detach(), tail.detach()) for memory, tail in state]
                    losses.append(loss.detach())
                    start += length
            return float(torch.stack(losses).sum())

        def gradients(self) -> tuple[float, dict[str, Any]]:
            loss = self.accumulate()
            found = {name: w.grad.numpy().copy() for name, w in weights.items() if w.grad is not None}
            self.clear()
            return loss, found

        def clear(self) -> None:
            for optimizer in optimizers:
                optimizer.zero_grad(set_to_none=True)

        def step(self) -> tuple[float, float]:
            started_at = time.perf_counter()
            self.accumulate()
            between = time.perf_counter()
            torch.nn.utils.clip_grad_norm_(weights.values(), own.clip_norm)
            for optimizer in optimizers:
                optimizer.step()
            self.clear()
            return between - started_at, time.perf_counter() - between

    return Torch()


def main() -> None:
    name, threads = sys.argv[1], int(sys.argv[2])
    sides: dict[str, Side] = {}
    held: dict[str, Any] = {}
    folder = Path()
    for line in sys.stdin:
        request = json.loads(line)
        answer: dict[str, Any] = {}
        if request["job"] == "setup":
            config, folder = from_dict(request["config"]), Path(request["folder"])
            side = (
                mlx_side(config, folder, held) if name == "mlx" else torch_side(config, folder, threads, held)
            )
            sides[request["key"]] = side
        elif request["job"] == "gradients":
            answer["loss"], gradients = sides[request["key"]].gradients()
            np.savez(folder / f"{name}.npz", **gradients)
        else:
            window_s, update_s = sides[request["key"]].step()
            answer = {"step_s": window_s + update_s, "window_s": window_s, "update_s": update_s}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
