"""The lab's own promises: hosts and guests are apart from each other and the machine, and nothing of them stays."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.support.lab import Lab, LabError, LabHost, User, guest, machine, missing, slots, wait_for
from tests.support.lab.pythons import pythons

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.lab

ROOT = Path(__file__).parents[2]


def mounts() -> list[str]:
    """Return what is mounted on this machine."""
    return Path("/proc/self/mountinfo").read_text().splitlines()


def traces(number: int) -> list[str]:
    """Name everything on this machine that carries a lab's number."""
    links = [path.name for path in Path("/sys/class/net").iterdir()]
    bridge = f"rrlab{number}"
    return [
        *(name for name in links if name == bridge or name.startswith(f"{bridge}h")),
        *(str(folder) for folder in machine.cgroup_folders(f"remoterun-lab-{number}")),
        *(str(pid) for pid in machine.inits(f"remoterun-lab-{number}")),
        *(line for line in mounts() if re.search(rf"/remoterun-lab/{number}\b", line)),
        *(line for line in machine.run(["ip", "route"]).stdout.splitlines() if f"10.214.{number}." in line),
        *(str(path) for path in [slots.FOLDER / str(number)] if path.exists()),
    ]


# --- apart


def test_hosts_do_not_share_guests(lab: Lab) -> None:
    first, second = lab.hosts_at_once({"apart1": [guest(200, name="a")], "apart2": [guest(200, name="b")]})
    assert first.ssh("hostname; pct exec 200 -- hostname").stdout == b"apart1\na\n"
    assert second.ssh("hostname; pct exec 200 -- hostname").stdout == b"apart2\nb\n"


def test_what_happens_on_a_host_stays_there(lab: Lab) -> None:
    host = lab.host("vandal", guests=[200])
    shadow = Path("/etc/shadow").read_bytes()
    host.ssh("rm -rf /etc/shadow /usr/bin/lxc-ls /home; touch /root/x /tmp/vandal /var/vandal; mount -t tmpfs x /mnt")
    host.guest(200).sh("rm -rf /etc/shadow /usr/bin/lxc-ls; touch /root/x /tmp/vandal /var/vandal")
    assert not host.path("/etc/shadow").exists()
    assert Path("/etc/shadow").read_bytes() == shadow
    assert Path("/usr/bin/lxc-ls").exists()
    assert not any(Path(path).exists() for path in ("/root/x", "/tmp/vandal", "/var/vandal", "/usr/sbin/pct"))
    assert lab.host("apart1").path("/etc/shadow").exists()
    assert lab.host("vandal").guest(200).sh("ls -A /root /tmp").stdout.split() == [
        "/root:",
        ".pyenv",
        "x",
        "/tmp:",
        "vandal",
    ]


def test_a_name_means_one_host(lab: Lab) -> None:
    host = lab.host("same", guests=[200])
    assert lab.host("same", guests=[guest(200), 201]) is host
    assert sorted(host.guests) == [200, 201]
    with pytest.raises(LabError, match="host same was made otherwise"):
        lab.host("same", shell="/bin/dash")
    with pytest.raises(LabError, match="guest 200 that was made otherwise"):
        lab.host("same", guests=[guest(200, python=None)])


def test_two_labs_at_once(lab: Lab) -> None:
    with Lab() as other:
        assert other.folder != lab.folder
        assert (
            other.host("apart1", guests=[guest(200, name="other")]).ssh("pct exec 200 -- hostname").stdout == b"other\n"
        )
        assert lab.host("apart1", guests=[guest(200, name="a")]).ssh("pct exec 200 -- hostname").stdout == b"a\n"


# --- hosts


@pytest.mark.parametrize(
    "shell", ["/bin/bash", "/bin/dash", "/usr/bin/zsh", "/usr/bin/fish", "/usr/bin/tcsh", "/bin/sh"]
)
def test_login_shells(lab: Lab, shell: str) -> None:
    host = lab.host(f"shell-{shell.rpartition('/')[2]}", shell=shell, guests=[200])
    # Something follows, so that no shell replaces itself with the program.
    done = host.ssh(f"readlink /proc/${'fish_pid' if 'fish' in shell else '$'}/exe; true")
    assert Path(done.stdout.decode().strip()) == Path(shell).resolve()
    assert host.ssh("exec pct exec 200 -- echo hi").stdout == b"hi\n"


def test_accounts_are_the_hosts_own(lab: Lab) -> None:
    host = lab.host("accounts", users=(User(name="fisher", uid=3000, shell="/usr/bin/fish", sudo="NOPASSWD: ALL"),))
    assert host.ssh("id -un; sudo -n id -u; echo $fish_pid", user="fisher").stdout.split()[:2] == [b"fisher", b"0"]
    assert host.ssh("true", user="ops").returncode == 255, "a host made with its own accounts has no others"


