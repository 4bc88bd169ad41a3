"""What audits of a project keep from one to the next: what was reported, what people know, what waits to be told."""

from __future__ import annotations

import errno
import json
import os
import stat
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final

from remoterun.audit.ledger import Event, Told
from remoterun.records import dataclass
from remoterun.report.files import write_whole

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from remoterun.model import Json

SCHEMA: Final = "remoterun/audit-state/1"
_FILE: Final = "state.json"
_MOST: Final = 256 << 20
"""No state is larger: what people know and what they wait for is bounded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """Hold the last run of a playbook whose differences were reported, and what people know of it."""

    run_id: str
    told: Told = Told()


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Hold what somebody is still to be told, how many older events were dropped, and when messages were sent."""

    events: tuple[Event, ...] = ()
    dropped: int = 0
    sent: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Hold all of it; `failing` is the event that told of an audit that failed, until one works."""

    reported: Mapping[str, Reported] = field(default_factory=dict)
    failing: Event | None = None
    waiting: Mapping[str, Waiting] = field(default_factory=dict)


def load_state(folder: Path) -> State:
    """Read what the last audit has left.

    Raises:
        OSError: it can't be read.
        ValueError: it is damaged, or of a later version.
    """
    path = folder / _FILE
    try:
        data = _read(path)
    except FileNotFoundError:
        return State()
    try:
        value = json.loads(data)
        is_ours = value["schema"] == SCHEMA
        state = _state(value) if is_ours else State()
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged") from error
    if not is_ours:
        raise ValueError(f"{path} was written by another version of remoterun")
    return state


def _read(path: Path) -> bytes:
    """Read a file of ours; what is none would keep us waiting, or have no end."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        data = file.read(_MOST + 1)
    if len(data) > _MOST:
        raise OSError(errno.EFBIG, f"it is larger than {_MOST >> 20} MiB", str(path))
    return data


def _state(value: Mapping[str, Any]) -> State:
    return State(
        reported={name: _read_reported(kept) for name, kept in value["reported"].items()},
        failing=Event.read(value["failing"]) if value["failing"] else None,
        waiting={name: _read_waiting(kept) for name, kept in value["waiting"].items()},
    )


def _read_reported(value: Mapping[str, Json]) -> Reported:
    told = Told(findings=_read_events(value["findings"]), silent=_read_events(value["silent"]))
    for key in told.findings:
        if not isinstance(json.loads(key)[0], str):
            raise TypeError("the key of a finding begins with its target")
    return Reported(run_id=str(value["run"]), told=told)


def _read_events(value: Json) -> dict[str, Event]:
    if not isinstance(value, dict):
        raise TypeError("events are kept by their keys")
    return {key: _read_event(event) for key, event in value.items()}


def _read_event(value: Json) -> Event:
    if not isinstance(value, dict):
        raise TypeError("an event is a mapping")
    return Event.read(value)


def _read_waiting(value: Mapping[str, Json]) -> Waiting:
    events, sent = value["events"], value["sent"]
    if not isinstance(events, list) or not isinstance(sent, list):
        raise TypeError("events and times are lists")
    return Waiting(
        events=tuple(map(_read_event, events)),
        dropped=int(str(value["dropped"])),
        sent=tuple(float(str(moment)) for moment in sent),
    )


def save_state(folder: Path, state: State) -> None:
    """Write it all, whole or not at all.

    Raises:
        OSError: it can't be written.
    """
    value: dict[str, Json] = {
        "schema": SCHEMA,
        "reported": {
            name: {
                "run": kept.run_id,
                "findings": {key: event.document() for key, event in kept.told.findings.items()},
                "silent": {key: event.document() for key, event in kept.told.silent.items()},
            }
            for name, kept in state.reported.items()
        },
        "failing": state.failing.document() if state.failing else None,
        "waiting": {
            name: {
                "events": [event.document() for event in kept.events],
                "dropped": kept.dropped,
                "sent": list(kept.sent),
            }
            for name, kept in state.waiting.items()
        },
    }
    write_whole(folder / _FILE, json.dumps(value, allow_nan=False).encode("ascii") + b"\n")


def drop_state(folder: Path) -> None:
    """Throw it all away.

    Raises:
        OSError: it can't be removed.
    """
    (folder / _FILE).unlink(missing_ok=True)
