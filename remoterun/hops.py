"""Hops: how a guest is entered, as pure argv functions, and what its entering says when it fails.

A hop wraps an argv in another argv; nothing here quotes, runs or reads anything. `enter_argv` composes the whole way
into a target: become, then the hop, then the guest's user, then stage 0. `diagnose` reads what came back when stage 0
never answered.
"""

from __future__ import annotations

import re
import shlex
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

from remoterun.errors import TargetError, clean
from remoterun.records import dataclass
from remoterun.remote.stage0 import FOUND, MARK, STAGE0

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from remoterun.model import HopKind, Host, Target

Argv: TypeAlias = tuple[str, ...]

# Patterns are kept as text: compiling them all would take longer than planning a run that needs none of them.

# --- the way in -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """Describe one way of entering a guest: the program, the ids it takes, how it wraps an argv, and what starts it."""

    program: str
    guest: str
    wrap: Callable[[str, Argv], Argv]
    start: Argv


def _pct(guest: str, argv: Argv) -> Argv:
    return ("/usr/sbin/pct", "exec", guest, "--", *argv)


def _lxc(guest: str, argv: Argv) -> Argv:
    # --clear-env: what the SSH session exports means nothing inside; stage 0 and the supervisor build the environment.
    return ("lxc-attach", "-n", guest, "--clear-env", "--", *argv)


# Absolute, so that a login without /usr/sbin on its PATH is told that it is not root, not that there is no pct.
# VMIDs run from 100 to 999999999 without a leading zero (pve-common's `pve-vmid`).
HOPS: Final[Mapping[HopKind, Hop]] = MappingProxyType(
    {
        "pct": Hop(program="/usr/sbin/pct", guest=r"[1-9][0-9]{2,8}", wrap=_pct, start=("pct", "start")),
        "lxc": Hop(
            program="lxc-attach",
            guest=r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}",
            wrap=_lxc,
            start=("lxc-start", "-n"),
        ),
    }
)

_USER: Final = r"[A-Za-z_][A-Za-z0-9_.-]{0,31}"

# setpriv takes no "primary group of that user", so a shell asks for it. The words stay words: they are $0 and $1.
_AS_USER: Final = 'exec setpriv --reuid "$0" --regid "$(id -g "$0")" --init-groups /bin/sh -c "$1"'


def enter_argv(target: Target) -> Argv:
    """Compose the constant argv that starts stage 0 on a target.

    Raises:
        ValueError: when the guest's id or the user is not of the form that may stand on a command line.
    """
    argv: Argv = ("/bin/sh", "-c", STAGE0)
    if target.hop != "none":
        hop = HOPS[target.hop]
        if target.user not in (None, "root"):
            argv = ("/bin/sh", "-c", _AS_USER, _vetted(_USER, target.user, "a user name"), STAGE0)
        argv = hop.wrap(_vetted(hop.guest, target.guest, f"an id for {hop.program}"), argv)
    return ("sudo", "-n", *argv) if target.host.become == "sudo" else argv


def state_argv(target: Target) -> Argv | None:
    """Compose the argv that prints a guest's state (`RUNNING`, `FROZEN`, ...) on its host; None without a guest.

    A container of Proxmox is an LXC container by the name of its id; lxc-info asks its monitor, which answers for a
    frozen guest too.
    """
    if target.hop == "none":
        return None
    guest = _vetted(HOPS[target.hop].guest, target.guest, f"an id for {HOPS[target.hop].program}")
    argv = ("lxc-info", "-n", guest, "-s", "-H")
    return ("sudo", "-n", *argv) if target.host.become == "sudo" else argv


def _vetted(pattern: str, word: str | None, what: str) -> str:
    if word is None or not re.fullmatch(pattern, word):
        raise ValueError(f"{word!r} is not {what}")
    return word


