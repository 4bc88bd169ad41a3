"""Runs as one page for a browser, which needs nothing else: no network, no server, no other file."""

from __future__ import annotations

from remoterun.report.page.given import NotRunsError, runs_of
from remoterun.report.page.page import page, page_of

__all__ = ["NotRunsError", "page", "page_of", "runs_of"]
