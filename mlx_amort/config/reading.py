"""From YAML and `section.key=value` to a Config, and back.

A run is resolved in layers, each overriding the one before: dataclass < preset < file < command line.
An undeclared key is refused with the nearest one. Dumping and reading back is the identity.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_type_hints

from mlx_amort.amounts import shorten
from mlx_amort.config.conversion import convert
from mlx_amort.config.flags import FLAG_OF, KEY_OF
from mlx_amort.config.presets import preset_path
from mlx_amort.config.values import Config, SourceConfig
from mlx_amort.config.yaml_text import read_yaml, yaml_of
from mlx_amort.errors import UserError, did_you_mean
from mlx_amort.files import expand_home

# Printed beside a configuration for the reader; it follows from the model, so reading passes it over.
_DERIVED = "parameters"
BUILTIN = "builtin:"
# A saved run without these was made by 0.1 and keeps the bytes that it had.
_DATA_OF_0_1 = {"validation_split": "tail", "raw": True}

SECTIONS = tuple(field.name for field in dataclasses.fields(Config) if field.name != "preset")

Layer = Mapping[str, Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Difference:
    """A key in which two configurations differ, and both its values as their user would write them."""

    key: str
    first: str
    other: str

    def __str__(self) -> str:
        return f"{self.key}: {self.first} and {self.other}"


def resolve(
    preset: str | None = None,
    file: str | Path | None = None,
    overrides: Iterable[str] = (),
    base: Config | None = None,
) -> Config:
    """Resolve a run: `base` (else the dataclasses) < preset < YAML file < `section.key=value` overrides.

    A relative corpus of the file is looked for from the file's folder, one of an override from the current folder.
    Raises: UserError for an unknown preset, key or choice, and a value of the wrong type or out of range.
    """
    from_file = read_yaml(Path(file)) if file is not None else {}
    named = _preset_of(from_file, f" in {file}")
    if preset and named and preset != named:
        raise UserError(f"preset {preset}", f"{file} was made for preset {named}", "give only one of them")
    preset = preset or named
    layers = [_converted(_parse_overrides(overrides), "")]
    if file is not None:
        layers.insert(0, _with_sources_from(Path(file).parent, _converted(from_file, f" in {file}")))
    if preset is not None:
        layers.insert(0, _converted(read_yaml(preset_path(preset)), f" in preset {preset}"))
    # Merged before anything is built: a layer alone may hold what only a later one makes valid.
    merged = functools.reduce(_merged, layers)
    return _overlaid(base or Config(), merged, preset or (base.preset if base else None))


def load(path: str | Path) -> Config:
    """Read a resolved configuration as `dump` wrote it, without consulting the preset that it names."""
    content = read_yaml(Path(path))
    return from_dict(content, where=f" in {path}")


def from_dict(content: Mapping[str, Any], where: str = "") -> Config:
    """The Config of nested plain values, the inverse of `to_dict`; what is absent is what 0.1 did, or the default."""
    sections = dict(content)
    preset = _preset_of(sections, where)
    if isinstance(sections.get("data"), Mapping):
        sections["data"] = {**_DATA_OF_0_1, **sections["data"]}
    return _overlaid(Config(), _converted(sections, where), preset)


def to_dict(config: Config) -> dict[str, Any]:
    """Nested plain values (dict, list, str, numbers, None) in the order of declaration, for YAML and JSON."""
    content = dataclasses.asdict(config)
    content["data"]["sources"] = [
        {"path": source.path, "weight": source.weight} for source in config.data.sources
    ]
    return content


def dump(config: Config) -> str:
    """The canonical YAML of a resolved configuration."""
    return yaml_of(to_dict(config))


def differing_keys(one: Config, other: Config, sections: Sequence[str] = ("model",)) -> list[Difference]:
    """The keys in which two configurations differ, in the order of declaration."""
    return [
        Difference(f"{section}.{field.name}", _shown(first), _shown(second))
        for section in sections
        for field in dataclasses.fields(getattr(one, section))
        if (first := getattr(getattr(one, section), field.name))
        != (second := getattr(getattr(other, section), field.name))
    ]


def with_absolute_sources(config: Config) -> Config:
    """The configuration with its corpora named so that they are found from any folder, without `..` or links."""
    data = config.data
    sources = tuple(
        dataclasses.replace(source, path=_absolute(source.path, "data.sources")) for source in data.sources
    )
    validation = None if data.validation is None else _absolute(data.validation, "data.validation")
    return dataclasses.replace(config, data=dataclasses.replace(data, sources=sources, validation=validation))


def _absolute(path: str, key: str) -> str:
    # Unlike Path.resolve, realpath lets a loop of links pass, which opening it tells.
    return path if path.startswith(BUILTIN) else os.path.realpath(expand_home(path, f"{key} '{path}'"))


def _with_sources_from(folder: Path, layer: Layer) -> Layer:
    """A file's layer with its relative corpora named from the current folder; `~` and builtin:NAME as they are."""

    def named(path: str) -> str:
        return path if path.startswith((BUILTIN, "~")) else str(folder / path)

    data = dict(layer.get("data", {}))
    if "sources" in data:
        data["sources"] = tuple(
            dataclasses.replace(source, path=named(source.path))
            # A name with a colon that exists there goes before a weight, as on the command line.
            if source.given is None or not os.path.lexists(named(source.given))
            else SourceConfig(named(source.given))
            for source in data["sources"]
        )
    if data.get("validation") is not None:
        data["validation"] = named(data["validation"])
    return {**layer, "data": data} if data else layer


