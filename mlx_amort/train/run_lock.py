"""One process at a time for a run's folder: a lock of the system, which dies with its process.

RUN/.lock is locked whole (POSIX record lock: not inherited by child processes, and known to network file systems) and
names its holder, for the refusal of another process. It stays in the folder: deleting it would open a gap
between two processes.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from mlx_amort.errors import UserError
from mlx_amort.files import HIDDEN

LOCK = f"{HIDDEN}lock"
# What file systems answer that know no locks.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL)

# Resolved folder -> descriptor. Closing any descriptor of a file drops this process's lock on it: there is one.
_held: dict[Path, int] = {}


def acquire(run_folder: Path, what: str) -> str:
    """Make this process the only one that works on a run; it may ask again. Returns a note where that is impossible.

    what: how the user named the folder. Raises: UserError, naming the process, when another one has it.
    """
    folder = run_folder.resolve()
    if folder in _held:
        return ""
    try:
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        # Who cannot write there disturbs nobody, and is refused by the first file that is to be written.
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return ""
        raise
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.read(descriptor, 200).decode(errors="replace").strip() or "another process"
        os.close(descriptor)
        if error.errno in _NO_LOCKS:
            return f"{run_folder}: its file system has no locks ({error.strerror}); start only one process on this run"
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            raise
        raise UserError(
            what, f"{holder} works on this run", "wait until it has ended, or end it with Ctrl-C"
        ) from error
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f"process {os.getpid()} on {os.uname().nodename}\n".encode())
    _held[folder] = descriptor
    return ""


def release(run_folder: Path) -> None:
    """Let other processes have the run; nothing happens where this one has no lock on it."""
    descriptor = _held.pop(run_folder.resolve(), None)
    if descriptor is not None:
        os.close(descriptor)
