"""Let a project that has moved go on: with the runs that were kept, and with what people were told."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from remoterun.audit.ledger import Told
from remoterun.audit.lock import Lock, audit_folder
from remoterun.audit.state import Reported, State, Waiting, drop_state, load_state, save_state
from remoterun.errors import ConfigError, Problem
from remoterun.history import History
from remoterun.report.documents import plain

if TYPE_CHECKING:
    from pathlib import Path


def move(state: Path, old: Path, new: Path) -> int:
    """Make the history of one project that of another one, and return how many runs that were.

    `state` is the folder of the history.

    Raises:
        BusyError: an audit of one of them goes on.
        ConfigError: there is no such history, or it can't be read or written.
    """
    old_folder, folder = (audit_folder(state, project) for project in (old, new))
    with ExitStack() as stack:
        stack.enter_context(Lock.take(folder, new))
        if old_folder.exists():
            stack.enter_context(Lock.take(old_folder, old))
        try:
            earlier, later = load_state(old_folder), load_state(folder)
            # First of all: who is killed in between can do it once more, and nobody is told anything anew meanwhile.
            if earlier != State():
                save_state(folder, _joined(earlier, later))
            with History.open(state) as history:
                count = history.move(*(str(plain(str(project))) for project in (old, new)))
            drop_state(old_folder)
        except ConfigError:
            raise
        except (OSError, ValueError) as error:
            message = f"what audits have told people can't be taken over: {error}"
            raise ConfigError(Problem(file=str(folder.parent), message=message)) from error
    return count


def _joined(earlier: State, later: State) -> State:
    """Return what people know by both: what is new to one of them is not news."""
    reported = {**earlier.reported, **later.reported}
    for playbook in earlier.reported.keys() & later.reported.keys():
        one, other = earlier.reported[playbook].told, later.reported[playbook].told
        told = Told(findings={**one.findings, **other.findings}, silent={**one.silent, **other.silent})
        reported[playbook] = Reported(run_id=later.reported[playbook].run_id, told=told)
    waiting = {**earlier.waiting, **later.waiting}
    for name in earlier.waiting.keys() & later.waiting.keys():
        first, second = earlier.waiting[name], later.waiting[name]
        waiting[name] = Waiting(
            events=tuple(dict.fromkeys((*first.events, *second.events))),
            dropped=first.dropped + second.dropped,
            sent=(*first.sent, *second.sent),
        )
    return replace(later, reported=reported, failing=later.failing or earlier.failing, waiting=waiting)
