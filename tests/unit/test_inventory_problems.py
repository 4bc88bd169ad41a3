"""Inventory files with something wrong in them, and the two places where much can go wrong: jumps and groups."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from remoterun.errors import ConfigError, Problem
from remoterun.inventory import FILE_NAME
from remoterun.inventory.endpoints import MOST_JUMPS
from remoterun.model import Host
from tests.support.inventories import load, target

if TYPE_CHECKING:
    from collections.abc import Sequence


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / FILE_NAME


def problems(file: Path, text: str) -> tuple[Problem, ...]:
    with pytest.raises(ConfigError) as caught:
        load(file, text)
    assert all(problem.file == str(file) for problem in caught.value.problems)
    return caught.value.problems


def one_problem(file: Path, text: str) -> Problem:
    found = problems(file, text)
    assert len(found) == 1, [str(problem) for problem in found]
    return found[0]


def places(found: Sequence[Problem]) -> list[tuple[int | None, str | None]]:
    return [(problem.line, problem.path) for problem in found]


# --- jump hosts -------------------------------------------------------------------------------------------------------


def test_jump_chains_are_flat_and_each_host_stands_for_itself(file: Path) -> None:
    inventory = load(
        file,
        """
defaults: {user: u}
hosts:
  outer: {address: o.example}
  gate: {jump: outer}
  kpro6: {jump: "gate, ops@10.0.0.9:2200"}
  list: {jump: [gate, "[fd00::1]:22"]}
  direct: {jump: none}
""",
    )
    outer = Host(key="outer", address="o.example", user="u")
    gate = Host(key="gate", address="gate", user="u", jump=(outer,))
    ops = Host(key="ops@10.0.0.9:2200", address="10.0.0.9", port=2200, user="ops", jump=(outer, gate))
    assert inventory.hosts["kpro6"].jump == (outer, gate, ops)
    assert inventory.hosts["list"].jump is not None
    assert inventory.hosts["list"].jump[-1].address == "fd00::1"
    assert (inventory.hosts["direct"].jump, inventory.hosts["outer"].jump) == ((), None)


def test_the_default_jump_spares_the_hosts_on_its_way(file: Path) -> None:
    inventory = load(
        file,
        """
defaults: {jump: [gate, bastion]}
hosts:
  kpro6: {}
  bastion: {}
  gate: {jump: outer}
  outer: {}
  near: {jump: none}
""",
    )
    chains = {key: host.jump and [jump.key for jump in host.jump] for key, host in inventory.hosts.items()}
    assert chains == {
        "kpro6": ["outer", "gate", "bastion"],
        "bastion": ["outer", "gate"],
        "gate": ["outer"],
        "outer": None,
        "near": (),
    }


@pytest.mark.parametrize(
    ("hosts", "line", "path", "word"),
    [
        ("a: {jump: b}\n  b: {jump: a}", 3, "hosts.b.jump", "comes back"),
        ("a: {jump: a}", 2, "hosts.a.jump", "comes back"),
        ("a: {jump: bx}\n  bxx: {}", 2, "hosts.a.jump", "did you mean bxx?"),
        ("a: {jump: 'ssh://u@x'}", 2, "hosts.a.jump", "without ssh://"),
        ("a: {jump: 'u@-x'}", 2, "hosts.a.jump", "not an address"),
        ("a: {jump: 'u@x:99999'}", 2, "hosts.a.jump", "not a port"),
        ("a: {jump: 'u@[x]:22'}", 2, "hosts.a.jump", "brackets"),
        ("a: {jump: 'b,,c'}", 2, "hosts.a.jump", "missing"),
        ("a: {jump: ''}", 2, "hosts.a.jump", "missing"),
        ("a: {jump: []}", 2, "hosts.a.jump", "empty"),
        ("a: {jump: 'none,u@x'}", 2, "hosts.a.jump", "stands alone"),
        ("a: {jump: 'u@x,u@x'}", 2, "hosts.a.jump", "twice"),
        ("a: {jump: b}\n  b: {transport: local}", 2, "hosts.a.jump", "this machine"),
        ("a: {jump: '" + ",".join(f"u@h{i}" for i in range(MOST_JUMPS + 1)) + "'}", 2, "hosts.a.jump", "longer than"),
    ],
)
def test_wrong_jumps(file: Path, hosts: str, line: int, path: str, word: str) -> None:
    problem = one_problem(file, f"hosts:\n  {hosts}\n")
    assert (problem.line, problem.path) == (line, path)
    assert word in problem.message


def test_a_wrong_default_jump_is_told_once(file: Path) -> None:
    problem = one_problem(file, "defaults:\n  jump: gat\nhosts: {gate: {}, a: {}, b: {}}\n")
    assert (problem.line, problem.path) == (2, "defaults.jump")


@pytest.mark.parametrize("forwards", [True, False])
def test_endless_jump_chains_are_problems_not_crashes(file: Path, *, forwards: bool) -> None:
    numbers = range(2000) if forwards else reversed(range(2000))
    found = problems(file, "hosts:\n" + "".join(f"  h{i}: {{jump: h{i + 1}}}\n" for i in numbers) + "  h2000: {}\n")
    assert found
    assert all("longer than" in problem.message for problem in found)


# --- problems ---------------------------------------------------------------------------------------------------------


def test_every_problem_at_once_with_its_line(file: Path) -> None:
    found = problems(
        file,
        """defaults: {usr: root}
