"""Hops: the argv that enters a target, and what is made of the texts that come back when nothing answers."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoterun.errors import CODES, TargetError
from remoterun.hops import diagnose, enter_argv, frozen, state_argv
from remoterun.model import HopKind, Host, Target
from remoterun.remote.stage0 import STAGE0, opening
from tests.support.programs import needed

SHELLS = ("bash", "dash", "zsh", "fish", "tcsh", "busybox")


def target(hop: HopKind = "pct", *, become: bool = False, **changes: object) -> Target:
    """Describe a target of kpro6."""
    host = Host(key="kpro6", address="10.1.2.6", become="sudo" if become else None)
    guest = None if hop == "none" else "200" if hop == "pct" else "trainer"
    fields: dict[str, object] = {"id": f"kpro6/{guest}" if guest else "kpro6", "host": host, "hop": hop, "guest": guest}
    return Target(**(fields | changes))  # type: ignore[arg-type] # names and types are the caller's business


def why(
    stderr: str = "",
    *,
    status: int | None = 255,
    signal: str | None = None,
    noise: str = "",
    where: Target | None = None,
) -> TargetError:
    """Diagnose."""
    return diagnose(where or target(), exit_status=status, signal=signal, stderr=stderr, noise=noise)


# --- the way in -------------------------------------------------------------------------------------------------------


def test_each_way_in() -> None:
    stage0 = ("/bin/sh", "-c", STAGE0)
    assert enter_argv(target("none")) == stage0
    assert enter_argv(target("pct")) == ("/usr/sbin/pct", "exec", "200", "--", *stage0)
    assert enter_argv(target("lxc")) == ("lxc-attach", "-n", "trainer", "--clear-env", "--", *stage0)
    for hop in ("none", "pct", "lxc"):
        assert enter_argv(target(hop, become=True)) == ("sudo", "-n", *enter_argv(target(hop)))


def test_a_user_of_the_guest_is_taken_on_inside_it() -> None:
    plain, argv = enter_argv(target()), enter_argv(target(user="ml"))
    assert argv[:4] == plain[:4]
    assert argv[-2:] == ("ml", STAGE0)
    assert "setpriv" in argv[6]
    assert enter_argv(target(user="root")) == plain


def test_a_user_of_a_plain_host_is_the_logins_business() -> None:
    assert enter_argv(target("none", user="ml")) == enter_argv(target("none"))


def test_the_command_line_stays_one_line_of_ascii_in_any_shell() -> None:
    for hop in ("none", "pct", "lxc"):
        line = shlex.join(enter_argv(target(hop, become=True, user="ml")))
        assert line.isascii()
        assert not set(line) & {"\n", "!"}
        assert len(line) < 4096
        assert all("'" not in word for word in enter_argv(target(hop, user="ml")))


@given(st.text() | st.sampled_from(["99", "0100", "100 ", "-1", "1000000000", "١٠٠", "100\n", "", "100;id"]))
def test_nothing_but_a_vmid_gets_onto_the_command_line(guest: str) -> None:
    if guest.isascii() and guest.isdigit() and 100 <= int(guest) <= 999_999_999 and not guest.startswith("0"):
        assert enter_argv(target(guest=guest))[2] == guest
    else:
        for compose in (enter_argv, state_argv):
            with pytest.raises(ValueError, match="is not an id"):
                compose(target(guest=guest))


@pytest.mark.parametrize("name", ["-n", "a b", "../x", "", "a;b", "a\n", "ü", "x" * 129, None])
def test_a_containers_name_is_vetted(name: str | None) -> None:
    with pytest.raises(ValueError, match="is not an id"):
        enter_argv(target("lxc", guest=name))


@pytest.mark.parametrize("user", ["-x", "a b", "", "1000", "a:b", "ü", "$(id)", "x" * 33])
def test_a_users_name_is_vetted(user: str) -> None:
    with pytest.raises(ValueError, match="is not a user name"):
        enter_argv(target(user=user))


def test_the_state_of_a_guest_is_asked_on_its_host() -> None:
    assert state_argv(target()) == ("lxc-info", "-n", "200", "-s", "-H")
    assert state_argv(target("lxc", become=True)) == ("sudo", "-n", "lxc-info", "-n", "trainer", "-s", "-H")
    assert state_argv(target("none")) is None


# --- the texts --------------------------------------------------------------------------------------------------------

LOCALE = """\
perl: warning: Setting locale failed.
perl: warning: Please check that your locale settings:
	LANGUAGE = (unset),
	LC_ALL = (unset),
	LANG = "de_DE.UTF-8"
    are supported and installed on your system.
