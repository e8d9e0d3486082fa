"""The flags that shape a run, shared by the verbs that need a configuration, and the type of a path option."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

import click

from mlx_amort.amounts import parse_size
from mlx_amort.config.checks import choices
from mlx_amort.config.flags import FLAG_OF
from mlx_amort.config.presets import preset_names
from mlx_amort.config.reading import resolve
from mlx_amort.config.values import Config
from mlx_amort.config.yaml_text import read_yaml
from mlx_amort.errors import UserError
from mlx_amort.files import expand_home

# Key -> what the help of its flag says. A value stays text until config/conversion.py converts it by the key's type.
_HELP = {
    "model.trunk": "Where the global blocks run, and how they mix.",
    "data.sources": "File, folder, .bin or builtin:NAME; PATH:WEIGHT for a mix. Repeatable.",
    "data.validation": "A corpus of its own to hold out; then none of --data is.",
    "step.batch": "Rows B of a micro-batch.",
    "step.chunks": "Chunks K a row walks in one step.",
    "model.seq": "Bytes S of a chunk.",
    "step.window": "Chunks the gradient flows through.",
    "step.accum": "Micro-batches A of a step.",
    "optimizer.name": "What updates the matrices of the blocks.",
    "step.precision": "Number formats of weights and compute.",
    "step.activation_checkpointing": "Recompute blocks to save memory, or not.",
    "schedule.base_lr": "Highest learning rate.",
    "schedule.name": "Shape of the learning rate over the run.",
    "run.steps": "Length of the run in optimizer steps.",
    "run.bytes": "Length of the run in bytes, such as 2.006e9 or 2GB.",
    "run.seed": "Seed of the initial weights and of the data's order.",
}
FLAGS = tuple((FLAG_OF[key], key, text) for key, text in _HELP.items())

Callback = Callable[..., Any]


class UserPath(click.Path):
    """A path as the user names it, with `~` for a home also where no shell has replaced it (--out=~/run)."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path. Raises: UserError for a home that there is not."""
        return super().convert(expand_home(value), param, ctx)


USER_PATH = UserPath(path_type=Path)


@dataclass(frozen=True)
class RequestedConfig:
    """What the command line asked for, not yet resolved."""

    preset: str | None
    file: Path | None
    overrides: tuple[str, ...]
    default_preset: str | None

    @property
    def gives_anything(self) -> bool:
        """Whether the command line says anything about the run."""
        return bool(self.preset or self.file or self.overrides)

    def gives(self, key: str) -> bool:
        """Whether the command line or its file says what "section.key" is; a preset does not count."""
        section, _, name = key.partition(".")
        in_file = read_yaml(self.file).get(section) or {} if self.file is not None else {}
        return name in in_file or any(
            override.partition("=")[0].strip() == key for override in self.overrides
        )

    def resolve(self, base: Config | None = None) -> Config:
        """The resolved run; with `base`, a saved run's configuration, only what was asked for is changed.

        Naming the preset that `base` was made from changes nothing. The verb's default preset is used where
        there is neither a base nor a preset nor a file.
        """
        preset = self.preset
        if base is not None and preset == base.preset:
            preset = None
        if base is None and preset is None and self.file is None:
            preset = self.default_preset
        return resolve(preset=preset, file=self.file, overrides=self.overrides, base=base)


def config_options(
    default_preset: str | None = None, without: Collection[str] = ()
) -> Callable[[Callback], Callback]:
    """Add the flags of a run to a verb; its callback gets them as `requested: RequestedConfig`.

    `without` leaves out flags, such as "--batch", that the verb spells in its own way.
    """
    flags = [flag for flag in FLAGS if flag[0] not in without]

    def decorate(callback: Callback) -> Callback:
        @functools.wraps(callback)
        def with_config(**given: Any) -> Any:
            requested = RequestedConfig(
                preset=given.pop("preset"),
                file=given.pop("config_file"),
                overrides=_overrides(
                    {flag: given.pop(_argument(flag)) for flag, _, _ in flags}, given.pop("settings")
                ),
                default_preset=default_preset,
            )
            return callback(requested=requested, **given)

        decorated: Callback = with_config
        for option in reversed(_options(flags, default_preset)):
            decorated = option(decorated)
        return decorated

    return decorate


def _options(
    flags: list[tuple[str, str, str]], default_preset: str | None
) -> list[Callable[[Callback], Callback]]:
    preset_help = f"Where the values come from: {', '.join(preset_names())}."
    if default_preset:
        preset_help += f" Without one: {default_preset}."
    return [
        click.option("--preset", metavar="NAME", help=preset_help),
        *[_option(flag, key, text) for flag, key, text in flags],
        click.option(
            "--config",
            "config_file",
            type=USER_PATH,
            metavar="FILE.yaml",
            help="Values over those of the preset.",
        ),
        click.option(
            "--set", "settings", metavar="SECTION.KEY=VALUE", multiple=True, help="Any other value."
        ),
    ]


def _option(flag: str, key: str, text: str) -> Callable[[Callback], Callback]:
    if flag == "--activation-checkpointing":
        return click.option(f"{flag}/--no-{flag[2:]}", _argument(flag), default=None, help=text)
    section, _, name = key.partition(".")
    declared = get_type_hints(get_type_hints(Config)[section])[name]
    metavar = f"[{'|'.join(choices(declared))}]" if choices(declared) else flag[2:].upper()
    return click.option(flag, _argument(flag), metavar=metavar, multiple=flag == "--data", help=text)


def _argument(flag: str) -> str:
    return "flag_" + flag[2:].replace("-", "_")


def _overrides(given: dict[str, Any], settings: tuple[str, ...]) -> tuple[str, ...]:
    overrides = []
    set_keys = {setting.partition("=")[0].strip() for setting in settings}
    for flag, key, _ in FLAGS:
        value = given.get(flag)
        if value is None or value == ():
            continue
        if key in set_keys:
            raise UserError(key, f"given twice, by {flag} and by --set", "give it once")
        overrides.append(f"{key}={_as_text(flag, value)}")
    return (*overrides, *settings)


def _as_text(flag: str, value: Any) -> str:
    if flag == "--bytes":
        return str(parse_size(value, flag))
    # JSON is YAML too, and quotes the commas and brackets that a path may hold.
    if isinstance(value, str):
        return value
    # What is not text in UTF-8 stands in an argument as lone surrogates, which both write as \\uXXXX.
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()
