"""Files that are called train, valid and test and stand beside each other: parts of a split that was published."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import PurePath

_TRAINING = frozenset({"train", "training"})
_HELD_OUT = frozenset({"valid", "val", "validation", "dev", "test", "testing", "eval", "heldout"})
_WORD = re.compile(r"[^\W\d_]+")


def joined_splits(labels: Iterable[str]) -> tuple[str, str] | None:
    """Return a training and a held-out part of one split, as files or folders beside each other; None without.

    Their names differ in that one word, and perhaps in numbers: wiki.train.tokens and wiki.test.tokens.
    """
    training: dict[str, str] = {}
    held_out: dict[str, str] = {}
    for label in labels:
        for place, key, word in _split_words(label):
            (training if word in _TRAINING else held_out).setdefault(key, place)
    common = sorted(training.keys() & held_out.keys())
    return (training[common[0]], held_out[common[0]]) if common else None


def note_of_splits(labels: Iterable[str]) -> list[str]:
    """Say that parts of a split are both trained on, and how to keep them apart."""
    found = joined_splits(labels)
    if found is None:
        return []
    training, held_out = found
    return [
        f"{training} and {held_out} are both trained on: if they are parts of a split, name the one with "
        "--data and the other with --validation"
    ]


def _split_words(label: str) -> Iterator[tuple[str, str, str]]:
    """Yield every file or folder of a path that is named after a part: (it, what it shares with others, word)."""
    parts = PurePath(label).parts
    for depth, name in enumerate(parts):
        for match in _WORD.finditer(name):
            word = match.group().lower()
            if word in _TRAINING | _HELD_OUT:
                rest = re.sub(r"\d+", "#", f"{name[: match.start()]}*{name[match.end() :]}")
                parent = "/".join(parts[:depth])
                yield "/".join(parts[: depth + 1]), f"{parent}/{rest}", word
