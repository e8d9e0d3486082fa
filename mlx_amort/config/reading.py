"""From YAML and `section.key=value` to a Config, and back.

A run is resolved in layers, each overriding the one before: dataclass < preset < file < command line.
Values are converted by the type their field declares, so `3e-4`, which YAML reads as text, is a number where
one is wanted. An undeclared key is refused with the nearest one. Dumping and reading back is the identity.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
from collections.abc import Hashable, Iterable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import yaml

from mlx_amort.amounts import shorten
from mlx_amort.config.checks import choices
from mlx_amort.config.values import Config, SourceConfig
from mlx_amort.errors import UserError, did_you_mean

# Printed beside a configuration for the reader; it follows from the model, so reading passes it over.
_DERIVED = "parameters"
BUILTIN = "builtin:"
_RARE_LINE_ENDS = frozenset("\x85\u2028\u2029")
_TRUE, _FALSE, _NULL = ("true", "yes", "on"), ("false", "no", "off"), ("null", "none", "~", "")

_SECTIONS_HINT = "write it as `section:` with `key: value` lines below"
LARGEST_YAML_BYTES = 2**24

SECTIONS = tuple(field.name for field in dataclasses.fields(Config) if field.name != "preset")

Layer = Mapping[str, Mapping[str, Any]]


def preset_names() -> tuple[str, ...]:
    """Every preset there is, sorted."""
    return tuple(sorted(path.stem for path in _preset_folder().glob("*.yaml")))


def resolve(
    preset: str | None = None,
    file: str | Path | None = None,
    overrides: Iterable[str] = (),
    base: Config | None = None,
) -> Config:
    """Resolve a run: `base` (else the dataclasses) < preset < YAML file < `section.key=value` overrides.

    Raises: UserError for an unknown preset, key or choice, and a value of the wrong type or out of range.
    """
    from_file = read_yaml(Path(file)) if file is not None else {}
    named = _preset_of(from_file, f" in {file}")
    if preset and named and preset != named:
        raise UserError(f"preset {preset}", f"{file} was made for preset {named}", "give only one of them")
    preset = preset or named
    layers = [_converted(from_file, f" in {file}"), _converted(_parse_overrides(overrides), "")]
    if preset is not None:
        layers.insert(0, _converted(read_yaml(preset_path(preset)), f" in preset {preset}"))
    # Merged before anything is built: a layer alone may hold what only a later one makes valid.
    merged = functools.reduce(_merged, layers)
    return _overlaid(base or Config(), merged, preset or (base.preset if base else None))


def preset_path(name: str) -> Path:
    """The YAML file of a preset. Raises: UserError, with the nearest name, when there is none."""
    if name not in preset_names():
        raise UserError(f"preset {name}", "no such preset", did_you_mean(name, preset_names()))
    return _preset_folder() / f"{name}.yaml"


def load(path: str | Path) -> Config:
    """Read a resolved configuration as `dump` wrote it, without consulting the preset that it names."""
    content = read_yaml(Path(path))
    return from_dict(content, where=f" in {path}")


def from_dict(content: Mapping[str, Any], where: str = "") -> Config:
    """The Config of nested plain values, the inverse of `to_dict`; what is absent keeps its default."""
    sections = dict(content)
    preset = _preset_of(sections, where)
    return _overlaid(Config(), _converted(sections, where), preset)


def to_dict(config: Config) -> dict[str, Any]:
    """Nested plain values (dict, list, str, numbers, None) in the order of declaration, for YAML and JSON."""
    content = dataclasses.asdict(config)
    content["data"]["sources"] = list(content["data"]["sources"])
    return content


def dump(config: Config) -> str:
    """The canonical YAML of a resolved configuration."""
    return yaml.dump(to_dict(config), Dumper=_ExactDumper, sort_keys=False, allow_unicode=True)


def differing_keys(one: Config, other: Config, sections: Sequence[str] = ("model",)) -> list[str]:
    """The keys in which two configurations differ, as "section.key: VALUE and VALUE"."""
    return [
        f"{section}.{field.name}: {_shown(first)} and {_shown(second)}"
        for section in sections
        for field in dataclasses.fields(getattr(one, section))
        if (first := getattr(getattr(one, section), field.name))
        != (second := getattr(getattr(other, section), field.name))
    ]


def with_absolute_sources(config: Config) -> Config:
    """The configuration with its corpora named so that they are found from any folder, without `..` or links."""
    sources = tuple(
        source
        if source.path.startswith(BUILTIN)
        else dataclasses.replace(source, path=str(Path(source.path).expanduser().resolve()))
        for source in config.data.sources
    )
    return dataclasses.replace(config, data=dataclasses.replace(config.data, sources=sources))


def parse_source(text: str) -> SourceConfig:
    """A corpus as the command line names it: PATH, or PATH:WEIGHT when a number follows the last colon."""
    path, colon, tail = text.rpartition(":")
    try:
        weight = float(tail) if colon else None
    except ValueError:
        weight = None
    return SourceConfig(text) if weight is None else SourceConfig(path, weight)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping a YAML file holds. Raises: UserError when it cannot be read or holds something else."""
    try:
        # Not a byte more: a device or a pipe may have no end.
        with path.open("rb") as file:
            text = file.read(LARGEST_YAML_BYTES + 1)
    except OSError as error:
        raise UserError(str(path), error.strerror or "cannot be read", "name a YAML file") from error
    if len(text) > LARGEST_YAML_BYTES:
        why = f"is longer than the {LARGEST_YAML_BYTES:,} bytes that a configuration may have"
        raise UserError(str(path), why, "name a YAML file of sections and keys")
    content = _parse_yaml(text, str(path))
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UserError(str(path), "does not hold sections", _SECTIONS_HINT)
    return content