perl: warning: Falling back to the standard locale ("C").
bash: warning: setlocale: LC_ALL: cannot change locale (de_DE.UTF-8)
"""
IPCC = "".join(f"ipcc_send_rec[{n}] failed: Unknown error -1\n" for n in (1, 2, 3))
ATTACH = "lxc-attach: 200: ../src/lxc/attach.c: "
REFUSED = "Connection refused"
NO_VMID = "400 Parameter verification failed.\nvmid: invalid format - value does not look like a valid VM ID\n"

PCT = {
    "bash: line 1: /usr/sbin/pct: No such file or directory": "pct_missing",
    "bash: pct: command not found": "pct_missing",
    "sh: 1: /usr/sbin/pct: not found": "pct_missing",
    "zsh:1: no such file or directory: /usr/sbin/pct": "pct_missing",
    "zsh:1: command not found: pct": "pct_missing",
    "fish: Unknown command: /usr/sbin/pct\nfish: \n/usr/sbin/pct exec 200\n^~~~~^": "pct_missing",
    "fish: Unknown command '/usr/sbin/pct'": "pct_missing",
    "/usr/sbin/pct: Command not found.": "pct_missing",
    "ash: /usr/sbin/pct: not found": "pct_missing",
    "bash: line 1: /usr/sbin/pct: Permission denied": "not_permitted",
    "zsh:1: permission denied: /usr/sbin/pct": "not_permitted",
    "please run as root": "not_permitted",
    IPCC + "Unable to load access control list: Unknown error -1": "not_permitted",
    "Configuration file 'nodes/kpro6/lxc/200.conf' does not exist": "guest_not_found",
    NO_VMID: "guest_not_found",
    "container '200' not running!": "guest_stopped",
    "Error: container '200' not running!": "guest_stopped",
    ATTACH + "get_attach_context: 406 Connection refused - Failed to get init pid": "guest_stopped",
    ATTACH + 'lxc_attach_run_command: 1841 No such file or directory - Failed to exec "/bin/sh"': "shell_missing",
    ATTACH + 'lxc_attach_run_command: 1841 Permission denied - Failed to exec "/bin/sh"': "shell_missing",
    IPCC.replace("Unknown error -1", REFUSED) + f"Unable to load access control list: {REFUSED}": "enter_failed",
    "Some new text of a later pct": "enter_failed",
    "": "enter_failed",
}


@pytest.mark.parametrize("text", PCT)
@pytest.mark.parametrize("around", ["", LOCALE])
def test_what_pct_and_the_shells_say(text: str, around: str) -> None:
    assert why(around + text).code == PCT[text]
    assert why(text + "\r\n" + around).code == PCT[text]


TRAINER = "lxc-attach: trainer: ../src/lxc/"
LXC = {
    "bash: line 1: lxc-attach: command not found": "lxc_missing",
    "fish: Unknown command: lxc-attach": "lxc_missing",
    "zsh:1: command not found: lxc-attach": "lxc_missing",
    TRAINER + "tools/lxc_attach.c: main: 302 You lack access to /home/ml/.local/share/lxc": "not_permitted",
    TRAINER + "tools/lxc_attach.c: lxc_attach_main: 326 Insufficent privileges to control trainer": "not_permitted",
    TRAINER + "attach.c: get_attach_context: 406 Connection refused - Failed to get init pid": "guest_stopped",
    TRAINER + 'attach.c: run_command: 1839 No such file or directory - Failed to exec "/bin/sh"': "shell_missing",
}


@pytest.mark.parametrize("text", LXC)
def test_what_lxc_attach_says(text: str) -> None:
    assert why(text, where=target("lxc")).code == LXC[text]


SUDO = {
    "sudo: a password is required": "sudo_refused",
    "sudo: a terminal is required to read the password; either use the -S option": "sudo_refused",
    "sudo: no tty present and no askpass program specified": "sudo_refused",
    "sudo: sorry, you must have a tty to run sudo": "sudo_refused",
    "Sorry, user ml is not allowed to execute '/usr/sbin/pct exec 200' as root on kpro6.": "sudo_refused",
    "ml is not in the sudoers file.": "sudo_refused",
    "bash: line 1: sudo: command not found": "sudo_refused",
    "sudo: interactive authentication is required": "sudo_refused",
    "sudo: I'm sorry ml. I'm afraid I can't do that": "sudo_refused",
    "Sorry, user ml may not run /usr/sbin/pct exec 200 on kpro6.": "sudo_refused",
    "sudo: '/usr/sbin/pct': command not found": "pct_missing",
    'sudo: The "no new privileges" flag is set, which prevents sudo from running as root.': "sudo_refused",
    "sudo: /usr/sbin/pct: command not found": "pct_missing",
    "sudo: unable to resolve host kpro6: Name or service not known\ncontainer '200' not running!": "guest_stopped",
}


@pytest.mark.parametrize("text", SUDO)
def test_what_sudo_says(text: str) -> None:
    assert why(text, status=1, where=target(become=True)).code == SUDO[text]


USER = {
    "id: 'nobody2': no such user\nsetpriv: failed to parse reuid: 'nobody2'": "user_unknown",
    "id: unknown user nobody2": "user_unknown",
    "nobody2: 1: exec: setpriv: not found": "user_unknown",
    "setpriv: unrecognized option '--reuid'\nBusyBox v1.35.0 multi-call binary.": "user_unknown",
    "setpriv: unrecognized option: reuid": "user_unknown",
    "setpriv: setresuid failed: Operation not permitted": "user_unknown",
}


@pytest.mark.parametrize("text", USER)
def test_what_setpriv_says(text: str) -> None:
    error = why(text, status=127, where=target(user="nobody2"))
    assert error.code == USER[text]
    assert "nobody2" in error.message


def test_the_node_is_named_where_the_guest_is_not() -> None:
    error = why("Configuration file 'nodes/pve-west/lxc/200.conf' does not exist", status=2)
    assert "pve-west" in error.message
    assert "200" in error.message


def test_a_cluster_file_system_that_is_down_is_no_lack_of_rights() -> None:
    text = "ipcc_send_rec[1] failed: Connection refused\nUnable to load access control list: Connection refused"
    error = why(text, status=111, where=target(become=True))
    assert "cannot reach the cluster file system" in error.message
    assert "pve-cluster" in error.hint


def test_a_variable_that_pct_runs_nothing_with_is_named() -> None:
    text = "Insecure $ENV{BASH_ENV} while running with -T switch at /usr/share/perl5/PVE/CLI/pct.pm line 253."
    error = why(text)
    assert error.code == "enter_failed"
    assert "BASH_ENV" in error.message
    assert "~/.bashrc" in error.hint


def test_a_plain_host() -> None:
    where = target("none")
    assert why("bash: line 1: /bin/sh: No such file or directory", status=127, where=where).code == "shell_missing"


@pytest.mark.parametrize("hop", ["none", "pct", "lxc"])
@pytest.mark.parametrize(
    "text",
    [
        "rbash: /bin/sh: restricted: cannot specify `/' in command names",
        "This account is currently not available.",
        "This service allows sftp connections only.",
    ],
)
def test_a_login_that_may_run_no_commands(hop: HopKind, text: str) -> None:
    # nologin and internal-sftp say it on stdout, restricted shells on stderr.
    for error in (why(text, status=1, where=target(hop)), why(noise=text + "\r\n", status=1, where=target(hop))):
        assert error.code == "enter_failed"
        assert "ordinary shell" in error.hint


def test_a_login_that_says_nothing_is_to_be_tried_by_hand() -> None:
    assert "ForceCommand" in why(status=1).hint
    assert why("something", status=1).hint == CODES["enter_failed"].hint
    # What was killed would have gone well.
    assert why(signal="KILL").hint == CODES["enter_failed"].hint


@pytest.mark.parametrize(
    ("host", "command"),
    [
        (Host(key="kpro6", address="10.1.2.6"), "ssh 10.1.2.6 true"),
        (Host(key="kpro6", address="10.1.2.6", user="ml", port=2222), "ssh -p 2222 ml@10.1.2.6 true"),
        (
            Host(
                key="kpro6",
                address="10.1.2.6",
                jump=(Host(key="gate", address="gate", user="me", port=22), Host(key="inner", address="inner")),
            ),
            "ssh -J me@gate:22,inner 10.1.2.6 true",
        ),
        (
            Host(
                key="kpro6",
                address="fd00::6",
                jump=(Host(key="gate", address="fd00::1", user="me", port=22), Host(key="inner", address="fd00::2")),
                identity_files=("/keys/my key", "/keys/b"),
                ssh_config="/etc/lab.conf",
            ),
            "ssh -F /etc/lab.conf -i '/keys/my key' -i /keys/b -J 'me@[fd00::1]:22,fd00::2' fd00::6 true",
        ),
        (Host(key="kpro6", address="10.1.2.6", jump=()), "ssh -J none 10.1.2.6 true"),
        (Host(key="here", address="", transport="local"), None),
    ],
)
def test_what_is_to_be_tried_by_hand_can_be_pasted(host: Host, command: str | None) -> None:
    hint = why(status=1, where=target("none", host=host)).hint
    assert hint == CODES["enter_failed"].hint if command is None else f"Try `{command}` by hand" in hint


@pytest.mark.parametrize("become", [False, True])
@pytest.mark.parametrize(("hop", "command"), [("pct", "pct start 200"), ("lxc", "lxc-start -n trainer")])
def test_what_starts_or_thaws_a_guest_can_be_pasted(hop: HopKind, command: str, become: bool) -> None:
    where, sudo = target(hop, become=become), "sudo " if become else ""
    stopped = why(ATTACH + "get_attach_context: 406 Connection refused - Failed to get init pid", where=where)
    assert (stopped.code, stopped.hint) == ("guest_stopped", f"Start it on kpro6 (`{sudo}{command}`), then run again.")
    asleep = frozen(where, "no answer", None)
    assert asleep.code == "guest_frozen"
    assert f"Thaw it on kpro6 (`{sudo}lxc-unfreeze -n {where.guest}`) or wait" in asleep.hint


def test_a_status_that_stands_for_a_signal_names_it() -> None:
    assert "status 139 (SIGSEGV)" in why(noise="remoterun0 start\n", status=139).message
    assert "status 255 and" in why(status=255).message


# --- the marks of stage 0 ---------------------------------------------------------------------------------------------

FOUND = "remoterun0 found /opt/venv/bin/python\nremoterun0 found /workspace/env/bin/python\n"


def test_a_missing_venv_lists_those_that_are_there() -> None:
    where = target(venv="/root/venv", interpreter="/root/venv/bin/python")
    mark = "remoterun0 no-interpreter /root/venv/bin/python\n"
    error = why(noise=f"Welcome!\n{mark}{FOUND}", status=127, where=where)
    assert error.code == "venv_missing"
    assert "/root/venv" in error.message
    assert "/opt/venv, /workspace/env" in error.message
    only = why(noise=f"no newline {mark}remoterun0 found /opt/venv/bin/python\n", status=127, where=where)
    assert "`venv: /opt/venv`" in only.hint
    assert error.hint == CODES["venv_missing"].hint


def test_where_there_is_no_environment_at_all_one_can_do_without() -> None:
    mark = "remoterun0 no-interpreter /root/venv/bin/python\n"
    error = why(noise=mark, status=127, where=target(venv="/root/venv", interpreter="/root/venv/bin/python"))
    assert "none was found in the usual places" in error.message
    assert "set `python: python3` instead" in error.hint


def test_an_environment_found_in_two_ways_is_one() -> None:
    mark = "remoterun0 no-interpreter /root/venv/bin/bin/python\n"
    twice = "remoterun0 found /root/venv/bin/python\n" * 2
    error = why(noise=mark + twice, status=127, where=target(venv="/root/venv/bin"))
    assert error.message.count("/root/venv") == 2
    assert "`venv: /root/venv`" in error.hint


def test_a_python_that_is_gone_or_forbidden_is_no_missing_environment() -> None:
    where = target(venv="/root/venv", interpreter="/root/venv/bin/python")
    mark = "remoterun0 no-interpreter /root/venv/bin/python\n"
    gone = why(noise=f"{mark}remoterun0 leads-to /opt/python3.9/bin/python3.9\n", status=127, where=where)
    assert gone.code == "interpreter_broken"
    assert "/root/venv/bin/python is a link to /opt/python3.9/bin/python3.9, which is not there" in gone.message
    assert "anew" in gone.hint
    forbidden = why(noise=f"{mark}remoterun0 not-executable\n", status=127, where=where)
    assert forbidden.code == "interpreter_broken"
    assert "cannot be executed" in forbidden.message
    assert "noexec" in forbidden.hint
    shut = why(noise=f"{mark}remoterun0 closed /root\n", status=127, where=where)
    assert shut.code == "interpreter_broken"
    assert "/root/venv/bin/python can't be looked at: /root may not be entered: permission denied" in shut.message
    assert "`user`" in shut.hint
    beyond = f"{mark}remoterun0 leads-to /root/py/bin/python3\nremoterun0 closed /root\n"
    told = why(noise=beyond, status=127, where=where).message
    assert "is a link to /root/py/bin/python3, and /root may not be entered: permission denied" in told


@pytest.mark.parametrize(
    "rest", ["remoterun0 terminal\r\n", "\ufffd^Bspool(^B^@^@^@i^@^@", "9T^A:q^TT^[ ^Flr^Otk^Aj^\\*^_\\X^GW"]
)
def test_a_terminal_is_told_as_that(rest: str) -> None:
    """What was sent comes back as an echo; a byte of it may be the terminal's sign for a signal that kills stage 0."""
    sent = opening("/root/venv/bin/python", b"program", b"", b"header").decode()
    error = why(noise=sent.replace("\n", "\r\n") + rest, status=131)
    assert error.code == "enter_failed"
    assert "terminal" in error.message
    assert "ForceCommand" in error.hint


