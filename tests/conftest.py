"""What all tests share: golden texts, a replay that starts afresh, no clock in properties."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from taccl.replay import timing

# A busy machine is slow, and no test is of time.
settings.register_profile(
    "any-machine", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any-machine")

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden texts")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with a file of tests/golden; ``--update-golden`` rewrites the file."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"no {path.name}: run pytest with --update-golden"
        assert text == path.read_text()

    return check


@pytest.fixture(autouse=True)
def nothing_replayed_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what other tests replayed, which would make compiled code worth loading."""
    monkeypatch.setattr(timing.SPENT, "messages", 0)
