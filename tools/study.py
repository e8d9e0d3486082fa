"""Compare choices by bits per byte at equal bytes and at equal seconds: `python -m tools.study NAME`; see --help.

Every figure is of a run of the installed command in a process of its own. Seconds a step are measured before the first
of them, with the trainer's own step, and the choices take their steps by turns, so what slows the machine slows all.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path

import click

from mlx_amort.backend import describe_machine, load_blas
from mlx_amort.config.reading import resolve
from mlx_amort.config.values import Config
from mlx_amort.errors import UserError
from tools.bench.side import mlx_side
from tools.bench.turns import spread

PRESET = "demo"
# What every run has; validated once, at its end, and over the whole of what is held out.
BASE = {"run.eval_every": "null", "run.save_every": "null", "run.sample_bytes": "0"}
# Of a large corpus less is held out, so that validation takes seconds.
VALIDATION_FRACTIONS = {"builtin:stdlib": "0.005"}
SEEDS = "1,2,3"
ROUNDS, WARM_UP_ROUNDS = 40, 2
# Steps that differ by less are the same run.
NEGLIGIBLE = 0.02
# First guesses of each optimizer's learning rate; how often the list may grow until its best is inside.
RATES = {"muon": (0.005, 0.01, 0.02, 0.04), "adamw": (0.001, 0.002, 0.004, 0.008)}
MOST_EXTENSIONS = 6
LONGER = (1.3, 1.6, 2.0)

Overrides = dict[str, str]


@dataclass(frozen=True)
class Study:
    """What is compared: overrides by the name of a choice, the first being the reference, and the corpora."""

    choices: dict[str, Overrides]
    data: tuple[str, ...] = ("builtin:docs",)
    has_equal_seconds: bool = True


STUDIES = {
    "boundary": Study(
        {
            "every-4": {"model.boundary_rule": "every", "model.patch_stride": "4"},
            "first-4": {"model.boundary_rule": "first", "model.patch_stride": "4"},
            "first-8": {"model.boundary_rule": "first", "model.patch_stride": "8"},
        },
        ("builtin:docs", "builtin:stdlib"),
    ),
    "optimizers": Study({name: {"optimizer.name": name} for name in RATES}),
    "polynomials": Study(
        {
            name: {"optimizer.name": "muon", "optimizer.coefficients": name}
            for name in ("jordan", "polar_express", "polar_express_nonic")
        },
        has_equal_seconds=False,
    ),
}


@dataclass(frozen=True)
class Training:
    """One run: "section.key=value" over the preset, optimizer steps, seed, corpus."""

    overrides: tuple[str, ...]
    steps: int
    seed: int
    data: str


Runner = Callable[[Training], float]


def training(overrides: Overrides, steps: int, seed: int, data: str) -> Training:
    """The run of these overrides, in an order that makes equal ones equal."""
    return Training(tuple(f"{key}={overrides[key]}" for key in sorted(overrides)), steps, seed, data)


def run_training(wanted: Training, threads: int | None = None) -> float:
    """Train in a process and a folder of their own; threads: OpenBLAS', None for its own choice.

    Units: bits per byte over the whole validation part, infinite for a run that diverged.
    Raises: click.ClickException when the command failed.
    """
    environment = dict(os.environ)
    if threads is not None:
        environment["OPENBLAS_NUM_THREADS"] = str(threads)
    with tempfile.TemporaryDirectory() as parent:
        folder = str(Path(parent) / "run")
        command = ["train", "--json", "--preset", PRESET, "--out", folder, "--data", wanted.data]
        command += ["--steps", str(wanted.steps), "--seed", str(wanted.seed)]
        for override in wanted.overrides:
            command += ["--set", override]
        summary = _answer(command, environment)
        if summary["ending"] == "diverged":
            return math.inf
        if summary["ending"] != "complete":
            raise click.ClickException(f"a run ended as {summary['ending']}: {wanted}")
        if summary["val_is_whole"]:
            bits = summary["val_bits"]
        else:
            bits = _answer(["evaluate", folder, "--json"], environment)["bits_per_byte"]
    return float(bits) if bits is not None and math.isfinite(bits) else math.inf  # type: ignore[arg-type]


def _answer(command: list[str], environment: Mapping[str, str]) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-m", "mlx_amort", *command], env=environment, capture_output=True, text=True
    )
    try:
        # A diverged run exits with 1 and has a summary all the same.
        answer: dict[str, object] = json.loads(done.stdout)
    except json.JSONDecodeError:
        told = done.stderr.strip().splitlines()[-1:]
        raise click.ClickException(
            f"`{command[0]}` exited with {done.returncode}: {' '.join(told)}"
        ) from None
    return answer


class Results:
    """Bits per byte of runs by what they are, and times by choices, kept in memory and in a file of JSON lines."""

    def __init__(self, file: Path | None, runner: Runner, jobs: int = 1) -> None:
        self._file = file
        self._runner = runner
        self._jobs = jobs
        self._lock = threading.Lock()
        self._bits: dict[Training, float] = {}
        self._times: dict[str, dict[str, list[float]]] = {}
        if file is not None and file.exists():
            self._read(file)

    def bits(self, wanted: Sequence[Training]) -> list[float]:
        """Bits per byte of each run; those that are not known yet are made first, `jobs` at once."""
        missing = [one for one in dict.fromkeys(wanted) if one not in self._bits]
        with ThreadPoolExecutor(self._jobs) as pool:
            list(pool.map(self._run, missing))
        return [self._bits[one] for one in wanted]

    def times(self, choices: Mapping[str, Overrides]) -> dict[str, list[float]] | None:
        """Seconds of each timed step by choice, if exactly these choices were timed together before."""
        return self._times.get(_key_of(choices))

    def keep_times(self, choices: Mapping[str, Overrides], samples_s: dict[str, list[float]]) -> None:
        """Remember what `times` answers: an interrupted study goes on with the step counts it began with."""
        self._times[_key_of(choices)] = samples_s
        self._append({"choices": choices, "samples_s": samples_s})

    def _run(self, wanted: Training) -> None:
        bits = self._runner(wanted)
        with self._lock:
            self._bits[wanted] = bits
            finite = bits if math.isfinite(bits) else None
            self._append({**dataclasses.asdict(wanted), "bits_per_byte": finite})
            shown = " ".join(override for override in wanted.overrides if override.split("=")[0] not in BASE)
            click.echo(
                f"{wanted.data} {shown}, {wanted.steps} steps, seed {wanted.seed}: {_figure(bits)}", err=True
            )

    def _append(self, record: Mapping[str, object]) -> None:
        if self._file is not None:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")

    def _read(self, file: Path) -> None:
        text = file.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            # The last line was cut off by whatever ended the study; what is appended starts a line.
            file.write_text(whole, encoding="utf-8")
        for line in whole.splitlines():
            record = json.loads(line)
            if "samples_s" in record:
                self._times[_key_of(record["choices"])] = record["samples_s"]
            else:
                bits = record.pop("bits_per_byte")
                key = Training(**{**record, "overrides": tuple(record["overrides"])})
                self._bits[key] = math.inf if bits is None else bits


def _key_of(choices: Mapping[str, Overrides]) -> str:
    return json.dumps(choices, sort_keys=True)


def seconds_a_step(
    configs: Mapping[str, Config], rounds: int = ROUNDS, warm_up: int = WARM_UP_ROUNDS
) -> dict[str, list[float]]:
    """Seconds of each step of the trainer by configuration; all step by turns, round after round, after a warm-up."""
    samples_s: dict[str, list[float]] = {name: [] for name in configs}
    with tempfile.TemporaryDirectory() as parent:
        sides = {}
        for name, config in configs.items():
            # Weights of its own: a slot more or less is another shape.
            folder = Path(parent) / name
            folder.mkdir()
            sides[name] = mlx_side(config, folder, {})
        for turn in range(warm_up + rounds):
            for name, side in sides.items():
                step_s = sum(side.step())
                if turn >= warm_up:
                    samples_s[name].append(step_s)
    return samples_s


def parse_seconds(text: str, names: Sequence[str]) -> dict[str, list[float]]:
    """Seconds a step by choice from "name=0.19,name2=0.21". Raises: click.BadParameter unless each has one, above 0."""
    found: dict[str, list[float]] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        try:
            found[name.strip()] = [float(value)]
        except ValueError:
            raise click.BadParameter(f"'{part}' is not NAME=SECONDS") from None
    if set(found) != set(names) or not all(0 < value < math.inf for (value,) in found.values()):
        raise click.BadParameter(f"give a time above 0 for each of {', '.join(names)}, and no other")
    return found


def equal_seconds_steps(steps: int, reference_s: float, choice_s: float) -> int:
    """Steps in the time that the reference takes for `steps`; `steps` itself where that is within 2 %."""
    found = max(1, round(steps * reference_s / choice_s))
    return steps if abs(found - steps) <= NEGLIGIBLE * steps else found


def tune(rates: Sequence[float], bits_of: Callable[[Sequence[float]], Sequence[float]]) -> dict[float, float]:
    """Bits per byte by learning rate, extended by factors of 2 on the best one's side until it is not at an end.

    Raises: click.ClickException when it still is after MOST_EXTENSIONS.
    """
    found = dict(zip(rates, bits_of(rates), strict=True))
    for _ in range(MOST_EXTENSIONS + 1):
        best = best_rate(found)
        if min(found) < best < max(found):
            return dict(sorted(found.items()))
        added = best / 2 if best == min(found) else best * 2
        (found[added],) = bits_of([added])
    raise click.ClickException(f"no best learning rate between {min(found):g} and {max(found):g}")


def best_rate(bits: Mapping[float, float]) -> float:
    """The learning rate with the least bits per byte, the lower of equals."""
    return min(sorted(bits), key=lambda rate: bits[rate])


def token_advantage(steps: int, target: float, curve: Mapping[int, float]) -> str:
    """How many times the bytes of `steps` the curve needs to come down to `target` bits per byte, in words.

    curve: bits by steps. Linear in log(steps) between neighbours; beyond the curve "more than" or "less than" its end.
    """
    points = sorted((count, bits) for count, bits in curve.items() if math.isfinite(bits))
    if not points:
        return "unknown"
    reached = next((index for index, (_, bits) in enumerate(points) if bits <= target), None)
    if reached is None:
        return f"more than {points[-1][0] / steps:.3g}"
    if reached == 0:
        count, bits = points[0]
        return f"{count / steps:.2f}" if bits == target else f"less than {count / steps:.3g}"
    (low, above), (high, below) = points[reached - 1], points[reached]
    share = (above - target) / (above - below)
    return f"{math.exp(math.log(low) + share * math.log(high / low)) / steps:.2f}"


def _figure(bits: float) -> str:
    return f"{bits:.4f}" if math.isfinite(bits) else "diverged"


def _difference(own: Sequence[float], reference: Sequence[float]) -> str:
    if not all(map(math.isfinite, (*own, *reference))):
        return ""
    values = [one - other for one, other in zip(own, reference, strict=True)]
    return f"{statistics.fmean(values):+.4f} ({min(values):+.4f}..{max(values):+.4f})"


def table_line(*cells: object) -> str:
    """One line of a Markdown table."""
    return f"| {' | '.join(map(str, cells))} |"


def table_head(*cells: str) -> str:
    """The two lines that a Markdown table begins with."""
    return f"{table_line(*cells)}\n|{'---|' * len(cells)}"


RESULT_CELLS = ("corpus", "choice", "compared at", "steps", "bits per byte", "min..max", "less the reference")


def result_line(
    data: str, choice: str, at: str, steps: int, bits: Sequence[float], reference: Sequence[float]
) -> str:
    """A choice's line: mean and range of bits per byte over seeds, and of its difference to the reference by seed."""
    span = f"{_figure(min(bits))}..{_figure(max(bits))}"
    less = "" if bits is reference else _difference(bits, reference)
    return table_line(data, choice, at, steps, _figure(statistics.fmean(bits)), span, less)


