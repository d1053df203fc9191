"""``python -m taccl`` and the ``taccl`` command."""

from taccl.cli import run

if __name__ == "__main__":
    run()
