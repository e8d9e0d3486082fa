"""Printed commands are pasted into a shell, and mean what was meant whatever the names are."""

from __future__ import annotations

import ast
import itertools
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import click
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_amort.cli.options import USER_PATH, RequestedConfig, config_options
from mlx_amort.command_line import command, quote, setting_words, source_text, train_command
from mlx_amort.config.conversion import parse_source
from mlx_amort.config.flags import FLAG_OF
from mlx_amort.config.reading import dump, resolve
from mlx_amort.config.values import Config, DataConfig, SourceConfig
from mlx_amort.train.checkpoint_folders import how_to_go_on

NAMES = [
    "run",
    "a run",
    "it's",
    'say "run"',
    "-run",
    "--quiet",
    "$(touch PWNED)",
    "`touch PWNED`",
    "$HOME",
    "~",
    "~root/run",
    "two\nlines",
    "tab\tand\rreturn",
    "\x1b[31mred",
    "a;b&c|d>e<f",
    "#run",
    "a*?[b]{c,d}",
    "!run",
    "back\\slash\n'",
    "été 中文 \u202egnp",
    "not \udcff\udcfe text",
    "%s %n",
    "a=b",
    "nul 0\x01123",
]


def pasted(text: str, folder: Path) -> list[str]:
    """The words that a shell makes of a pasted command, whose program writes them down."""
    told = folder / "told"
    defined = f'mlx-amort() {{ printf "%s\\0" "$@" > {quote(str(told))}; }}\n'
    done = subprocess.run(
        ["bash", "--norc", "-c", defined + text], cwd=folder, capture_output=True, check=True, timeout=20
    )
    assert (done.stdout, done.stderr) == (b"", b"")
    assert not (folder / "PWNED").exists()
    return told.read_bytes().decode("utf-8", "surrogateescape").split("\0")[:-1]


@pytest.mark.parametrize("name", NAMES)
def test_a_pasted_command_names_what_was_meant(tmp_path: Path, name: str) -> None:
    printed = command("train", "--resume", Path(name))
    assert printed.isprintable() and printed.startswith("mlx-amort train --resume ")
    verb, flag, path = pasted(printed, tmp_path)
    assert (verb, flag) == ("train", "--resume")
    assert USER_PATH.convert(path, None, None) == Path(name)
    assert not path.startswith("-")


@pytest.mark.parametrize("name", NAMES)
def test_so_does_what_a_failed_save_says(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).mkdir(parents=True)
    said = how_to_go_on(Path(name)).partition("mlx-amort ")
    assert Path(pasted("".join(said[1:]), tmp_path)[-1]) == Path(name)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), max_size=5))
def test_any_word_comes_back(words: list[str]) -> None:
    printed = " ".join(quote(word) for word in words)
    done = subprocess.run(
        ["bash", "--norc", "-c", f'printf "%s\\0" x {printed}'], capture_output=True, check=True, timeout=20
    )
    assert printed.isprintable()
    assert done.stdout.decode().split("\0")[1:-1] == words


def resolved(words: list[str]) -> Config:
    """What `train` resolves from its arguments."""
    found: list[Config] = []

    @click.command()
    @click.option("--save-every")
    @click.option("--eval-every")
    @click.option("--memory-limit")
    @config_options(default_preset="demo")
    def verb(requested: RequestedConfig, **others: str | None) -> None:
        given = {f"--{name.replace('_', '-')}": value for name, value in others.items()}
        added = [f"{key}={given[flag]}" for key, flag in FLAG_OF.items() if given.get(flag)]
        found.append(replace(requested, overrides=(*requested.overrides, *added)).resolve())

    verb.main(words, standalone_mode=False)
    return found[0]


SOURCES = (
    (SourceConfig("a b.bin"), SourceConfig("c.bin", 2.5)),
    (SourceConfig("builtin:docs", 2.0),),
    (SourceConfig("log:7"),),
    (SourceConfig("log:7", 1 / 3), SourceConfig("--data")),
    (SourceConfig("[a], b"), SourceConfig("two\nlines")),
)


@pytest.mark.parametrize("sources", SOURCES)
@pytest.mark.parametrize("preset", ["demo", "mega", None, "a preset since removed"])
def test_the_command_of_a_configuration_trains_it(
    tmp_path: Path, preset: str | None, sources: tuple[SourceConfig, ...]
) -> None:
    overrides = [
        "model.scale_residual_init=true",
        "step.precision=bf16-pure",
        "step.activation_checkpointing=on",
        "schedule.base_lr=1.2345678e-3",
        "schedule.min_lr=1e-4",
        "optimizer.momentum=0.9",
        "run.sample_prompt=-- Once ",
        "run.bytes=5e6",
        "run.save_every=7",
        "run.eval_every=null",
        "run.memory_limit_bytes=16000000000",
    ]
    named = preset if preset in ("demo", "mega") else None
    config = replace(resolve(named, overrides=overrides), data=DataConfig(sources), preset=preset)
    verb, *words = pasted(train_command(config), tmp_path)
    assert verb == "train"
    again = resolved(words)
    assert again.preset == (named or "demo")
    paths = [Path(source.path) for source in again.data.sources]
    assert paths == [Path(source.path) for source in sources]
    assert [source.weight for source in again.data.sources] == [source.weight for source in sources]
    assert replace(again, preset=preset, data=config.data) == config, dump(again)


def test_a_command_holds_only_what_differs() -> None:
    assert train_command(resolve("demo")) == "mlx-amort train --preset demo"
    longer = resolve("demo", overrides=["run.bytes=1e6", "step.batch=8"])
    assert train_command(longer) == "mlx-amort train --preset demo --batch 8 --bytes 1000000"


def test_every_key_has_one_spelling() -> None:
    assert setting_words("step.activation_checkpointing", False) == ["--no-activation-checkpointing"]
    assert setting_words("model.scale_residual_init", True) == ["--set", "model.scale_residual_init=true"]
    assert setting_words("run.memory_limit_bytes", None) == ["--set", "run.memory_limit_bytes=null"]
    assert setting_words("schedule.base_lr", -1.0) == ["--lr=-1.0"]
    assert parse_source(source_text("log:7", 1)) == SourceConfig("log:7")
    assert source_text("builtin:docs", 1) == "builtin:docs"


def test_a_placeholder_stays_one() -> None:
    assert command("generate", Path("run"), "--prompt", "TEXT") == "mlx-amort generate run --prompt TEXT"


def test_no_command_with_a_name_in_it_is_written_elsewhere() -> None:
    package = Path(__file__).parents[1] / "mlx_amort"
    found = [
        f"{path.relative_to(package)}:{node.lineno}"
        for path in sorted(package.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.JoinedStr)
        # A command of which a later part is filled in.
        for part, following in itertools.pairwise(node.values)
        if isinstance(part, ast.Constant) and isinstance(following, ast.FormattedValue)
        if re.search(r"mlx-amort [a-z-]+( \S+)* $", str(part.value))
    ]
    assert found == []
