"""What a command that pct started sees, and what becomes of it: by the stand-in, the real lxc-attach and sshd."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.support.lab import Guest, LabHost, send, wait_for
from tests.support.lab.calls import attached, inner, knobs, pct

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.lab

PCT_PATH = "/sbin:/bin:/usr/sbin:/usr/bin"
FAILED = 'lxc-attach: 200: ../src/lxc/attach.c: lxc_attach_run_command: 1841 {} - Failed to exec "{}"\n'


# --- inside


def test_environment_is_kept_but_for_path_and_certificates(standin: LabHost) -> None:
    env = {"PATH": "/opt/bin:/usr/bin", "FOO": "b a\nr", "SSL_CERT_FILE": "/x", "SSL_CERT_DIR": "/y"}
    done = pct(standin, "exec", "200", "--", "env", "-0", env=env)
    assert sorted(done.stdout.rstrip("\0").split("\0")) == ["FOO=b a\nr", f"PATH={PCT_PATH}", "container=lxc"]


def test_environment_is_cleared_on_request(standin: LabHost) -> None:
    done = pct(standin, "exec", "200", "--keep-env", "0", "--", "env", "-0", env={"FOO": "1", "HOME": "/x"})
    assert sorted(done.stdout.rstrip("\0").split("\0")) == [
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "container=lxc",
    ]


def test_environment_of_the_configuration_is_added(standin: LabHost) -> None:
    guest = standin.fresh_guest(lxc=("lxc.environment = COLOUR=blue",))
    for keep in ("0", "1"):
        done = pct(
            standin, "exec", str(guest.ctid), "--keep-env", keep, "--", "printenv", "COLOUR", "container", env={}
        )
        assert done.stdout == "blue\nlxc\n"
    guest.destroy()


def test_an_ssh_login_leaks_into_the_guest(standin: LabHost) -> None:
    names = {line.partition("=")[0] for line in standin.ssh("pct exec 200 -- env").stdout.decode().splitlines()}
    assert names >= {"SSH_CLIENT", "SSH_CONNECTION", "USER", "LOGNAME", "HOME", "SHELL", "container"}


@pytest.mark.parametrize(
    ("folder", "inside"),
    [("/root", "/root"), ("/usr/local/bin", "/usr/local/bin"), ("/srv/only-outside", "/"), ("/srv", "/srv")],
)
def test_working_folder(standin: LabHost, folder: str, inside: str) -> None:
    standin.sh("mkdir -p /srv/only-outside", check=True)
    assert pct(standin, "exec", "200", "--", "pwd", folder=folder).stdout == f"{inside}\n"


def test_a_deleted_working_folder(standin: LabHost) -> None:
    done = standin.sh("mkdir /srv/gone && cd /srv/gone && rmdir /srv/gone && exec pct exec 200 -- pwd")
    assert done.stdout == "/\n"


def test_identity_umask_and_limits(standin: LabHost) -> None:
    done = standin.ssh(
        "umask 077; ulimit -n 123; exec pct exec 200 -- sh -c 'id; umask; ulimit -n; cat /proc/self/stat'"
    )
    identity, umask, files, stat = done.stdout.decode().splitlines()
    assert (identity, umask, files) == ("uid=0(root) gid=0(root) groups=0(root)", "0077", "123")
    parent, group, session = stat.rpartition(")")[2].split()[1:4]
    assert group == session == "0", "they are the host's, which the guest can not see"
    assert int(parent) > 0


def test_an_unprivileged_guest_has_its_own_root(standin: LabHost) -> None:
    guest = standin.fresh_guest(unprivileged=True, venv="/opt/venv")
    done = pct(
        standin,
        "exec",
        str(guest.ctid),
        "--",
        "/opt/venv/bin/python",
        "-c",
        "import os; print(os.getuid(), os.getcwd()); open('made', 'w')",
    )
    assert (done.stdout, done.stderr) == ("0 /root\n", "")
    assert guest.path("/root/made").stat().st_uid == guest.owner == 100_000
    guest.destroy()


@pytest.mark.parametrize(
    ("name", "status", "reason"),
    [
        ("/nowhere", 127, "No such file or directory"),
        ("nowhere", 127, "No such file or directory"),
        ("", 127, "No such file or directory"),
        ("/opt/lost", 127, "No such file or directory"),
        ("/opt/text", 126, "Permission denied"),
        ("/etc", 126, "Permission denied"),
    ],
)
def test_commands_that_can_not_start(standin: LabHost, name: str, status: int, reason: str) -> None:
    standin.guest(200).write("/opt/lost", "#!/no/such/interpreter\n", mode=0o755)
    standin.guest(200).write("/opt/text", "echo hi\n", mode=0o644)
    done = pct(standin, "exec", "200", "--", name)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", FAILED.format(reason, name))


def test_a_script_without_a_first_line_goes_to_sh(standin: LabHost) -> None:
    standin.guest(200).write("/opt/bare", 'echo "$0 $1"; exit 7\n', mode=0o755)
    done = pct(standin, "exec", "200", "--", "/opt/bare", "x")
    assert (done.returncode, done.stdout) == (7, "/opt/bare x\n")


def test_programs_are_looked_up_inside_on_pcts_path(standin: LabHost) -> None:
    guest = standin.guest(200)
    guest.write("/usr/local/bin/only-local", "#!/bin/sh\necho found\n", mode=0o755)
    assert pct(standin, "exec", "200", "--", "only-local").returncode == 127
    assert pct(standin, "exec", "200", "--keep-env", "0", "--", "only-local").stdout == "found\n"


@pytest.mark.parametrize("status", [0, 1, 3, 127, 255])
def test_exit_status_is_the_commands(standin: LabHost, status: int) -> None:
    assert pct(standin, "exec", "200", "--", "sh", "-c", f"exit {status}").returncode == status


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_exit_status_after_a_signal(standin: LabHost, number: signal.Signals) -> None:
    kill = ("exec", "200", "--", "sh", "-c", f"kill -{int(number)} $$")
    assert pct(standin, *kill).returncode == 128 + number
    with knobs(standin, lxc="old"):
        assert pct(standin, *kill).returncode == 0
        assert pct(standin, "exec", "200", "--", "sh", "-c", "exit 9").returncode == 9


# --- bytes


def test_stdout_and_stderr_stay_apart(standin: LabHost) -> None:
    done = standin.ssh("pct exec 200 -- sh -c 'echo out; echo err >&2; echo out'")
    assert (done.stdout, done.stderr) == (b"out\nout\n", b"err\n")


def test_fifty_megabytes_both_ways(standin: LabHost, rng: random.Random) -> None:
    data = rng.randbytes(50 * 2**20)
    done = standin.ssh("pct exec 200 -- cat", stdin=data, timeout=240)
    assert hashlib.sha256(done.stdout).digest() == hashlib.sha256(data).digest()
    assert (done.returncode, done.stderr) == (0, b"")


def test_stdin_is_eaten_by_the_command(standin: LabHost) -> None:
    loop = "printf '1\\n2\\n3\\n' | while read n; do echo $n; pct exec 200 -- cat {}; done"
    assert standin.sh(loop.format("")).stdout == "1\n2\n3\n"
    assert standin.sh(loop.format(">/dev/null")).stdout == "1\n"
    assert standin.sh(loop.format("</dev/null")).stdout == "1\n2\n3\n"


@pytest.mark.parametrize("fd", [0, 1, 2])
def test_a_closed_descriptor(standin: LabHost, fd: int) -> None:
    done = standin.sh(f"pct exec 200 -- true {fd}>&-")
    assert done.returncode == 1
    if fd != 2:
        assert [line.rpartition(": ")[2].split(" ", 1)[1] for line in done.stderr.splitlines()] == [
            f"Bad file descriptor - Failed to clear FD_CLOEXEC from file descriptor {fd}",
            "Failed to attach to container",
        ]


def test_forty_at_once(standin: LabHost) -> None:
    def call(number: int) -> tuple[int, str, str]:
        done = pct(standin, "exec", "200", "--", "sh", "-c", "cat; exit $1", "-", str(number), stdin=b"%d" % number)
        return done.returncode, done.stdout, done.stderr

    with ThreadPoolExecutor(max_workers=40) as pool:
        assert list(pool.map(call, range(40))) == [(number, str(number), "") for number in range(40)]


# --- terminals


def test_on_a_terminal_streams_are_merged_and_newlines_doubled(standin: LabHost) -> None:
    done = standin.ssh("pct exec 200 -- sh -c 'test -t 2 && echo out; echo err >&2'", "-tt")
    assert (done.stdout, done.stderr) == (b"out\r\r\nerr\r\r\n", b"")


def test_only_descriptors_that_were_terminals_become_one(standin: LabHost) -> None:
    done = standin.ssh("pct exec 200 -- sh -c 'test -t 0; echo $?; test -t 1; echo $?' | cat", "-tt")
    assert done.stdout == b"0\r\n1\r\n"
    assert standin.ssh("pct exec 200 -- tty").stdout == b"not a tty\n"


def test_control_c_on_a_terminal_reaches_the_command(standin: LabHost) -> None:
    argv = [*standin.ssh_argv("-tt"), "--", "pct exec 200 -- sh -c 'echo ready; exec sleep 1111'"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as ssh:
        assert ssh.stdin
        assert ssh.stdout
        assert ssh.stdout.readline() == b"ready\r\r\n"
        ssh.stdin.write(b"\x03")
        ssh.stdin.flush()
        assert ssh.wait(60) == 130


# --- signals, lost clients, orphans


@contextmanager
def running(host: LabHost, guest: Guest, remote: str, word: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command over SSH for a while, from when `word` is in a command line inside; leave nothing of it."""
    argv = [*host.ssh_argv(*options), "--", remote]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as ssh:
        try:
            wait_for(lambda: bool(inner(guest, word)), f"{word} inside")
            yield ssh
        finally:
            ssh.kill()
            send(signal.SIGKILL, *(process.pid for process in guest.processes()))
            wait_for(lambda: not guest.processes(), "the guest to be empty")


