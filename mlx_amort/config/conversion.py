"""Values as text or YAML has them, in the types that the fields of the configuration declare.

`3e-4` is a number where one is wanted, `on` a boolean, `010` ten (as in YAML 1.2), and `8` text where text is.
"""

from __future__ import annotations

import math
import os
import types
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Union, get_args, get_origin, get_type_hints

from mlx_amort.amounts import shorten
from mlx_amort.config.checks import WORDS_FOR_NULL, choices
from mlx_amort.config.values import SourceConfig
from mlx_amort.config.yaml_text import parse_yaml
from mlx_amort.errors import UserError, did_you_mean

_TRUE, _FALSE = ("true", "yes", "on"), ("false", "no", "off")
# What versions before this one called a choice, by its key: read, never written.
_FORMER_NAMES = {"step.tbptt": {"sliding": "consecutive"}}
# Of a whole number in another base, as YAML 1.2 writes it.
_PREFIXES = ("0o", "0x")
_SOURCES_HINT = "write it as [a.txt:0.7, b.txt:0.3]"


def parse_source(text: str) -> SourceConfig:
    """A corpus as the command line names it: PATH, or PATH:WEIGHT when a number follows the last colon.

    A file or folder of the whole name goes before that.
    """
    path, colon, tail = text.rpartition(":")
    try:
        weight = float(tail) if colon and not _exists(text) else None
    except ValueError:
        weight = None
    return SourceConfig(text) if weight is None else SourceConfig(path, weight, given=text)


def _exists(path: str) -> bool:
    try:
        return os.path.lexists(os.path.expanduser(path))
    # A NUL character, which is refused later.
    except ValueError:
        return False


def current_name(key: str, value: Any) -> Any:
    """A choice as it is called now, where an older version called it something else; any other value as it is."""
    return _FORMER_NAMES.get(key, {}).get(value, value) if isinstance(value, str) else value


def convert(value: Any, declared: Any, key: str, where: str) -> Any:
    """A value of YAML, JSON or the command line in the type that its field declares.

    key: what a refusal calls it; where: the file it stands in, as " in FILE". Raises: UserError.
    """
    if isinstance(value, str) and choices(declared):
        value = current_name(key, value.strip())
    if get_origin(declared) in (Union, types.UnionType):
        if value is None or (isinstance(value, str) and value.strip().lower() in WORDS_FOR_NULL):
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
    if isinstance(value, str) and value.strip().lower() in _TRUE + _FALSE:
        return value.strip().lower() in _TRUE
    raise ValueError


def _read_int(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, str):
        raise ValueError
    try:
        return int(value, 0 if value.strip().startswith(_PREFIXES) else 10)
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
    # JSON has numbers, whose spelling is lost.
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    raise ValueError


def _convert_sources(value: Any, key: str, where: str) -> tuple[SourceConfig, ...]:
    if isinstance(value, str):
        what = f"{key}={shorten(value)}{where}"
        value = parse_yaml(value, what, _SOURCES_HINT) if value.lstrip().startswith("[") else [value]
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
    declared = {name: kind for name, kind in get_type_hints(SourceConfig).items() if name != "given"}
    for name in entry:
        if name not in declared:
            raise UserError(f"{key}.{name}{where}", "no such key", did_you_mean(str(name), declared))
    return SourceConfig(
        **{name: convert(value, declared[name], f"{key}.{name}", where) for name, value in entry.items()}
    )
