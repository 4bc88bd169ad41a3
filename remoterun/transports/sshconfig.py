"""ssh_config, read as OpenSSH reads it.

asyncssh's own reader gives up at a comment behind a value, takes the files of an Include in any order and editors' swap
files among them, knows no tokens in `Match exec` and `UserKnownHostsFile`, and stops at values of options that mean
nothing here.
"""

from __future__ import annotations

import glob
import hashlib
import ipaddress
import os
import re
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

Settings: TypeAlias = "Mapping[str, Sequence[str]]"
"""The words of each option that is set, by its name in small letters."""

SYSTEM_CONFIG: Final = "/etc/ssh/ssh_config"

_DEPTH: Final = 16
_BLOCKS: Final = frozenset({"host", "match", "include"})
_GATHERED: Final = frozenset({"identityfile", "certificatefile"})
_RAW: Final = frozenset({"proxycommand", "remotecommand", "localcommand", "knownhostscommand"})
_OTHER_NAMES: Final = {"challengeresponseauthentication": "kbdinteractiveauthentication"}
# Options of which tokens and, but for a command, names of the environment are replaced.
_EXPANDED: Final = ("identityfile", "certificatefile", "identityagent", "userknownhostsfile", "proxycommand")

_PIECE: Final = re.compile(r"""\\["'\\ ]|"(?:\\["'\\]|[^"])*"|'(?:\\["'\\]|[^'])*'|[^"']""")
_SPECIAL: Final = re.compile(r"""["'\\#]""")
_LINE: Final = re.compile(r'\s*"?([A-Za-z0-9]+)"?[ \t]*=?[ \t]*(.*?)\s*$')


class ConfigError(Exception):
    """Say what cannot be read, and where."""


def read(paths: Iterable[str], host: str, user: str | None, port: int | None, local_user: str) -> Settings:
    """Return what the files say of a host. Blocks: it runs `Match exec`, and resolves names that are to be canonical.

    Raises:
        ConfigError: a file cannot be read.
    """
    reader, files = _Reader(host, user, port, local_user), tuple(paths)
    reader.read_all(files)
    canonicalize = reader.first("canonicalizehostname", "no").lower() not in {"no", "false"}
    reader.name = reader.host_name().lower()
    if canonicalize:
        reader.name = _canonical(reader) or reader.name
    reader.found["hostname"] = [reader.name]
    if canonicalize or reader.asks_again:
        reader.again = True
        reader.read_all(files)
    if "hostkeyalias" in reader.found:
        reader.found["hostkeyalias"] = [reader.first("hostkeyalias", "").lower()]
    for option in _EXPANDED:
        if option in reader.found:
            reader.found[option] = [reader.expand(word, option) for word in reader.found[option]]
    return reader.found


