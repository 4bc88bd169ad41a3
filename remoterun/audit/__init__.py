"""Audits that nobody watches: one job per project, quiet unless something is new, and people told of it once."""

from __future__ import annotations

from remoterun.audit.ending import Ending
from remoterun.audit.file import ExitOn, Settings, load_settings
from remoterun.audit.lock import BUSY_STATUS, BusyError
from remoterun.audit.outcome import Audit, exit_code

__all__ = ["BUSY_STATUS", "Audit", "BusyError", "Ending", "ExitOn", "Settings", "exit_code", "load_settings"]
