"""Hold the memory estimate against measured steps: `python tools/memory_accuracy.py`; the table of docs/memory.md.

Each configuration runs two real steps in a process of its own. The formulas were built on the first list. `--seed`
draws the other: a new seed draws one that nothing was fitted to. tools/fit_memory.py --judge reads what --out keeps.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path

from mlx_amort.backend import describe_machine, load_blas
from mlx_amort.config.reading import resolve, to_dict
from mlx_amort.config.values import Config
from mlx_amort.cost.measure.worker_process import run_worker
from mlx_amort.cost.memory.estimate import estimate

HELD_OUT_SEED = 22
DRAWN = 16
# Never measure what might not fit beside other programs, or takes minutes per step.
MOST_BYTES = 18_000_000_000
MOST_WORK = 6e11
TIME_LIMIT_S = 900.0

BUILDING = (
    "veritate_10m step.batch=4 step.precision=fp32",
    "veritate_10m step.batch=4 step.precision=fp32 step.activation_checkpointing=true",
    "veritate_10m step.batch=4 step.precision=bf16",
    "veritate_10m step.batch=4 step.precision=bf16 step.activation_checkpointing=true step.window=1",
    "veritate_10m model.trunk=dense step.batch=4 step.precision=fp32",
    "veritate_10m model.trunk=dense step.batch=4 step.precision=fp32 step.activation_checkpointing=true",
    "veritate_10m model.trunk=dense step.batch=4 step.precision=bf16 optimizer.name=adamw step.accum=2",
    "veritate_10m model.trunk=patched step.batch=8 step.precision=bf16-pure",
    "veritate_10m model.trunk=recurrent model.layers=4 step.batch=2 step.precision=fp32 step.chunks=4",
    "veritate_10m model.trunk=recurrent model.layers=4 step.batch=2 step.precision=bf16",
    "veritate_10m model.trunk=recurrent model.layers=4 step.batch=2 step.precision=bf16 "
    "step.activation_checkpointing=true",
    "huge step.batch=8 step.precision=fp32",
    "mega model.layers=8 step.batch=2 step.precision=bf16 step.accum=1",
    "mega model.layers=2 model.vocabulary=8192 data.dtype=uint16 step.batch=2 step.precision=fp32 step.accum=1",
    "veritate_80m step.batch=1 step.precision=fp32 optimizer.name=adamw",
    "veritate_80m step.batch=2 step.precision=fp32 step.activation_checkpointing=true optimizer.name=adamw",
    "veritate_200m step.batch=1 step.window=1 step.chunks=2 step.precision=fp32 optimizer.name=adamw",
)


def building() -> Iterator[Config]:
    """The configurations that the formulas were built on."""
    for line in BUILDING:
        preset, *overrides = line.split()
        yield resolve(preset=preset, overrides=overrides)


def drawn(seed: int) -> Iterator[Config]:
    """Configurations drawn by a seed: from 1 M to 270 M parameters, a third of them in each range."""
    draw = random.Random(seed)
    ranges = ((1e6, 6e6), (6e6, 3e7), (3e7, 2.7e8))
    for index in range(DRAWN):
        least, most = ranges[index % len(ranges)]
        while True:
            config = _drawn(draw)
            work = config.model.parameters * (config.bytes_per_step + 2_000)
            if (
                least <= config.model.parameters < most
                and work <= MOST_WORK
                and estimate(config).peak_bytes <= MOST_BYTES
            ):
                yield config
                break


def _drawn(draw: random.Random) -> Config:
    heads, width = draw.choice((2, 4, 6, 8, 12, 16)), draw.choice((16, 32, 40, 64, 80))
    window = draw.choice((1, 2, 2, 3))
    values = {
        "model.trunk": draw.choice(("hybrid", "hybrid", "dense", "recurrent", "patched")),
        "model.layers": draw.randint(1, 16),
        "model.hidden": heads * width,
        "model.heads": heads,
        "model.ffn": heads * width * draw.choice((2, 3, 4)),
        "model.seq": draw.choice((128, 256, 512, 768, 1024)),
        "model.patch_stride": draw.choice((4, 4, 8)),
        "step.batch": draw.choice((1, 2, 3, 4, 6, 8, 12)),
        "step.window": window,
        "step.chunks": window * draw.choice((1, 1, 2)),
        "step.accum": draw.choice((1, 1, 2)),
        "step.precision": draw.choice(("fp32", "bf16", "bf16-pure")),
        "step.activation_checkpointing": draw.choice(("false", "true")),
        "optimizer.name": draw.choice(("muon", "adamw")),
    }
    return resolve(overrides=[f"{key}={value}" for key, value in values.items()])


def describe(config: Config) -> str:
    """A configuration in one cell of the table."""
    model, step = config.model, config.step
    recomputed = " recomputed" if step.activation_checkpointing else ""
    stride = f"/{model.patch_stride}" if model.is_patched else ""
    vocabulary = f" V {model.vocabulary}" if model.vocabulary != 256 else ""
    return (
        f"{model.trunk} {model.layers}×{model.hidden} F {model.ffn} h {model.heads} S {model.seq}{stride}{vocabulary}, "
        f"A {step.accum} B {step.batch} K {step.chunks} W {step.window}, {step.precision} "
        f"{config.optimizer.name}{recomputed}"
    )


def measured_bytes(config: Config, memory_bytes: int) -> dict[str, int]:
    """Peak of two steps in a fresh process, whole and by phase."""
    outcome = run_worker({"job": "peak", "config": to_dict(config)}, memory_bytes, TIME_LIMIT_S)
    if outcome.answer is None or outcome.answer["status"] != "ok":
        raise RuntimeError(f"{describe(config)}: {outcome.answer or outcome.errors}")
    return {"peak": outcome.answer["peak_bytes"], **outcome.answer["phase_bytes"]}


def read_measured(file: Path | None) -> dict[str, dict[str, int]]:
    """What `--out` has kept, by configuration; of one measured again the last."""
    lines = file.read_text(encoding="utf-8").splitlines() if file is not None else []
    records = [json.loads(line) for line in lines]
    return {json.dumps(record["config"]): record["measured"] for record in records}


def report(name: str, config: Config, measured: dict[str, int]) -> float:
    """Print a row of the table; estimate / measured."""
    found = estimate(config)
    ratio = found.peak_bytes / measured["peak"]
    phases = [found.phase_bytes[phase] / measured[phase] for phase in ("window", "update")]
    print(
        f"| {name} | {describe(config)} | {config.model.parameters:,} | {found.peak_bytes / 1e6:,.0f} | "
        f"{measured['peak'] / 1e6:,.0f} | {ratio:.3f} | {phases[0]:.3f} | {phases[1]:.3f} |",
        flush=True,
    )
    return ratio


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", choices=("building", "held-out", "both"), default="both")
    parser.add_argument("--seed", type=int, default=HELD_OUT_SEED, help="what draws the held-out list")
    parser.add_argument("--repeat", type=int, default=1, help="measure each so many times, to see the spread")
    parser.add_argument("--out", type=Path, help="append a JSON line per measurement to this file")
    parser.add_argument(
        "--measured", type=Path, help="take from such a file what it has, and measure the rest"
    )
    arguments = parser.parse_args()
    load_blas()
    machine = describe_machine()
    print(
        f"{date.today()}, {machine['processor']}, {machine['cores']} cores, mlx {machine['mlx']} on the CPU\n"
    )
    print("| list | configuration | parameters | estimate MB | measured MB | ratio | window | update |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    known = read_measured(arguments.measured)
    ratios: dict[str, list[float]] = {}
    lists = {"building": list(building()), "held-out": list(drawn(arguments.seed))}
    for name, configs in lists.items():
        if arguments.list not in (name, "both"):
            continue
        for config in configs * arguments.repeat:
            record = to_dict(config)
            measured = known.get(json.dumps(record))
            if measured is None:
                measured = measured_bytes(config, machine["memory_bytes"])
                if arguments.out:
                    with arguments.out.open("a", encoding="utf-8") as file:
                        file.write(json.dumps({"list": name, "config": record, "measured": measured}) + "\n")
            ratios.setdefault(name, []).append(report(name, config, measured))
    everything = [ratio for values in ratios.values() for ratio in values]
    print()
    for name, values in {**ratios, "all": everything}.items():
        print(
            f"{name}: {len(values)} measurements, estimate / measured median {statistics.median(values):.3f}, "
            f"{min(values):.3f} to {max(values):.3f}"
        )
    sys.exit(0 if all(0.98 <= ratio <= 1.08 for ratio in everything) else 1)


if __name__ == "__main__":
    main()