# --- what the way in says when it fails -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """Map a text on stderr to an error code.

    `message` is formatted with the pattern's groups, `host`, `guest`, `user` and the whole `line`.
    """

    pattern: str
    code: str
    message: str
    hint: str | None = None


def _rule(pattern: str, code: str, message: str, hint: str | None = None) -> _Rule:
    return _Rule(pattern=pattern, code=code, message=message, hint=hint)


def _missing(program: str) -> str:
    """Match how bash, dash, zsh, fish, tcsh, busybox ash and sudo say that there is no such program."""
    name = rf"(?:\S*/)?{re.escape(program.rpartition('/')[2])}"
    said = "(?:command not found|not found|no such file or directory|unknown command)"
    return rf"(?:^|[\s:'\"]){name}'?: {said}|{said}[:.]? '?{name}(?:'|\s|$)"


# Texts of pve-container 4 to 6, LXC 4 to 7, sudo 1.8 and 1.9, sudo-rs, setpriv of util-linux and BusyBox; each is
# tested.
_SUDO: Final = (
    _rule(
        _missing("sudo"),
        "sudo_refused",
        "there is no sudo on {host}",
        "Install sudo there, or log in as root without `become`.",
    ),
    _rule(
        r"(?:password|terminal|interactive authentication) is required|no askpass|must have a tty",
        "sudo_refused",
        "sudo on {host} wants a password",
    ),
    _rule(
        r"not allowed to|not in the sudoers|may not run |no valid sudoers|afraid I can't do that|no new privileges",
        "sudo_refused",
        "sudo on {host} refuses the command: {line}",
    ),
)
_GUEST: Final = (
    _rule(r'failed to exec "(?P<name>[^"]+)"', "shell_missing", "{guest} on {host} cannot execute {name}"),
    _rule(
        r"failed to get (?:init pid|attach context)",
        "guest_stopped",
        "{guest} on {host} is not running, or there is no such guest",
    ),
    _rule(
        r"no such user|unknown user|failed to parse reuid",
        "user_unknown",
        "{guest} on {host} has no user {user}",
    ),
    _rule(
        _missing("setpriv") + r"|unrecognized option:? '?(?:--)?reuid",
        "user_unknown",
        "{guest} on {host} has no setpriv that can change to the user {user}",
        "Install util-linux in the guest, or leave `user` out to run as root there.",
    ),
    _rule(r"^setpriv: .*", "user_unknown", "the user {user} cannot be taken on in {guest} on {host}: {line}"),
)
_ORDINARY: Final = "Log in as a user who has an ordinary shell and no ForceCommand."
_LOGIN: Final = (
    _rule(r": restricted", "enter_failed", "the login shell on {host} is a restricted one: {line}", _ORDINARY),
    _rule(
        r"account is (?:currently )?not available|allows sftp connections only",
        "enter_failed",
        "this login may run no commands on {host}: {line}",
        _ORDINARY,
    ),
)
_NO_VENV: Final = (
    "Correct `venv` for this target; or set `python: python3` instead of it (`--python python3`), to do without one."
)
_RULES: Final[Mapping[HopKind, tuple[_Rule, ...]]] = MappingProxyType(
    {
        "pct": (
            _rule(_missing("pct"), "pct_missing", "there is no pct on {host}"),
            _rule(
                r"please run as root|(?:access control list|ipcc_send_rec).*unknown error -1"
                r"|pct: permission denied|permission denied: \S*pct",
                "not_permitted",
                "this login may not use pct on {host}",
            ),
            _rule(
                r"insecure \$env\{(?P<name>\w+)\} while running",
                "enter_failed",
                "pct on {host} runs nothing while {name} is in the environment of this login",
                "Unset it there: it is set in ~/.bashrc, ~/.ssh/environment, /etc/environment or sshd_config (SetEnv).",
            ),
            _rule(
                r"configuration file 'nodes/(?P<node>[^/']+)/lxc/\d+\.conf' does not exist",
                "guest_not_found",
                "the node {node} ({host}) has no container {guest}",
            ),
            _rule(
                r"parameter verification failed",
                "guest_not_found",
                "pct on {host} does not take {guest} for a container's id",
            ),
            _rule(r"container '?\w+'? not running", "guest_stopped", "container {guest} on {host} is not running"),
            *_GUEST,
            _rule(
                r"unable to load access control list: .*|ipcc_send_rec.*",
                "enter_failed",
                "pct on {host} cannot reach the cluster file system: {line}",
                "Check that pve-cluster runs on the host (`systemctl status pve-cluster`).",
            ),
            *_LOGIN,
        ),
        "lxc": (
            _rule(_missing("lxc-attach"), "lxc_missing", "there is no lxc-attach on {host}"),
            *_GUEST,
            _rule(
                r"you lack access to|insuffici?ent privileges"
                r"|lxc-attach: .*(?:permission denied|operation not permitted)",
                "not_permitted",
                "this login may not use lxc-attach on {host}",
                "Log in as root, or set `become: sudo` and allow lxc-attach in sudoers without a password.",
            ),
            *_LOGIN,
        ),
        "none": (
            _rule(_missing("/bin/sh"), "shell_missing", "there is no /bin/sh on {host}"),
            *_LOGIN,
        ),
    }
)


def diagnose(target: Target, *, exit_status: int | None, signal: str | None, stderr: str, noise: str) -> TargetError:
    """Say why stage 0 never answered.

    Args:
        target: where it was tried.
        exit_status: of the remote command, None when it has none.
        signal: its name without SIG when one ended the command.
        stderr: what the command wrote there.
        noise: what came on stdout; stage 0's own lines stand there.
    """
    said, heard = ("\n".join(_lines(text)) for text in (stderr, noise))
    ended = _ending(exit_status, signal, "\n".join(part for part in (said, heard) if part))
    told = _from_marks(target, noise)
    if told is None and FOUND in noise:
        told = TargetError("interpreter_broken", f"{target.id}: {target.interpreter} {ended}")
    rules = (*(_SUDO if target.host.become else ()), *_RULES[target.hop])
    # Shells that run no commands say so on stdout.
    told = told or _from_rules(target, rules, said) or _from_rules(target, _LOGIN, heard)
    if told is not None:
        return told
    hint = None if said or noise or signal is not None else _try_by_hand(target.host)
    return TargetError("enter_failed", f"{target.id}: the command that enters the target {ended}", hint=hint)


def how_it_ended(exit_status: int | None, signal: str | None, stderr: str) -> str:
    """Say how the Python on a target ended, once it had answered, with the last that it said."""
    return _ending(exit_status, signal, "\n".join(_lines(stderr)))


# How a terminal repeats bytes that are no text; no greeting has so many of them.
_ECHOED: Final = re.compile(r"\^@\^@|(?:\^[@-_][^^]*){8}")


def _from_marks(target: Target, noise: str) -> TargetError | None:
    # A terminal repeats what was sent, the texts of marks among it; and some bytes are signals to it, which end stage 0
    # before it can say anything.
    if re.search(rf"{MARK} terminal\r?$", noise, re.MULTILINE) or _ECHOED.search(noise):
        return TargetError(
            "enter_failed",
            f"{target.id}: {target.host.key} gives every command a terminal, which changes what passes through it",
            hint="Let the login run commands without one: look for a ForceCommand, a login shell or a recorder of "
            "sessions that calls `script` or the like.",
        )
    old = re.search(rf"{MARK} python-too-old ([0-9]\S*) (.*)", noise)
    if old:
        return TargetError(
            "python_too_old", f"{target.id}: {_cut(old[2])} is Python {_cut(old[1])}; remoterun needs 3.8 or later"
        )
    missing = re.search(rf"{MARK} no-interpreter (.*)", noise)
    return _no_interpreter(target, _cut(missing[1]), noise) if missing else None


def _no_interpreter(target: Target, path: str, noise: str) -> TargetError:
    # Places that are looked through overlap.
    paths = dict.fromkeys(re.findall(rf"{MARK} found (.*)", noise))
    found = [_cut(each).removesuffix("/bin/python") for each in paths][:20]
    seen = f"; virtual environments found there: {', '.join(found)}" if found else ""
    hint = (
        f"Set `venv: {found[0]}` for this target, or give `--venv {shlex.quote(found[0])}`."
        if len(found) == 1
        else None
    )
    link = re.search(rf"{MARK} leads-to (.*)", noise)
    closed = re.search(rf"{MARK} closed (.*)", noise)
    if closed:
        leads = f" is a link to {_cut(link[1])}, and" if link else " can't be looked at:"
        return TargetError(
            "interpreter_broken",
            f"{target.id}: {path}{leads} {_cut(closed[1])} may not be entered: permission denied{seen}",
            hint=hint or "Run as a user who may enter it (`user` in the inventory), or name a Python that may be read.",
        )
    if link:
        return TargetError(
            "interpreter_broken",
            f"{target.id}: {path} is a link to {_cut(link[1])}, which is not there{seen}",
            hint=hint or "The Python that it was made with is gone: install that again, or make the environment anew.",
        )
    if f"{MARK} not-executable" in noise:
        return TargetError(
            "interpreter_broken",
            f"{target.id}: {path} is there, but cannot be executed{seen}",
            hint=hint or "Look at its mode (`ls -l`), and whether its file system is mounted noexec (`findmnt -T`).",
        )
    if target.venv is not None:
        seen = seen or "; none was found in the usual places either"
        hint = hint or (None if found else _NO_VENV)
        return TargetError("venv_missing", f"{target.id}: no virtual environment at {target.venv}{seen}", hint=hint)
    return TargetError("interpreter_missing", f"{target.id}: no Python at {path}{seen}", hint=hint)


def _from_rules(target: Target, rules: Iterable[_Rule], said: str) -> TargetError | None:
    for rule in rules:
        match = re.search(rule.pattern, said, re.IGNORECASE | re.MULTILINE)
        if match:
            start = said.rfind("\n", 0, match.start()) + 1
            line = said[start:].partition("\n")[0]
            words = {key: _cut(value or "") for key, value in match.groupdict().items()}
            text = rule.message.format(
                host=target.host.key, guest=target.guest, user=target.user, line=_cut(line), **words
            )
            hint = _start(target) if rule.code == "guest_stopped" else rule.hint
            return TargetError(rule.code, f"{target.id}: {text}", hint=hint)
    return None


# --- commands to type -------------------------------------------------------------------------------------------------


def _start(target: Target) -> str:
    hop = HOPS["lxc" if target.hop == "lxc" else "pct"]
    return f"Start it on {target.host.key} (`{_on_host(target, *hop.start)}`), then run again."


def _on_host(target: Target, *words: str) -> str:
    """Write what is to be typed on the host, by the login that there is, to do something about the guest."""
    sudo = ("sudo",) if target.host.become == "sudo" else ()
    return shlex.join((*sudo, *words, target.guest or "ID"))


def frozen(target: Target, message: str, limit: tuple[str, float, str] | None) -> TargetError:
    """Say that a guest is frozen, and what thaws it: Proxmox has no command for that, and its containers are of LXC."""
    thaw = _on_host(target, "lxc-unfreeze", "-n")
    hint = f"Is a backup running? Thaw it on {target.host.key} (`{thaw}`) or wait, then run again."
    return TargetError("guest_frozen", f"{target.id} is frozen: {message}", hint=hint, limit=limit)


def _try_by_hand(host: Host) -> str | None:
    """Say how to see what a login does with commands; None for this machine, where nobody logs in."""
    if host.transport == "local":
        return None
    words = ["ssh", *(("-F", host.ssh_config) if host.ssh_config else ())]
    words += [word for file in host.identity_files for word in ("-i", file)]
    words += ["-p", str(host.port)] if host.port else []
    if host.jump is not None:
        words += ["-J", ",".join(map(_login_and_port, host.jump)) or "none"]
    command = shlex.join([*words, _login(host), "true"])
    return f"Try `{command}` by hand: the login's shell, or a ForceCommand, may run no commands."


def _login(host: Host) -> str:
    return f"{host.user}@{host.address}" if host.user else host.address


def _login_and_port(host: Host) -> str:
    if not host.port:
        return _login(host)
    address = f"[{host.address}]" if ":" in host.address else host.address
    return f"{host.user}@{address}:{host.port}" if host.user else f"{address}:{host.port}"


def _ending(exit_status: int | None, signal: str | None, said: str) -> str:
    told = f": {_last(said)}" if said else " and said nothing"
    if signal is not None:
        return f"was ended by signal {_cut(signal)}{told}"
    if exit_status is None:
        return f"ended without a status{told}"
    return f"ended with status {exit_status}{_signal_of(exit_status)}{told}"


def _signal_of(exit_status: int) -> str:
    """Name the signal that a shell or pct passes on as a status."""
    import signal

    number = exit_status - 128
    return f" ({signal.Signals(number).name})" if number in {*signal.Signals} else ""


# --- text from a target -----------------------------------------------------------------------------------------------

# Perl's and bash's complaints about a locale that the client sent; and fish's echo of the whole command line.
_CHATTER: Final = (
    r"^(?:perl: warning: |\s+(?:LANGUAGE|L(?:ANG|C_\w+)) = |\s+are supported and installed on your system)"
    rf"|setlocale: |{MARK}|^fish:\s*$|^\^~*\^?$"
)


def _lines(text: str) -> Iterator[str]:
    """Yield the lines of a target's text that say something, without control characters, at most the last 16 KiB."""
    for line in text[-16384:].replace("\r", "\n").split("\n"):
        visible = clean(line).rstrip()
        if visible and not re.search(_CHATTER, visible):
            yield visible


def _cut(text: str, limit: int = 200) -> str:
    visible = clean(text).strip()
    return visible if len(visible) <= limit else visible[: limit - 3] + "..."


def _last(text: str) -> str:
    return " | ".join(_cut(line) for line in text.split("\n")[-3:])