@pytest.fixture(scope="module")
def quiet(standin: LabHost) -> Guest:
    """Return a guest in which nothing else runs."""
    return standin.fresh_guest(name="quiet")


def test_pct_becomes_lxc_attach(standin: LabHost, quiet: Guest) -> None:
    with running(standin, quiet, f"exec pct exec {quiet.ctid} sleep 1201", "1201"):
        [outer] = attached(standin, "1201")
        assert outer.cmdline == ("lxc-attach", "-n", str(quiet.ctid), "--keep-env", "--", "sleep", "1201")
        [command] = inner(quiet, "1201")
        assert command.parent == outer.pid, "nothing stands between them"
        assert (command.group, command.session) == (outer.group, outer.session)


def test_a_killed_client_kills_nothing_but_ends_stdin(standin: LabHost, quiet: Guest) -> None:
    remote = f"exec pct exec {quiet.ctid} -- sh -c 'cat >/dev/null; echo > /tmp/eof; exec sleep 1202'"
    with running(standin, quiet, remote, "cat") as ssh:
        ssh.kill()
        wait_for(lambda: quiet.path("/tmp/eof").exists(), "stdin to end inside")
        wait_for(lambda: [p.cmdline for p in inner(quiet, "1202")] == [("sleep", "1202")], "the command to go on")
        [outer] = attached(standin, "1202")
        wait_for(lambda: parent_of(standin, outer.pid) == standin.init_pid, "lxc-attach to be the init's child")


