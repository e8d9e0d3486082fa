"""Starts a worker for one configuration, watches its memory, and turns whatever becomes of it into a measurement."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import psutil

from mlx_amort.amounts import format_size
from mlx_amort.config.reading import to_dict
from mlx_amort.config.values import Config
from mlx_amort.cost.configuration import Configuration, Measurement
from mlx_amort.cost.fields import Fields
from mlx_amort.cost.measure.roofline import Rates
from mlx_amort.cost.memory.estimate import estimate
from mlx_amort.ops.constants import Backend

# The estimate may be this much too high: only what is beyond it is refused untried.
_DOUBT = 1.1
_POLL_S = 0.05
_SHARE_OF_MEMORY = 0.9
_PROGRAM = "import sys; sys.path[:] = {path!r}; from mlx_amort.cost.measure.worker import main; main()"


@dataclass(frozen=True)
class Outcome:
    """How a worker ended: its answer, or why there is none."""

    answer: dict[str, Any] | None
    exit_status: int
    is_over_memory: bool
    is_over_time: bool
    errors: str


@dataclass(frozen=True)
class ProcessMeasurer:
    """Measures configurations of `base`, each in a fresh process that may use `memory_bytes`."""

    base: Config
    steps: int
    memory_bytes: int
    backend: Backend = "cpu"

    def is_hopeless(self, configuration: Configuration) -> bool:
        """Whether a configuration needs so much memory that it is not even tried."""
        return self._estimated_bytes(configuration) > _DOUBT * self.memory_bytes

    def _estimated_bytes(self, configuration: Configuration) -> int:
        return estimate(configuration.configure(self.base), self.backend).peak_bytes

    def step(self, configuration: Configuration, limit_s: float | None) -> Measurement:
        """A measurement: its times, or why there are none (status did not fit, too slow or failed).

        A worker that takes longer than `limit_s` is stopped.
        """
        if self.is_hopeless(configuration):
            guess = self._estimated_bytes(configuration)
            free = f"{format_size(self.memory_bytes)} may be used"
            note = f"not tried: it needs about {format_size(guess)} and {free}"
            return Measurement(configuration, status="did not fit", note=note)
        started_at = time.perf_counter()
        config = configuration.configure(self.base)
        job = {"job": "step", "config": to_dict(config), "steps": self.steps}
        outcome = run_worker(job, self.memory_bytes, limit_s)
        wall_s = time.perf_counter() - started_at
        if outcome.answer is None:
            status, note = self._explain(outcome, wall_s)
            return Measurement(configuration, status=status, note=note, wall_s=wall_s)
        answer = Measurement.from_record({**configuration.to_record(), **outcome.answer}, "worker")
        return replace(answer, wall_s=wall_s)

    def rates(self, configuration: Configuration) -> Rates:
        """What the machine can do with the products of a configuration."""
        job = {"job": "rates", "config": to_dict(configuration.configure(self.base))}
        outcome = run_worker(job, self.memory_bytes)
        if outcome.answer is None:
            raise RuntimeError(f"the roofline could not be measured:\n{outcome.errors}")
        return Rates.from_fields(Fields(outcome.answer, "worker"))

    def _explain(self, outcome: Outcome, wall_s: float) -> tuple[str, str]:
        """The status and note of a worker without an answer."""
        if outcome.is_over_time:
            return "too slow", f"stopped after {wall_s:.0f} s, with the time budget used up"
        if outcome.is_over_memory:
            return "did not fit", f"stopped: it used more than {format_size(self.memory_bytes)}"
        if outcome.exit_status == -signal.SIGKILL:
            return "did not fit", "killed, as the system does when memory runs out"
        last = outcome.errors.strip().splitlines()[-1:] or ["no message"]
        return "failed", f"exit status {outcome.exit_status}: {last[0]}"


def usable_memory_bytes(machine: Mapping[str, Any], limit_bytes: int | None) -> int:
    """What a worker may use: the limit that was given, else nine tenths of what is free now.

    On CUDA the device's own memory counts and the host's does not; on Metal, where they are one, both do.
    """
    if limit_bytes is not None:
        return limit_bytes
    on_device = machine.get("device_memory_bytes")
    if on_device is not None and machine["backend"] == "cuda":
        return int(_SHARE_OF_MEMORY * on_device)
    available = min(machine["memory_bytes"], psutil.virtual_memory().available)
    usable = int(_SHARE_OF_MEMORY * available)
    # The recommended working set is what may be used already, with the system's share taken off.
    return usable if on_device is None else min(usable, on_device)


def run_worker(request: Mapping[str, Any], memory_bytes: int, limit_s: float | None = None) -> Outcome:
    """Run one worker to its end, or until its resident memory passes `memory_bytes` or its time `limit_s`.

    The worker imports from where this process does: what the current folder holds is not in its way.
    """
    # `-m` and `-c` put the current folder first; `-P`, which does not, is not in Python 3.10.
    command = (sys.executable, "-c", _PROGRAM.format(path=sys.path))
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=errors, text=True)
        assert child.stdin is not None
        is_over_memory = is_over_time = False
        started_at = time.monotonic()
        try:
            child.stdin.write(json.dumps(request) + "\n")
            child.stdin.flush()
            while child.poll() is None:
                if _resident_bytes(child.pid) > memory_bytes:
                    is_over_memory = True
                    child.kill()
                elif limit_s is not None and time.monotonic() - started_at > limit_s:
                    is_over_time = True
                    child.kill()
                time.sleep(_POLL_S)
        except BrokenPipeError:
            child.wait()
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
            child.stdin.close()
        out.seek(0)
        errors.seek(0)
        lines = out.read().splitlines()
        answer = json.loads(lines[-1]) if child.returncode == 0 and lines else None
        return Outcome(answer, child.returncode, is_over_memory, is_over_time, errors.read())


def _resident_bytes(process_id: int) -> int:
    try:
        return int(psutil.Process(process_id).memory_info().rss)
    # It has just ended.
    except psutil.NoSuchProcess:
        return 0
