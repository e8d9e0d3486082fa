"""Fit the counts of the memory model on this machine: `python tools/fit_memory.py --seed 1`.

Draws configurations whose peaks depend on the counts, runs two real steps of each in a process of its own, fits the
counts to the peaks of both phases, and writes the table (mlx_amort/cost/memory/counts/BACKEND.json, or --out).

--measurements keeps measured peaks, so a run that was stopped goes on where it was. A fifth of the peaks is kept out
of the fit: on these and on what --judge adds, together, the table must do at least as well as the counts before, or it
is not written (--force writes it).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import replace
from datetime import date
from pathlib import Path

from mlx_amort.backend import describe_machine, load_blas
from mlx_amort.config.reading import from_dict, to_dict
from mlx_amort.config.values import Config
from mlx_amort.cost.measure.worker_process import run_worker
from mlx_amort.cost.memory import counts as tables
from mlx_amort.cost.memory.calibration import (
    Observation,
    choose_configurations,
    fit_counts,
    loss_of,
    ratios,
)
from mlx_amort.cost.memory.counts import Counts, counts_of, read_counts, values_of, write_counts

SHIPPED = Path(tables.__file__).with_name("counts")
DOCUMENT = Path(__file__).parents[1] / "docs" / "memory.md"
TIME_LIMIT_S = 120.0
# Every fifth observation judges the fit.
HELD_OUT_STRIDE = 5


def measure(configs: list[Config], memory_bytes: int, kept: Path | None) -> list[Observation]:
    """Peaks of both phases of each configuration, from `kept` or measured now; what takes too long is left out."""
    known: dict[str, dict[str, int]] = {}
    if kept is not None and kept.exists():
        for line in kept.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            known[json.dumps(record["config"])] = record["phase_bytes"]
    found = []
    for index, config in enumerate(configs):
        phase_bytes = known.get(json.dumps(to_dict(config)))
        if phase_bytes is None:
            outcome = run_worker({"job": "peak", "config": to_dict(config)}, memory_bytes, TIME_LIMIT_S)
            if outcome.answer is None or outcome.answer["status"] != "ok":
                print(f"{index + 1} of {len(configs)}: left out ({outcome.answer or outcome.errors})")
                continue
            phase_bytes = outcome.answer["phase_bytes"]
            if kept is not None:
                with kept.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"config": to_dict(config), "phase_bytes": phase_bytes}) + "\n")
        found.append(Observation(config, phase_bytes["window"], phase_bytes["update"]))
        print(
            f"{index + 1} of {len(configs)}: {max(phase_bytes.values()) / 1e6:,.0f} MB", end="\r", flush=True
        )
    return found


def read_observations(file: Path) -> list[Observation]:
    """What `tools/memory_accuracy.py --out` kept, or this tool."""
    found = []
    for line in file.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        peaks = record.get("measured") or record["phase_bytes"]
        found.append(Observation(from_dict(record["config"]), peaks["window"], peaks["update"]))
    return found


def describe(name: str, counts: Counts, observations: list[Observation]) -> str:
    """How a table does on observations."""
    found = ratios(counts, observations)
    outside = sum(not 0.98 <= ratio <= 1.08 for ratio in found)
    return (
        f"{name}: estimate / measured {min(found):.3f} to {max(found):.3f}, median {statistics.median(found):.3f}, "
        f"{outside} of {len(found)} outside -2 to +8 %, loss {1e4 * loss_of(counts, observations):.2f}e-4"
    )


def put_into_document(counts: Counts, document: Path = DOCUMENT) -> None:
    """Replace the rows of the two count tables of docs/memory.md."""
    values = values_of(counts)
    window = [
        f"| `{name}` | {values[f'float32.{name}']:g} | {values[f'bfloat16.{name}']:g} |"
        for name in (key.partition(".")[2] for key in values if key.startswith("float32."))
    ]
    update = [f"| `{name}` | {value:g} |" for name, value in values.items() if name.startswith("update.")]
    lines: list[str] = []
    for line in document.read_text(encoding="utf-8").splitlines():
        is_old = line.startswith("| `update.") or (
            line.startswith("| `") and line.split("`")[1] in _names(values)
        )
        if not is_old:
            lines.append(line)
        if line == "|---|---|---|" and lines[-2] == "| count | fp32 | bf16 |":
            lines += window
        elif line == "|---|---|" and lines[-2] == "| count of the update | |":
            lines += update
    document.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _names(values: dict[str, float]) -> set[str]:
    return {key.partition(".")[2] for key in values}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--per-count", type=int, default=4, help="configurations that tell about each count")
    parser.add_argument("--measurements", type=Path, help="keep measured peaks in this file, and reuse them")
    parser.add_argument(
        "--judge", type=Path, action="append", default=[], help="further peaks to judge by, never fitted"
    )
    parser.add_argument("--start", type=Path, help="a table to start from, instead of the one in use")
    parser.add_argument("--out", type=Path, help="where the table goes, instead of the package")
    parser.add_argument("--force", action="store_true", help="write the table even if it is no better")
    parser.add_argument(
        "--document", action="store_true", help="only put the shipped counts into docs/memory.md"
    )
    arguments = parser.parse_args()
    if arguments.document:
        put_into_document(read_counts(SHIPPED / "cpu.json"))
        return
    load_blas()
    machine = describe_machine()
    backend = machine["backend"]
    start = read_counts(arguments.start) if arguments.start else counts_of(backend)
    configs = choose_configurations(start, arguments.seed, arguments.per_count)
    print(f"{len(configs)} configurations, {machine['processor']}, mlx {machine['mlx']}, {backend}")
    observations = measure(configs, machine["memory_bytes"], arguments.measurements)
    held_out = observations[::HELD_OUT_STRIDE]
    fitted_to = [each for index, each in enumerate(observations) if index % HELD_OUT_STRIDE]
    fitted = fit_counts(start, fitted_to)
    before, after = values_of(start), values_of(fitted)
    for name, value in before.items():
        print(f"  {name:<46} {value:8.2f} {after[name]:8.2f}")
    judged = {"fitted to": fitted_to, "kept out": held_out}
    judged |= {str(file): read_observations(file) for file in arguments.judge}
    for name, each in judged.items():
        print(describe(f"{name}, before", start, each))
        print(describe(f"{name}, fitted", fitted, each))
    unfitted = [one for name, each in judged.items() if name != "fitted to" for one in each]
    is_better = loss_of(fitted, unfitted) <= loss_of(start, unfitted)
    if not is_better and not arguments.force:
        print("not written: on what it was not fitted to it does worse than the counts before")
        sys.exit(1)
    rounded = {name: round(value, 2) for name, value in after.items()}
    table = replace(
        tables.with_values(fitted, rounded),
        backend=backend,
        mlx=machine["mlx"],
        machine=f"{machine['processor']}, {machine['cores']} cores",
        date=date.today().isoformat(),
        command=f"tools/fit_memory.py --seed {arguments.seed} --per-count {arguments.per_count}",
    )
    path = arguments.out or SHIPPED / f"{backend}.json"
    write_counts(table, path)
    if path == SHIPPED / "cpu.json":
        put_into_document(table)
    print(f"written: {path}")


if __name__ == "__main__":
    main()
