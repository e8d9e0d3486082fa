"""The only exception a user is meant to see, and the nearest-name hint that goes with it."""

from __future__ import annotations

import difflib
import errno
import os
from collections.abc import Iterable
from typing import NoReturn


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


# What the world does to a file, and no bug of ours: error number -> what to do.
_ROOM, _RIGHTS = "make room there, or name another place", "get the permission, or name another place"
_OF_THE_WORLD = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EFBIG: _ROOM,
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.EROFS: "name a place that can be written",
    errno.ENAMETOOLONG: "use a shorter name",
    errno.ENOTDIR: "a part of that path is a file, so name another",
    errno.EISDIR: "name a file, not a folder",
    errno.ELOOP: "name the file itself instead of a link that leads in circles",
    errno.EIO: "check the disk or the device",
    errno.ENXIO: "check the disk or the device",
    errno.ENODEV: "name a regular file",
}


def user_error_of(error: OSError) -> UserError | None:
    """An error of the disk or of a named file as the user should see it; None for what may be a bug.

    An error without a file's name comes from writing to something that is open, mostly standard output.
    """
    todo = _OF_THE_WORLD.get(error.errno or 0)
    if todo is None:
        return None
    what = "output" if error.filename is None else os.fsdecode(error.filename)
    return UserError(what, f"cannot be read or written ({error.strerror})", todo)


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
