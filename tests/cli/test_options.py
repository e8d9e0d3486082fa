"""The flags of a run: each reaches the key it names, and what was not asked for is left alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click
import pytest

from mlx_amort.cli import program
from mlx_amort.cli.arguments import check_values
from mlx_amort.cli.generate import command as generate
from mlx_amort.cli.options import FLAGS, USER_PATH, RequestedConfig, config_options
from mlx_amort.cli.train import command as train
from mlx_amort.config.flags import FLAG_OF
from mlx_amort.config.reading import resolve
from mlx_amort.config.values import Config, SourceConfig
from mlx_amort.errors import UserError


def ask(*arguments: str, default_preset: str | None = "demo") -> RequestedConfig:
    seen: list[RequestedConfig] = []

    @click.command()
    @config_options(default_preset)
    @click.option("--out")
    def verb(requested: RequestedConfig, out: str | None) -> None:
        seen.append(requested)

    verb.main(args=list(arguments), standalone_mode=False)
    return seen[0]


FLAG_VALUES: dict[str, tuple[str, object]] = {
    "--trunk": ("recurrent", "recurrent"),
    "--data": ("a, [b].txt:0.5", (SourceConfig("a, [b].txt", 0.5),)),
    "--validation": ("b, [c].txt:7", "b, [c].txt:7"),
    "--batch": ("3", 3),
    "--chunks": ("5", 5),
    "--seq": ("128", 128),
    "--window": ("1", 1),
    "--accum": ("6", 6),
    "--optimizer": ("adamw", "adamw"),
    "--precision": ("bf16-pure", "bf16-pure"),
    "--lr": ("1e-4", 1e-4),
    "--schedule": ("cosine", "cosine"),
    "--steps": ("11", 11),
    "--bytes": ("2GB", 2_000_000_000),
    "--seed": ("9", 9),
}


@pytest.mark.parametrize("flag", FLAG_VALUES)
def test_each_flag_reaches_its_key_and_no_other(flag: str) -> None:
    text, value = FLAG_VALUES[flag]
    section, _, key = next(key for name, key, _ in FLAGS if name == flag).partition(".")
    config, preset = ask(flag, text).resolve(), resolve("demo")
    assert getattr(getattr(config, section), key) == value
    others = (
        {key: value, "steps": config.run.steps, "bytes": config.run.bytes}
        if section == "run"
        else {key: value}
    )
    assert config == replace(preset, **{section: replace(getattr(preset, section), **others)})


def test_every_flag_is_tried() -> None:
    assert {name for name, _, _ in FLAGS} == {*FLAG_VALUES, "--activation-checkpointing"}


def test_activation_checkpointing_goes_on_and_off() -> None:
    on = ask("--activation-checkpointing").resolve()
    off = ask("--preset", "titan", "--no-activation-checkpointing").resolve()
    untouched = ask("--preset", "titan").resolve()
    values = [config.step.activation_checkpointing for config in (on, off, untouched)]
    assert values == [True, False, True]


def test_several_corpora() -> None:
    sources = ask("--data", "a:0.7", "--data", "builtin:docs").resolve().data.sources
    assert sources == (SourceConfig("a", 0.7), SourceConfig("builtin:docs"))


def test_the_default_preset_serves_only_where_nothing_else_does() -> None:
    saved = resolve("veritate_10m", overrides=["run.steps=4"])
    assert ask().resolve() == resolve("demo")
    assert ask("--preset", "huge").resolve() == resolve("huge")
    assert ask(default_preset=None).resolve() == Config()
    assert ask().resolve(base=saved) == saved
    assert ask("--preset", "veritate_10m").resolve(base=saved) == saved


def test_flag_and_set_for_one_key_are_refused() -> None:
    with pytest.raises(UserError, match=r"step\.batch: given twice, by --batch and by --set"):
        ask("--batch", "3", "--set", "step.batch=4")
    assert ask("--batch", "3", "--set", "step.accum=4").resolve().step.accum == 4


def test_a_verb_may_spell_a_flag_its_own_way() -> None:
    @click.command()
    @config_options(without=("--batch",))
    @click.option("--batch", multiple=True)
    def verb(requested: RequestedConfig, batch: tuple[str, ...]) -> int:
        return len(batch) + len(requested.overrides)

    assert verb.main(args=["--batch", "1", "--batch", "2", "--seq", "8"], standalone_mode=False) == 3


def given_to(verb: str, *arguments: str) -> str:
    """What the command says of a verb's arguments, which it refuses."""
    with pytest.raises(UserError) as refusal:
        program.main(args=[verb, *arguments], standalone_mode=False)
    return str(refusal.value)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["train", "--out", "--quiet"],
            "--out: needs a value, and --quiet is an option; write --out=--quiet if that is the value",
        ),
        (["train", "--resume", "run", "--out", "--quite"], "--out: needs a value, and --quite looks like an"),
        (["train", "--data", "--no-activation-checkpointing"], "--data: needs a value, and --no-activation"),
        (
            ["train", "--set", "--steps=3"],
            "--set: needs a value, and --steps=3 looks like an option; write --set",
        ),
        (["profile", "--out", "--json"], "--out: needs a value, and --json is an option"),
        (
            ["generate", "run", "--prompt", "--bytes", "5"],
            "--prompt: needs a value, and --bytes is an option",
        ),
        (["train", "--steps", " "], "--steps: its value is empty; give one"),
        (["train", "--out=~nosuchuser/x"], "~nosuchuser/x: there is no user named nosuchuser"),
        (["train", "--config=~nosuchuser/x"], "~nosuchuser/x: there is no user named nosuchuser"),
        (["evaluate", "~nosuchuser/x"], "~nosuchuser/x: there is no user named nosuchuser"),
    ],
)
def test_a_value_that_is_an_option_or_nothing_is_refused(arguments: list[str], said: str) -> None:
    assert said in given_to(*arguments)


@pytest.mark.parametrize("text", ["-1", "-- so it goes", "-", "--", "a --b", "---"])
def test_a_value_that_only_begins_like_an_option_is_a_value(text: str) -> None:
    context = click.Context(generate, info_name="generate")
    check_values(generate, context, ["run", "--prompt", text, "--bytes", "3"])


def test_what_follows_an_equals_sign_or_two_dashes_is_a_value() -> None:
    context = click.Context(generate, info_name="generate")
    check_values(generate, context, ["--prompt=--bytes", "--", "--prompt", "--bytes"])


def test_a_home_is_found_where_no_shell_has_found_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/of/this/test")
    assert USER_PATH.convert("~/run", None, None) == Path("/home/of/this/test/run")
    assert USER_PATH.convert("run/~", None, None) == Path("run/~")


def test_a_flag_is_declared_once() -> None:
    assert [flag for flag, _, _ in FLAGS] == [FLAG_OF[key] for _, key, _ in FLAGS]
    for name in ("--save-every", "--eval-every", "--memory-limit"):
        assert name in {option for parameter in train.params for option in parameter.opts}
        assert name in FLAG_OF.values()
