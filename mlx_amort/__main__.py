"""The command `mlx-amort`, also as `python -m mlx_amort`: hears Ctrl-C before anything takes time to load."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from types import FrameType


def main() -> NoReturn:
    """Load the command and run it; Ctrl-C while it loads ends it with exit 130 and without a traceback."""
    _fill_standard_descriptors()
    _leave_out_current_folder()
    # Only now: until here it could be a module of the user's.
    import signal

    # Whoever started us may have Ctrl-C ignored, as a shell does for what runs behind it.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    from mlx_amort import cli

    cli.main()


def _fill_standard_descriptors() -> None:
    """Open nothing in the place of a standard stream that the caller closed, before a file takes its number.

    MLX cannot read a file whose descriptor is 0, and what is written to 1 and 2 would go into a file of ours.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest number that is free is taken.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def _leave_out_current_folder() -> None:
    """Import nothing from the current folder, where a corpus may lie beside a numpy.py.

    `python -m` puts it first, and so does an empty part of PYTHONPATH, as in PYTHONPATH=$PYTHONPATH:/other.
    """
    try:
        here = os.getcwd()
    except OSError:
        return
    has_empty_part = "" in os.environ.get("PYTHONPATH", "x").split(os.pathsep)
    if __name__ == "__main__" or has_empty_part:
        sys.path[:] = [folder for folder in sys.path if folder not in ("", here)]


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    os._exit(128 + number)


if __name__ == "__main__":
    main()