hosts:
  kpro6:
    adress: 10.1.2.6
    port: "22"
    guests:
      200:
        name: a
        limits: {run: 30}
      201: {name: a, venv: relative, nmae: x}
      12:
  kpro6:
    address: again
groups:
  g: [nowhere]
  h: []
unknown: 1
""",
    )
    assert [line for line, _ in places(found)] == sorted(line for line, _ in places(found) if line is not None)
    assert set(places(found)) == {
        (1, "defaults.usr"),
        (4, "hosts.kpro6.adress"),
        (5, "hosts.kpro6.port"),
        (9, "hosts.kpro6.guests.200.limits.run"),
        (10, "hosts.kpro6.guests.201.name"),
        (10, "hosts.kpro6.guests.201.nmae"),
        (10, "hosts.kpro6.guests.201.venv"),
        (11, "hosts.kpro6.guests.12"),
        (12, "hosts.kpro6"),
        (16, "groups.h"),
        (17, "unknown"),
    }
    by_path = {problem.path: problem for problem in found}
    assert "user" in by_path["defaults.usr"].nearest
    assert by_path["hosts.kpro6.adress"].nearest[0] == "address"
    assert by_path["hosts.kpro6.guests.201.nmae"].nearest[0] == "name"
    assert "first on line 3" in by_path["hosts.kpro6"].message
    assert "taken (by the target kpro6/200)" in by_path["hosts.kpro6.guests.201.name"].message
    assert "'22'" in by_path["hosts.kpro6.port"].message


def test_references_are_judged_once_the_rest_is_right(file: Path) -> None:
    problem = one_problem(file, "hosts: {kpro6: {guests: {200: {name: train}}}}\ngroups:\n  g: [trian, kpro6]\n")
    assert (problem.line, problem.path, problem.nearest[0]) == (3, "groups.g.0", "train")


@pytest.mark.parametrize(
    ("host", "path", "words"),
    [
        ("3", "h", "must be a mapping, not 3"),
        ("[]", "h", "must be a mapping, not a list"),
        ("{address: 10.1}", "h.address", "must be text, not 10.1: put it in quotes"),
        ("{address: -oProxyCommand=x}", "h.address", "not an address"),
        ("{address: 'a b'}", "h.address", "not an address"),
        ("{address: '10.1.2.6:2222'}", "h.address", "without a port"),
        ('{address: "a\\nb"}', "h.address", "not an address"),
        ("{address: }", "h.address", "has no value"),
        ("{user: yes}", None, ""),
        ("{user: true}", "h.user", "must be text, not true: put it in quotes"),
        ("{user: -l}", "h.user", "not a user name"),
        ("{user: 'a;b'}", "h.user", "not a user name"),
        ("{port: 0}", "h.port", "at least 1"),
        ("{port: 65536}", "h.port", "at most 65535"),
        ("{port: 22.5}", "h.port", "whole number"),
        ("{port: true}", "h.port", "whole number"),
        ("{self: yes}", "h.self", "must be true or false, not 'yes'"),
        ("{self: 1}", "h.self", "must be true or false, not 1"),
        ("{host_key: MD5:aa}", "h.host_key", "fingerprint"),
        ("{host_key: []}", "h.host_key", "must not be empty"),
        ("{identity_file: 3}", "h.identity_file", "must be a list, not 3"),
        ("{identity_file: [a, 3]}", "h.identity_file.1", "must be text, not 3"),
        ('{identity_file: "a\\0b"}', "h.identity_file", "not a path"),
        ("{transport: telnet}", "h.transport", "must be 'ssh', 'local' or 'fabric', not 'telnet'"),
        ("{become: su}", "h.become", "must be 'sudo' or 'none', not 'su'"),
        ("{hop: docker}", "h.hop", "not 'docker'"),
        ("{hop: none, guests: {100: }}", "h.hop", "the host has guests"),
        ("{venv: relative}", "h.venv", "absolute path"),
        ("{venv: '~/venv'}", "h.venv", "absolute path"),
        ("{venv: /opt/venv/bin/python3.11}", "h.venv", "/opt/venv, not /opt/venv/bin/python"),
        ("{venv: /opt/venv/bin/activate}", "h.venv", "/opt/venv, not /opt/venv/bin/python"),
        ('{venv: "/a\\nb"}', "h.venv", "without control characters"),
        ('{python: "/a\\rb"}', "h.python", "without control characters"),
        ("{python: ./python}", "h.python", "not an interpreter"),
        ("{python: 'py thon'}", "h.python", "not an interpreter"),
        ("{python: /usr/bin/py thon}", None, ""),
        ("{python: 3.11}", "h.python", "must be text"),
        ("{venv: /v, python: p}", "h.python", "keep one of the two"),
        ("{env: {A: 1}}", "h.env.A", "must be text, not 1: put it in quotes"),
        ("{env: {A-B: x}}", "h.env.A-B", "environment variable"),
        ('{env: {A: "x\\0y"}}', "h.env", "A: the value holds a NUL"),
        ("{env: {A: " + "x" * 131_070 + "}}", "h.env", "131072 bytes"),
        ("{env: [A=1]}", "h.env", "must be a mapping, not a list"),
        ("{vars: {'a b': 1}}", 'h.vars."a b"', "name of a variable"),
        ("{tags: [a, 'b c']}", "h.tags.1", "not a name"),
        ("{limits: {run: 30}}", "h.limits.run", "30 is not a duration"),
        ("{limits: {run: 0s}}", "h.limits.run", "not a duration"),
        ("{limits: {run: " + "9" * 400 + "s}}", "h.limits.run", "not a duration"),
        ("{limits: {runn: 1s}}", "h.limits.runn", "unknown key"),
        ("{concurrency: {sessions: 0}}", "h.concurrency.sessions", "at least 1"),
        ("{guests: [200]}", "h.guests", "must be a mapping, not a list"),
        ("{guests: {99: }}", "h.guests.99", "not a VMID"),
        ("{guests: {1000000000: }}", "h.guests.1000000000", "not a VMID"),
        ("{guests: {0200: }}", "h.guests.0200", "not a VMID"),
        ("{guests: {web: }}", "h.guests.web", "set hop to lxc"),
        ("{guests: {-x: }}", "h.guests.-x", "not a name"),
        ("{guests: {a/b: }}", 'h.guests."a/b"', "not a name"),
        ("{guests: {100: {hop: none}}}", "h.guests.100.hop", "must be 'pct' or 'lxc'"),
        ("{guests: {100: {user: 'a b'}}}", "h.guests.100.user", "not a user name"),
        ("{guests: {100: {user: a@b}}}", "h.guests.100.user", "not a user name"),
        ("{guests: {100: {name: all}}}", "h.guests.100.name", "meaning of its own"),
        ("{guests: {100: {name: h}}}", "h.guests.100.name", "taken (by the host h)"),
        ("{guests: {100: {name: grp}}}", "h.guests.100.name", "taken (by the group grp)"),
        ("{guests: {100: {address: x}}}", "h.guests.100.address", "unknown key"),
        ("{transport: local, port: 22}", "h.port", "no meaning with `transport: local`"),
        ("{transport: fabric, jump: other}", "h.jump", "no meaning with `transport: fabric`"),
        ("{transport: fabric, host_key: accept-new}", "h.host_key", "no meaning with `transport: fabric`"),
    ],
)
def test_wrong_values(file: Path, host: str, path: str | None, words: str) -> None:
    text = f"groups:\n  grp: all\nhosts:\n  other:\n  h: {host}\n"
    if path is None:
        load(file, text)
        return
    problem = one_problem(file, text)
    assert (problem.line, problem.path) == (5, f"hosts.{path}")
    assert words in problem.message
    assert str(problem).isprintable()


@pytest.mark.parametrize("name", ["all", "none", "200", "a b", "a/b", "a*", "-a", "tag:x", "a@b", ""])
def test_names_that_selections_could_not_use(file: Path, name: str) -> None:
    one_problem(file, f"hosts: {{{json.dumps(name)}: }}")
    one_problem(file, f"hosts: {{h: }}\ngroups: {{{json.dumps(name)}: h}}")
    one_problem(file, f"hosts: {{h: {{guests: {{100: {{name: {json.dumps(name)}}}}}}}}}")


def test_lists_where_names_are_keys_are_told_how_to_be_written(file: Path) -> None:
    found = problems(file, "hosts:\n  a:\n    guests: [200, 201]\n  b:\n    guests:\n      - id: 300\n")
    assert [(problem.line, "write NAME:" in problem.message) for problem in found] == [(3, True), (5, True)]


def test_whole_sections_of_the_wrong_kind(file: Path) -> None:
    assert places(problems(file, "[]")) == [(None, None)]
    assert places(problems(file, "text")) == [(None, None)]
    assert places(problems(file, "hosts: []\ngroups: 3\ndefaults: x")) == [
        (1, "hosts"),
        (2, "groups"),
        (3, "defaults"),
    ]
    assert places(problems(file, "hosts:\n")) == [(1, "hosts")]


def test_a_flood_of_problems_is_cut(file: Path) -> None:
    found = problems(file, "hosts:\n" + "".join(f"  h{i}: {{prot: 1}}\n" for i in range(500)))
    assert len(found) == 201
    assert found[-1].message == "and 300 more problems"


# --- groups -----------------------------------------------------------------------------------------------------------

GUESTS = "hosts:\n  h: {guests: {100: {name: a, tags: [t]}, 101: {name: b}, 102: {name: c}}}\n  p:\n"


def test_group_members(file: Path) -> None:
    inventory = load(
        file,
        GUESTS
        + """groups:
  outer: [inner, p]
  inner: [c, h/100, "tag:t"]
  globbed: "h/10[01]"
  everything: all
  mapped: {members: b}