class _Reader:
    """Gather what files say of one host; of most options the first word counts.

    `name` is what Host is compared with: what was typed, and its HostName when the files are read again.
    """

    def __init__(self, host: str, user: str | None, port: int | None, local_user: str) -> None:
        self.typed = self.name = host
        self.local_user = local_user
        self.again = self.asks_again = False
        self.found: dict[str, list[str]] = {}
        if user:
            self.found["user"] = [user]
        if port:
            self.found["port"] = [str(port)]

    def first(self, option: str, default: str) -> str:
        """Return the first word of an option."""
        return self.found.get(option, [default])[0]

    def read_all(self, paths: Iterable[str]) -> None:
        """Read files, the first word of each option before later ones."""
        for path in paths:
            self._read(path, str(Path(SYSTEM_CONFIG).parent) if path == SYSTEM_CONFIG else "~/.ssh", 0)

    def _read(self, path: str, folder: str, depth: int, *, counts: bool = True) -> None:
        """Read a file; where it does not count, only to see whether anything in it asks to be read again."""
        if depth > _DEPTH:
            raise ConfigError(f"{path}: too many files include each other")
        active = counts
        text = Path(path).read_text(encoding="utf-8", errors="surrogateescape")
        for number, line in enumerate(text.split("\n"), 1):
            parts = _LINE.match(line)
            option, rest = (parts[1].lower(), parts[2]) if parts is not None else ("", "")
            if not (active or option in _BLOCKS):
                continue
            try:
                words = _words(rest)
                if option == "host":
                    active = counts and _listed(words, self.name)
                elif option == "match":
                    active = self._matches(words, counts=counts)
                elif option == "include":
                    for each in _included(words, folder):
                        self._read(each, folder, depth + 1, counts=active)
                elif words:
                    self._take(_OTHER_NAMES.get(option, option), words, rest)
            except ValueError as error:
                raise ConfigError(f"{path} line {number}: {error}") from error

    def _take(self, option: str, words: list[str], rest: str) -> None:
        if option == "port" and not words[0].isdecimal():
            raise ValueError(f"{words[0]} is no port")
        if option in _RAW:
            words = [rest.lstrip(" \t=")]
        if option in _GATHERED:
            kept = self.found.setdefault(option, [])
            kept += [words[0]] if words[0] not in kept else []
        elif not self._is_beaten(option, words[0]):
            self.found.setdefault(option, words)

    def _is_beaten(self, option: str, word: str) -> bool:
        """Tell whether the first of ProxyCommand and ProxyJump is the other one; `ProxyJump none` beats none."""
        if option == "proxycommand":
            return self.first("proxyjump", "none").lower() != "none"
        return option == "proxyjump" and word.lower() != "none" and "proxycommand" in self.found

    # --- Match ---

    def _matches(self, words: list[str], *, counts: bool) -> bool:
        words, result = list(words), counts
        while words:
            name, is_joined, argument = words.pop(0).partition("=")
            negated, name = name.startswith("!"), name.lstrip("!").lower()
            if name in {"all", "canonical", "final"}:
                # Each of the two is true whenever the files are read again, whatever that was for.
                self.asks_again = self.asks_again or name == "final"
                holds = name == "all" or self.again
            else:
                if not is_joined and not words:
                    raise ValueError(f"Match {name} says nothing to match")
                holds = self._holds(name, argument if is_joined else words.pop(0), asked=result)
            result = result and holds != negated
        return result

    def _holds(self, name: str, argument: str, *, asked: bool) -> bool:
        if name == "exec":
            return asked and self._succeeds(self._replaced(argument))
        if name == "localnetwork":
            return any(_is_here(network.strip()) for network in argument.split(","))
        values: dict[str, Callable[[], str]] = {
            "host": self.host_name,
            "originalhost": lambda: self.typed,
            "user": lambda: self.first("user", self.local_user),
            "localuser": lambda: self.local_user,
            "tagged": lambda: self.first("tag", ""),
            "sessiontype": lambda: "exec",
        }
        if name not in values:
            raise ValueError(f"Match {name} is not known here")
        value = values[name]()
        if name in {"host", "originalhost"}:
            argument, value = argument.lower(), value.lower()
        return _listed(argument.split(","), value)

    @staticmethod
    def _succeeds(command: str) -> bool:
        shell = os.environ.get("SHELL") or "/bin/sh"
        quiet = subprocess.DEVNULL
        return (
            subprocess.run([shell, "-c", command], check=False, stdin=quiet, stdout=quiet, stderr=quiet).returncode == 0
        )

    # --- tokens ---

    def host_name(self) -> str:
        """Return the name or address to connect to, as far as it is known."""
        return re.sub("%([%h])", lambda token: "%" if token[1] == "%" else self.name, self.first("hostname", self.name))

    def expand(self, word: str, option: str) -> str:
        """Replace tokens and, but in a command, names of the environment."""
        try:
            word = self._replaced(word)
            return word if option == "proxycommand" else re.sub(r"\$\{(.*?)\}", _variable, word)
        except ValueError as error:
            raise ConfigError(f"{option} {word}: {error}") from error

    def _replaced(self, text: str) -> str:
        tokens: dict[str, Callable[[], str]] = {
            "%": lambda: "%",
            "C": self._connection_hash,
            "d": lambda: str(Path.home()),
            "h": self.host_name,
            "i": lambda: str(os.getuid()),
            "j": lambda: self.first("proxyjump", ""),
            "k": lambda: self.first("hostkeyalias", self.typed),
            "L": lambda: socket.gethostname().partition(".")[0],
            "l": socket.gethostname,
            "n": lambda: self.typed,
            "p": lambda: self.first("port", "22"),
            "r": lambda: self.first("user", self.local_user),
            "u": lambda: self.local_user,
        }

        def replace(token: re.Match[str]) -> str:
            if token[1] not in tokens:
                raise ValueError(f"there is no token %{token[1]}")
            return tokens[token[1]]()

        return re.sub("%(.?)", replace, text)

    def _connection_hash(self) -> str:
        return hashlib.sha1(self._replaced("%l%h%p%r%j").encode(), usedforsecurity=False).hexdigest()


