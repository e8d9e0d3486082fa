"""What the studies compare, and the runs that this takes."""

from __future__ import annotations

from dataclasses import dataclass

PRESET = "demo"
# What every run has; validated once, at its end, and over the whole of what is held out.
BASE = {"run.eval_every": "null", "run.save_every": "null", "run.sample_bytes": "0"}
# Of a large corpus less is held out, so that validation takes seconds.
VALIDATION_FRACTIONS = {"builtin:stdlib": "0.005"}
# First guesses of each optimizer's learning rate; how often the list may grow until its best is inside.
RATES = {"muon": (0.005, 0.01, 0.02, 0.04), "adamw": (0.001, 0.002, 0.004, 0.008)}
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


def training(overrides: Overrides, steps: int, seed: int, data: str) -> Training:
    """The run of these overrides, in an order that makes equal ones equal."""
    return Training(tuple(f"{key}={overrides[key]}" for key in sorted(overrides)), steps, seed, data)


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
        """One run per seed."""
        return [training(overrides, steps, seed, data) for seed in self.seeds]
