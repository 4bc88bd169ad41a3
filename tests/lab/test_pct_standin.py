"""The stand-in for pct, held to what is known of the real one: its command line, its checks, its other commands."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.lab import Lab, LabHost, wait_for
from tests.support.lab.calls import knobs, pct

if TYPE_CHECKING:
    from collections.abc import Mapping

pytestmark = pytest.mark.lab

USAGE = "pct exec <vmid> [<extra-args>] [OPTIONS]\n"


# --- the command line


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (["200", "pwd"], "/root\n"),
        (["200", "--", "echo", "-l"], "-l\n"),
        (["200", "echo", "--", "-l"], "-l\n"),
        (["--", "200", "echo", "-l"], "-l\n"),
        (["200", "--", "echo", "--", "-l"], "-- -l\n"),
        (["999", "--vmid", "200", "echo", "hi"], None),
        (["200", "echo", "-v", "5", "hi"], "hi\n"),
        (["200", "--keep-env", "--", "echo", "hi"], "hi\n"),
        (["200", "--keep-env", "0", "--", "echo", "hi"], "hi\n"),
        (["200", "-k", "0", "echo", "hi"], "hi\n"),
        (["200", "-KEEP=off", "echo", "hi"], "hi\n"),
    ],
)
def test_words_that_run(standin: LabHost, words: list[str], printed: str | None) -> None:
    done = pct(standin, "exec", *words)
    if printed is None:
        assert done.stderr == "Configuration file 'nodes/pve1/lxc/999.conf' does not exist\n", "a positional id wins"
    else:
        assert (done.returncode, done.stdout, done.stderr) == (0, printed, "")


@pytest.mark.parametrize(
    ("words", "stderr"),
    [
        (["200", "ls", "-l"], f"Unknown option: l\n400 unable to parse option\n{USAGE}"),
        (
            ["200", "x", "-a", "--TestWord"],
            f"Unknown option: a\nUnknown option: testword\n400 unable to parse option\n{USAGE}",
        ),
        (["200", "python3", "-V"], f"Option vmid requires an argument\n400 unable to parse option\n{USAGE}"),
        (["200", "echo", "-e", "hi"], f"400 internal error: extra-args must be the last argument\n{USAGE}"),
        (["200", "--keep-env", "env"], f"400 unable to parse boolean option\n{USAGE}"),
        ([], f"400 not enough arguments\n{USAGE}"),
        (["200"], "missing command at /usr/share/perl5/PVE/CLI/pct.pm line 246.\n"),
        (["200", "--"], "missing command at /usr/share/perl5/PVE/CLI/pct.pm line 246.\n"),
        *(
            (
                [vmid, "ls"],
                "400 Parameter verification failed.\n"
                f"vmid: invalid format - value does not look like a valid VM ID\n\n{USAGE}",
            )
            for vmid in ("99", "0200", "1000000000", "+200")
        ),
        (
            ["abc", "ls"],
            f"400 Parameter verification failed.\nvmid: type check ('integer') failed - got 'abc'\n\n{USAGE}",
        ),
    ],
)
def test_words_that_do_not_parse(standin: LabHost, words: list[str], stderr: str) -> None:
    done = pct(standin, "exec", *words)
    assert (done.returncode, done.stdout, done.stderr) == (255, "", stderr)


@pytest.mark.parametrize(
    ("words", "first"),
    [
        ([], "ERROR: no command specified"),
        (["foo"], "ERROR: unknown command 'pct foo'"),
        (["s"], "ERROR: unknown command 'pct s'"),
    ],
)
def test_no_such_command(standin: LabHost, words: list[str], first: str) -> None:
    done = pct(standin, *words)
    assert done.returncode == 255
    assert done.stderr.splitlines()[:2] == [first, "USAGE: pct <COMMAND> [ARGS] [OPTIONS]"]


def test_a_command_may_be_abbreviated_when_only_one_fits(standin: LabHost) -> None:
    assert pct(standin, "ex", "200", "echo", "hi").stdout == "hi\n"
    assert pct(standin, "e", "200", "echo", "hi").stderr.startswith("ERROR: unknown command 'pct e'")


def test_options_are_parsed_as_getopt_long_parses_them(rng: random.Random) -> None:
    folder = Path(__file__).parents[1] / "support/lab"
    argv = ["perl", "-T", str(folder / "getopt_oracle.pl"), str(folder / "pct"), str(rng.randrange(2**31)), "20000"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


HOSTILE = [
    "'",
    '"',
    "$HOME",
    "`id`",
    "*",
    "",
    " ",
    "\t",
    "a\nb",
    "\n",
    "\x01",
    "-n",
    "--",
    "\\",
    "!",
    "{}",
    "~",
    ";",
    "&",
]
HOSTILE += ["é", "日本", "\x7f", "--keep-env", "-v"]
SHOW = "import os,sys;sys.stdout.buffer.write(b'\\0'.join(map(os.fsencode,sys.argv[1:])))"


def test_words_arrive_byte_for_byte(standin: LabHost) -> None:
    done = pct(standin, "exec", "200", "--", "/usr/bin/python3", "-c", SHOW, *HOSTILE)
    assert done.stdout.split("\0") == HOSTILE, done.stderr


@settings(max_examples=30)
@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), min_size=1, max_size=20))
def test_any_utf8_words_arrive_byte_for_byte(standin: LabHost, words: list[str]) -> None:
    done = pct(standin, "exec", "200", "--", "/usr/bin/python3", "-c", SHOW, *words)
    assert done.stdout.split("\0") == words, done.stderr


@pytest.mark.parametrize(
    ("env", "word", "seen"),
    [
        ({"LANG": "C.UTF-8"}, b"\xc3\xa9", b"\xc3\xa9"),
        ({"LANG": "C.UTF-8"}, b"a\xff\xc3b", b"a\xef\xbf\xbd\xef\xbf\xbdb"),
        ({}, b"\xc3\xa9", b"\xef\xbf\xbd\xef\xbf\xbd"),
        ({"LANG": "C"}, b"\xc3\xa9", b"\xef\xbf\xbd\xef\xbf\xbd"),
        ({"LC_ALL": "POSIX", "LANG": "C.UTF-8"}, b"\xc3\xa9", b"\xef\xbf\xbd\xef\xbf\xbd"),
        ({"LANG": "xx_YY.UTF-8"}, b"\xc3\xa9", b"\xef\xbf\xbd\xef\xbf\xbd"),
    ],
)
def test_the_hosts_locale_decides_what_becomes_of_bytes(
    standin: LabHost, env: Mapping[str, str], word: bytes, seen: bytes
) -> None:
    done = pct(standin, "exec", "200", "--", "printf", "%s", os.fsdecode(word), env=env)
    assert os.fsencode(done.stdout) == seen


def test_an_unknown_locale_is_complained_about_on_stderr(standin: LabHost) -> None:
    done = pct(standin, "exec", "200", "--", "true", env={"LC_ALL": "xx_YY.UTF-8"})
    assert done.returncode == 0
    assert done.stderr.startswith("perl: warning: Setting locale failed.\n")


@pytest.mark.parametrize(("size", "fits"), [(131_071, True), (131_072, False)])
def test_a_word_may_have_131071_bytes(standin: LabHost, size: int, *, fits: bool) -> None:
    # Python of the host builds the word, because this machine's own limit is the same.
    script = (
        "import os;\n"
        "try: os.execv('/usr/sbin/pct', ['pct', 'exec', '200', '--', '/usr/bin/python3', '-c',"
        f" 'import sys; print(len(sys.argv[1]))', 'x' * {size}])\n"
        "except OSError as error: print(error.strerror)"
    )
    done = standin.call("/usr/bin/python3", "-c", script, check=False)
    assert done.stdout == (f"{size}\n" if fits else "Argument list too long\n")


def test_version_7_drops_words_with_inner_newlines_and_has_no_keep_env(standin: LabHost) -> None:
    with knobs(standin, old="7"):
        done = pct(standin, "exec", "200", "--", "/usr/bin/python3", "-c", SHOW, "a\nb", "c\n", "\n", "d")
        assert done.stdout.split("\0") == ["c", "", "d"]
        done = pct(standin, "exec", "200", "--keep-env", "0", "--", "env")
    assert done.stderr == f"Unknown option: keep-env\n400 unable to parse option\n{USAGE}"


# --- checks


def test_a_stopped_guest(standin: LabHost) -> None:
    done = pct(standin, "exec", "201", "--", "true")
    assert (done.returncode, done.stderr) == (255, "container '201' not running!\n")


@pytest.mark.parametrize("ctid", ["999", "300"])
def test_a_guest_that_is_missing_or_on_another_node(standin: LabHost, ctid: str) -> None:
    done = pct(standin, "exec", ctid, "--", "true")
    assert (done.returncode, done.stderr) == (2, f"Configuration file 'nodes/pve1/lxc/{ctid}.conf' does not exist\n")


def test_a_missing_guest_is_noticed_before_a_missing_command(standin: LabHost) -> None:
    assert pct(standin, "exec", "999").returncode == 2
    assert pct(standin, "exec", "201").stderr == "container '201' not running!\n"


def test_a_lock_does_not_stop_exec(standin: LabHost) -> None:
    done = pct(standin, "exec", "202", "--", "hostname")
    assert (done.returncode, done.stdout, done.stderr) == (0, "locked\n", "")


def test_config_lines_that_do_not_parse_are_warned_about(standin: LabHost) -> None:
    guest = standin.fresh_guest(name="odd", pve=("!what is this",))
    done = pct(standin, "exec", str(guest.ctid), "--", "echo", "hi")
    assert (done.stdout, done.stderr) == ("hi\n", f"vm {guest.ctid} - unable to parse config: !what is this\n")
    guest.destroy()


def test_not_root(standin: LabHost) -> None:
    done = standin.ssh("/usr/sbin/pct exec --nonsense", user="plain")
    assert done.returncode == 255, "the check comes before the options"
    assert done.stderr.decode() == (
        "ipcc_send_rec[1] failed: Unknown error -1\n"
        "ipcc_send_rec[2] failed: Unknown error -1\n"
        "ipcc_send_rec[3] failed: Unknown error -1\n"
        "Unable to load access control list: Unknown error -1\n"
    )
    with knobs(standin, notroot="please"):
        assert standin.ssh("/usr/sbin/pct list", user="plain").stderr == b"please run as root\n"


def test_a_cluster_file_system_that_is_down(standin: LabHost) -> None:
    with knobs(standin, cluster="down"):
        done = pct(standin, "exec", "200", "--", "true")
    assert (done.returncode, done.stderr.count("failed: Connection refused\n")) == (111, 3)
    assert done.stderr.endswith("Unable to load access control list: Connection refused\n")


def test_sudo_mode(standin: LabHost) -> None:
    done = standin.ssh("sudo -n /usr/sbin/pct exec 200 -- id -u", user="ops")
    assert (done.returncode, done.stdout) == (0, b"0\n")
    assert standin.ssh("pct list", user="ops").returncode == 127, "its PATH has no /usr/sbin"
    assert b"password is required" in standin.ssh("sudo -n /usr/bin/id", user="ops").stderr
    assert b"password is required" in standin.ssh("sudo -n /usr/sbin/pct list", user="plain").stderr


@pytest.mark.parametrize("name", ["IFS", "CDPATH", "ENV", "BASH_ENV"])
def test_an_insecure_environment_is_refused(standin: LabHost, name: str) -> None:
    done = pct(standin, "exec", "200", "--", "true", env={name: "/x"})
    assert done.returncode == 255
    assert done.stderr == (
        f"Insecure $ENV{{{name}}} while running with -T switch at /usr/share/perl5/PVE/CLI/pct.pm line 253.\n"
    )


def test_the_environment_turns_no_knobs(standin: LabHost) -> None:
    env = {"old": "7", "node": "pve2", "root": "/tmp", "PERL5OPT": "-d", "PERL5LIB": "/tmp"}
    assert pct(standin, "exec", "200", "--", "echo", "a\nb", env=env).stdout == "a\nb\n"


# --- knobs and the other commands


def test_delay_and_noise(standin: LabHost) -> None:
    with knobs(standin, noise="perl: warning: Setting locale failed.\\nsecond line\\n", delay="0.05"):
        done = pct(standin, "exec", "200", "--", "echo", "hi")
    assert (done.stdout, done.stderr) == ("hi\n", "perl: warning: Setting locale failed.\nsecond line\n")


def test_list_status_and_config(lab: Lab) -> None:
    host = lab.host("lister")
    assert pct(host, "list").stdout == ""
    entries = "arch: amd64\nhostname: web\nlxc.cgroup2.devices.allow: c 195:* rwm\ndigest: abc\n"
    host.write_guest_config(1000, f"#all about it\n{entries}[snap]\nhostname: old\n")
    host.add_guests([200])
    host.write_guest_config(200, "hostname: gpu\nlock: backup\n")
    host.write_guest_config(300, "arch: amd64\n", node="elsewhere")
    assert pct(host, "list").stdout.splitlines() == [
        "VMID       Status     Lock         Name                ",
        "200        running    backup       gpu                 ",
        "1000       stopped                 web                 ",
    ]
    assert pct(host, "status", "200").stdout == "status: running\n"
    assert pct(host, "status", "1000").stdout == "status: stopped\n"
    assert pct(host, "status", "300").returncode == 2
    assert pct(host, "config", "1000").stdout == (
        "arch: amd64\ndescription: all%20about%20it%0A\nhostname: web\nlxc.cgroup2.devices.allow: c 195:* rwm\n"
    )


def test_start_and_stop(standin: LabHost) -> None:
    guest = standin.fresh_guest(state="stopped")
    assert pct(standin, "stop", str(guest.ctid)).stderr == f"CT {guest.ctid} not running\n"
    assert pct(standin, "start", str(guest.ctid)).returncode == 0
    assert guest.running
    assert pct(standin, "start", str(guest.ctid)).stderr == f"CT {guest.ctid} already running\n"
    assert pct(standin, "stop", str(guest.ctid)).returncode == 0
    wait_for(lambda: not guest.running, "the guest to stop")
    guest.destroy()


def test_the_stand_in_says_what_it_does_not_hold(standin: LabHost) -> None:
    assert "Not held:" in pct(standin, "--standin-info").stdout