def _variable(name: re.Match[str]) -> str:
    value = os.environ.get(name[1])
    if value is None:
        raise ValueError(f"{name[1]} is not in the environment")
    return value


def _words(text: str) -> list[str]:
    """Take a line apart: words may be quoted, and a comment ends it."""
    if not _SPECIAL.search(text):
        return text.split()
    words: list[str] = []
    at, inside = 0, False
    while at < len(text):
        piece = _PIECE.match(text, at)
        if piece is None:
            raise ValueError("a quotation mark has no other")
        at, said = piece.end(), piece[0]
        if said in " \t":
            inside = False
            continue
        if not inside:
            if said == "#":
                break
            words.append("")
            inside = True
        quoted = said[0] in "\"'"
        words[-1] += re.sub(r"""\\(["'\\])""", r"\1", said[1:-1]) if quoted else said[-1]
    return words


def _listed(patterns: Iterable[str], value: str) -> bool:
    """Tell whether a value is of a list with wildcards, and not of what stands in it with an exclamation mark."""
    listed = False
    for pattern in patterns:
        wild = re.escape(pattern.lstrip("!")).replace(r"\*", ".*").replace(r"\?", ".")
        if re.fullmatch(wild, value, re.DOTALL):
            if pattern.startswith("!"):
                return False
            listed = True
    return listed


def _included(patterns: Iterable[str], folder: str) -> list[str]:
    paths = (Path(pattern) if pattern.startswith("~") else Path(folder, pattern) for pattern in patterns)
    # Unlike that of Path, this glob leaves hidden files out.
    found = (path for pattern in paths for path in sorted(glob.glob(str(pattern.expanduser()))))  # noqa: PTH207
    return [path for path in found if os.access(path, os.R_OK) and Path(path).is_file()]


def _is_here(network: str) -> bool:
    """Tell whether this machine would talk to a network from an address in it."""
    block = ipaddress.ip_network(network, strict=False)
    family = socket.AF_INET if block.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect((str(block[min(1, block.num_addresses - 1)]), 9))  # sends nothing
        except OSError:
            return False
        return ipaddress.ip_address(sock.getsockname()[0].partition("%")[0]) in block


def _canonical(reader: _Reader) -> str | None:
    """Look for a name in the canonical domains; None where it is to be left as it is."""
    proxied = reader.first("proxycommand", "none") != "none" or reader.first("proxyjump", "none") != "none"
    if proxied and reader.first("canonicalizehostname", "no").lower() != "always":
        return None
    dots = reader.first("canonicalizemaxdots", "1")
    if reader.name.count(".") > (int(dots) if dots.isdecimal() else 1) or _is_address(reader.name):
        return None
    for domain in reader.found.get("canonicaldomains", []):
        try:
            socket.getaddrinfo(f"{reader.name}.{domain}", None)
        except (OSError, UnicodeError):
            continue
        return f"{reader.name}.{domain}".lower()
    if reader.first("canonicalizefallbacklocal", "yes").lower() in {"no", "false"}:
        raise ConfigError(f"{reader.name} is in none of CanonicalDomains")
    return None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