def test_sshd_settings_and_port(lab: Lab) -> None:
    host = lab.host("busy", port=2222, sshd_config="AllowUsers ops\nBanner /etc/hostname")
    done = host.ssh("echo $SSH_CONNECTION", "-o", "LogLevel=INFO", user="ops")
    assert done.stdout.split()[-1] == b"2222"
    assert b"busy" in done.stderr
    assert b"Permission denied" in host.ssh("true").stderr


def test_a_host_without_pct(lab: Lab) -> None:
    done = lab.host("bare", pct=False).ssh("pct list")
    assert (done.returncode, done.stderr) == (127, b"bash: line 1: pct: command not found\n")


def test_files_of_a_host(lab: Lab) -> None:
    host = lab.host("noisy", files={"/root/.bashrc": "echo from bashrc\n", "/etc/motd": "hello\n"})
    assert host.ssh("cat /etc/motd").stdout == b"from bashrc\nhello\n"


def test_host_keys(lab: Lab) -> None:
    host = lab.host("rekeyed")
    assert host.ssh("true").returncode == 0
    assert lab.known_hosts(host).read_text() == f"{host.address} {host.public_key}\n"
    printed = host.sh("ssh-keygen -lf /etc/ssh/lab_host_ed25519.pub").stdout.split()[1]
    assert host.fingerprint == printed
    host.rotate_host_key()
    assert host.fingerprint != printed
    assert b"REMOTE HOST IDENTIFICATION HAS CHANGED" in host.ssh("true").stderr


@pytest.fixture
def wired(lab: Lab) -> Iterator[LabHost]:
    """Return a host whose network a test may break."""
    host = lab.host("wired")
    yield host
    host.heal()