def test_a_missing_interpreter() -> None:
    error = why(noise="remoterun0 no-interpreter python3\n" + FOUND, status=127)
    assert error.code == "interpreter_missing"
    assert "python3" in error.message
    assert "/opt/venv" in error.message


def test_an_old_interpreter() -> None:
    noise = "remoterun0 start\nremoterun0 python-too-old 2.7.18 /usr/bin/python2.7\n"
    error = why(noise=noise, status=126)
    assert error.code == "python_too_old"
    assert "2.7.18" in error.message
    assert "/usr/bin/python2.7" in error.message


@pytest.mark.parametrize(
    ("text", "status", "signal"),
    [
        (
            "python: error while loading shared libraries: libpython3.11.so.1.0: cannot open shared object file",
            127,
            None,
        ),
        ("sh: 1: exec: /root/venv/bin/python: Exec format error", 126, None),
        ("Fatal Python error: init_fs_encoding: failed to get the Python codec of the filesystem encoding", 1, None),
        ("", None, "SEGV"),
        ("", 139, None),
    ],
)
def test_an_interpreter_that_starts_and_dies_is_broken(text: str, status: int | None, signal: str | None) -> None:
    error = why(text, noise="remoterun0 start\n", status=status, signal=signal)
    assert error.code == "interpreter_broken"
    assert (text[:30] or signal or str(status)) in error.message


