"""A nap of the machine or of the process, and a compiler that ran, are told apart from a step."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from mlx_amort.backend import disturbance
from mlx_amort.backend.disturbance import heard_naps, this_moment


def test_work_and_waiting_disturb_nothing() -> None:
    with heard_naps():
        before = this_moment()
        sum(range(100_000))
        time.sleep(0.01)
        assert not this_moment().has_compiled_since(before) and not this_moment().has_napped_since(before)


def test_what_this_process_started_is_a_compiler() -> None:
    before = this_moment()
    subprocess.run([sys.executable, "-S", "-c", "sum(range(1000))"], check=True)
    assert this_moment().has_compiled_since(before)


def test_a_process_that_was_stopped_has_napped() -> None:
    napping = (
        "import os, signal, subprocess, sys\n"
        "from mlx_amort.backend.disturbance import heard_naps, this_moment\n"
        "with heard_naps():\n"
        "    before = this_moment()\n"
        "    print('ready', flush=True)\n"
        "    sys.stdin.readline()\n"
        "    print(this_moment().has_napped_since(before))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", napping], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        process.send_signal(signal.SIGCONT)
        process.stdin.write("\n")
        process.stdin.close()
        assert process.stdout.read() == "True\n"


def test_a_machine_that_was_suspended_has_napped(monkeypatch: pytest.MonkeyPatch) -> None:
    before = this_moment()
    asleep_s = disturbance._asleep_s() + 5.0
    monkeypatch.setattr(disturbance, "_asleep_s", lambda: asleep_s)
    assert this_moment().has_napped_since(before)


def test_what_heard_signals_before_hears_them_again() -> None:
    before = signal.getsignal(signal.SIGCONT)
    with heard_naps():
        assert signal.getsignal(signal.SIGCONT) is not before
    assert signal.getsignal(signal.SIGCONT) is before
