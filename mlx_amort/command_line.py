"""Every command that is printed to be pasted is built and quoted here, for POSIX shells (bash, zsh, ksh)."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

from mlx_amort.config.conversion import parse_source
from mlx_amort.config.flags import FLAG_OF
from mlx_amort.config.presets import DEFAULT_PRESET, preset_names
from mlx_amort.config.reading import BUILTIN, resolve, to_dict
from mlx_amort.config.values import Config

PROGRAM = "mlx-amort"
# The two keys of which one unsays the other.
_LENGTHS = {"run.steps": "run.bytes", "run.bytes": "run.steps"}
_CONTROL = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def command(verb: str, *words: str | Path) -> str:
    """The command that runs a verb; a Path is named so that it is taken for nothing else.

    A word in capitals, such as TEXT, is a placeholder for the reader.
    """
    return " ".join(quote(word_of(word)) for word in (PROGRAM, verb, *words))


def train_command(config: Config) -> str:
    """The command that trains `config`: its preset, and what differs from it."""
    preset = nearest_preset(config.preset)
    return command("train", "--preset", preset, *differing_words(config, resolve(preset=preset)))


def nearest_preset(name: str | None) -> str:
    """The preset that a command starts from, of a configuration that was made from preset `name`."""
    return name if name in preset_names() else DEFAULT_PRESET


def differing_words(config: Config, known: Config) -> list[str]:
    """The flags and settings that make `config` of `known`."""
    wanted, given = _flat(config), _flat(known)
    words = []
    for key, value in wanted.items():
        is_unsaid = value is None and wanted.get(_LENGTHS.get(key, "")) is not None
        if value != given[key] and not is_unsaid:
            words += setting_words(key, value)
    return words


def setting_words(key: str, value: Any) -> list[str]:
    """What sets a key "section.key" on the command line: its flag where it has one, else --set."""
    if key == "data.sources":
        return [word for source in value for word in _option("--data", source_text(**source))]
    flag = FLAG_OF.get(key)
    if flag is None or value is None:
        return ["--set", f"{key}={_text(value)}"]
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag[2:]}"]
    return _option(flag, _text(value))


def source_text(path: str, weight: float) -> str:
    """A corpus as --data takes it: PATH, or PATH:WEIGHT where that is needed to say what is meant."""
    name = path if path.startswith(BUILTIN) else word_of(Path(path))
    if weight == 1 and parse_source(name).path == name:
        return name
    return f"{name}:{weight:g}" if float(f"{weight:g}") == weight else f"{name}:{weight!r}"


def word_of(word: str | Path) -> str:
    """A word of a command line; a path that would pass for an option or a home begins with `./`."""
    text = os.fspath(word)
    return f"./{text}" if isinstance(word, Path) and text.startswith(("-", "~")) else text


def quote(word: str) -> str:
    """A word as a shell reads it back, in characters that are safe to print on one line.

    What is not printable becomes $'...' with the octal escapes of its bytes (POSIX 2024).
    """
    if word.isprintable():
        return shlex.quote(word)
    return "$'" + "".join(_escaped(character) for character in word) + "'"


def _escaped(character: str) -> str:
    if character in _CONTROL:
        return _CONTROL[character]
    if character.isprintable():
        return character
    return "".join(f"\\{byte:03o}" for byte in character.encode("utf-8", "surrogateescape"))


def _option(flag: str, text: str) -> list[str]:
    return [f"{flag}={text}"] if text.startswith("-") else [flag, text]


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else str(value)


def _flat(config: Config) -> dict[str, Any]:
    sections = to_dict(config)
    return {
        f"{section}.{key}": value
        for section, values in sections.items()
        if section != "preset"
        for key, value in values.items()
    }
