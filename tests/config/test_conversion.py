"""Values as text and YAML have them, in the types of their keys, or refused with a way out."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlx_amort.config.conversion import parse_source
from mlx_amort.config.reading import (
    resolve,
)
from mlx_amort.config.values import (
    DataConfig,
    SourceConfig,
)
from mlx_amort.errors import UserError


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
        ("run.sample_prompt=Once ", "run", "sample_prompt", "Once "),
        (" run.sample_prompt =\tOnce", "run", "sample_prompt", "\tOnce"),
        ("step.batch= 3 ", "step", "batch", 3),
        ("optimizer.name= adamw ", "optimizer", "name", "adamw"),
        ("step.activation_checkpointing= on ", "step", "activation_checkpointing", True),
        ("data.sources= [a] ", "data", "sources", (SourceConfig("a"),)),
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
        (
            "schedule.base_lr=1e300",
            "schedule.base_lr=1e+300: is too large for float32, in which it is used; 0.0003",
        ),
        ("schedule.base_lr=1e-300", "schedule.base_lr=1e-300: is too small for float32"),
        ("schedule.min_lr=1e-60", "schedule.min_lr=1e-60: is too small for float32"),
        (
            "optimizer.eps=1e-50",
            "optimizer.eps=1e-50: is too small for float32, in which it is used; 1e-08 is usual",
        ),
        ("optimizer.clip_norm=1e39", "is too large for float32"),
        ("optimizer.weight_decay=1e39", "is too large for float32"),
        ("run.sample_temperature=1e39", "is too large for float32"),
        ("optimizer.lr=1", "optimizer.lr: no such key; did you mean 'schedule.base_lr' (--lr)?"),
        ("model.window=1", "model.window: no such key; did you mean 'step.window' (--window)?"),
        ("lr=1", "--set lr=1: names no section; did you mean 'schedule.base_lr' (--lr)?"),
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
    ("key", "text", "value"),
    [
        ("schedule.warmup_steps", "0100", 100),
        ("step.batch", "010", 10),
        ("step.batch", "0x10", 16),
        ("step.batch", "0o10", 8),
        ("step.batch", "+3", 3),
        ("run.bytes", "2_006_000_000", 2_006_000_000),
        ("schedule.base_lr", "3e-4", 3e-4),
        ("schedule.base_lr", ".5", 0.5),
        ("schedule.min_lr", "~", None),
        ("run.sample_prompt", "no", "no"),
        ("run.sample_prompt", "1.50", "1.50"),
        ("run.sample_prompt", "2024-01-02", "2024-01-02"),
        ("step.activation_checkpointing", "yes", True),
    ],
)
def test_a_file_and_an_override_are_read_alike(tmp_path: Path, key: str, text: str, value: object) -> None:
    section, _, name = key.partition(".")
    file = tmp_path / "mine.yaml"
    file.write_text(f"{section}:\n  {name}: {text}\n", encoding="utf-8")
    by_file, by_override = resolve(file=file), resolve(overrides=[f"{key}={text}"])
    assert by_file == by_override
    assert getattr(getattr(by_file, section), name) == value


@pytest.mark.parametrize("text", ["1:30", "0b1", "08:30", "1e-3", ".inf", "2024-01-02"])
def test_a_file_and_an_override_are_refused_alike(tmp_path: Path, text: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(f"run:\n  steps: {text}\n", encoding="utf-8")
    for source in ({"file": file}, {"overrides": [f"run.steps={text}"]}):
        with pytest.raises(UserError, match=f"run.steps={text}.*: must be a whole number; write it as 8"):
            resolve(**source)


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


def test_yaml_sources_take_all_three_spellings(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("data:\n  sources: [a, b:2, {path: c, weight: 3e0}]\n", encoding="utf-8")
    names = ((source.path, source.weight) for source in resolve(file=file).data.sources)
    assert [(Path(path).name, weight) for path, weight in names] == [("a", 1.0), ("b", 2.0), ("c", 3.0)]


@pytest.mark.parametrize("name", ["null", "None", "~", " "])
def test_a_held_out_corpus_is_not_named_like_none(name: str) -> None:
    with pytest.raises(UserError, match=r"means that no corpus is named; for a file of that name write \./"):
        DataConfig(validation=name)
