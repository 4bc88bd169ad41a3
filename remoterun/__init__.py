"""Run versioned diagnostic payloads inside containers over SSH and gather structured JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remoterun.version import VERSION

__version__ = VERSION

if TYPE_CHECKING:
    from remoterun.api import Choice, Project, aplay, play
    from remoterun.errors import ConfigError, RemoterunError
    from remoterun.model import Finding, Outcome, Plan, RuleChanges, Run, Status
    from remoterun.runner import Control

# Name -> module: loaded on first use, so that importing the package costs next to nothing.
_HOMES = {
    "Choice": "api",
    "Project": "api",
    "aplay": "api",
    "play": "api",
    "Control": "runner",
    "ConfigError": "errors",
    "RemoterunError": "errors",
    "Finding": "model",
    "Outcome": "model",
    "Plan": "model",
    "RuleChanges": "model",
    "Run": "model",
    "Status": "model",
}

__all__ = [
    "Choice",
    "ConfigError",
    "Control",
    "Finding",
    "Outcome",
    "Plan",
    "Project",
    "RemoterunError",
    "RuleChanges",
    "Run",
    "Status",
    "aplay",
    "play",
]


def __getattr__(name: str) -> object:
    """Load a public name when it is first asked for (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
