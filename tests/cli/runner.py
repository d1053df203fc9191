"""Runs the command line in this process, with errors handled as ``taccl`` handles them."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from taccl import cli


@dataclass(frozen=True)
class Done:
    """What a command printed and how it ended."""

    status: int
    out: str
    err: str


@contextmanager
def _arguments(monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]) -> Iterator[None]:
    with monkeypatch.context() as patch, warnings.catch_warnings():
        patch.setattr("sys.argv", ["taccl", *arguments])
        yield


def taccl(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str
) -> Done:
    """Run ``taccl`` with arguments."""
    capsys.readouterr()
    status = 0
    with _arguments(monkeypatch, arguments):
        try:
            cli.run()
        except SystemExit as ending:
            status = int(ending.code or 0)
    printed = capsys.readouterr()
    return Done(status, printed.out, printed.err)
