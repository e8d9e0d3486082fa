"""Configurations: conversion, precedence, refusal with the nearest name, and dump and load as identity."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mlx_amort.config.checks import choices
from mlx_amort.config.conversion import parse_source
from mlx_amort.config.model import LARGEST_LAYERS, LARGEST_WIDTH, ModelConfig, Trunk
from mlx_amort.config.presets import preset_names
from mlx_amort.config.reading import differing_keys, dump, from_dict, load, resolve, to_dict
from mlx_amort.config.values import (
    LARGEST_AXIS,
    Coefficients,
    Config,
    DataConfig,
    OptimizerConfig,
    RunConfig,
    ScheduleConfig,
    SourceConfig,
    StepConfig,
)
from mlx_amort.errors import UserError, did_you_mean
from mlx_amort.ops import newton_schulz

positive = st.integers(1, 10**12)
fractions = st.floats(0, 1, exclude_min=True, exclude_max=True)


@st.composite
def configs(draw: st.DrawFn) -> Config:
    def one(declared: Any) -> Any:
        return draw(st.sampled_from(choices(declared)))

    model = get_type_hints(ModelConfig)
    heads, stride = draw(st.integers(1, 8)), draw(st.integers(1, 8))
    base_lr = draw(st.floats(1e-9, 10))
    steps = draw(st.none() | positive)
    path = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
    return Config(
        preset=draw(st.none() | st.text(min_size=1)),
        model=ModelConfig(
            trunk=one(model["trunk"]),
            layers=draw(st.integers(1, LARGEST_LAYERS)),
            hidden=heads * draw(st.integers(1, 64)),
            ffn=draw(st.integers(1, LARGEST_WIDTH)),
            heads=heads,
            seq=stride * draw(st.integers(1, 64)),
            patch_stride=stride,
            boundary_rule=one(model["boundary_rule"]),
            scale_residual_init=draw(st.booleans()),
        ),
        step=StepConfig(
            batch=draw(st.integers(1, LARGEST_AXIS)),
            precision=one(get_type_hints(StepConfig)["precision"]),
            activation_checkpointing=draw(st.booleans()),
        ),
        optimizer=OptimizerConfig(eps=draw(st.floats(1e-30, 1)), beta2=draw(fractions)),
        schedule=ScheduleConfig(base_lr=base_lr, min_lr=draw(st.none() | st.floats(0, base_lr))),
        data=DataConfig(
            sources=tuple(draw(st.lists(st.builds(SourceConfig, path, fractions), min_size=1, max_size=3))),
            validation_fraction=draw(fractions),
            validation_split=one(get_type_hints(DataConfig)["validation_split"]),
            # What reads as null is no name; a run saves whole paths.
            validation=draw(st.none() | path.filter(lambda name: name.lower() not in ("null", "none", "~"))),
            raw=draw(st.booleans()),
        ),
        run=RunConfig(
            steps=steps, bytes=None if steps else draw(st.none() | positive), sample_prompt=draw(st.text())
        ),
    )


def every_key() -> list[str]:
    sections = {name: kind for name, kind in get_type_hints(Config).items() if name != "preset"}
    return [
        f"{section}.{field.name}" for section, kind in sections.items() for field in dataclasses.fields(kind)
    ]


@settings(deadline=None)
@given(configs())
@example(Config(run=RunConfig(sample_prompt="a\x85b\u2028")))
def test_dump_then_load_is_the_identity(config: Config) -> None:
    assert from_dict(yaml.safe_load(dump(config))) == config
    assert from_dict(to_dict(config)) == config


def test_load_does_not_consult_the_preset_it_names(tmp_path: Path) -> None:
    config = dataclasses.replace(resolve("demo"), preset="a preset since removed")
    (tmp_path / "config.yaml").write_text(dump(config), encoding="utf-8")
    assert load(tmp_path / "config.yaml") == config


@given(st.sampled_from(every_key()), st.data())
def test_a_misspelt_key_is_refused_with_the_nearest(key: str, data: st.DataObject) -> None:
    section, _, name = key.partition(".")
    cut = data.draw(st.integers(0, len(name) - 1))
    misspelt = f"{section}.{name[:cut]}{name[cut + 1 :]}x"
    if misspelt in every_key():
        return
    with pytest.raises(UserError, match=r"no such key; (did you mean|choose one of)") as refusal:
        resolve(overrides=[f"{misspelt}=1"])
    assert f"{section}." in refusal.value.todo


def test_precedence_is_dataclass_preset_file_command_line(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("step:\n  batch: 3\n  chunks: 5\n", encoding="utf-8")
    config = resolve("veritate_200m", file, ["step.chunks=7"])
    assert (config.step.chunks, config.step.batch) == (7, 3)
    assert (config.model.hidden, config.preset) == (1024, "veritate_200m")
    assert config.step.accum == StepConfig().accum


def test_layers_are_judged_together(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("model:\n  seq: 510\n", encoding="utf-8")
    assert resolve("demo", file, ["model.patch_stride=5"]).model.slots == 102
    with pytest.raises(UserError, match="508 or 512"):
        resolve("demo", file)


def test_coefficients_are_those_that_there_are_polynomials_for() -> None:
    assert get_args(Coefficients) == get_args(newton_schulz.Coefficients)


def test_polynomials_of_degree_nine_are_refused_in_bfloat16() -> None:
    with pytest.raises(UserError, match=r"lose their digits.*set optimizer.coefficients=polar_express"):
        resolve(overrides=["optimizer.muon_dtype=bfloat16", "optimizer.coefficients=polar_express_nonic"])
    resolve(overrides=["optimizer.muon_dtype=bfloat16", "optimizer.coefficients=polar_express"])


def test_the_files_preset_is_used_and_a_contradiction_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("preset: demo\n", encoding="utf-8")
    assert resolve(file=file) == resolve("demo")
    with pytest.raises(UserError, match="give only one"):
        resolve("veritate_80m", file)


def test_the_length_given_last_counts() -> None:
    assert resolve("veritate_200m", overrides=["run.steps=3"]).run.bytes is None
    assert resolve("veritate_10m", overrides=["run.bytes=2e6"]).total_steps == 2_000_000 // 16_384
    with pytest.raises(UserError, match="give only one"):
        resolve(overrides=["run.steps=3", "run.bytes=2e6"])


def test_overrides_on_a_saved_run_change_only_what_they_name() -> None:
    saved = resolve("demo", overrides=["run.steps=6", "run.seed=5"])
    longer = resolve(overrides=["run.steps=9"], base=saved)
    assert longer == dataclasses.replace(saved, run=dataclasses.replace(saved.run, steps=9))


@pytest.mark.parametrize(
    ("override", "section", "key", "value"),
    [
        ("schedule.base_lr=3e-4", "schedule", "base_lr", 3e-4),
        ("schedule.base_lr=1", "schedule", "base_lr", 1.0),
        ("run.bytes=2.006e9", "run", "bytes", 2_006_000_000),
        ("run.seed=12345678901234567890", "run", "seed", 12345678901234567890),
        ("run.eval_every=null", "run", "eval_every", None),
        ("schedule.min_lr=none", "schedule", "min_lr", None),
        ("step.activation_checkpointing=on", "step", "activation_checkpointing", True),
        ("step.activation_checkpointing=false", "step", "activation_checkpointing", False),
        ("run.sample_prompt=a=b", "run", "sample_prompt", "a=b"),
        ("data.sources=a.txt", "data", "sources", (SourceConfig("a.txt"),)),
        ("data.validation=a.txt:7", "data", "validation", "a.txt:7"),
        ("data.raw=true", "data", "raw", True),
        ("data.sources=[a:0.7, b/]", "data", "sources", (SourceConfig("a", 0.7), SourceConfig("b/"))),
    ],
)
def test_values_take_their_declared_type(override: str, section: str, key: str, value: object) -> None:
    converted = getattr(getattr(resolve(overrides=[override]), section), key)
    assert converted == value
    assert type(converted) is type(value)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("step.batch=many", "step.batch=many: must be a whole number"),
        ("step.batch=2.5", "step.batch=2.5: must be a whole number"),
        ("step.batch=null", "step.batch=null: must be a whole number"),
        ("step.batch=inf", "step.batch=inf: must be a whole number"),
        ("schedule.base_lr=fast", "schedule.base_lr=fast: must be a number"),
        ("schedule.base_lr=nan", "schedule.base_lr=nan: must be a finite number; 0.0003 is usual"),
        ("step.activation_checkpointing=perhaps", "must be on or off"),
        ("step.batch=0", "step.batch=0: must be at least 1"),
        ("optimizer.beta1=1", "must be at least 0 and below 1"),
        ("optimizer.weight_decay=-1", "must be at least 0"),
        ("optimizer.clip_norm=0", "must be above 0"),
        ("schedule.min_lr=1", "is above schedule.base_lr"),
        ("schedule.decay_fraction=1.5", "must be between 0 and 1"),
        ("data.validation_fraction=1", "must be above 0 and below 1"),
        ("data.sources=[a", "data.sources=[a: is not valid YAML ("),
        ("data.sources=[]", "is empty"),
        ("data.sources=[a:-1]", "weight -1 of 'a': must be above 0"),
        ("optimizer.name=moun", "no such choice; did you mean 'muon'?"),
        ("model.trunk=hybird", "did you mean 'hybrid'?"),
        ("model.heads=7", "does not divide model.hidden=320"),
        ("model.seq=510", "508 or 512 would do"),
        ("model.vocabulary=49152", "needs 256; choose model.trunk=dense or recurrent"),
        ("data.dtype=uint16", "reads bytes, not token ids"),
        ("run.seed=18446744073709551616", "must be below 2^64"),
        ("run.sample_prompt=a\udcff", "run.sample_prompt: is not text in UTF-8"),
        ("run.sample_temperature=-1", "must be at least 0"),
        ("schedule.base_lr=inf", "schedule.base_lr=inf: must be a finite number; "),
        ("schedule.base_lr=1e400", "schedule.base_lr=1e400: must be a finite number; "),
        ("schedule.base_lr=1e-400", "schedule.base_lr=1e-400: is too close to 0; "),
        ("step.batch=1e-400", "step.batch=1e-400: must be a whole number; "),
        ("run.seed=1e-400", "run.seed=1e-400: must be a whole number; "),
        ("step.batch=1e400", "step.batch=1e400: is too large; "),
        ("step.accum=2147483648", "must be at most 2,147,483,647; 1 is usual"),
        ("run.steps=1e16", "must be at most 9,007,199,254,740,992; "),
        ("model.layers=1000000000", "must be at most 10,000; 8 is usual"),
        ("model.hidden=1e10", "must be at most 1,048,576; "),
        ("model.seq=1e10", "must be at most 16,777,216; "),
        ("data.sources=[a:1e308]", "must be above 0 and at most 1,000,000; "),
        ("data.sources=" + "[" * 5000, ": is nested too deep; write it as [a.txt:0.7, b.txt:0.3]"),
        ("modle.seq=8", "'modle': no such section; did you mean 'model'?"),
        ("layers=4", "names no section; did you mean 'model.layers'?"),
        ("step.batch", "has no '='"),
    ],
)
def test_bad_values_are_refused_with_a_way_out(override: str, message: str) -> None:
    with pytest.raises(UserError) as refusal:
        resolve(overrides=[override])
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("step:\n  batch: 3\n  batch: 4\n", "'batch' is given twice"),
        ("step: 3\n", "'step' in .*: is a section"),
        ("- a\n", "does not hold sections"),
        ("step: [\n", "is not valid YAML"),
        ("steps:\n  batch: 3\n", "no such section; did you mean 'step'"),
        ("step:\n  batch: true\n", "must be a whole number"),
        ("preset: 3\n", "must be text or null"),
        ("data:\n  sources: [{path: a, wieght: 2}]\n", "no such key; did you mean 'weight'"),
        ("data:\n  sources: [{path: a, given: b}]\n", "no such key"),
        ("data:\n  sources: [{weight: 2}]\n", "must be PATH"),
        ("data:\n  sources: 3\n", "must be a list"),
        ("optimizer:\n  name: no\n", "must be text"),
    ],
)
def test_bad_files_are_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=message) as refusal:
        resolve(file=file)
    assert "mine.yaml" in str(refusal.value)


def test_a_missing_file_is_refused() -> None:
    with pytest.raises(UserError, match=r"missing\.yaml: No such file"):
        resolve(file="missing.yaml")


def test_yaml_sources_take_all_three_spellings(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("data:\n  sources: [a, b:2, {path: c, weight: 3e0}]\n", encoding="utf-8")
    expected = (SourceConfig("a"), SourceConfig("b", 2.0), SourceConfig("c", 3.0))
    assert resolve(file=file).data.sources == expected


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("a.txt", SourceConfig("a.txt")),
        ("a.txt:0.7", SourceConfig("a.txt", 0.7)),
        ("builtin:docs", SourceConfig("builtin:docs")),
        ("builtin:docs:2", SourceConfig("builtin:docs", 2.0)),
    ],
)
def test_sources_on_the_command_line(text: str, source: SourceConfig) -> None:
    assert parse_source(text) == source


@pytest.mark.parametrize("trunk", get_args(Trunk))
def test_block_kinds_follow_the_two_switches(trunk: Trunk) -> None:
    model = ModelConfig(trunk=trunk, layers=3)
    mixer = "recurrent" if trunk in ("recurrent", "hybrid") else "attention"
    around, length = (2, "slots") if trunk in ("patched", "hybrid") else (0, "bytes")
    assert model.block_kinds == ("attention",) * around + (mixer,) * 3 + ("attention",) * around
    assert model.block_lengths == ("bytes",) * around + (length,) * 3 + ("bytes",) * around
    assert ("slot" in model.parameter_shapes()) == model.is_patched


def test_sizes_by_arithmetic() -> None:
    config = Config(
        model=ModelConfig(seq=1024),
        step=StepConfig(batch=24, chunks=4, window=9, accum=2),
        run=RunConfig(bytes=2_006_000_000),
    )
    assert config.bytes_per_step == 2 * 24 * 4 * 1024
    assert config.total_steps == 2_006_000_000 // config.bytes_per_step
    assert (config.model.head_width, config.model.slots, config.step.effective_window) == (40, 256, 4)
    assert ScheduleConfig(base_lr=3e-4).final_lr == pytest.approx(3e-5)
    assert ScheduleConfig(min_lr=0.0).final_lr == 0.0


def test_a_run_needs_a_length_of_at_least_one_step() -> None:
    with pytest.raises(UserError, match="give --steps N or --bytes D"):
        _ = Config().total_steps
    with pytest.raises(UserError, match="less than one step"):
        _ = Config(run=RunConfig(bytes=10)).total_steps


def test_a_key_of_another_section_is_named_with_it() -> None:
    with pytest.raises(
        UserError, match=r"step\.patch_stride: no such key; did you mean 'model\.patch_stride'\?"
    ):
        resolve("demo", overrides=["step.patch_stride=7"])


def test_differing_keys_are_named() -> None:
    one, other = resolve("demo"), resolve("demo", overrides=["model.layers=5", "run.seed=3"])
    assert differing_keys(one, other) == [f"model.layers: {one.model.layers} and 5"]
    assert differing_keys(one, other, ("run",)) == ["run.seed: 0 and 3"]
    assert differing_keys(one, one) == []


def test_user_error_is_one_line() -> None:
    assert str(UserError("what", "why")) == "what: why"
    assert str(UserError("what", "why", "what to do")) == "what: why; what to do"
    assert did_you_mean("MOUN", ["muon", "adamw"]) == "did you mean 'muon'?"
    assert did_you_mean("zzz", ["muon", "adamw"]) == "choose one of muon, adamw"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[" * 5000, "is nested too deep; write it as"),
        ("run: {steps: 2024-13-45}", "is not valid YAML (month must be in 1..12); write it as"),
        (
            "model: {layers: [1, [2, 3]]}",
            "model.layers=(list) in FILE: must be a whole number; write it as 8",
        ),
        ("preset: [a]", "preset=(list) in FILE: must be text or null; write preset: demo"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UserError) as refusal:
        resolve(file=path)
    assert said in str(refusal.value).replace(str(path), "FILE")


def test_parameters_are_counted_without_listing_them() -> None:
    for name in preset_names():
        for trunk in choices(get_type_hints(ModelConfig)["trunk"]):
            model = resolve(name, overrides=[f"model.trunk={trunk}"]).model
            assert model.parameters == sum(math.prod(shape) for shape in model.parameter_shapes().values())
