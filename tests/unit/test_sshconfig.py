"""ssh_config means what it means to OpenSSH: the same files are given to `ssh -G`."""

from __future__ import annotations

import os
import pwd
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from remoterun.transports.sshconfig import ConfigError, Settings, read
from tests.support.programs import needed


def setting(folder: Path, text: str | bytes, *, host: str = "box", me: str = "me") -> Settings:
    """Read one file."""
    config = folder / "config"
    config.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read([str(config)], host, None, None, me)


# --- what asyncssh's own reader got wrong -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "HostName a#b # mine",
        "HostName\ta#b\r",
        'HostName "a#b"',
        "HostName=a#b",
        "hostname  =  a\\#b".replace("\\", ""),
    ],
)
def test_a_line_is_taken_apart(tmp_path: Path, line: str) -> None:
    assert setting(tmp_path, f"Host box # mine\n {line}\n")["hostname"] == ["a#b"]


def test_quoted_words_and_escapes(tmp_path: Path) -> None:
    found = setting(tmp_path, 'IdentityFile "/my keys/\\"a\\""\nIdentityFile /my\\ keys/\'b\'c\n')
    assert found["identityfile"] == ['/my keys/"a"', "/my keys/bc"]


def test_a_comment_in_another_encoding_is_only_a_comment(tmp_path: Path) -> None:
    assert setting(tmp_path, b"# f\xfcr mich\nPort 7\n")["port"] == ["7"]


def test_files_are_included_in_their_order_and_hidden_ones_not_at_all(tmp_path: Path) -> None:
    folder = tmp_path / "more"
    folder.mkdir()
    for name in ("40", "20", "30", "10", "50"):
        (folder / name).write_text(f"Host box\n Port {name}\n")
    (folder / ".config.swp").write_bytes(b"b0VIM\0\xff\nPort 1\n")
    assert setting(tmp_path, f"Include {folder}/*\n")["port"] == ["10"]


def test_what_is_included_ends_no_block(tmp_path: Path) -> None:
    (tmp_path / "more").write_text("Host other\n Port 1\n")
    assert setting(tmp_path, f"Host box\n Include {tmp_path}/more\n Port 7\nHost *\n Port 8\n")["port"] == ["7"]


def test_files_that_include_themselves_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="include each other"):
        setting(tmp_path, f"Include {tmp_path}/config\n")


def test_a_command_of_match_may_have_equals_signs_and_tokens(tmp_path: Path) -> None:
    assert setting(tmp_path, 'Match exec "[ %n-%p = box-22 ]"\n User root\n')["user"] == ["root"]


def test_a_command_is_run_only_where_all_before_it_holds(tmp_path: Path) -> None:
    setting(tmp_path, f'Match host other exec "touch {tmp_path}/ran"\n User root\n')
    assert not (tmp_path / "ran").exists()


def test_case_does_not_count_in_what_match_says_of_hosts(tmp_path: Path) -> None:
    text = "Match originalhost BOX\n Port 7\nMatch host bOx user Me\n User root\nMatch !host box\n Port 8\n"
    found = setting(tmp_path, text, host="Box")
    assert (found["port"], found.get("user")) == (["7"], None)


def test_the_other_name_of_a_host_key_is_written_small(tmp_path: Path) -> None:
    assert setting(tmp_path, "HostKeyAlias Web\n")["hostkeyalias"] == ["web"]


def test_files_of_known_hosts_have_tokens_and_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEYS", "/keys")
    text = (
        "HostName 10.0.0.6\nHostKeyAlias six\nUserKnownHostsFile ${KEYS}/%k /other/%h\nProxyCommand nc ${NONE:-%h} %p\n"
    )
    found = setting(tmp_path, text)
    assert found["userknownhostsfile"] == ["/keys/six", "/other/10.0.0.6"]
    assert found["proxycommand"] == ["nc ${NONE:-10.0.0.6} 22"]


@pytest.mark.parametrize(
    ("text", "command", "jump"),
    [
        ("ProxyCommand none\nProxyJump gate\n", "none", "none"),
        ("ProxyCommand nc %h\nProxyJump gate\n", "nc box", "none"),
        ("ProxyJump gate\nProxyCommand nc %h\n", "none", "gate"),
        ("ProxyJump none\nProxyCommand nc %h\nProxyJump gate\n", "nc box", "none"),
    ],
)
def test_of_proxycommand_and_proxyjump_the_first_counts(tmp_path: Path, text: str, command: str, jump: str) -> None:
    found = setting(tmp_path, text)
    assert (found.get("proxycommand", ["none"]), found.get("proxyjump", ["none"])) == ([command], [jump])