def test_the_echo_of_the_command_line_is_no_mark() -> None:
    """fish repeats the whole command line, and stage 0's text with it, on stderr."""
    line = shlex.join(enter_argv(target()))
    error = why(f"fish: Unknown command: /usr/sbin/pct\nfish: \n{line}\n^~~~~~~~~~~~^\n", status=127)
    assert error.code == "pct_missing"


# --- whatever else comes ----------------------------------------------------------------------------------------------


@given(
    st.text(max_size=300),
    st.text(max_size=300)
    | st.builds("remoterun0 {} {}".format, st.sampled_from(["found", "no-interpreter", "leads-to"]), st.text()),
    st.none() | st.integers(-300, 300),
    st.none() | st.text(max_size=10),
    st.sampled_from(["none", "pct", "lxc"]),
    st.booleans(),
)
def test_any_text_is_told_short_and_without_control_characters(
    stderr: str, noise: str, status: int | None, signal: str | None, hop: HopKind, become: bool
) -> None:
    where = target(hop, become=become, venv="/venv")
    error = why(stderr, noise=noise, status=status, signal=signal, where=where)
    assert error.message.startswith(f"{where.id}: ")
    assert len(error.message) < 6000
    assert not [char for char in error.message if unicodedata.category(char) == "Cc"]


