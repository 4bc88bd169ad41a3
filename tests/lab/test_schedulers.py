"""What `remoterun schedule` installs, as a real cron and a real systemd carry it out, on a machine of their own.

Both see this machine's files through an overlay, so that whatever they write is gone afterwards.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from remoterun.history import History, HistoryError
from remoterun.model import Outcome, Status
from tests.support.lab import wait_for
from tests.support.lab.machine import CLEAN_ENV, children_of, pid_namespace, processes_in, remove_cgroups
from tests.support.lab.requirements import missing
from tests.support.programs import lacking, needed
from tests.support.project import REMOTERUN, Project

SYSTEMD = Path("/lib/systemd/systemd")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(missing()), reason=f"needs: {'; '.join(missing())}")]

INVENTORY = f"defaults: {{python: {sys.executable}}}\nhosts:\n  here: {{transport: local, self: true}}\n"
# It finds something, and then waits for as long as there is a file that says so, with a file that says that.
LOOK = """\
import os, time

def run(ctx):
    ctx.finding("R1", "suspect", "caf\\u00e9", "it is hot")
    while os.path.exists(ctx.params["wait"]):
        open(ctx.params["wait"] + "ing", "w").close()
        time.sleep(0.02)
"""
CONFIG = """\
lxc.uts.name = timers
lxc.rootfs.path = dir:{root}
lxc.init.cmd = {systemd}
lxc.net.0.type = empty
lxc.mount.auto = proc:mixed sys:mixed cgroup:mixed
lxc.mount.entry = tmpfs run tmpfs rw,nodev,nosuid,mode=755 0 0
lxc.mount.entry = {folder} {inside} none bind,create=dir 0 0
lxc.pty.max = 16
lxc.apparmor.profile = unconfined
"""
MACHINE = """\
set -eu
mount --make-rprivate /
mount -t tmpfs none "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
units="$1/root/etc/systemd/system"
rm -rf "$units"/*.wants "$units"/*.requires
for unit in systemd-tmpfiles-setup.service systemd-tmpfiles-clean.timer dbus.service dbus.socket apt-daily.timer; do
    ln -sf /dev/null "$units/$unit"
done
ln -sf /lib/systemd/system/timers.target "$units/default.target"
: > "$1/root/etc/fstab"
# Or timers go off at some moment of a minute.
mkdir -p "$1/root/etc/systemd/system.conf.d"
printf '[Manager]\nDefaultTimerAccuracySec=10ms\n' > "$1/root/etc/systemd/system.conf.d/timers.conf"
exec lxc-start -F -P "$2" -n "$4" -f "$3"
"""
CRONS = """\
set -eu
mount --make-rprivate /
mount -t tmpfs none /var/spool/cron
mkdir -m 1730 /var/spool/cron/crontabs
chgrp crontab /var/spool/cron/crontabs
mount -t tmpfs none /run
mount -t tmpfs none /etc/cron.d
mount --bind "$1/empty" /etc/crontab
mount -t overlay overlay -o "lowerdir=$1/sbin:/usr/sbin" /usr/sbin
exec cron -f
"""
SENDMAIL = """\
#!/bin/sh
cat > "{folder}/mail.part" && mv "{folder}/mail.part" "{folder}/mail.$$"
"""


class Fleet:
    """A project to be audited, with a state of its own."""

    def __init__(self, folder: Path, name: str) -> None:
        self.project = Project(folder=folder / name)
        self.project.folder.mkdir()
        (self.project.folder / "inventory.yaml").write_text(INVENTORY, "utf-8")
        (self.project.folder / "audit.yaml").write_text("playbooks: [look]\n", "utf-8")
        self.gate = self.project.folder / "wait"
        params = {"wait": {"type": "path", "default": str(self.gate), "help": "What to wait for."}}
        self.project.payload("look", LOOK, rules=["R1"], params=params)
        self.state = folder / f"state of {name}"

    @property
    def environment(self) -> dict[str, str]:
        return {**CLEAN_ENV, "XDG_STATE_HOME": str(self.state), "XDG_CACHE_HOME": str(self.state / "cache")}

    def argv(self, *words: str) -> list[str]:
        return [*REMOTERUN, *words, "--project", str(self.project.folder)]

    def outcomes(self) -> list[Outcome]:
        """Return the outcomes of the finished runs, the newest first."""
        try:
            with History.open(self.state / "remoterun") as history:
                kept = [each for each in history.runs() if each.finished_at is not None]
                return [outcome for each in kept for outcome in history.run(each).outcomes]
        except HistoryError:
            return []


class Inside:
    """Run programs in the namespaces of a process."""

    def __init__(self, pid: int, *namespaces: str) -> None:
        self._pid = pid
        self._enter = ["nsenter", "-t", str(pid), *namespaces, "--"]

    def run(self, argv: Sequence[str], environment: dict[str, str] = CLEAN_ENV, *, check: bool = True) -> str:
        done = subprocess.run(
            [*self._enter, *argv], env=environment, cwd="/", capture_output=True, timeout=60, check=False
        )
        said = (done.stdout + done.stderr).decode()
        assert done.returncode == 0 or not check, (argv, said)
        return said

    def pythons(self) -> list[tuple[str, ...]]:
        """List what Python runs in the pid namespace of that process."""
        namespace = pid_namespace(self._pid)
        assert namespace is not None
        return [found.cmdline for found in processes_in([namespace]) if "python" in found.name]


@contextmanager
def _running(argv: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a shell's words in a mount namespace of its own, and kill what becomes of it."""
    with subprocess.Popen(
        ["unshare", "--mount", "--propagation", "private", "--", "sh", "-c", *argv],
        env=CLEAN_ENV,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


# --- systemd ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Inside]:
    """Return a machine whose init is systemd; the folder of the test is there as well."""
    if not SYSTEMD.exists():
        lacking("systemd is not installed")
    overlay, containers, config = tmp_path / "overlay", tmp_path / "lxc", tmp_path / "config"
    overlay.mkdir()
    containers.mkdir()
    inside = str(tmp_path).lstrip("/")
    config.write_text(CONFIG.format(root=overlay / "root", systemd=SYSTEMD, folder=tmp_path, inside=inside))
    name = f"timers{os.getpid()}"
    with _running([MACHINE, "-", str(overlay), str(containers), str(config), name]) as process:
        wait_for(lambda: bool(_init_below(process.pid)), "an init")
        init = _init_below(process.pid)[0]
        made = Inside(init, "-m", "-u", "-i", "-n", "-p")
        try:
            wait_for(
                lambda: made.run(["systemctl", "is-system-running"], check=False).strip() in {"running", "degraded"},
                "systemd",
                limit_s=60,
            )
            yield made
        finally:
            os.kill(init, signal.SIGKILL)
            process.wait(20)
            for kind in ("payload", "monitor"):
                remove_cgroups(f"lxc.{kind}.{name}")


def _init_below(pid: int) -> list[int]:
    """Return the init of the machine that lxc-start, a process by now or soon, has started."""
    with suppress(OSError):  # what comes before it ends at once
        return [child for child in children_of(pid) if Path(f"/proc/{child}/comm").read_text("ascii") == "systemd\n"]
    return []


def test_systemd_audits_and_ends_an_audit_in_order(machine: Inside, tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, "100% caf\u00e9")
    machine.run(fleet.argv("schedule", "install", "--system", "--calendar", "*-*-* *:*:0/1"), fleet.environment)
    (timer,) = [word for word in machine.run(["systemctl", "list-timers"]).split() if word.endswith(".timer")]
    service = timer.replace(".timer", ".service")
    wait_for(lambda: len(fleet.outcomes()) > 1, "two audits", limit_s=60)
    assert {outcome.status for outcome in fleet.outcomes()} == {Status.FINDINGS}

    fleet.gate.touch()
    wait_for((fleet.project.folder / "waiting").exists, "an audit at work")
    machine.run(["systemctl", "stop", timer, service])
    assert machine.pythons() == []
    fleet.gate.unlink()
    said = _said(machine, service)
    assert said.count("1 new finding. New: here: caf\u00e9: R1") == 1
    assert fleet.outcomes()[0].status is Status.CANCELLED
    assert fleet.outcomes()[0].survivors == 0
    machine.run(["systemctl", "start", service])
    again = _said(machine, service).removeprefix(said)
    assert "The former audit (process " in again, again

    machine.run(fleet.argv("schedule", "remove", "--system"), fleet.environment)
    assert timer not in machine.run(["systemctl", "list-timers", "--all"])


def _said(machine: Inside, service: str) -> str:
    """Return the journal of a service without the breaks of its lines."""
    return " ".join(machine.run(["journalctl", "-u", service, "-o", "cat"]).split())


# --- cron -------------------------------------------------------------------------------------------------------------


def test_cron_audits_and_sends_what_is_new(tmp_path: Path) -> None:
    """What an audit says goes to a mail, or to a log; for both, cron has to come to the next minute."""
    needed("cron", CLEAN_ENV["PATH"])
    mails, logs = Fleet(tmp_path, "mails"), Fleet(tmp_path, "it's 100% caf\u00e9")
    log = tmp_path / "a log"
    (tmp_path / "empty").write_text("")
    (tmp_path / "sbin").mkdir()
    (tmp_path / "sbin" / "sendmail").write_text(SENDMAIL.format(folder=tmp_path))
    (tmp_path / "sbin" / "sendmail").chmod(0o755)
    with _running([CRONS, "-", str(tmp_path)]) as process:
        wait_for(lambda: Path(f"/proc/{process.pid}/comm").read_text("ascii") == "cron\n", "cron")
        # It knows what is new by the second: what is installed in the second in which it started, it never sees.
        started = Path(f"/proc/{process.pid}/root/var/spool/cron/crontabs").stat().st_mtime
        wait_for(lambda: time.time() >= int(started) + 1, "the next second")
        crons = Inside(process.pid, "-m")
        crons.run(mails.argv("schedule", "install", "--cron", "--every", "1m"), mails.environment)
        crons.run(logs.argv("schedule", "install", "--cron", "--every", "1m", "--log", str(log)), logs.environment)
        wait_for(lambda: bool(list(tmp_path.glob("mail.[0-9]*"))), "a mail", limit_s=90)
        wait_for(lambda: len(logs.outcomes()) == 1 and b"remoterun show" in log.read_bytes(), "the other")
        for fleet in (mails, logs):
            crons.run(fleet.argv("schedule", "remove", "--cron"), fleet.environment)
        assert "audit" not in crons.run(["crontab", "-l"])
    (mail,) = tmp_path.glob("mail.[0-9]*")
    head, _, text = mail.read_text("utf-8").partition("\n\n")
    for said, fleet in ((text, mails), (log.read_text("utf-8"), logs)):
        assert " ".join(said.split()).startswith(f"remoterun audit of {fleet.project.folder}, "), said
        assert "1 new finding. New: here: caf\u00e9: R1 suspect: it is hot." in " ".join(said.split())
        assert [outcome.status for outcome in fleet.outcomes()] == [Status.FINDINGS]
    assert "To: root\n" in head
