"""Names and numbers as a figure shows them."""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Sequence

from matplotlib import font_manager
from matplotlib.ticker import Formatter

# DejaVu comes with matplotlib; the others have the signs of Chinese, Japanese and Korean, where they are installed.
FAMILIES = (
    "DejaVu Sans",
    "Noto Sans CJK JP",
    "Hiragino Sans",
    "PingFang SC",
    "Apple SD Gothic Neo",
    "Arial Unicode MS",
    "WenQuanYi Zen Hei",
    "IPAexGothic",
)
LONGEST_NAME = 60
_UNITS = ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k"))


@functools.cache
def families() -> tuple[str, ...]:
    """Those of FAMILIES that are installed; naming another one makes matplotlib warn at every text."""
    installed = {entry.name for entry in font_manager.fontManager.ttflist}
    return tuple(name for name in FAMILIES if name in installed)


@functools.cache
def _drawable_codes() -> frozenset[int]:
    codes: set[int] = set()
    for name in families():
        codes |= font_manager.get_font(font_manager.findfont(name)).get_charmap().keys()
    return frozenset(codes)


def drawable(name: str) -> str:
    """A name in one line, escaped where a character is a control or in no installed font, and cut in its middle."""
    text = name if name.isascii() and name.isprintable() else "".join(map(_shown, name))
    if len(text) <= LONGEST_NAME:
        return text
    half = (LONGEST_NAME - 3) // 2
    return f"{text[:half]}...{text[-half:]}"


def _shown(character: str) -> str:
    is_drawn = character.isprintable() or unicodedata.category(character) == "Zs"
    if is_drawn and ord(character) in _drawable_codes():
        return character
    return ascii(character)[1:-1]


class PrefixFormatter(Formatter):
    """Ticks of one axis all in the same unit: 0.5M 1.0M 1.5M, or 250 750 1,250."""

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        """The ticks' texts, in the largest unit that the largest of them reaches."""
        return with_one_prefix(values)

    def __call__(self, value: float, pos: int | None = None) -> str:
        """A single value, in the unit it reaches itself."""
        return with_one_prefix([value])[0]


def with_one_prefix(values: Sequence[float]) -> list[str]:
    """Numbers in the largest of 1, k, M and G that the largest of them reaches (k from 10,000 on)."""
    largest = max((abs(value) for value in values), default=0.0)
    factor, unit = next(((factor, unit) for least, factor, unit in _UNITS if largest >= least), (1.0, ""))
    scaled = [value / factor for value in values]
    decimals = next((n for n in range(6) if all(abs(x - round(x, n)) < 1e-9 * largest for x in scaled)), 6)
    return [f"{value:,.{decimals}f}{unit}" if value else "0" for value in scaled]


def binary_bytes(value: float) -> str:
    """A power of two as 512, 4 Ki, 2 Mi; other values with three digits."""
    for factor, unit in ((2**30, " Gi"), (2**20, " Mi"), (2**10, " Ki")):
        if value >= factor:
            return f"{value / factor:.3g}{unit}"
    return f"{value:.3g}"
