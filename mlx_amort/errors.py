"""The only exception a user is meant to see, how its line is made safe, and the hints that go with it."""

from __future__ import annotations

import difflib
import errno
import os
import unicodedata
from collections.abc import Iterable, Sequence
from typing import NoReturn

# Longer names and reasons fill the screen; what to do is shown whole, for it may be a command to paste.
_MOST_OF_A_NAME, _MOST_OF_A_REASON = 240, 600


class UserError(Exception):
    """A mistake of the user's, reported in one line: "what: why; what to do".

    Names may hold anything: what is not printable is escaped, so that no name can end the line or drive a terminal.
    below: further lines, such as commands to paste.
    """

    def __init__(self, what: str, why: str, todo: str = "", below: Sequence[str] = ()) -> None:
        self.what = what
        self.why = why
        self.todo = todo
        self.below = tuple(below)
        super().__init__(what, why, todo, self.below)

    def __str__(self) -> str:
        line = f"{shortened(self.what, _MOST_OF_A_NAME)}: {shortened(self.why, _MOST_OF_A_REASON)}"
        line += f"; {self.todo}" if self.todo else ""
        return "\n  ".join(printable(text) for text in (line, *self.below))


def printable(text: str) -> str:
    """A text on one line, with escapes such as \\n and \\x1b for what is not printable."""
    return harmless(text, kept="")


def harmless(text: str, kept: str = "\n\t") -> str:
    """A text in which only printable characters, spaces and those of `kept` are themselves, and others escaped."""
    return "".join(
        c if c in kept or c.isprintable() or unicodedata.category(c) == "Zs" else ascii(c)[1:-1] for c in text
    )


def shortened(text: str, most: int) -> str:
    """A text of at most `most` characters: its beginning and its end."""
    if len(text) <= most:
        return text
    end = most // 3
    return f"{text[: most - end - 3]}...{text[-end:]}"


_ROOM, _RIGHTS, _DEVICE = "make room there", "get the permission", "check the disk or the device"
# What the world does to a file, and no bug of ours: error number -> what to do.
_OF_THE_WORLD = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EFBIG: "name a place that takes files as large",
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.EROFS: "name a place that can be written",
    errno.ENAMETOOLONG: "use a shorter name",
    errno.ENOTDIR: "a part of that path is a file, so name another",
    errno.EISDIR: "name a file, not a folder",
    errno.ELOOP: "name the file itself instead of a link that leads in circles",
    errno.EIO: _DEVICE,
    errno.ENXIO: _DEVICE,
    errno.ENODEV: "name a regular file",
}
# What may be a bug as well, and is reported as the user's only where a name of theirs was opened.
_OF_A_NAME = {
    errno.ENOENT: "see whether it was moved or deleted",
    errno.ESTALE: "see whether it was moved or deleted",
    errno.EEXIST: "move away what is there",
    errno.ENOTEMPTY: "move away what is in it",
    errno.EBUSY: "wait until nothing else uses it",
    errno.EMFILE: "let a process open more files (ulimit -n)",
    errno.ENFILE: "let the system open more files",
}


def advice(error: OSError) -> str:
    """What to do about an error of the disk or of a named file: the only place that says so."""
    known = {**_OF_THE_WORLD, **_OF_A_NAME}
    return known.get(error.errno or 0, "mend what the system names, or name another place")


def user_error_of(error: OSError) -> UserError | None:
    """An error of the disk or of a named file as the user should see it; None for what may be a bug.

    An error without a file's name comes from writing to something that is open, mostly standard output.
    """
    if error.errno not in _OF_THE_WORLD:
        return None
    what = "output" if error.filename is None else os.fsdecode(error.filename)
    return UserError(what, f"cannot be read or written ({error.strerror})", advice(error))


def assert_never(value: NoReturn) -> NoReturn:
    """Stand where every name of a Literal has been dealt with: mypy refuses the place that forgets one.

    As typing.assert_never, which Python 3.10 does not have. Raises: AssertionError.
    """
    raise AssertionError(f"{value!r} is dealt with nowhere")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return "did you mean 'NAME'?" when a known name is near, else the list of what there is."""
    names = list(known)
    nearest = difflib.get_close_matches(word.lower(), [name.lower() for name in names], n=1, cutoff=0.5)
    for name in names:
        if nearest and name.lower() == nearest[0]:
            return f"did you mean '{name}'?"
    return f"choose one of {', '.join(names)}" if names else ""