""",
    )
    assert inventory.groups == {
        "outer": ("h/100", "h/102", "p"),
        "inner": ("h/100", "h/102"),
        "globbed": ("h/100", "h/101"),
        "everything": ("h/100", "h/101", "h/102", "p"),
        "mapped": ("h/101",),
    }


@pytest.mark.parametrize(
    ("groups", "path", "words"),
    [
        ("x: [y]\n  y: [x]", "groups.y.0", "x > y > x contain each other"),
        ("x: [a, x]", "groups.x.1", "x > x"),
        ("x: [a, bb]", "groups.x.1", "matches no target"),
        ("x: ['root@10.0.0.1/100']", "groups.x.0", "matches no target"),
        ("x: {members: [a, 'q*']}", "groups.x.members.1", "matches no target"),
        ("x: {venv: /v}", "groups.x.members", "is missing"),
        ("x: {members: a, tags: [t]}", "groups.x.tags", "unknown key"),
        ("x: {members: a, venv: /v, python: p}", "groups.x.python", "keep one"),
        ("h: a", "groups.h", "taken (by the host h)"),
        ("x: 3", "groups.x", "must be a mapping"),
        ("x: {members: 3}", "groups.x.members", "must be a list"),
        ("x: [3]", "groups.x.0", "must be text"),
    ],
)
def test_wrong_groups(file: Path, groups: str, path: str, words: str) -> None:
    problem = one_problem(file, f"{GUESTS}groups:\n  {groups}\n")
    assert problem.path == path
    assert words in problem.message
    assert problem.line is not None
    assert problem.line >= 5


def test_groups_nested_without_end_are_a_problem(file: Path) -> None:
    found = problems(
        file, f"{GUESTS}groups:\n" + "".join(f"  g{i}: [g{i + 1}]\n" for i in range(2000)) + "  g2000: [a]\n"
    )
    assert "nested more than" in found[0].message


@pytest.mark.parametrize(
    ("one", "two", "path"),
    [
        ("venv: /1", "venv: /2", "groups.two.venv"),
        ("venv: /1", "python: /1/bin/python", "groups.two"),
        ("vars: {v: 1}", "vars: {v: 2}", "groups.two.vars.v"),
        ("vars: {v: 1}", "vars: {v: true}", "groups.two.vars.v"),
        ("env: {V: x}", "env: {V: y}", "groups.two.env.V"),
        ("limits: {run: 1s}", "limits: {run: 1m}", "groups.two.limits.run"),
    ],
)
def test_two_groups_that_disagree(file: Path, one: str, two: str, path: str) -> None:
    groups = f"groups:\n  one: {{members: [a, b], {one}}}\n  two: {{members: [b, c, a], {two}}}\n"
    problem = one_problem(file, GUESTS + groups)
    assert (problem.line, problem.path) == (6, path)
    assert "differs from that of the group one, and h/100 is in both" in problem.message
    nearer = {"venv": "venv: /n", "env": "env: {V: n}", "vars": "vars: {v: 0}", "limits": "limits: {run: 9s}"}
    said = nearer[one.partition(":")[0]]
    load(file, GUESTS.replace("h: {", f"h: {{{said}, ") + groups)


def test_groups_that_agree(file: Path) -> None:
    groups = "groups:\n  one: {members: a, vars: {v: 1, w: 1}}\n  two: {members: [a, b], vars: {v: 1}, env: {E: e}}\n"
    inventory = load(file, GUESTS + groups)
    assert target(inventory, "h/100").vars == {"v": 1, "w": 1}
    assert target(inventory, "h/101").vars == {"v": 1}
    assert target(inventory, "h/100").env == {"E": "e"}
