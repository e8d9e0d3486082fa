"""UTF-16 and UTF-32 without a byte order mark: known from other binary data by what they decode to."""

from __future__ import annotations

import codecs
import unicodedata

# What text in any script has now and then, and decoded noise has not.
_COMMON = frozenset(" \n\r\t,.\u3000\u3001\u3002\uff0c\u0964")
_LEAST_COMMON_SHARE = 0.005
_MOST_ODD_SHARE = 0.005


def wide_encoding(head: bytes) -> str | None:
    """Return "UTF-32LE", "UTF-16BE" ... when the bytes are text in it, else None."""
    for width, names in ((4, ("UTF-32LE", "UTF-32BE")), (2, ("UTF-16LE", "UTF-16BE"))):
        for name in names:
            if len(head) >= width and _is_text_in(head, name):
                return name
    return None


def _is_text_in(head: bytes, encoding: str) -> bool:
    try:
        # The head may end inside a character, which an incremental decoder keeps back.
        text = codecs.getincrementaldecoder(encoding)().decode(head)
    except UnicodeDecodeError:
        return False
    odd = sum(unicodedata.category(c) in ("Cc", "Cn", "Co", "Cs") and c not in "\t\n\r\f" for c in text)
    common = sum(c in _COMMON for c in text)
    is_short_ascii = len(text) < 200 and text.isascii() and text.isprintable()
    has_common = common >= max(1, _LEAST_COMMON_SHARE * len(text)) or is_short_ascii
    return bool(text) and odd <= _MOST_ODD_SHARE * len(text) and has_common