@dataclass(frozen=True)
class Plan:
    """A study as it was asked for: what all runs share, how long the reference's are, the seeds, the times."""

    study: Study
    common: Overrides
    steps: int
    seeds: tuple[int, ...]
    data: tuple[str, ...]

    def overrides(self, name: str, data: str | None = None) -> Overrides:
        """All overrides of a choice on a corpus, what was asked for before what is usual."""
        fraction = VALIDATION_FRACTIONS.get(data or "")
        usual = {"data.validation_fraction": fraction} if fraction else {}
        return {**BASE, **usual, **self.common, **self.study.choices[name]}

    def runs(self, overrides: Overrides, steps: int, data: str) -> list[Training]:
        """One run a seed."""
        return [training(overrides, steps, seed, data) for seed in self.seeds]


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
        echo(table_line(data, name, f"{rate:g}{' (best)' if rate == best else ''}", _figure(bits)))
    echo("")
    return best


def times_lines(samples_s: Mapping[str, Sequence[float]]) -> list[str]:
    """The table of seconds a step: medians, and the ratio to the reference turn by turn."""
    reference, *_ = samples_s
    lines = [table_head("choice", "seconds a step", f"over {reference}, by turns")]
    for name, samples in samples_s.items():
        ratios = [own / other for own, other in zip(samples, samples_s[reference], strict=True)]
        lines.append(table_line(name, f"{statistics.median(samples):.4f}", spread(ratios)))
    return lines


