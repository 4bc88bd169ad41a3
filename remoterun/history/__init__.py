"""What was run, kept for this user: written as it happens, read again, taken up where it was cut."""

from __future__ import annotations

from remoterun.history.database import default_folder
from remoterun.history.journal import Journal
from remoterun.history.reading import History, HistoryError, Kept, PlanError

__all__ = ["History", "HistoryError", "Journal", "Kept", "PlanError", "default_folder"]