def _parse_yaml(text: str | bytes, what: str) -> Any:
    try:
        return yaml.load(text, Loader=_StrictLoader)
    except RecursionError as error:
        raise UserError(what, "is nested too deep", _SECTIONS_HINT) from error
    # A ValueError comes from what only looks like a date or a number.
    except (yaml.YAMLError, ValueError) as error:
        why = shorten(" ".join(str(error).split()))
        raise UserError(what, f"is not valid YAML ({why})", _SECTIONS_HINT) from error


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice, where YAML would silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for index, key in enumerate(keys):
            if key in keys[:index]:
                raise yaml.constructor.ConstructorError(
                    None, None, f"'{key}' is given twice", node.start_mark
                )
        return super().construct_mapping(node, deep=deep)


class _ExactDumper(yaml.SafeDumper):
    """SafeDumper that quotes the rarer line ends, which else come back as a space."""

    def represent_str(self, text: str) -> yaml.ScalarNode:
        style = '"' if _RARE_LINE_ENDS & set(text) else None
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_ExactDumper.add_representer(str, _ExactDumper.represent_str)


def _preset_folder() -> Path:
    """Beside the package in an installed wheel, at the root in a checkout or editable install."""
    package = Path(__file__).parent.parent
    beside = package / "presets"
    return beside if beside.is_dir() else package.parent / "presets"


def _preset_of(sections: dict[str, Any], where: str) -> str | None:
    """Take what is no section out of a file's content, and return the preset's name."""
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
            homes = [f"{home}.{section}" for home, kind in _sections().items() if section in _types(kind)]
            raise UserError(
                f"--set {override}", "names no section", did_you_mean(section, homes or _sections())
            )
        layer.setdefault(section, {})[key] = value.strip()
    return layer


def _shown(value: Any) -> str:
    """A value as its user would write it."""
    if not isinstance(value, tuple):
        return "null" if value is None else str(value)
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
        converted = {key: _convert(values[key], declared[key], f"{section}.{key}", where) for key in values}
        layer[section] = _with_one_length(converted) if section == "run" else converted
    return layer