def _common(settings: Sequence[str], rate: float | None) -> Overrides:
    if not all("=" in setting for setting in settings):
        raise click.BadParameter("write it as SECTION.KEY=VALUE", param_hint="--set")
    common = {key.strip(): value for key, _, value in (setting.partition("=") for setting in settings)}
    return common if rate is None else {**common, "schedule.base_lr": f"{rate:g}"}


def _seeds(context: click.Context, parameter: click.Parameter, text: str) -> tuple[int, ...]:
    try:
        return tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise click.BadParameter("write them as 1,2,3") from None


def _samples(
    plan: Plan, configs: Mapping[str, Config], given: str | None, results: Results | None
) -> tuple[dict[str, list[float]], str]:
    """Seconds of steps by choice, and where they are from; without results they are measured anew."""
    if given is not None:
        found = parse_seconds(given, list(configs))
        return {name: found[name] for name in configs}, "given"
    choices = {name: plan.overrides(name) for name in configs}
    kept = None if results is None else results.times(choices)
    if kept is not None:
        return {name: kept[name] for name in configs}, "measured when this study began"
    samples_s = seconds_a_step(configs)
    if results is not None:
        results.keep_times(choices, samples_s)
    return samples_s, f"medians of {ROUNDS}"


@click.command()
@click.argument("name", type=click.Choice(list(STUDIES)))
@click.option("--steps", default=150, show_default=True, type=click.IntRange(1), help="N, the reference's.")
@click.option("--seeds", default=SEEDS, show_default=True, callback=_seeds, help="The first one tunes.")
@click.option("--jobs", default=2, show_default=True, type=click.IntRange(1), help="Runs at once.")
@click.option("--data", multiple=True, help="Corpora instead of the study's own. Repeatable.")
@click.option("--set", "settings", multiple=True, metavar="SECTION.KEY=VALUE", help="Changes the base.")
@click.option(
    "--lr", type=click.FloatRange(0, min_open=True), help="Learning rate. Without one: the preset's."
)
@click.option("--no-training", is_flag=True, help="Only measure the seconds a step.")
@click.option("--seconds-a-step", metavar="NAME=S,NAME=S", help="Take these instead of measuring.")
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), help="Append runs here, and repeat none of it."
)
def main(
    name: str,
    steps: int,
    seeds: tuple[int, ...],
    jobs: int,
    data: tuple[str, ...],
    settings: tuple[str, ...],
    lr: float | None,
    no_training: bool,
    seconds_a_step: str | None,
    out: Path | None,
) -> None:
    """Compare choices by validation bits per byte over seeds, at equal bytes and at equal seconds."""
    if name == "optimizers" and lr is not None:
        raise click.UsageError("--lr: this study finds the learning rate of each optimizer itself")
    study = STUDIES[name]
    plan = Plan(study, _common(settings, lr), steps, seeds, data or study.data)
    try:
        configs = {
            choice: resolve(PRESET, overrides=[f"{k}={v}" for k, v in plan.overrides(choice).items()])
            for choice in study.choices
        }
    except UserError as error:
        raise click.ClickException(str(error)) from None
    load_blas()
    _tell_base(plan, name, configs, click.echo)
    results = Results(out, partial(run_training, threads=1 if jobs > 1 else None), jobs)
    samples_s, origin = _samples(plan, configs, seconds_a_step, None if no_training else results)
    click.echo("\n".join(times_lines(samples_s)) + f"\n\nSeconds a step: {origin}.\n")
    if no_training:
        return
    times_s = {choice: statistics.median(samples) for choice, samples in samples_s.items()}
    compare = compare_optimizers if name == "optimizers" else compare_choices
    compare(plan, times_s, results, click.echo)


def _tell_base(plan: Plan, name: str, configs: Mapping[str, Config], echo: Callable[[str], None]) -> None:
    machine = describe_machine()
    config = next(iter(configs.values()))
    model = config.model
    changed = "".join(f", {key}={value}" for key, value in plan.common.items())
    rate = "tuned" if name == "optimizers" else f"{config.schedule.base_lr:g}"
    echo(
        f"{date.today()}, {machine['processor']}, {machine['cores']} cores, mlx {machine['mlx']}, {machine['blas']}; "
        f"{name}: preset {PRESET}{changed} ({model.trunk}, {model.layers} layers, H {model.hidden}, S {model.seq}), "
        f"N {plan.steps} steps of {config.bytes_per_step:,} bytes, learning rate {rate}, "
        f"seeds {', '.join(map(str, plan.seeds))}\n"
    )


if __name__ == "__main__":
    main()
