"""Alerts to several people, of whom some take long: nobody is told twice, and nothing of it comes up later."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from remoterun.audit.file import Alerts
from remoterun.audit.ledger import Event
from remoterun.audit.messages import Message
from remoterun.audit.notify import NotifyError, deliver, queued, send_to
from remoterun.audit.state import State
from remoterun.model import SecretSource
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


def test_what_was_given_up_says_nothing_and_keeps_nobody(tmp_path: Path) -> None:
    """Neither the next message hears of it, nor standard error; and this process ends although the service hangs."""
    program = (
        "import sys\n"
        "from remoterun.audit.messages import Message\n"
        "from remoterun.audit.notify import NotifyError, send_to\n"
        "from remoterun.model import SecretSource\n"
        "try:\n"
        "    send_to(SecretSource(kind='file', words=(sys.argv[1],)), Message(title='t', body='b'), limit_s=8)\n"
        "except NotifyError as error:\n"
        "    print(error)\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        slow = tmp_path / "slow"
        slow.write_text(f"json://127.0.0.1:{server.getsockname()[1]}/?rto=600&cto=600")
        done = subprocess.run([sys.executable, "-c", program, slow], capture_output=True, timeout=120, check=True)
        server.settimeout(10)
        # It had come as far as the service.
        server.accept()[0].close()
    assert (done.stdout, done.stderr) == (b"the service was not done after 8s\n", b"")


def test_why_a_service_refused_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with receiving() as receiver:
        receiver.status = 500
        with pytest.raises(NotifyError, match="500"):
            send_to(_url(tmp_path / "chat", receiver.url), HEARD)
    assert capfd.readouterr() == ("", "")
