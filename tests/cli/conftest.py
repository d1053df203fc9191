"""The command line as a fixture."""

from collections.abc import Callable

import pytest

from tests.cli.runner import Done, taccl

Run = Callable[..., Done]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run ``taccl`` with arguments and return what it printed and its exit status."""
    return lambda *arguments: taccl(capsys, monkeypatch, *map(str, arguments))
