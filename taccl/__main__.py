"""``python -m taccl`` and the ``taccl`` command."""

import gc

from taccl.timing.deadline import Deadline

BEGAN = Deadline()
"""All but what Python itself takes to start is counted in time limits from here."""

RARELY = (200_000, 20, 100)
"""Thresholds of the garbage collector: schedules are millions of small objects without cycles, and
looking through all of them every 700 takes a quarter of the time."""


def run() -> None:
    """Run the command line in a process of its own."""
    from taccl.cli import run as run_command
    from taccl.cli.options import PROCESS

    gc.set_threshold(*RARELY)
    PROCESS.started = BEGAN
    run_command()


if __name__ == "__main__":
    run()
