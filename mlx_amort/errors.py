"""The only exception a user is meant to see, and the nearest-name hint that goes with it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake of the user's, told in one line: "what: why; what to do"."""

    def __init__(self, what: str, why: str, todo: str = "") -> None:
        self.what = what
        self.why = why
        self.todo = todo
        super().__init__(what, why, todo)

    def __str__(self) -> str:
        line = f"{self.what}: {self.why}"
        return f"{line}; {self.todo}" if self.todo else line


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return "did you mean 'NAME'?" when a known name is near, else the list of what there is."""
    names = list(known)
    nearest = difflib.get_close_matches(word.lower(), [name.lower() for name in names], n=1, cutoff=0.5)
    for name in names:
        if nearest and name.lower() == nearest[0]:
            return f"did you mean '{name}'?"
    return f"choose one of {', '.join(names)}" if names else ""
