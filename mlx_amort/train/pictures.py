"""The picture of a run, loss and rate: drawn now and then, in at most a hundredth of the time, and at the end."""

from __future__ import annotations

import time
from collections.abc import Callable

from mlx_amort.errors import UserError
from mlx_amort.train.run import Run

MOST_OF_THE_TIME = 0.01
# What the first picture is taken to need, loading matplotlib included.
FIRST_PICTURE_S = 3.0

# matplotlib raises what it likes, for a font, a style or a package of the user's that it does not like.
_OF_DRAWING = (
    ArithmeticError,
    AttributeError,
    ImportError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    UserError,
    ValueError,
)


class Pictures:
    """Draws the log of one run and counts the seconds that go to it; a picture that fails is said once.

    predicted_step_s: asked for when a picture is drawn, for it may come from the first steps.
    """

    def __init__(
        self, run: Run, predicted_step_s: Callable[[], float | None], note: Callable[[str], None]
    ) -> None:
        self._run = run
        self._predicted_step_s = predicted_step_s
        self._note = note
        self._started_at = time.monotonic()
        self._drawing_s = 0.0
        self._next_s = FIRST_PICTURE_S
        self._has_failed = False

    def draw_if_cheap(self) -> None:
        """Draw, if pictures then have taken no more than a hundredth of this session's time."""
        elapsed_s = time.monotonic() - self._started_at
        if not self._has_failed and self._drawing_s + self._next_s <= MOST_OF_THE_TIME * elapsed_s:
            self.draw()

    def draw(self) -> None:
        """Draw loss and rate from the log; a picture that cannot be drawn is a note, and never the end of a run."""
        rows = self._run.log.rows()
        if not rows:
            return
        began_at = time.monotonic()
        try:
            # Loading matplotlib takes longer than many steps of a small model.
            from mlx_amort.plots import describe_origin, loss_and_rate

            run, config, machine = self._run, self._run.config, self._run.machine
            loss_and_rate(
                rows,
                run.folder.plot,
                zlib_bits=run.zlib_bits,
                predicted_step_s=self._predicted_step_s(),
                unit=run.unit,
                title=describe_origin(
                    f"{config.preset}, {config.model.parameters:,} parameters",
                    f"{machine['device_name']}, {machine['cores']} cores, {machine['backend']}",
                ),
                resumed_after=[one["step"] for one in run.folder.read_record().get("resumed", [])],
            )
        except _OF_DRAWING as error:
            if not self._has_failed:
                why = " ".join(str(error).split()) or type(error).__name__
                self._note(
                    f"no picture: {why}; the run continues, its figures are in {self._run.folder.metrics}"
                )
            self._has_failed = True
        self._next_s = time.monotonic() - began_at
        self._drawing_s += self._next_s
