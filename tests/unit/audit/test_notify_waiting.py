"""Alerts to several people, of whom some take long: nobody is told twice, and nothing of it comes up later."""

from __future__ import annotations

import logging
import socket
import threading
from pathlib import Path

import pytest

from remoterun.audit.file import Alerts
from remoterun.audit.ledger import Event
from remoterun.audit.messages import Message
from remoterun.audit.notify import NotifyError, deliver, queued, send_to
from remoterun.audit.state import State
from remoterun.model import SecretSource
from tests.support.lab import wait_for
from tests.support.receiver import receiving

NEW = Event(template="new", target="kpro6/200", subject="step_2", rule="CK010", severity="bad", message="NaN")
HEARD = Message(title="t", body="b")


def _url(file: Path, url: str) -> SecretSource:
    file.write_text(url)
    return SecretSource(kind="file", words=(str(file),))


def test_who_was_told_is_kept_before_the_next_one_is_told(tmp_path: Path) -> None:
    """The second one's URL is there only once the first one's message has been kept."""
    with receiving() as receiver:
        late = SecretSource(kind="file", words=(str(tmp_path / "pager"),))
        alerts = Alerts(to={"chat": _url(tmp_path / "chat", receiver.url), "pager": late})
        kept: list[State] = []

        def keep(state: State) -> None:
            kept.append(state)
            (tmp_path / "pager").write_text(receiver.url)

        state, delivery = deliver(queued(State(), alerts, [NEW]), alerts, "fleet", keep)
    assert delivery.sent == ("chat", "pager")
    assert (kept[0].waiting["chat"].events, kept[0].waiting["pager"].events) == ((), (NEW,))
    assert kept[-1] == state


def test_a_service_that_fails_after_its_time_is_not_heard(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """What it logs then belongs to nobody's message, and not on standard error either."""
    with socket.create_server(("127.0.0.1", 0)) as server, receiving() as receiver:
        receiver.status = 500
        slow = _url(tmp_path / "slow", f"json://127.0.0.1:{server.getsockname()[1]}/?rto=60")
        before = set(threading.enumerate())
        with pytest.raises(NotifyError, match="not done"):
            send_to(slow, HEARD, limit_s=0.2)
        (sending,) = set(threading.enumerate()) - before
        server.accept()[0].close()
        wait_for(lambda: not sending.is_alive(), what="the end of what was given up")
        with pytest.raises(NotifyError) as caught:
            send_to(_url(tmp_path / "chat", receiver.url), HEARD)
    assert "500" in str(caught.value)
    assert "Connection error" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_others_who_log_as_the_library_does_are_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with receiving() as receiver:
        send_to(_url(tmp_path / "chat", receiver.url), HEARD)
    logging.getLogger("apprise").warning("from somebody else")
    assert "from somebody else" in caplog.text
