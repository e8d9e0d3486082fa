"""What a value of the configuration must satisfy; every refusal names the key, the value and the way out."""

from __future__ import annotations

import math
from typing import Any, Literal, get_args, get_origin, get_type_hints

from mlx_amort.amounts import shorten
from mlx_amort.errors import UserError, did_you_mean

WORDS_FOR_NULL = ("null", "none", "~", "")
_FINITE = "must be a finite number"
# Below the smallest normal number float32 loses digits, and MLX may take it for 0.
SMALLEST_FLOAT32, LARGEST_FLOAT32 = 2.0**-126, (2 - 2.0**-23) * 2.0**127


def choices(declared: Any) -> tuple[str, ...]:
    """The names a `Literal[...]` type allows, in order; empty for any other type."""
    return get_args(declared) if get_origin(declared) is Literal else ()


def check_choices(section: str, config: object) -> None:
    """Refuse a field declared as `Literal[...]` that holds another name."""
    for key, declared in get_type_hints(type(config)).items():
        allowed = choices(declared)
        value = getattr(config, key)
        if allowed and value not in allowed:
            raise UserError(
                f"{section}.{key}={shorten(value)}", "no such choice", _choice_hint(str(value), allowed)
            )


def check_at_least(section: str, config: object, least: float, *keys: str) -> None:
    """Refuse a number below `least` or not finite; null passes."""
    for key in keys:
        value = getattr(config, key)
        if value is not None and not (math.isfinite(value) and value >= least):
            raise UserError(
                f"{section}.{key}={value}",
                f"must be at least {least:g}" if math.isfinite(value) else _FINITE,
                _usual(config, key, f"give {least:g} or more"),
            )


def check_at_most(section: str, config: object, most: int, *keys: str) -> None:
    """Refuse a number above `most`; null passes."""
    for key in keys:
        value = getattr(config, key)
        if value is not None and value > most:
            raise UserError(
                f"{section}.{key}={shorten(value)}",
                f"must be at most {most:,}",
                _usual(config, key, "give a smaller one"),
            )


def check_above_zero(section: str, config: object, *keys: str) -> None:
    """Refuse a number that is zero, negative or not finite; null passes."""
    for key in keys:
        value = getattr(config, key)
        if value is not None and not (math.isfinite(value) and value > 0):
            raise UserError(
                f"{section}.{key}={value}",
                "must be above 0" if math.isfinite(value) else _FINITE,
                _usual(config, key, "give a larger one"),
            )


def check_float32(section: str, config: object, *keys: str) -> None:
    """Refuse a number that float32, in which it is used, holds as infinite or as 0; 0 itself and null pass."""
    for key in keys:
        value = getattr(config, key)
        if value is None or value == 0 or not math.isfinite(value):
            continue
        if not SMALLEST_FLOAT32 <= abs(value) <= LARGEST_FLOAT32:
            size = "large" if abs(value) > 1 else "small"
            raise UserError(
                f"{section}.{key}={value}",
                f"is too {size} for float32, in which it is used",
                _usual(config, key, "give one nearer to 1"),
            )


def check_fraction(section: str, config: object, *keys: str) -> None:
    """Refuse a number outside [0, 1)."""
    for key in keys:
        value = getattr(config, key)
        if not 0 <= value < 1:
            raise UserError(
                f"{section}.{key}={value}",
                "must be at least 0 and below 1",
                _usual(config, key, "give one such as 0.9"),
            )


def divisors(number: int) -> str:
    """The divisors of a number, listed for a message."""
    return ", ".join(str(candidate) for candidate in range(1, number + 1) if number % candidate == 0)


def nearest_multiples(number: int, stride: int) -> str:
    """The multiples of `stride` around a number, listed for a message."""
    below = number // stride * stride
    return " or ".join(str(multiple) for multiple in (below, below + stride) if multiple)


def _usual(config: object, key: str, otherwise: str) -> str:
    """The way out of a refused number: the default of its key, where it has one."""
    default = getattr(type(config), key, None)
    return otherwise if default is None else f"{default} is usual"


def _choice_hint(value: str, allowed: tuple[str, ...]) -> str:
    hint, everything = did_you_mean(value, allowed), f"choose one of {', '.join(allowed)}"
    return hint if hint == everything else f"{hint} (of {', '.join(allowed)})"
