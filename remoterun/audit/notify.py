"""Send messages through Apprise, and keep what could not be sent for the next time."""

from __future__ import annotations

import logging
import re
import threading
import time
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Final
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
_LOGGER: Final = "apprise"
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

    if find_spec(_LOGGER) is None:
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
    # Nothing keeps a service from waiting for ever, and the audit's lock is held.
    sending = _Sending(url, said)
    sending.start()
    sending.join(limit_s)
    if sending.is_alive():
        raise NotifyError(f"the service was not done after {limit_s:g}s")
    if not sending.taken:
        # Shortened last: of a token that is cut, nothing would be found.
        why = clip(_redactor(url).text(clean(sending.error or sending.heard.text)), _LONGEST)
        raise NotifyError(why or "the service did not take the message")


class _Sending(threading.Thread):
    """Send one message; nobody has to wait for it."""

    def __init__(self, url: str, said: Message) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._said = said
        self.heard = _Heard()
        self.taken = False
        self.error: str | None = None

    def run(self) -> None:
        with self.heard:
            self._send()

    def _send(self) -> None:
        try:
            import apprise

            # What targets say is text: no emoji, no escapes, no markup.
            asset = apprise.AppriseAsset(
                app_id="remoterun",
                app_desc="remoterun",
                interpret_emojis=False,
                interpret_escapes=False,
                async_mode=False,
            )
            service = apprise.Apprise(asset=asset)
            if not service.add(self._url):
                self.error = "its URL is none that Apprise knows (https://appriseit.com/services)"
                return
            said = self._said
            self.taken = bool(service.notify(title=said.title, body=said.body, body_format=apprise.NotifyFormat.TEXT))
        except Exception as error:
            # Services are written by many people: whatever happens in one must not end the audit.
            self.error = f"{type(error).__name__}: {error}"


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


class _Heard(logging.Filter):
    """Keep what Apprise logs while a thread sends, and keep it off standard error, however long that takes."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[str] = []

    @property
    def text(self) -> str:
        """Return it as one line."""
        return "; ".join(self._lines)

    def filter(self, record: logging.LogRecord) -> bool:
        """Take what is logged for this message, and let nobody else have it."""
        if _SENDING.get() is not self:
            return True
        if record.levelno >= logging.WARNING:
            self._lines.append(clean(record.getMessage()).rstrip("."))
        return False

    def __enter__(self) -> _Heard:
        _SENDING.set(self)
        logging.getLogger(_LOGGER).addFilter(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger(_LOGGER).removeFilter(self)


# Apprise hands its context on to threads of its own, which outlive what was given up.
_SENDING: Final[ContextVar[_Heard | None]] = ContextVar("sending", default=None)
