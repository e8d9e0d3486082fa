"""matplotlib with a backend and settings of our own, whatever the environment and matplotlibrc say."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mlx_amort.errors import UserError

_INHERITED = ("MPLBACKEND", "MATPLOTLIBRC")

# What matplotlib ships, and then: no TeX, `$` is a character, names in Japanese where a font has them.
OWN_SETTINGS = {
    "text.usetex": False,
    "text.parse_math": False,
    "axes.formatter.use_mathtext": False,
    "axes.unicode_minus": True,
    "svg.fonttype": "path",
    "path.simplify": True,
}


def load_matplotlib() -> None:
    """Import matplotlib without the caller's MPLBACKEND and matplotlibrc; a matplotlib already imported stays.

    A backend that is not installed and a matplotlibrc that cannot be read end that import.
    Raises: UserError for a matplotlibrc in the current folder that is not text; matplotlib reads it before any other.
    """
    if "matplotlib" in sys.modules:
        return
    inherited = {name: os.environ.pop(name) for name in _INHERITED if name in os.environ}
    try:
        os.environ["MATPLOTLIBRC"] = os.devnull
        importlib.import_module("matplotlib")
    except UnicodeDecodeError as error:
        raise UserError("./matplotlibrc", "is not text in UTF-8", "correct or delete it") from error
    finally:
        del os.environ["MATPLOTLIBRC"]
        os.environ.update(inherited)


@contextmanager
def own_settings() -> Iterator[None]:
    """matplotlib's shipped defaults and OWN_SETTINGS while a figure is made and saved; then the caller's again."""
    from matplotlib import rc_context, rcParamsDefault

    from mlx_amort.plots.lettering import families

    # The backend belongs to pyplot, which is not used here; to set it would close the caller's figures.
    settings: dict[Any, Any] = {
        name: value for name, value in rcParamsDefault.items() if not name.startswith("backend")
    }
    settings |= {**OWN_SETTINGS, "font.family": list(families())}
    with rc_context(settings):
        yield