def parent_of(host: LabHost, pid: int) -> int | None:
    """Return a process's present parent; None when it has ended."""
    return next((p.parent for p in host.processes() if p.pid == pid), None)


def test_a_killed_client_ends_a_command_that_writes(standin: LabHost, quiet: Guest) -> None:
    remote = f"exec pct exec {quiet.ctid} -- sh -c 'while echo 1203; do sleep 0.01; done'"
    with running(standin, quiet, remote, "1203") as ssh:
        ssh.kill()
        wait_for(lambda: not inner(quiet, "1203") and not attached(standin, "1203"), "both to end")


def test_a_killed_client_with_a_terminal_hangs_up(standin: LabHost, quiet: Guest) -> None:
    with running(standin, quiet, f"exec pct exec {quiet.ctid} sleep 1204", "1204", "-tt") as ssh:
        [outer], [command] = attached(standin, "1204"), inner(quiet, "1204")
        assert command.session != outer.session, "on a terminal it has a session of its own"
        ssh.kill()
        wait_for(lambda: not inner(quiet, "1204") and not attached(standin, "1204"), "both to end")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_signal_to_the_outer_pid_orphans_the_command(standin: LabHost, quiet: Guest, number: signal.Signals) -> None:
    with running(standin, quiet, f"exec pct exec {quiet.ctid} sleep 1205", "1205"):
        [outer] = attached(standin, "1205")
        os.kill(outer.pid, number)
        wait_for(lambda: not attached(standin, "1205"), "lxc-attach to end")
        wait_for(lambda: [p.parent for p in inner(quiet, "1205")] == [standin.init_pid], "the host's init to adopt it")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT])
