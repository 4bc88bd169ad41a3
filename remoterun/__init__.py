"""Run versioned diagnostic payloads inside containers over SSH and gather structured JSON."""

from remoterun.version import VERSION

__version__ = VERSION

# Type checkers take it for true. Nothing may be imported here: `python -m` looks first in the folder it was typed in.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from remoterun.api import Project
    from remoterun.api.running import (
        Options,
        Running,
        aplay,
        arun_program,
        arun_script,
        play,
        run_program,
        run_script,
    )
    from remoterun.errors import ConfigError, Problem, RemoterunError
    from remoterun.inventory import Inventory, Overrides
    from remoterun.model import (
        ErrorInfo,
        Finding,
        Outcome,
        Phase,
        Playbook,
        RuleChanges,
        Run,
        RunStatus,
        SecretSource,
        Severity,
        Status,
        Step,
    )
    from remoterun.report import to_json

# Module -> names: loaded on first use, so that importing the package costs next to nothing.
_NAMES = {
    "api": ("Project",),
    "api.running": (
        *("Options", "Running", "aplay", "arun_program", "arun_script", "play", "run_program", "run_script"),
    ),
    "errors": ("ConfigError", "Problem", "RemoterunError"),
    "inventory": ("Inventory", "Overrides"),
    "model": (
        *("ErrorInfo", "Finding", "Outcome", "Phase", "Playbook", "RuleChanges", "Run", "RunStatus"),
        *("SecretSource", "Severity", "Status", "Step"),
    ),
    "report": ("to_json",),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "ConfigError",
    "ErrorInfo",
    "Finding",
    "Inventory",
    "Options",
    "Outcome",
    "Overrides",
    "Phase",
    "Playbook",
    "Problem",
    "Project",
    "RemoterunError",
    "RuleChanges",
    "Run",
    "RunStatus",
    "Running",
    "SecretSource",
    "Severity",
    "Status",
    "Step",
    "aplay",
    "arun_program",
    "arun_script",
    "play",
    "run_program",
    "run_script",
    "to_json",
]


def __getattr__(name: str) -> object:
    """Load a public name when it is first asked for (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
