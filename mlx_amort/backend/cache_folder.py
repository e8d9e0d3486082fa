"""Where what was built once for this machine is kept: the user's cache folder, or a temporary one."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

_SETTING = "MLX_AMORT_CACHE"
_NAME = "mlx-amort"


def built_folder() -> Path:
    """Where what was compiled for this machine is kept: $MLX_AMORT_CACHE, else `cache_folder`."""
    named = os.environ.get(_SETTING, "")
    return Path(named) if os.path.isabs(named) and _is_made(Path(named)) else cache_folder()


def cache_folder() -> Path:
    """A folder of the user's that may hold code: one in $XDG_CACHE_HOME or ~/.cache, else in the temporary folder.

    What is kept in it is loaded as code, so one in the temporary folder must belong to the user alone.
    """
    # An empty HOME would be read as the root folder.
    home_cache = "" if os.environ.get("HOME") == "" else os.path.expanduser("~/.cache")
    for base in (os.environ.get("XDG_CACHE_HOME", ""), home_cache):
        if os.path.isabs(base) and _is_made(Path(base, _NAME)):
            return Path(base, _NAME)
    shared = Path(tempfile.gettempdir(), f"{_NAME}-{os.getuid()}")
    if _is_made(shared) and _is_ours_alone(shared):
        return shared
    return Path(tempfile.mkdtemp(prefix=f"{_NAME}-"))


def _is_made(folder: Path) -> bool:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return False
    # macOS has no such flag.
    may_hold_code = not os.statvfs(folder).f_flag & getattr(os, "ST_NOEXEC", 0)
    return may_hold_code and os.access(folder, os.W_OK | os.X_OK)


def _is_ours_alone(folder: Path) -> bool:
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
