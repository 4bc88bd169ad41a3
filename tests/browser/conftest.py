"""One browser for all tests that need one; where there is none, they are skipped with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from remoterun.model import Json, Run
from remoterun.report.page import page
from tests.browser.chromium import Browser, browser, missing
from tests.support.programs import lacking

Write = Callable[..., Path]


@pytest.fixture(scope="session")
def shared_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Start a browser, or say what is missing: a failure where REMOTERUN_NO_SKIP=1 forbids skipping."""
    reasons = missing()
    if reasons:
        lacking(f"a page can't be looked at: {'; '.join(reasons)}")
    with browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture
def chromium(shared_browser: Browser) -> Iterator[Browser]:
    """Return the browser; what it complains of makes the test fail."""
    shared_browser.complaints()
    yield shared_browser
    assert shared_browser.complaints() == []


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Return a function that writes runs as a page and returns its file."""

    def written(runs: Sequence[Run], differences: Sequence[Mapping[str, Json]] = ()) -> Path:
        file = tmp_path / "report.html"
        file.write_bytes(page(runs, differences))
        return file

    return written
