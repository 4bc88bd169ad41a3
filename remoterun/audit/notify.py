"""Send messages through Apprise, and keep what could not be sent for the next time."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from remoterun.audit.messages import Message, message
from remoterun.audit.state import State, Waiting
from remoterun.errors import ConfigError, RemoterunError, clean
from remoterun.records import dataclass
from remoterun.report.text import clip
from remoterun.secrets import SHORTEST, Redactor, fetch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from remoterun.audit.file import Alerts
    from remoterun.audit.ledger import Event
    from remoterun.model import SecretSource

MOST_WAITING: Final = 1000
"""So many events wait for somebody who can't be told; older ones are dropped, and counted."""
SEND_S: Final = 60.0
_HOUR_S: Final = 3600.0
_LONGEST: Final = 500


class NotifyError(RemoterunError):
    """Say why a message was not sent; no part of the URL is in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """Tell what became of the messages of an audit.

    `sent` names who has been told, `held` who has had enough messages this hour, `failed` why somebody was not told.
    """

    sent: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


def need_apprise() -> None:
    """Say at once that the library is missing.

    Raises:
        ConfigError: it is.
    """
    from importlib.util import find_spec

    if find_spec("apprise") is None:
        raise ConfigError("alerts need the library Apprise: pip install 'remoterun[alerts]'")


def queued(state: State, alerts: Alerts | None, events: Sequence[Event]) -> State:
    """Return the state with events to be told to everybody; who is no more in audit.yaml is told nothing."""
    if alerts is None:
        return replace(state, waiting={})
    waiting: dict[str, Waiting] = {}
    for name in alerts.to:
        kept = state.waiting.get(name, Waiting())
        all_of_them = (*kept.events, *events)
        cut = max(len(all_of_them) - MOST_WAITING, 0)
        waiting[name] = replace(kept, events=all_of_them[cut:], dropped=kept.dropped + cut)
    return replace(state, waiting=waiting)


def deliver(
    state: State, alerts: Alerts, project: str, on_told: Callable[[State], object] | None = None
) -> tuple[State, Delivery]:
    """Send everybody what waits for them, one message each; return what waits then, and what became of it.

    `on_told` takes what waits whenever somebody has been told: the next one may take a minute, and much can happen.
    """
    waiting = dict(state.waiting)
    sent, held, failed = [], [], []
    now = time.time()
    for name, kept in state.waiting.items():
        recent = tuple(moment for moment in kept.sent if now - _HOUR_S < moment <= now)
        if not kept.events:
            continue
        if len(recent) >= alerts.most_per_hour:
            held.append(name)
            continue
        try:
            send_to(alerts.to[name], message(project, kept.events, alerts.templates, dropped=kept.dropped))
        except NotifyError as error:
            failed.append(f"{name} was not told: {error}")
        else:
            waiting[name] = Waiting(sent=(*recent, now))
            sent.append(name)
            if on_told is not None:
                on_told(replace(state, waiting=dict(waiting)))
    return replace(state, waiting=waiting), Delivery(sent=tuple(sent), held=tuple(held), failed=tuple(failed))


def send_to(source: SecretSource, said: Message, limit_s: float = SEND_S) -> None:
    """Send a message to the Apprise URL that is the value of a secret. Blocks, for so long at most.

    Raises:
        NotifyError: the URL can't be had or means nothing, or the message was not taken.
    """
    try:
        url = fetch(source)
    except ValueError as error:
        raise NotifyError(f"its URL {error}") from error
    answer = _answer(url, said, limit_s)
    if not answer["taken"]:
        # Shortened last: of a token that is cut, nothing would be found.
        why = clip(_redactor(url).text(clean(answer["error"] or "; ".join(answer["heard"]))), _LONGEST)
        raise NotifyError(why or "the service did not take the message")


def _answer(url: str, said: Message, limit_s: float) -> dict[str, Any]:
    """Have a process of its own send a message: a service may hang, and its threads would keep this one from ending.

    Raises:
        NotifyError: it was not done in time, or gave no answer.
    """
    request = json.dumps({"url": url, "title": said.title, "body": said.body, "limit_s": limit_s})
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "remoterun.audit.sending"],
            input=request.encode("ascii"),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=limit_s,
            # Ctrl-C ends the audit, not a message that is half sent.
            start_new_session=True,
            check=False,
        )
        answer: dict[str, Any] = json.loads(done.stdout)
    except subprocess.TimeoutExpired as error:
        raise NotifyError(f"the service was not done after {limit_s:g}s") from error
    except (OSError, ValueError) as error:
        raise NotifyError("the process that sends the message gave no answer") from error
    return answer


def send_test(source: SecretSource, project: str) -> None:
    """Send a message that says that messages arrive. Blocks.

    Raises:
        NotifyError: it was not taken.
    """
    body = "This is a test: messages of this project's audits arrive here."
    send_to(source, Message(title=f"remoterun {clean(project)}: test", body=body))


def _redactor(url: str) -> Redactor:
    """Take a URL and every part of it that may be a token out of what a service says."""
    parts = (url, *re.split(r"[/:@?&=#]+", url))
    # Services have them as they are meant.
    parts += tuple(map(unquote, parts))
    return Redactor({f"URL part {number}": part for number, part in enumerate(parts) if len(part) >= SHORTEST})
