"""Messages through Apprise: sent once, kept when they can't be, and no token in what is said of it."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from remoterun.audit.file import Alerts
from remoterun.audit.ledger import Event
from remoterun.audit.messages import Message
from remoterun.audit.notify import MOST_WAITING, NotifyError, deliver, queued, send_test, send_to
from remoterun.audit.state import State, Waiting
from remoterun.model import SecretSource
from tests.support.receiver import Receiver, receiving

NEW = Event(template="new", target="kpro6/200", subject="step_2", rule="CK010", severity="bad", message="NaN")
GONE = replace(NEW, template="cleared", since="2026-11-30T02:00:00.000Z")


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


@pytest.fixture
def chat(receiver: Receiver, tmp_path: Path) -> SecretSource:
    file = tmp_path / "chat.url"
    file.write_text(f"{receiver.url}\n")
    return SecretSource(kind="file", words=(str(file),))


def test_a_message_arrives_as_it_is(receiver: Receiver, chat: SecretSource, capfd: pytest.CaptureFixture[str]) -> None:
    body = "a: <b>:smile:</b> \\n $HOME {{x}} **x** é日本"
    send_to(chat, Message(title="remoterun fleet: 1 new", body=body))
    send_test(chat, "fleet")
    assert receiver.bodies == [body, "This is a test: messages of this project's audits arrive here."]
    assert receiver.messages[0]["title"] == "remoterun fleet: 1 new"
    assert receiver.messages[1]["title"] == "remoterun fleet: test"
    assert capfd.readouterr() == ("", "")


def test_events_wait_for_who_could_not_be_told(receiver: Receiver, chat: SecretSource) -> None:
    gone = SecretSource(kind="env", words=("NO_SUCH_URL",))
    alerts = Alerts(to={"chat": chat, "pager": gone})
    receiver.status = 500
    state, delivery = deliver(queued(State(), alerts, [NEW]), alerts, "fleet")
    assert delivery.sent == ()
    assert [failure.partition(" was not told: ")[0] for failure in delivery.failed] == ["chat", "pager"]
    assert "the environment variable NO_SUCH_URL is not set" in delivery.failed[1]

    receiver.status = 200
    state, delivery = deliver(queued(state, alerts, [GONE]), alerts, "fleet")
    assert delivery.sent == ("chat",)
    (body,) = receiver.bodies
    assert body.splitlines() == [
        "new: kpro6/200: step_2: CK010 bad: NaN",
        "cleared: kpro6/200: step_2: CK010 bad, since 2026-11-30T02:00:00.000Z",
    ]
    assert state.waiting["pager"].events == (NEW, GONE)
    state, delivery = deliver(state, alerts, "fleet")
    assert (len(receiver.bodies), delivery.sent) == (1, ())


def test_so_many_messages_an_hour(receiver: Receiver, chat: SecretSource) -> None:
    alerts = Alerts(to={"chat": chat}, most_per_hour=2)
    state = State()
    for event in (NEW, GONE):
        state, _ = deliver(queued(state, alerts, [event]), alerts, "fleet")
    state, delivery = deliver(queued(state, alerts, [NEW]), alerts, "fleet")
    assert len(receiver.bodies) == 2
    assert delivery.held == ("chat",)
    kept = state.waiting["chat"]
    assert kept.events == (NEW,)
    an_hour_ago = replace(state, waiting={"chat": replace(kept, sent=(kept.sent[0] - 3700, kept.sent[1]))})
    assert deliver(an_hour_ago, alerts, "fleet")[1].sent == ("chat",)
    # A clock that was set back keeps nobody from being told.
    ahead = replace(state, waiting={"chat": replace(kept, sent=(time.time() + 9e6, time.time() + 9e6))})
    assert deliver(ahead, alerts, "fleet")[1].sent == ("chat",)


def test_what_waits_is_bounded() -> None:
    alerts = Alerts(to={"chat": SecretSource(kind="env", words=("NO_SUCH_URL",))})
    events = [replace(NEW, subject=str(number)) for number in range(MOST_WAITING + 5)]
    state = queued(queued(State(), alerts, events[:10]), alerts, events[10:])
    assert state.waiting["chat"] == Waiting(events=tuple(events[5:]), dropped=5)
    renamed = Alerts(to={"other": alerts.to["chat"]})
    assert queued(state, renamed, [NEW]).waiting == {"other": Waiting(events=(NEW,))}
    assert queued(state, None, [NEW]).waiting == {}


def test_a_service_that_hangs_holds_nothing_up(tmp_path: Path) -> None:
    """It takes the connection, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        file = tmp_path / "url"
        file.write_text(f"json://127.0.0.1:{silent.getsockname()[1]}/?rto=600")
        source = SecretSource(kind="file", words=(str(file),))
        with pytest.raises(NotifyError, match=r"was not done after 0\.3s"):
            send_to(source, Message(title="t", body="b"), limit_s=0.3)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("json://user:password-of-mine@127.0.0.1:1/token-of-the-chat", ""),
        ("nosuchservice://token-of-the-chat", "none that Apprise knows"),
        ("token-of-the-chat", "none that Apprise knows"),
        ("short", "shorter than 8 bytes"),
    ],
)
def test_no_token_is_in_what_is_said(tmp_path: Path, url: str, said: str, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "url"
    file.write_text(url)
    with pytest.raises(NotifyError) as caught:
        send_test(SecretSource(kind="file", words=(str(file),)), "fleet")
    assert said in str(caught.value)
    told = "".join((str(caught.value), *capfd.readouterr()))
    assert "token-of-the-chat" not in told
    assert "password-of-mine" not in told
    assert len(str(caught.value)) > 20
