"""Configurations: conversion, precedence, refusal with the nearest name, and dump and load as identity."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mlx_amort.config.checks import WORDS_FOR_NULL, choices
from mlx_amort.config.model import LARGEST_LAYERS, LARGEST_WIDTH, ModelConfig
from mlx_amort.config.reading import (
    Difference,
    differing_keys,
    dump,
    from_dict,
    load,
    resolve,
    to_dict,
    with_absolute_sources,
)
from mlx_amort.config.values import (
    LARGEST_AXIS,
    Config,
    DataConfig,
    OptimizerConfig,
    RunConfig,
    ScheduleConfig,
    SourceConfig,
    StepConfig,
)
from mlx_amort.config.yaml_text import parse_yaml
from mlx_amort.data.opening import open_corpora
from mlx_amort.errors import UserError

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
        schedule=ScheduleConfig(
            base_lr=base_lr, min_lr=draw(st.none() | st.just(0.0) | st.floats(1e-9, base_lr))
        ),
        data=DataConfig(
            sources=tuple(draw(st.lists(st.builds(SourceConfig, path, fractions), min_size=1, max_size=3))),
            validation_fraction=draw(fractions),
            validation_split=one(get_type_hints(DataConfig)["validation_split"]),
            # What reads as null is no name; a run saves whole paths.
            validation=draw(st.none() | path.filter(lambda name: name.strip().lower() not in WORDS_FOR_NULL)),
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
    assert from_dict(parse_yaml(dump(config), "it", "")) == config
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


def test_a_relative_corpus_of_a_file_is_looked_for_from_its_folder(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("data:\n  sources: [a.txt:2, /b, ~/c, builtin:docs]\n", encoding="utf-8")
    found = [source.path for source in resolve(file=file).data.sources]
    assert found == [str(tmp_path / "a.txt"), "/b", "~/c", "builtin:docs"]
    (tmp_path / "a.txt:2").touch()
    assert resolve(file=file).data.sources[0] == SourceConfig(str(tmp_path / "a.txt:2"))
    here = resolve(file=file, overrides=["data.sources=a.txt"])
    assert here.data.sources == (SourceConfig("a.txt"),)


def test_a_file_may_be_named_without_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("data: {sources: a.txt}\n", encoding="utf-8")
    assert resolve(file="mine.yaml").data.sources == (SourceConfig("a.txt"),)


def test_corpora_are_named_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    config = resolve(overrides=["data.sources=[a, ~/b, builtin:docs]"])
    found = [source.path for source in with_absolute_sources(config).data.sources]
    assert found == [str(tmp_path / "a"), str(tmp_path / "home" / "b"), "builtin:docs"]


def test_a_corpus_without_a_home_or_in_a_circle_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=r"'~nosuchuser/x': there is no user named nosuchuser"):
        with_absolute_sources(resolve(overrides=["data.sources=~nosuchuser/x"]))
    monkeypatch.chdir(tmp_path)
    Path("one").symlink_to("other")
    Path("other").symlink_to("one")
    with pytest.raises(UserError, match=r"^corpus '.*one': cannot be read"):
        open_corpora(with_absolute_sources(resolve(overrides=["data.sources=one"])).data)


def test_a_key_of_another_section_is_named_with_it() -> None:
    with pytest.raises(
        UserError, match=r"step\.patch_stride: no such key; did you mean 'model\.patch_stride'\?"
    ):
        resolve("demo", overrides=["step.patch_stride=7"])


def test_differing_keys_are_named() -> None:
    one, other = resolve("demo"), resolve("demo", overrides=["model.layers=5", "run.seed=3"])
    assert differing_keys(one, other) == [Difference("model.layers", str(one.model.layers), "5")]
    assert [str(change) for change in differing_keys(one, other, ("run",))] == ["run.seed: 0 and 3"]
    assert differing_keys(one, one) == []


def test_values_that_differ_are_shown_as_they_are() -> None:
    one = resolve(overrides=["run.sample_prompt=salt and pepper", "run.steps=3"])
    other = resolve(overrides=["run.sample_prompt=Once ", "run.bytes=1e6"])
    found = differing_keys(one, other, ("run",))
    assert found[0] == Difference("run.steps", "3", "null")
    assert found[2] == Difference("run.sample_prompt", "salt and pepper", '"Once "')
