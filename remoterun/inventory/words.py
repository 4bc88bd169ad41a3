"""The kinds of text that reach a command line, a resolver or a terminal: each with its pattern and its rule in words.

Standard library only: flags and ad hoc targets are checked with these where no file, and so no pydantic, is involved.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from remoterun.errors import show
from remoterun.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """Describe a kind of text: what it is, the pattern all of it matches, and the rule as a user reads it.

    `pattern` keeps to what Python's `re` and the regular expressions of JSON Schema (ECMA 262) have in common.
    """

    what: str
    pattern: str
    rule: str

    def check(self, text: str) -> str:
        """Return the text itself.

        Raises:
            ValueError: it does not match; the message is meant for the user.
        """
        if re.fullmatch(self.pattern, text) is None:
            raise ValueError(f"{show(text)} is not {self.what}: {self.rule}")
        return text

    def fits(self, text: str) -> bool:
        """Tell whether the text is of this kind."""
        return re.fullmatch(self.pattern, text) is not None


# Control characters (C0, DEL, C1) and the two separators that some programs take for a newline.
_PRINTABLE: Final = r"[^\x00-\x1f\x7f-\x9f\u2028\u2029]"

NAME: Final = Word(
    what="a name",
    pattern=r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}",
    rule="use letters, digits, '.', '_' and '-', a letter or digit first",
)
VARIABLE: Final = Word(
    what="the name of a variable",
    pattern=r"[A-Za-z_][A-Za-z0-9_.-]{0,127}",
    rule="use letters, digits, '_', '.' and '-', a letter or '_' first",
)
ENV_NAME: Final = Word(
    what="the name of an environment variable",
    pattern=r"[A-Za-z_][A-Za-z0-9_]{0,255}",
    rule="use letters, digits and '_', no digit first",
)
ADDRESS: Final = Word(
    what="an address",
    # With one colon it is a name and a port: IPv6 has two at least.
    pattern=r"(?![^:]*:[^:]*$)[A-Za-z0-9_:][A-Za-z0-9_.:%-]{0,254}",
    rule="write a host name, an IPv4 or an IPv6 address, without a port, spaces, brackets or a leading '-'",
)
# ssh_config may put the user's name on a command line (%r in ProxyCommand), so no shell character is let in.
LOGIN_USER: Final = Word(
    what="a user name",
    pattern=r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,63}",
    rule="use letters, digits, '_', '.', '@', '+' and '-', no '-' first",
)
GUEST_USER: Final = Word(
    what="a user name",
    pattern=r"[A-Za-z_][A-Za-z0-9_.-]{0,31}",
    rule="use letters, digits, '_', '.' and '-', a letter or '_' first, at most 32 characters",
)
VMID: Final = Word(
    what="a VMID",
    pattern=r"[1-9][0-9]{2,8}",
    rule="pct knows guests by a whole number from 100 to 999999999; for other LXC guests set hop to lxc",
)
VENV: Final = Word(
    what="a virtual environment's folder",
    # What people take for it.
    pattern=rf"(?!.*/bin/(python[0-9.]*|activate)$)/{_PRINTABLE}{{0,4000}}",
    rule="write its absolute path on the target, without control characters (/opt/venv, not /opt/venv/bin/python)",
)
PYTHON: Final = Word(
    what="an interpreter",
    pattern=rf"/{_PRINTABLE}{{1,4000}}|[A-Za-z0-9][A-Za-z0-9._+-]{{0,127}}",
    rule="write an absolute path on the target or a bare name such as python3.11, without control characters",
)
LOCAL_PATH: Final = Word(
    what="a path",
    pattern=rf"{_PRINTABLE}{{1,4000}}",
    rule="write the path of a file on this machine, without control characters",
)
FINGERPRINT: Final = Word(
    what="a host key's fingerprint",
    pattern=r"SHA256:[A-Za-z0-9+/]{43}=?",
    rule="write SHA256:... as `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` prints it on the host",
)
ACCEPT_NEW: Final = "accept-new"
STRICT: Final = "strict"
HOST_KEY: Final = Word(
    what="a host key's fingerprint",
    pattern=rf"{FINGERPRINT.pattern}|{ACCEPT_NEW}|{STRICT}",
    rule=f"{FINGERPRINT.rule}, or {ACCEPT_NEW}, or {STRICT}",
)
# The number's length is bounded so that no limit becomes infinite.
DURATION: Final = Word(
    what="a duration",
    pattern=r"none|(?=[0-9.]*[1-9])[0-9]{1,9}(\.[0-9]{1,9})?(ms|s|m|h|d)",
    rule="write 500ms, 30s, 20m, 2h or none",
)
PAYLOAD: Final = Word(
    what="a payload",
    pattern=r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}(@[=0-9.]{1,40})?",
    rule="write its name, or name@version such as check-ckpt@1, check-ckpt@1.2 or check-ckpt@=1.2.0",
)
RULE: Final = Word(
    what="a rule's id",
    pattern=r"[A-Za-z][A-Za-z0-9_-]{0,63}",
    rule="use letters, digits, '_' and '-', a letter first, such as CK054",
)
PATTERN: Final = Word(
    what="a pattern of targets",
    pattern=rf"{_PRINTABLE}{{1,400}}",
    rule="write a target's id or name, a host, a group, a glob, tag:NAME or all",
)

RESERVED: Final = frozenset({"all", "none"})
"""Names that mean something of their own in a selection or a jump chain."""

HIGHEST_PORT: Final = 65535
LONGEST_WORD: Final = 131_071
"""The kernel's limit for one NAME=value (MAX_ARG_STRLEN, less its closing NUL)."""