def test_int_and_quit_to_the_outer_pid_do_nothing(standin: LabHost, quiet: Guest, number: signal.Signals) -> None:
    with running(standin, quiet, f"exec pct exec {quiet.ctid} -- cat /dev/stdin", "stdin") as ssh:
        [outer] = attached(standin, "stdin")
        os.kill(outer.pid, number)
        assert ssh.stdin
        assert ssh.stdout
        ssh.stdin.write(b"still here\n")
        ssh.stdin.flush()
        assert ssh.stdout.readline() == b"still here\n"
        assert attached(standin, "stdin")


def test_a_signal_to_the_group_reaches_both(standin: LabHost, quiet: Guest) -> None:
    with running(standin, quiet, f"setsid -w pct exec {quiet.ctid} sleep 1206", "1206"):
        os.killpg(attached(standin, "1206")[0].group, signal.SIGTERM)
        wait_for(lambda: not inner(quiet, "1206") and not attached(standin, "1206"), "both to end")


def test_timeout_on_the_host_ends_both(standin: LabHost, quiet: Guest) -> None:
    done = standin.ssh(f"timeout 0.5 pct exec {quiet.ctid} sleep 1207")
    assert done.returncode == 124
    wait_for(lambda: not inner(quiet, "1207") and not attached(standin, "1207"), "both to end")


def test_stopping_the_guest_ends_the_call(standin: LabHost) -> None:
    guest = standin.fresh_guest()
    with running(standin, guest, f"pct exec {guest.ctid} sleep 1208", "1208") as ssh:
        guest.stop()
        assert ssh.wait(60) == 137
        guest.start()
    guest.destroy()


def test_a_background_child_keeps_the_channel_open(standin: LabHost, quiet: Guest) -> None:
    remote = f"pct exec {quiet.ctid} -- sh -c 'sleep 1209 & echo started'"
    with running(standin, quiet, remote, "1209") as ssh:
        assert ssh.stdout
        assert ssh.stdout.readline() == b"started\n"
        wait_for(lambda: not attached(standin, "1209"), "pct to return")
        assert ssh.poll() is None
        os.kill(inner(quiet, "1209")[0].pid, signal.SIGKILL)
        assert ssh.wait(60) == 0


def test_a_frozen_guest_hangs_until_the_thaw(standin: LabHost) -> None:
    guest = standin.fresh_guest(state="frozen")
    argv = [*standin.ssh_argv(), "--", f"pct exec {guest.ctid} -- echo thawed"]
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as ssh:
        wait_for(lambda: bool(attached(standin, "thawed")), "lxc-attach to start")
        with pytest.raises(subprocess.TimeoutExpired):
            ssh.wait(1)
        guest.thaw()
        assert ssh.communicate(timeout=60)[0] == b"thawed\n"
        assert ssh.returncode == 0
    guest.destroy()


def test_a_killed_call_to_a_frozen_guest_still_runs_after_the_thaw(standin: LabHost) -> None:
    guest = standin.fresh_guest(state="frozen")
    argv = [*standin.ssh_argv(), "--", f"exec pct exec {guest.ctid} -- touch /tmp/late"]
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL) as ssh:
        # The helper that is to become the command is in the guest's cgroup already, and frozen: in state D.
        wait_for(lambda: any(p.state == "D" and "/tmp/late" in p.cmdline for p in standin.processes()), "the helper")
        [outer] = attached(standin, "late")
        os.kill(outer.pid, signal.SIGKILL)
        ssh.kill()
    assert not guest.path("/tmp/late").exists()
    guest.thaw()
    wait_for(lambda: guest.path("/tmp/late").exists(), "the killed call's command to run")
    guest.destroy()