def test_values_of_options_that_mean_nothing_here_stop_nothing(tmp_path: Path) -> None:
    assert setting(tmp_path, "ConnectTimeout 1m30s\nServerAliveInterval 1m\nForwardAgent maybe\nPort 7\n")["port"] == [
        "7"
    ]


def test_the_network_that_this_machine_is_in(tmp_path: Path) -> None:
    text = "Match localnetwork 203.0.113.0/24\n Port 1\nMatch localnetwork 203.0.113.0/24,127.0.0.0/8\n Port 7\n"
    assert setting(tmp_path, text)["port"] == ["7"]


def test_a_name_is_looked_for_in_the_canonical_domains(tmp_path: Path) -> None:
    """A name whose last part has no dot is an address of this machine's loopback wherever 127.1 is one."""
    text = "CanonicalizeHostname yes\nCanonicalDomains invalid 0.1\nMatch canonical host 127.0.1\n Port 7\n"
    found = setting(tmp_path, text, host="127")
    assert (found["hostname"], found["port"]) == (["127.0.1"], ["7"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Host *\n Port many\n", "line 2: many is no port"),
        ('Host *\n HostName "a\n', "line 2: a quotation mark has no other"),
        ("Match command x\n", "line 1: Match command is not known here"),
        ("Match host\n", "line 1: Match host says nothing to match"),
        ("IdentityFile %y\n", "there is no token %y"),
        ("IdentityFile ${REMOTERUN_NOT_SET}\n", "REMOTERUN_NOT_SET is not in the environment"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        setting(tmp_path, text)
    assert said in str(caught.value)


# --- the same files, given to ssh -------------------------------------------------------------------------------------

BLOCKS = [
    *("Host box", "Host *", "Host b?x", "Host * !box", "Host !other b*", "Host other box", "Host 10.0.0.*", "Host BOX"),
    *("Match all", "Match final all", "Match !final all", "Match canonical all", "Match host 10.0.0.6,box"),
    *("Match host=box", "Match originalhost BOX", "Match user root", "Match !user root", "Match localuser nobody-here"),
    *(
        'Match host * exec "true"',
        'Match exec "false"',
        'Match exec "test %n%p = box22"',
        'Match !exec "false" host b*',
    ),
]
OPTIONS = [
    *(
        "HostName 10.0.0.6",
        "HostName %h.example",
        "hostname=10.0.0.7 # seven",
        "User root",
        'User "my self"',
        "User=you",
    ),
    *(
        "Port 22",
        "Port 2222",
        "HostKeyAlias Six",
        "IdentityFile /keys/a",
        "IdentityFile '/my keys/b'",
        "IdentityFile none",
    ),
    *("ProxyJump gate", "ProxyJump none", "ProxyJump me@gate:7,inner", "ProxyCommand none", "ProxyCommand = nc x"),
    *(
        "Include {folder}/sub/*",
        "Include {folder}/nothing",
        "Compression yes",
        "IdentitiesOnly = yes",
        "BindAddress 10.0.0.9",
    ),
]
DEFAULTS = {"hostname": "box", "port": "22", "compression": "no", "identitiesonly": "no"}
WORTH = (*DEFAULTS, "user", "hostkeyalias", "identityfile", "proxyjump", "proxycommand")

lines = st.lists(st.one_of(st.sampled_from(BLOCKS), st.sampled_from(OPTIONS)), max_size=12)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(main=lines, sub=st.lists(lines, min_size=2, max_size=2))
def test_any_file_means_what_it_means_to_ssh(tmp_path: Path, main: list[str], sub: list[list[str]]) -> None:
    ssh = needed("ssh")
    folder = tmp_path / "sub"
    folder.mkdir(exist_ok=True)
    for name, each in zip(("b", "a"), sub, strict=True):
        (folder / name).write_text("".join(f"{line}\n" for line in each if not line.startswith("Include")))
    text = (
        "".join(f"{line.format(folder=tmp_path)}\n" for line in main) + "Host *\nUser last\nIdentityFile /keys/last\n"
    )
    ours = setting(tmp_path, text, me=pwd.getpwuid(os.getuid()).pw_name)
    done = subprocess.run([ssh, "-F", tmp_path / "config", "-G", "box"], capture_output=True, text=True, check=True)
    theirs: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        option, _, value = line.partition(" ")
        theirs.setdefault(option, []).append(value)
    for option in WORTH:
        default = DEFAULTS.get(option, "none")
        said = (option, text, [path.read_text() for path in sorted(folder.iterdir())])
        assert ours.get(option, [default]) == theirs.get(option, [default]), said