def _nearest_key(section: str, key: str) -> str:
    """The hint for a key that its section does not have: the section that does, else what is spelt alike."""
    homes = [f"{home}.{key}" for home, kind in _sections().items() if key in _types(kind)]
    known = [f"{section}.{name}" for name in _types(_sections()[section])]
    return f"did you mean '{homes[0]}'?" if homes else did_you_mean(f"{section}.{key}", known)


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


def _convert(value: Any, declared: Any, key: str, where: str) -> Any:
    if get_origin(declared) in (Union, types.UnionType):
        if value is None or (isinstance(value, str) and value.lower() in _NULL):
            return None
        (declared,) = (option for option in get_args(declared) if option is not type(None))
    if get_origin(declared) is tuple:
        return _convert_sources(value, key, where)
    readers = {bool: _read_bool, int: _read_int, float: _read_float, str: _read_str}
    read = _read_str if choices(declared) else readers[declared]
    try:
        return read(value)
    except OverflowError as error:
        raise UserError(f"{key}={shorten(value)}{where}", str(error), "give one nearer to 1") from None
    except ValueError:
        wanted, example = _WANTED[read.__name__]
        raise UserError(f"{key}={shorten(value)}{where}", f"must be {wanted}", example) from None


_LARGEST_EXPONENT = 300
# Reader of a type -> what it takes, and an example.
_WANTED = {
    "_read_bool": ("on or off", "write true or false"),
    "_read_int": ("a whole number", "write it as 8 or 1e3"),
    "_read_float": ("a number", "write it as 0.1 or 3e-4"),
    "_read_str": ("text", "write it in quotes"),
}


def _read_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in _TRUE + _FALSE:
        return value.lower() in _TRUE
    raise ValueError


def _read_int(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, str):
        raise ValueError
    try:
        return int(value)
    except ValueError:
        number = _decimal(value)
    # Not by way of a float, in which 1e-400 is 0 and 1e400 is not finite.
    if number.is_finite() and number.adjusted() > _LARGEST_EXPONENT:
        raise OverflowError("is too large")
    if not number.is_finite() or number != number.to_integral_value():
        raise ValueError
    return int(number)


def _read_float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError
    try:
        number = float(value)
    except OverflowError:
        raise OverflowError("must be a finite number") from None
    if isinstance(value, str) and (number == 0 or math.isinf(number)) and _decimal(value) != number:
        raise OverflowError("is too close to 0" if number == 0 else "must be a finite number")
    return number


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text.strip())
    except InvalidOperation:
        raise ValueError from None


def _read_str(value: Any) -> str:
    if isinstance(value, str):
        return value
    # YAML reads an unquoted 2024 as a number; on and off as booleans, whose spelling is lost.
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    raise ValueError


_SOURCES_HINT = "write it as [a.txt:0.7, b.txt:0.3]"


def _parse_sources(text: str, what: str) -> Any:
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        raise UserError(what, "is not a list", _SOURCES_HINT) from None


def _convert_sources(value: Any, key: str, where: str) -> tuple[SourceConfig, ...]:
    if isinstance(value, str):
        value = _parse_sources(value, f"{key}={shorten(value)}{where}") if value.startswith("[") else [value]
    if not isinstance(value, list | tuple):
        raise UserError(
            f"{key}{where}",
            "must be a list of PATH, PATH:WEIGHT or {path: PATH, weight: WEIGHT}",
            _SOURCES_HINT,
        )
    return tuple(_convert_source(entry, f"{key}[{index}]", where) for index, entry in enumerate(value))


def _convert_source(entry: Any, key: str, where: str) -> SourceConfig:
    if isinstance(entry, str):
        return parse_source(entry)
    if not isinstance(entry, Mapping) or "path" not in entry:
        raise UserError(
            f"{key}{where}", "must be PATH, PATH:WEIGHT or {path: PATH, weight: WEIGHT}", _SOURCES_HINT
        )
    declared = _types(SourceConfig)
    for name in entry:
        if name not in declared:
            raise UserError(f"{key}.{name}{where}", "no such key", did_you_mean(str(name), declared))
    return SourceConfig(
        **{name: _convert(value, declared[name], f"{key}.{name}", where) for name, value in entry.items()}
    )