def test_sshd_stopped(wired: LabHost) -> None:
    wired.stop_sshd()
    assert b"Connection refused" in wired.ssh("true").stderr
    wired.start_sshd()
    with subprocess.Popen([*wired.ssh_argv(), "echo up; cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as ssh:
        assert ssh.stdout
        assert ssh.stdout.readline() == b"up\n"
        wired.stop_sshd()
        assert ssh.poll() is None, "an open session goes on"
        wired.start_sshd()
        wired.stop_sshd(sessions=True)
        assert ssh.wait(60) == 255
    wired.start_sshd()
    assert wired.ssh("true").returncode == 0


def test_dropped_packets(wired: LabHost) -> None:
    with subprocess.Popen([*wired.ssh_argv(), "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as ssh:
        assert ssh.stdin
        assert ssh.stdout
        ssh.stdin.write(b"before\n")
        ssh.stdin.flush()
        assert ssh.stdout.readline() == b"before\n"
        wired.drop_packets()
        ssh.stdin.write(b"after\n")
        ssh.stdin.flush()
        assert b"Connection timed out" in wired.ssh("true", "-o", "ConnectTimeout=2").stderr
        assert ssh.poll() is None, "an open session only waits"
        wired.heal()
        assert ssh.stdout.readline() == b"after\n"


def test_a_slow_wire(wired: LabHost) -> None:
    wired.slow_down("1600kbit")
    start = time.monotonic()
    assert wired.ssh("wc -c", stdin=bytes(400_000)).stdout == b"400000\n"
    assert time.monotonic() - start > 1.5, "400 kB at 200 kB/s"


def test_a_host_behind_another(lab: Lab) -> None:
    jump = lab.host("jump")
    inner = lab.host("inner", behind=jump, guests=[200])
    assert b"No route to host" in inner.ssh("true").stderr
    proxy = " ".join([*jump.ssh_argv("-W", "%h:%p")])
    assert inner.ssh("pct exec 200 -- hostname", "-o", f"ProxyCommand={proxy}").stdout == b"ct200\n"
    inner.drop_packets()
    done = inner.ssh("true", "-o", f"ProxyCommand={proxy}", "-o", "ConnectTimeout=2")
    assert done.returncode == 255
    inner.heal()
    assert inner.ssh("hostname", "-o", f"ProxyCommand={proxy}").stdout == b"inner\n"


# --- guests


@pytest.fixture(scope="module")
def home(lab: Lab) -> LabHost:
    """Return the host whose guests these tests play with."""
    return lab.host("home")


def test_states(home: LabHost) -> None:
    made = home.fresh_guest(state="stopped")
    assert not made.running
    with pytest.raises(LabError, match="is not running"):
        made.init_pid  # noqa: B018 - the property raises
    made.start()
    assert made.running
    assert made.sh("echo hi").stdout == "hi\n"
    made.freeze()
    assert home.call("lxc-info", "-n", str(made.ctid), "-sH").stdout == "FROZEN\n"
    assert made.running
    made.stop()
    assert not made.running
    made.destroy()
    assert home.ssh(f"pct exec {made.ctid} true").returncode == 2


def test_files_outlive_a_restart(home: LabHost) -> None:
    made = home.fresh_guest(
        files={"/workspace/a/b.txt": "text", "/workspace/c.bin": b"\0\xff", "/opt/self": Path(__file__)}
    )
    made.sh("echo more >> /workspace/a/b.txt", check=True)
    made.stop()
    made.write("/workspace/late", "written while stopped")
    made.start()
    assert made.sh("cat /workspace/a/b.txt /workspace/late").stdout == "textmore\nwritten while stopped"
    assert made.path("/workspace/c.bin").read_bytes() == b"\0\xff"
    assert made.path("/opt/self").read_bytes() == Path(__file__).read_bytes()
    made.destroy()


def test_processes_are_seen_from_outside(home: LabHost) -> None:
    made = home.fresh_guest()
    assert made.processes() == []
    with subprocess.Popen([*home.ssh_argv(), f"pct exec {made.ctid} -- env MARKER=xyz sleep 1301"]) as ssh:
        wait_for(lambda: [p.cmdline for p in made.processes()] == [("sleep", "1301")], "the command to run")
        [process] = made.processes()
        assert process.environ["MARKER"] == "xyz"
        assert process.inside_pid < process.pid
        os.kill(process.pid, signal.SIGTERM)
        assert ssh.wait(60) == 128 + signal.SIGTERM
    wait_for(lambda: made.processes() == [], "nothing to be left")
    made.destroy()


def test_a_guest_without_python(home: LabHost) -> None:
    made = home.fresh_guest(python=None, venv="/opt/venv", venv_python=max(pythons()))
    assert made.sh("command -v python3 python python2").stdout == ""
    made.destroy()


@pytest.mark.parametrize("unprivileged", [False, True])
def test_a_guest_of_busybox_alone(home: LabHost, *, unprivileged: bool) -> None:
    made = home.fresh_guest(rootfs="busybox", unprivileged=unprivileged)
    assert made.sh("readlink /bin/sh; id -u; touch /root/x; ls /usr/bin").stdout == "busybox\n0\n"
    assert made.path("/root/x").stat().st_uid == made.owner
    made.sh("(sh -c 'sleep 0.05 &')")
    wait_for(lambda: made.processes() == [], "its init to reap the orphan")
    made.destroy()


def test_an_unprivileged_guest(home: LabHost) -> None:
    made = home.fresh_guest(unprivileged=True, files={"/workspace/x": "hi"}, python=max(pythons()))
    done = made.sh("stat -c '%u %g' / /root /tmp /usr /workspace /workspace/x; python3 -V; cat /proc/self/uid_map")
    owners, version, mapping = done.stdout.splitlines()[:6], *done.stdout.splitlines()[6:]
    assert set(owners) == {"0 0"}
    assert version.startswith("Python 3")
    assert mapping.split() == ["0", "100000", "65536"]
    made.destroy()


@pytest.mark.parametrize("unprivileged", [False, True])
def test_virtual_environments_of_every_python(home: LabHost, *, unprivileged: bool) -> None:
    made = home.fresh_guest(unprivileged=unprivileged)
    for version in pythons():
        program = made.make_venv(
            f"/envs/{version}", python=version, modules={"mine": "answer = 42"}, site=["/srv/extra"]
        )
        made.write("/srv/extra/theirs.py", "answer = 43")
        code = "import sys; print('%d.%d %s' % (sys.version_info[:2] + (sys.prefix,)))"
        if version != "2.7":
            code += "\nimport mine, theirs; print(mine.answer, theirs.answer)"
        done = made.sh(f'{program} -c "{code}"')
        prefix = Path(pythons()["2.7"]).parents[1] if version == "2.7" else f"/envs/{version}"
        answers = "" if version == "2.7" else "42 43\n"
        assert done.stdout == f"{version} {prefix}\n{answers}", done.stderr
    made.destroy()


def test_a_python_version_on_path(home: LabHost) -> None:
    for version in pythons():
        made = home.fresh_guest(python=version)
        done = made.sh(f"python{version[0]} -V 2>&1; python -V 2>&1; ls /usr/bin | grep ^python")
        first, second, *files = done.stdout.split("\n")
        assert first == second
        assert first.startswith(f"Python {version}.")
        assert {*files} - {f"python{version}"} == {"python", f"python{version[0]}", ""}, "no other is there"
        made.destroy()


def test_an_unknown_python_is_refused(home: LabHost) -> None:
    with pytest.raises(LabError, match=r"no Python 1\.5 on this machine: there is"):
        home.fresh_guest(state="stopped").make_venv("/envs/old", python="1.5")


# --- nothing stays


def test_nothing_stays_after_a_lab() -> None:
    before = mounts()
    with Lab() as lab:
        host = lab.host("gone", guests=[200, guest(201, state="frozen"), guest(202, unprivileged=True)])
        lab.host("gone-inner", behind=host, guests=[200], rough="1")
        host.ssh("setsid sleep 1401 </dev/null >/dev/null 2>&1 &")
        host.ssh("pct exec 200 -- sh -c 'setsid sleep 1402 </dev/null >/dev/null 2>&1 &'")
        number = int(lab.folder.name)
        assert len(traces(number)) > 4
        doomed = [p.pid for p in (*host.processes(), *host.guest(200).processes())]
    assert traces(number) == []
    assert not any(Path(f"/proc/{pid}").exists() for pid in doomed)
    # Other labs, and other tests, may run at the same time.
    new = [line for line in mounts() if line not in before]
    assert [line for line in new if "/remoterun-lab/" not in line and "/pytest-of-" not in line] == []


def up(folder: Path, *options: str) -> subprocess.Popen[bytes]:
    """Start the command line and return it when it is ready."""
    argv = [sys.executable, "-m", "tests.support.lab", "up", "--dir", str(folder), *options]
    process = subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout
    assert process.stdout.readline() == b"ready\n"
    return process


def number_of(folder: Path) -> int:
    """Read a lab's number from its inventory."""
    hosts = yaml.safe_load((folder / "inventory.yaml").read_text())["hosts"]
    return int(next(iter(hosts.values()))["address"].split(".")[2])


@pytest.mark.parametrize("end", ["SIGTERM", "SIGINT", "end of stdin"])
def test_the_command_line(tmp_path: Path, end: str) -> None:
    with up(tmp_path, "--hosts", "2", "--guests", "2") as process:
        hosts = yaml.safe_load((tmp_path / "inventory.yaml").read_text())["hosts"]
        assert {name: sorted(host["guests"]) for name, host in hosts.items()} == {
            "kpro1": [200, 201],
            "kpro2": [200, 201],
        }
        first = hosts["kpro1"]
        argv = ["ssh", "-F", "none", "-o", f"UserKnownHostsFile={first['known_hosts']}", "-i", first["identity_file"]]
        argv += ["-p", str(first["port"]), f"{first['user']}@{first['address']}"]
        done = machine.run([*argv, f"pct exec 201 -- {first['guests'][201]['venv']}/bin/python -V"])
        assert done.stdout.startswith("Python 3")
        if end == "end of stdin":
            assert process.stdin
            process.stdin.close()
        else:
            process.send_signal(signal.Signals[end])
        assert process.wait(60) == 0
    assert traces(number_of(tmp_path)) == []


def test_a_killed_labs_leftovers_are_removed_by_the_next(tmp_path: Path) -> None:
    with up(tmp_path, "--guests", "1") as process:
        number = number_of(tmp_path)
        [init] = machine.inits(f"remoterun-lab-{number}")
        process.kill()
        process.wait(60)
    wait_for(lambda: not Path(f"/proc/{init}").exists(), "its host to end without being told")
    assert traces(number), "links and folders stay"
    with Lab():
        pass
    assert traces(number) == []


def test_leftovers_of_the_living_are_left_alone(lab: Lab) -> None:
    host = lab.host("alive", guests=[200])
    with Lab():
        pass
    assert host.ssh("pct exec 200 -- hostname").stdout == b"ct200\n"


# --- where the lab can not be


@pytest.mark.parametrize(("no_skip", "status", "word"), [("", 0, "1 skipped"), ("1", 1, "1 error")])
def test_without_root_lab_tests_are_skipped_or_fail(no_skip: str, status: int, word: str) -> None:
    # A user namespace without any mapping: the same files, but not root.
    argv = ["unshare", "--user", sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rs"]
    argv.append(f"{Path(__file__).relative_to(ROOT)}::test_a_host_without_pct")
    done = subprocess.run(
        argv, cwd=ROOT, env={**os.environ, "REMOTERUN_NO_SKIP": no_skip}, capture_output=True, text=True, check=False
    )
    assert done.returncode == status, done.stdout
    assert word in done.stdout
    assert "the lab needs: not root" in done.stdout


def test_nothing_is_missing_here() -> None:
    assert missing() == []