def check_env(name: str, value: str) -> None:
    """Refuse an environment variable that no process can be given.

    Raises:
        ValueError: the name is none, the value no text or with a NUL, or the two are longer than the kernel takes.
    """
    ENV_NAME.check(name)
    if not isinstance(value, str):  # from a program, where nobody has checked it
        raise ValueError(f"must be text, not {show(value)}")
    if "\0" in value:
        raise ValueError("the value holds a NUL character, which no environment variable can")
    size = len(f"{name}={value}".encode("utf-8", "surrogateescape"))
    if size > LONGEST_WORD:
        raise ValueError(f"name and value take {size} bytes; the kernel's limit is {LONGEST_WORD}")


def local_path(text: str, folder: Path) -> str:
    """Return the absolute path of a file on this machine: `~` expanded, relative paths taken from `folder`.

    Raises:
        ValueError: not a path, or ``~name`` of an unknown user.
    """
    LOCAL_PATH.check(text)
    try:
        return str((folder / Path(text).expanduser()).absolute())
    except RuntimeError as error:
        raise ValueError(f"{show(text)}: {error}") from error


def config_path(text: str, folder: Path) -> str:
    """Return the absolute path of an ssh_config file, or ``none``.

    Raises:
        ValueError: not a path.
    """
    return text if text == "none" else local_path(text, folder)


def host_keys(texts: Sequence[str]) -> tuple[tuple[str, ...], bool]:
    """Return pinned fingerprints, and whether the first key of an unknown host is to be trusted.

    Raises:
        ValueError: neither fingerprints nor one of the two words alone.
    """
    if list(texts) in ([ACCEPT_NEW], [STRICT]):
        return (), texts[0] == ACCEPT_NEW
    if alone := [text for text in texts if text in (ACCEPT_NEW, STRICT)]:
        raise ValueError(f"{alone[0]} stands alone: pinned fingerprints say already what is trusted")
    return tuple(map(fingerprint, texts)), False


def fingerprint(text: str) -> str:
    """Return a host key's fingerprint as OpenSSH prints it, without padding.

    Raises:
        ValueError: not a SHA256 fingerprint.
    """
    return FINGERPRINT.check(text).rstrip("=")
