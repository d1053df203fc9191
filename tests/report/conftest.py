"""One browser for all tests that need one."""

from collections.abc import Iterator

import pytest

from tests.report.browser import CHROMIUM, Browser


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Start Chromium once; tests that share it are in one group, so that one process runs all."""
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    try:
        started = Browser(tmp_path_factory.mktemp("chromium"))
    except (AssertionError, OSError) as error:
        # Some distributions install a stub in its place, or forbid what it needs.
        pytest.skip(f"chromium does not start: {error}")
    yield started
    started.close()
