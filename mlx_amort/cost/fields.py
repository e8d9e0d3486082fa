"""One object of a profile.json or one line of a CSV: each value is checked once, where it is read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from mlx_amort.errors import UserError

# Beyond these a number is a slip of the pen, and beyond 2**53 no float holds it.
LARGEST_COUNT = 2**31 - 1
LARGEST_BYTES = 2**53
SHORTEST_S, LONGEST_S = 1e-9, 1e9
_LONGEST_NAME = 40
_TRUE = {"yes", "on", "true", "1"}
_FALSE = {"no", "off", "false", "0", ""}
_TODO = "correct the file"


class Fields:
    """The values of `record` by their type; `where` names the record in messages.

    Every method raises UserError, naming `where` and the key, for a value that is missing or impossible.
    """

    def __init__(self, record: object, where: str) -> None:
        if not isinstance(record, dict):
            raise UserError(where, f"is {_shown(record)} instead of an object", _TODO)
        self.record: Mapping[str, Any] = record
        self.where = where

    def refuse(self, key: str, why: str) -> UserError:
        """The error for the value of `key`."""
        return UserError(f"{self.where}, {key}", why, _TODO)

    def has(self, key: str) -> bool:
        """Whether the key is there with a value; an empty text is none."""
        value = self.record.get(key)
        return value is not None and not (isinstance(value, str) and not value.strip())

    def require(self, keys: Iterable[str]) -> None:
        """Refuse a record without one of `keys`."""
        required = tuple(keys)
        if missing := [key for key in required if not self.has(key)]:
            todo = f"each needs {', '.join(required)}"
            raise UserError(self.where, f"{', '.join(missing)} missing", todo)

    def number(self, key: str) -> float | None:
        """A finite number, None where the key is absent."""
        return self._finite(self.record[key], key) if self.has(key) else None

    def known_number(self, key: str) -> float:
        """A finite number that must be there."""
        self.require([key])
        return self._finite(self.record[key], key)

    def rate(self, key: str) -> float:
        """A positive number that must be there."""
        number = self.known_number(key)
        if number <= 0:
            raise self.refuse(key, f"{number:g} is not positive")
        return number

    def scaled(self, factors: Mapping[str, float]) -> float | None:
        """The first of several keys that is there, times its factor: one amount in several units."""
        for key, factor in factors.items():
            if (number := self.number(key)) is not None:
                return number * factor
        return None

    def count(self, key: str, largest: int = LARGEST_COUNT) -> int | None:
        """A whole number from 1 to `largest`, None where the key is absent."""
        number = self.number(key)
        if number is None:
            return None
        if number < 1 or number != int(number):
            raise self.refuse(key, f"{_shown(self.record[key])} is not a whole number of at least 1")
        if number > largest:
            raise self.refuse(key, f"{number:g} is over {largest:,}")
        return int(number)

    def known_count(self, key: str) -> int:
        """A whole number of at least 1 that must be there."""
        self.require([key])
        return self.count(key) or 0

    def time_s(self, factors: Mapping[str, float], name: str) -> float | None:
        """A positive time under one of several keys, in seconds; `name` stands for them in messages."""
        seconds = self.scaled(factors)
        return None if seconds is None else self._time(seconds, name)

    def duration_s(self, factors: Mapping[str, float], name: str) -> float | None:
        """A time that may be 0, in seconds."""
        seconds = self.scaled(factors)
        if seconds is not None and not 0 <= seconds <= LONGEST_S:
            raise self.refuse(name, f"{seconds:g} s is not between 0 and {LONGEST_S:g} s")
        return seconds

    def times_s(self, key: str) -> tuple[float, ...]:
        """A list of positive times in seconds; empty where the key is absent."""
        return tuple(self._time(self._finite(value, key), key) for value in self._list(key))

    def optional_times_s(self, key: str) -> tuple[float | None, ...]:
        """A list of positive times in seconds or null; empty where the key is absent."""
        return tuple(
            None if value is None else self._time(self._finite(value, key), key) for value in self._list(key)
        )

    def numbers(self, key: str) -> dict[str, float]:
        """An object of finite numbers; empty where the key is absent."""
        if not self.has(key):
            return {}
        inner = self.section(key)
        return {str(name): inner.known_number(name) for name in inner.record}

    def bytes(self, factors: Mapping[str, float], name: str) -> int | None:
        """An amount of memory under one of several keys, in bytes."""
        amount = self.scaled(factors)
        if amount is not None and not 0 <= amount <= LARGEST_BYTES:
            raise self.refuse(name, f"{amount:g} bytes is not an amount of memory")
        return None if amount is None else round(amount)

    def flag(self, *keys: str) -> bool:
        """Yes or no under the first of `keys` that is there; no without any."""
        for key in keys:
            if self.record.get(key) is not None:
                text = str(self.record[key]).strip().lower()
                if text in _TRUE or text in _FALSE:
                    return text in _TRUE
                raise UserError(
                    f"{self.where}, {key}", f"{_shown(text)} is neither yes nor no", "write yes or no"
                )
        return False

    def name(self, key: str) -> str | None:
        """A short printable text, None where the key is absent."""
        if not self.has(key):
            return None
        text = str(self.record[key]).strip()
        if len(text) > _LONGEST_NAME or not text.isprintable():
            raise self.refuse(key, f"{_shown(text)} is not a name")
        return text

    def text(self, key: str) -> str:
        """A text, empty where the key is absent."""
        value = self.record.get(key)
        if value is not None and not isinstance(value, str):
            raise self.refuse(key, f"{_shown(value)} is not a text")
        return value or ""

    def facts(self, key: str) -> dict[str, Any]:
        """The object under `key` as it stands; empty where the key is absent."""
        return dict(self.section(key).record) if self.has(key) else {}

    def section(self, key: str) -> Fields:
        """The object under `key`."""
        return Fields(self.record.get(key), f"{self.where}, {key}")

    def sections(self, key: str, name: str | None = None) -> list[Fields]:
        """The objects of the list under `key`, numbered from 1; empty where the key is absent."""
        return [
            Fields(entry, f"{self.where}, {name or key} {number}")
            for number, entry in enumerate(self._list(key), start=1)
        ]

    def _list(self, key: str) -> list[Any]:
        value = self.record.get(key)
        if value is not None and not isinstance(value, list):
            raise self.refuse(key, f"{_shown(value)} is not a list")
        return value or []

    def _finite(self, value: Any, key: str) -> float:
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            raise self.refuse(key, f"{_shown(value)} is not a number") from None
        if not math.isfinite(number):
            raise self.refuse(key, f"{_shown(value)} is not finite")
        return number

    def _time(self, seconds: float, key: str) -> float:
        if not SHORTEST_S <= seconds <= LONGEST_S:
            raise self.refuse(key, f"{seconds:g} s is not between {SHORTEST_S:g} and {LONGEST_S:g} s")
        return seconds


def _shown(value: object) -> str:
    """A wrong value in a message of one line, cut where it is long."""
    if value is None:
        return "missing"
    text = repr(value) if isinstance(value, str | int | float) else f"a value of kind {type(value).__name__}"
    return text if len(text) <= _LONGEST_NAME else f"{text[:_LONGEST_NAME]}..."