def test_the_last_words_are_kept_and_escapes_are_not() -> None:
    error = why("first\nsecond\n\x1b[31mred\x1b[0m\x1b]0;title\x07 alert\x07\nlast\n", status=1)
    assert error.message.endswith("ended with status 1: second | red alert | last")


def test_a_flood_is_cut_fast() -> None:
    assert len(why("pct: " * 3_000_000).message) < 1000


# --- the shells of this machine ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", SHELLS)
def test_what_this_machines_shells_really_say(shell: str) -> None:
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"there is no {shell} on this machine")
    command = [path, "ash", "-c"] if shell == "busybox" else [path, "-c"]
    for where, code in ((target(), "pct_missing"), (target("lxc"), "lxc_missing")):
        argv = enter_argv(where)
        line = shlex.join(["/no/such/folder/" + argv[0].rpartition("/")[2], *argv[1:]])
        done = subprocess.run([*command, line], capture_output=True, check=False, text=True, stdin=subprocess.DEVNULL)
        error = why(done.stderr, noise=done.stdout, status=done.returncode, where=where)
        assert error.code == code, done.stderr


@pytest.mark.parametrize("program", ["nologin", "rbash"])
def test_what_this_machines_shells_for_no_commands_really_say(program: str) -> None:
    shell = needed(program, f"{os.environ['PATH']}:/usr/sbin:/sbin")
    argv = [shell, "-c", shlex.join(enter_argv(target("none")))]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    error = why(done.stderr, noise=done.stdout, status=done.returncode, where=target("none"))
    assert "ordinary shell" in error.hint, error.message


