"""Time limits and Ctrl-C, where Python alone has minutes to do and while libraries are loaded."""

import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from tests.sweep import for_each

PATIENCE = 45.0
"""Seconds, far more than a limit: a busy machine is slow, and the searches alone take minutes."""

MOST = 2 << 30
"""Bytes of memory a process may have, over what its libraries map."""

STATUSES = (0, 4)
"""An answer was written, or none was found in time."""


def started(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "taccl", "synthesize", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"}, preexec_fn=limited,
    )  # fmt: skip


def limited() -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (MOST, MOST))


def ended(process: subprocess.Popen[str]) -> str:
    """Wait for a process; return what it said on stderr."""
    try:
        _, err = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        pytest.fail(f"runs on after {PATIENCE:g} s: {process.args!r}")
    assert process.returncode in STATUSES, err
    assert "Traceback" not in err
    return err


@for_each(
    "words",
    [
        ("mi250", "alltoall", "--nodes", "8", "--engine", "taccl", "--time-limit", "1"),
        ("dgx-a100", "allreduce", "--nodes", "32", "--time-limit", "2"),
        ("dgx-h100", "alltoall", "--nodes", "128", "--runtime", "none", "--time-limit", "2"),
        ("ring:5000", "allreduce", "--runtime", "none", "--time-limit", "2"),
    ],
    quick=1,
)
def test_a_time_limit_is_kept(words: tuple[str, ...]) -> None:
    ended(started(*words, "-q"))


@pytest.mark.slow
def test_a_limit_that_comes_while_libraries_are_loaded_leaves_no_traceback() -> None:
    for tenths in range(8, 28, 2):
        ended(started("hub:4", "allgather", "--time-limit", str(tenths / 10), "-q"))


@pytest.mark.slow
def test_an_interrupt_of_256_ranks_ends_within_seconds() -> None:
    process = started("dgx-a100", "allreduce", "--nodes", "32", "--time-limit", "3600")
    assert process.stderr is not None
    with suppress(StopIteration):
        next(line for line in process.stderr if "chunk" in line)
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    assert "finishing with the best so far" in ended(process)
