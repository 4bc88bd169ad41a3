"""`remoterun schedule`: systemd's units and the crontab, with programs of our own in the place of the real ones."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.programs import needed
from tests.support.project import Result, remoterun

# Keeps the crontab in a file, and says what Debian's cron says where there is none.
CRONTAB = """\
#!/bin/sh
echo "crontab $*" >> "$CALLS"
if [ "$1" = -l ]; then
    [ -f "$TABLE" ] || { echo "${NONE:-no crontab for root}" >&2; exit 1; }
    exec cat "$TABLE"
fi
exec cat > "$TABLE"
"""
SYSTEMCTL = """\
#!/bin/sh
echo "systemctl $*" >> "$CALLS"
[ ! -f "$CALLS.broken" ] || { echo "Failed to connect to bus" >&2; exit 1; }
"""
OTHERS = "MAILTO=me@example.org\n# mine\n5 4 * * * /usr/bin/true % still mine\n"


class Desk:
    """A project, and a PATH that holds what stands in for cron and systemd."""

    def __init__(self, folder: Path, name: str = "fleet") -> None:
        self.project = folder / name
        self.project.mkdir()
        (self.project / "audit.yaml").write_text("playbooks: [check-ckpt]\n")
        self.table = folder / "crontab"
        self.calls = folder / "calls"
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.environment = {"PATH": str(self.bin), "CALLS": str(self.calls), "TABLE": str(self.table)}
        for program in ("sh", "cat", "echo"):
            (self.bin / program).symlink_to(str(shutil.which(program)))

    def has(self, name: str, source: str) -> None:
        path = self.bin / name
        path.write_text(source)
        path.chmod(0o755)

    def run(self, *words: str, environment: Mapping[str, str] | None = None) -> Result:
        env = {**os.environ, **self.environment, **(environment or {})}
        return remoterun("schedule", *words, "--project", str(self.project), env=env)

    def called(self) -> list[str]:
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        self.calls.unlink(missing_ok=True)
        return lines


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


# --- cron -------------------------------------------------------------------------------------------------------------


def test_a_crontab_keeps_what_others_wrote(desk: Desk) -> None:
    desk.has("crontab", CRONTAB)
    desk.table.write_text(OTHERS)
    shown = desk.run("show", "--cron", "--every", "6h").stdout.decode()
    undo = f"to undo it: remoterun schedule remove --cron --project {desk.project}\n"
    first = desk.run("install", "--cron", "--every", "6h").stdout.decode()
    assert first == f"the crontab starts the audit from now on: every 6h, as `0 */6 * * *`\n{undo}"
    assert desk.table.read_text() == OTHERS + shown
    second = desk.run("install", "--cron", "--every", "6h").stdout.decode()
    assert second == f"the crontab is up to date, and starts the audit: every 6h, as `0 */6 * * *`\n{undo}"
    assert desk.called() == ["crontab -l", "crontab -", "crontab -l"]

    desk.table.write_text(desk.table.read_text() + "# after\n")
    third = desk.run("install", "--cron", "--calendar", "30 4 * * 1-5").stdout.decode()
    assert third == f"the crontab starts the audit from now on: `30 4 * * 1-5`\n{undo}"
    again = desk.table.read_text()
    assert again.startswith(OTHERS)
    assert again.endswith("# after\n")
    assert "\n30 4 * * 1-5 HOME=" in again
    assert again.count("audit --project") == 1

    assert desk.run("remove", "--cron").stdout == b"the audit was taken out of the crontab\n"
    assert desk.table.read_text() == OTHERS + "# after\n"
    assert desk.run("remove", "--cron").stdout == b"the crontab does not start the audit\n"


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ("no crontab for root", 0),
        ("crontab: can't open 'root': No such file or directory", 0),
        ("You (root) are not allowed to use this program (crontab)", 2),
    ],
)
def test_a_first_crontab(desk: Desk, said: str, status: int) -> None:
    desk.has("crontab", CRONTAB)
    result = desk.run("install", "--cron", environment={"NONE": said})
    assert result.status == status
    if status:
        assert f"crontab: cannot be read: {said}" in result.stderr
        assert not desk.table.exists()
    else:
        assert desk.table.read_text().splitlines()[1].startswith("0 * * * * ")


def test_bytes_of_others_are_left_as_they_are(desk: Desk) -> None:
    desk.has("crontab", CRONTAB)
    others = b"0 1 * * * /bin/one\r\n0 2 * * * /bin/two \r \x0c \x85 \xff \xe2\x80\xa8 end\n0 3 * * * /bin/three\n"
    desk.table.write_bytes(others)
    assert desk.run("install", "--cron", "--every", "6h").status == 0
    assert desk.table.read_bytes().startswith(others)
    assert desk.run("remove", "--cron").status == 0
    assert desk.table.read_bytes() == others


def test_two_projects_in_one_crontab(desk: Desk, tmp_path: Path) -> None:
    desk.has("crontab", CRONTAB)
    desk.run("install", "--cron")
    first, one = desk.table.read_text(), desk.project
    desk.project = tmp_path / "other"
    desk.project.mkdir()
    (desk.project / "audit.yaml").write_text("playbooks: [probe]\n")
    desk.run("install", "--cron")
    assert desk.table.read_text().startswith(first)
    desk.project = one
    desk.run("remove", "--cron")
    assert str(one) not in desk.table.read_text()
    assert str(tmp_path / "other") in desk.table.read_text()


def test_what_was_installed_for_a_folder_that_is_gone_can_be_removed(desk: Desk, tmp_path: Path) -> None:
    desk.has("crontab", CRONTAB)
    desk.table.write_text(OTHERS)
    desk.run("install", "--cron")
    desk.project.rename(tmp_path / "elsewhere")
    assert desk.run("install", "--cron").status == 2
    assert desk.run("remove", "--cron").status == 0
    assert desk.table.read_text() == OTHERS


@pytest.mark.parametrize("torn", ["begin", "end", "twice"])
def test_a_torn_crontab_is_left_alone(desk: Desk, torn: str) -> None:
    desk.has("crontab", CRONTAB)
    desk.run("install", "--cron")
    lines = desk.table.read_text().splitlines(keepends=True)
    torn_lines = {"begin": lines[1:], "end": lines[:-1], "twice": lines * 2}[torn]
    desk.table.write_text("".join(torn_lines))
    for words in (("install", "--cron", "--every", "2h"), ("remove", "--cron")):
        result = desk.run(*words)
        assert result.status == 2
        assert "mend that by hand" in result.stderr
    assert desk.table.read_text() == "".join(torn_lines)


def test_no_cron(desk: Desk) -> None:
    result = desk.run("install", "--cron")
    assert result.status == 2
    assert "there is no `crontab` here: install cron, or use --user or --system" in result.stderr


def test_a_line_runs_as_it_stands_there(tmp_path: Path) -> None:
    """Cron hands a line to sh, percent signs aside; what comes out are the words and the environment meant."""
    desk = Desk(tmp_path, 'it\'s 100% a $HOME "fleet" `x` \\ #')
    log = tmp_path / "what's new"
    shown = desk.run("show", "--cron", "--log", str(log), environment={"XDG_STATE_HOME": "/a b/state"})
    line = shown.stdout.decode().splitlines()[1]
    fields, command = line[: len("0 * * * *")], line[len("0 * * * * ") :]
    assert fields == "0 * * * *"
    unescaped = command.replace("\\%", "\0")
    assert "%" not in unescaped
    script = unescaped.replace("\0", "%")
    words = shlex.split(script)
    assert words[words.index("audit") : words.index("audit") + 3] == ["audit", "--project", str(desk.project)]
    # What it starts is replaced by a program that shows what it got.
    program = shlex.quote(str(Path(sys.executable).with_name("remoterun")))
    show = f"{shlex.quote(sys.executable)} -c {shlex.quote('import os, sys; print(sys.argv[1:], dict(os.environ))')}"
    assert program in script
    subprocess.run(["/bin/sh", "-c", script.replace(program, show)], env={}, check=True)
    said = log.read_text()
    assert repr(["audit", "--project", str(desk.project)]) in said
    assert "'XDG_STATE_HOME': '/a b/state'" in said
    assert "'PATH': '/usr/local/sbin:" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--cron", "--every", "7m"), "cron can't do 7m: it takes parts of an hour, of a day (15m, 6h), or 1d"),
        (("--cron", "--calendar", "0 0 * * *\n* * * * * rm"), "holds a control character"),
        (("--every", "none"), "none is never"),
        (("--every", "1h", "--calendar", "daily"), "exclude each other"),
        (("--user", "--cron"), "--user and --cron exclude each other"),
        (("--user", "--log", "x"), "journalctl"),
    ],
)
def test_what_can_not_be(desk: Desk, words: tuple[str, ...], said: str) -> None:
    result = desk.run("show", *words)
    assert (result.status, result.stdout) == (2, b"")
    assert said in result.stderr


# --- systemd ----------------------------------------------------------------------------------------------------------


def test_units_of_a_user(desk: Desk, own_home: Path) -> None:
    desk.has("systemctl", SYSTEMCTL)
    shown = desk.run("show", "--user", "--every", "6h").stdout.decode()
    first = desk.run("install", "--user", "--every", "6h")
    assert first.status == 0, first
    assert "loginctl enable-linger" in first.stdout.decode()
    folder = own_home / "config" / "systemd" / "user"
    service, timer = sorted(folder.iterdir())
    assert (service.suffix, timer.suffix, service.stem) == (".service", ".timer", timer.stem)
    assert shown == f"# {service}\n{service.read_text()}\n# {timer}\n{timer.read_text()}"
    assert "OnUnitActiveSec=6h" in timer.read_text()
    asked = "systemctl --user show --property=Version"
    calls = [asked, "systemctl --user daemon-reload", f"systemctl --user enable {timer.name}"]
    assert desk.called() == [*calls, f"systemctl --user restart {timer.name}"]

    second = desk.run("install", "--user", "--every", "6h").stdout.decode()
    assert second.count("is up to date") == 2
    assert desk.called() == [*calls, f"systemctl --user start {timer.name}"]

    assert desk.run("remove", "--user").status == 0
    assert desk.called() == [
        f"systemctl --user disable --now {timer.name}",
        "systemctl --user daemon-reload",
        f"systemctl --user reset-failed {timer.stem}.service",
    ]
    assert list(folder.iterdir()) == []
    assert desk.run("remove", "--user").stdout.decode().endswith("is not there\n")
    assert desk.called() == []


def test_systemd_that_does_not_run(desk: Desk, own_home: Path) -> None:
    desk.has("systemctl", SYSTEMCTL)
    installed = desk.run("install", "--user")
    assert f"to undo it: remoterun schedule remove --user --project {desk.project}\n" in installed.stdout.decode()
    folder = own_home / "config" / "systemd" / "user"
    assert len(list(folder.iterdir())) == 2
    Path(f"{desk.calls}.broken").touch()
    removed = desk.run("remove", "--user")
    assert (removed.status, removed.stdout.count(b" was removed\n")) == (2, 2)
    assert "`systemctl --user disable --now remoterun-audit-fleet" in removed.stderr
    assert "failed: Failed to connect to bus" in removed.stderr
    assert list(folder.iterdir()) == []

    refused = desk.run("install", "--user")
    assert (refused.status, refused.stdout) == (2, b"")
    assert "systemd does not run here, or does not answer: use --cron, or --into DIR" in refused.stderr
    assert "Failed to connect to bus" in refused.stderr
    assert list(folder.iterdir()) == []


def test_no_systemd(desk: Desk, own_home: Path) -> None:
    result = desk.run("install", "--user")
    assert result.status == 2
    assert "there is no systemctl here: use --cron, or --into DIR" in result.stderr
    assert not (own_home / "config" / "systemd").exists()


@pytest.mark.parametrize("kind", ["--user", "--system"])
@pytest.mark.parametrize("name", ["fleet", 'it\'s 100% a $HOME "fleet" \\ #'])
def test_systemd_takes_the_units(tmp_path: Path, kind: str, name: str) -> None:
    program = needed("systemd-analyze")
    desk = Desk(tmp_path, name)
    units = tmp_path / "units"
    for when in (("--every", "90m"), ("--calendar", "Mon..Fri 06:30")):
        assert desk.run("install", kind, *when, "--into", str(units)).status == 0
        paths = [str(path) for path in sorted(units.iterdir())]
        argv = [program, *([kind] if kind == "--user" else []), "verify", *paths]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        ours = [line for line in (done.stdout + done.stderr).splitlines() if "remoterun" in line]
        assert (done.returncode, ours) == (0, [])
    assert desk.called() == []
    assert desk.run("remove", kind, "--into", str(units)).status == 0
    assert list(units.iterdir()) == []


def test_a_calendar_that_systemd_does_not_know(tmp_path: Path, desk: Desk) -> None:
    needed("systemd-analyze")
    result = desk.run("show", "--user", "--calendar", "Mon 26:00", environment={"PATH": os.environ["PATH"]})
    assert result.status == 2
    assert "'Mon 26:00' is no calendar expression of systemd" in result.stderr


def test_what_will_not_be_there_is_said(desk: Desk) -> None:
    desk.has("crontab", CRONTAB)
    alerts = "alerts: {to: {chat: {env: CHAT_URL}, mail: {file: mail.url}}}\n"
    (desk.project / "audit.yaml").write_text(f"playbooks: [check-ckpt]\n{alerts}")
    result = desk.run("install", "--cron", environment={"CHAT_URL": "json://127.0.0.1"})
    assert result.status == 0
    assert result.stderr.count("\n") == 1
    assert "alerts.to.chat takes its URL from CHAT_URL, which is not in the environment of cron" in result.stderr


def test_nothing_to_play_is_not_scheduled(desk: Desk) -> None:
    (desk.project / "audit.yaml").unlink()
    desk.has("crontab", CRONTAB)
    result = desk.run("install", "--cron")
    assert result.status == 2
    assert "no playbook was named" in result.stderr
    assert desk.called() == []