def test_what_this_machines_setpriv_really_says() -> None:
    if shutil.which("setpriv") is None:
        pytest.skip("there is no setpriv on this machine")
    where = target(user="no-such-user")
    argv = enter_argv(where)
    inner = argv[argv.index("--") + 1 :]
    done = subprocess.run(inner, capture_output=True, check=False, text=True, stdin=subprocess.DEVNULL)
    error = why(done.stderr, noise=done.stdout, status=done.returncode, where=where)
    assert error.code == "user_unknown", done.stderr


def test_a_user_is_really_taken_on() -> None:
    if shutil.which("setpriv") is None or os.geteuid() != 0:
        pytest.skip("this needs root and setpriv")
    argv = enter_argv(target(user="nobody"))
    inner = [*argv[argv.index("--") + 1 : -1], "id -un; id -gn; id -Gn"]
    done = subprocess.run(inner, capture_output=True, check=True, text=True)
    assert done.stdout.split() == ["nobody", "nogroup", "nogroup"]


def test_what_this_machines_lxc_attach_really_says() -> None:
    if shutil.which("lxc-attach") is None or os.geteuid() != 0:
        pytest.skip("this needs root and lxc-attach")
    where = target("lxc", guest="remoterun-no-such-guest")
    done = subprocess.run(enter_argv(where), capture_output=True, check=False, text=True, stdin=subprocess.DEVNULL)
    assert why(done.stderr, status=done.returncode, where=where).code == "guest_stopped", done.stderr
