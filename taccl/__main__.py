"""``python -m taccl`` and the ``taccl`` command."""

from taccl.timing.deadline import Deadline
from taccl.timing.jit import seldom_collected

BEGAN = Deadline()
"""All but what Python itself takes to start is counted in time limits from here."""


def run() -> None:
    """Run the command line in a process of its own."""
    from taccl.cli import run as run_command
    from taccl.cli.options import PROCESS

    PROCESS.started = BEGAN
    with seldom_collected():
        run_command()


if __name__ == "__main__":
    run()
