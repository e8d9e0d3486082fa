"""Studies: choices at equal bytes and seconds, and optimizers each at its best learning rate."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from tools.study.choices import RATES, Overrides, Plan, training
from tools.study.runs import Results
from tools.study.tables import RESULT_CELLS, figure, result_line, table_head, table_line
from tools.study.timing import equal_seconds_steps
from tools.study.tuning import best_rate, token_advantage, tune

LONGER = (1.3, 1.6, 2.0)


def compare_choices(
    plan: Plan, times_s: Mapping[str, float], results: Results, echo: Callable[[str], None]
) -> None:
    """Every choice at the reference's bytes and, where its steps take another time, at the reference's seconds."""
    reference, *_ = plan.study.choices
    echo(table_head(*RESULT_CELLS))
    for data in plan.data:
        rows: list[tuple[str, str, int]] = []
        for name in plan.study.choices:
            equal = plan.steps
            if plan.study.has_equal_seconds:
                equal = equal_seconds_steps(plan.steps, times_s[reference], times_s[name])
            is_both = plan.study.has_equal_seconds and equal == plan.steps
            rows.append((name, "bytes and seconds" if is_both else "bytes", plan.steps))
            if equal != plan.steps:
                rows.append((name, "seconds", equal))
        runs = [plan.runs(plan.overrides(name, data), steps, data) for name, _, steps in rows]
        # All at once, so that no core waits between the choices.
        results.bits([one for row in runs for one in row])
        of_reference = results.bits(runs[0])
        for (name, at, steps), row in zip(rows, runs, strict=True):
            bits = of_reference if row is runs[0] else results.bits(row)
            echo(result_line(data, name, at, steps, bits, of_reference))


def compare_optimizers(
    plan: Plan, times_s: Mapping[str, float], results: Results, echo: Callable[[str], None]
) -> None:
    """Muon against AdamW, each at its best learning rate, AdamW longer too, and how many times the bytes it needs."""
    for data in plan.data:
        rates = {name: _best_of(plan, name, data, results, echo) for name in plan.study.choices}
        muon, adamw = (_at_rate(plan, name, data, rates[name]) for name in ("muon", "adamw"))
        equal = equal_seconds_steps(plan.steps, times_s["muon"], times_s["adamw"])
        longer = {f"{factor:g} N": round(factor * plan.steps) for factor in LONGER}
        lengths = {"bytes and seconds" if equal == plan.steps else "bytes": plan.steps}
        lengths |= ({} if equal == plan.steps else {"seconds": equal}) | longer
        runs = {at: plan.runs(adamw, steps, data) for at, steps in lengths.items()}
        reference_runs = plan.runs(muon, plan.steps, data)
        results.bits([*reference_runs, *(one for row in runs.values() for one in row)])
        reference = results.bits(reference_runs)
        echo(table_head(*RESULT_CELLS))
        label = {name: f"{name} at {rate:g}" for name, rate in rates.items()}
        echo(result_line(data, label["muon"], "reference", plan.steps, reference, reference))
        found = {at: results.bits(row) for at, row in runs.items()}
        for at, steps in lengths.items():
            echo(result_line(data, label["adamw"], at, steps, found[at], reference))
        mean = token_advantage(
            plan.steps,
            statistics.fmean(reference),
            {lengths[at]: statistics.fmean(bits) for at, bits in found.items()},
        )
        by_seed = [
            token_advantage(
                plan.steps, reference[index], {lengths[at]: bits[index] for at, bits in found.items()}
            )
            for index in range(len(plan.seeds))
        ]
        echo(f"\n{data}: for Muon's bits per byte AdamW needs {mean} times the bytes; by seed {by_seed}\n")


def _at_rate(plan: Plan, name: str, data: str, rate: float) -> Overrides:
    return {**plan.overrides(name, data), "schedule.base_lr": f"{rate:g}"}


def _best_of(plan: Plan, name: str, data: str, results: Results, echo: Callable[[str], None]) -> float:
    def bits_of(rates: Sequence[float]) -> list[float]:
        seed = plan.seeds[0]
        return results.bits(
            [training(_at_rate(plan, name, data, rate), plan.steps, seed, data) for rate in rates]
        )

    found = tune(RATES[name], bits_of)
    best = best_rate(found)
    echo(table_head("corpus", "optimizer", "learning rate", f"bits per byte, seed {plan.seeds[0]}"))
    for rate, bits in found.items():
        echo(table_line(data, name, f"{rate:g}{' (best)' if rate == best else ''}", figure(bits)))
    echo("")
    return best
