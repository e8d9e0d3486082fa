"""Amounts as people write and read them: sizes, durations, shares, and text that is safe on a terminal."""

from __future__ import annotations

import re

from mlx_amort.errors import UserError

_DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
# An exabyte squared: above any file, memory or budget, and below where floats end.
_LARGEST_AMOUNT = 1e36
_SHOWN_CHARACTERS = 80
# Nobody's memory is less than a megabyte; a plain number below it lacks its unit.
_LEAST_MEMORY = 10**6
_AMOUNT = re.compile(r"([0-9][0-9_,]*\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?\s*([a-z]*)")


def parse_size(text: str, name: str = "size") -> int:
    """Bytes meant by a text; decimal prefixes are powers of 1000, binary ones (GiB) of 1024.

    Units: bytes. Raises: UserError for what is not a positive amount; `name` says which option it came from.
    """
    lowered = text.strip().lower()
    match = _AMOUNT.fullmatch(lowered)
    if match is None:
        raise UserError(
            f"{name} {text!r}", "is not an amount of bytes", "write it as 48GB, 1.5GiB, 2.006e9 or 10m"
        )
    digits, exponent, unit = match.group(1), match.group(2) or "", match.group(3)
    digits = digits.replace(",", "").replace("_", "")
    # "2b" is two bytes to one reader and two billion to another, a factor no guess should decide.
    if unit == "b":
        raise UserError(f"{name} {text!r}", "may mean bytes or billions", "write 2e9 or 2GB for billions")
    prefix = unit.removesuffix("bytes").removesuffix("byte").removesuffix("b")
    factor = _DECIMAL.get(prefix) or _BINARY.get(prefix)
    if factor is None:
        known = "k, m, g, t, kB, MB, GB, TB, KiB, MiB, GiB, TiB"
        raise UserError(f"{name} {text!r}", f"has the unknown unit {unit!r}", f"known are {known}")
    amount = float(digits + exponent) * factor
    if amount > _LARGEST_AMOUNT:
        raise UserError(
            f"{name} {shorten(text)!r}", "is more bytes than there are", "give one such as 2.006e9"
        )
    if round(amount) < 1:
        raise UserError(f"{name} {text!r}", "is not at least one byte", "give one such as 2.006e9")
    return round(amount)


def parse_memory(text: str, name: str) -> int:
    """Bytes of memory meant by a text; a small number without a unit is refused: 16 bytes are not meant.

    Units: bytes. Raises: UserError as `parse_size`.
    """
    amount = parse_size(text, name)
    number = text.strip()
    if amount < _LEAST_MEMORY and number[-1:].isdigit():
        raise UserError(f"{name} {number}", "has no unit", f"write {number}GB or {number}MB")
    return amount


def shorten(value: object) -> str:
    """A value for a message, cut where it would fill the screen; a list or mapping only by its kind."""
    if isinstance(value, dict | list | tuple | set):
        return f"({type(value).__name__})"
    try:
        text = "null" if value is None else str(value)
    # Python does not write integers of more than 4,300 digits.
    except ValueError:
        return "(a number of thousands of digits)"
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def format_size(amount: float) -> str:
    """A byte amount with a decimal prefix and three significant digits: 4.20 GB."""
    for prefix, factor in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        # From 999.5 on three digits are those of the next prefix.
        if abs(amount) >= 0.9995 * factor:
            return f"{amount / factor:#.3g} {prefix}B".replace(". ", " ")
    return f"{amount:.0f} B"


def format_duration(seconds: float) -> str:
    """A duration as people say it: 45 s, 3 min 20 s, 2 h 5 min, 3 d 4 h."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 48 * 3600:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def counted(number: int, noun: str) -> str:
    """A number of things: 1 step, 2,000 steps."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def percent(share: float) -> str:
    """A signed share as +1.23 %, without a negative zero."""
    return f"{round(share * 100, 2) + 0.0:+.2f} %"


def printable_lines(text: str) -> list[str]:
    """The lines of a text, with nothing in them that could drive a terminal."""
    return [
        "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)
        for line in text.split("\n")
    ]