def _preset_of(sections: dict[str, Any], where: str) -> str | None:
    """Take what is not a section out of a file's content, and return the preset's name."""
    sections.pop(_DERIVED, None)
    name = sections.pop("preset", None)
    if name is not None and not isinstance(name, str):
        raise UserError(f"preset={shorten(name)}{where}", "must be text or null", "write preset: demo")
    return name


def _sections() -> dict[str, type]:
    return {name: declared for name, declared in get_type_hints(Config).items() if name != "preset"}


def _parse_overrides(overrides: Iterable[str]) -> dict[str, dict[str, str]]:
    layer: dict[str, dict[str, str]] = {}
    for override in overrides:
        name, equals, value = override.partition("=")
        section, dot, key = name.strip().partition(".")
        if not equals:
            raise UserError(f"--set {override}", "has no '='", "write it as --set section.key=value")
        if not dot:
            hint = _home_of(section) or did_you_mean(section, _sections())
            raise UserError(f"--set {override}", "names no section", hint)
        # Blanks are part of a text; any other type passes over them.
        layer.setdefault(section, {})[key.strip()] = value
    return layer


def _shown(value: Any) -> str:
    """A value as its user would write it; a text that cannot stand for itself in quotes."""
    if isinstance(value, str) and (value != value.strip() or not value or not value.isprintable()):
        return shorten(json.dumps(value, ensure_ascii=False))
    if not isinstance(value, tuple):
        return shorten(value)
    is_mix = len({source.weight for source in value}) > 1
    return " + ".join(f"{source.path}:{source.weight:g}" if is_mix else source.path for source in value)


def _types(section: type) -> dict[str, Any]:
    return get_type_hints(section)


def _converted(content: Mapping[str, Any], where: str) -> Layer:
    """Every value of a layer in the type its field declares."""
    layer: dict[str, dict[str, Any]] = {}
    for section, values in content.items():
        if section not in _sections():
            raise UserError(f"'{section}'{where}", "no such section", did_you_mean(str(section), _sections()))
        if not isinstance(values, Mapping):
            raise UserError(f"'{section}'{where}", "is a section", "write `key: value` lines below it")
        declared = _types(_sections()[section])
        for key in values:
            if key not in declared:
                raise UserError(f"{section}.{key}{where}", "no such key", _nearest_key(section, key))
        converted = {key: convert(values[key], declared[key], f"{section}.{key}", where) for key in values}
        layer[section] = _with_one_length(converted) if section == "run" else converted
    return layer


def _nearest_key(section: str, key: str) -> str:
    """The hint for a key that its section does not have: the section that does, else what is spelt alike."""
    known = [f"{section}.{name}" for name in _types(_sections()[section])]
    return _home_of(key) or did_you_mean(f"{section}.{key}", known)


def _home_of(key: str) -> str | None:
    """The hint for the name of a key, or of a flag, without its section: where it belongs."""
    flag = f"--{key.replace('_', '-')}"
    homes = [f"{home}.{key}" for home, kind in _sections().items() if key in _types(kind)]
    if not homes and flag in KEY_OF:
        homes = [KEY_OF[flag]]
    if not homes:
        return None
    by_flag = f" ({FLAG_OF[homes[0]]})" if homes[0] in FLAG_OF else ""
    return f"did you mean '{homes[0]}'{by_flag}?"


def _merged(lower: Layer, upper: Layer) -> Layer:
    merged = {section: dict(values) for section, values in lower.items()}
    for section, values in upper.items():
        merged[section] = {**merged.get(section, {}), **values}
    return merged


def _overlaid(config: Config, layer: Layer, preset: str | None) -> Config:
    sections: dict[str, Any] = {
        section: dataclasses.replace(getattr(config, section), **values) for section, values in layer.items()
    }
    return dataclasses.replace(config, preset=preset, **sections)


def _with_one_length(values: dict[str, Any]) -> dict[str, Any]:
    """A layer that says how long the run is unsays what the layers below it said."""
    for given, unsaid in (("steps", "bytes"), ("bytes", "steps")):
        if values.get(given) is not None and unsaid not in values:
            return {**values, unsaid: None}
    return values
