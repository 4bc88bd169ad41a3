"""Inventory files: what every key means, which setting wins, where a project is, and what loading costs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from remoterun.errors import ConfigError
from remoterun.inventory import FILE_NAME, Inventory, Overrides, find_project
from remoterun.model import Concurrency, Host
from tests.support.inventories import FINGERPRINT, load, target

ROOT = Path(__file__).parents[2]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / FILE_NAME


# --- what a good file means -------------------------------------------------------------------------------------------


def test_example_of_the_project() -> None:
    inventory = Inventory.load(ROOT / FILE_NAME)
    train = target(inventory, "kpro6/200")
    assert (train.name, train.guest, train.hop, train.user) == ("dflash-train", "200", "pct", None)
    assert (train.interpreter, train.venv) == ("/root/venv/bin/python", "/root/venv")
    assert train.vars == {"checkpoints": "/workspace/checkpoints"}
    assert train.tags == {"gpu", "training"}
    assert train.limits == {"connect": 10.0}
    assert train.host == Host(key="kpro6", address="10.1.2.6", user="root")
    assert inventory.groups == {"training": ("kpro6/200",)}
    assert [chosen.id for chosen in inventory.select(["training"])] == ["kpro6/200"]


def test_what_the_example_shows_in_comments_loads_too(file: Path) -> None:
    text = (ROOT / FILE_NAME).read_text(encoding="utf-8")
    for shown in ("tower:", "here:", "  transport: local", "  guests: {110", "nightly:"):
        assert f"# {shown}" in text
        text = text.replace(f"# {shown}", shown)
    inventory = load(file, text)
    assert [found.id for found in inventory] == ["kpro6/200", "kpro6/201", "tower", "here/110"]
    assert target(inventory, "here/110").host.transport == "local"
    assert target(inventory, "kpro6/200").limits == {"connect": 10.0, "run": 7200.0}


def test_every_host_key(file: Path) -> None:
    inventory = load(
        file,
        f"""
hosts:
  gate: {{address: gate.example}}
  kpro6:
    address: 10.1.2.6
    port: 2222
    user: admin
    identity_file: [keys/id, /abs/id]
    known_hosts: known
    host_key: {FINGERPRINT}=
    ssh_config: none
    jump: gate
    transport: ssh
    become: sudo
    hop: lxc
    self: true
    guests: {{web: }}
    python: /usr/bin/python3
    env: {{A: "1"}}
    vars: {{n: 1, deep: {{list: [1, 2.5, null, true, x]}}}}
    tags: gpu
    limits: {{run: 30m, stall: none}}
    concurrency: {{sessions: 3}}
""",
    )
    host, web = target(inventory, "kpro6"), target(inventory, "kpro6/web")
    assert host.host is web.host
    assert host.host == Host(
        key="kpro6",
        address="10.1.2.6",
        port=2222,
        user="admin",
        identity_files=(str(file.parent / "keys/id"), "/abs/id"),
        known_hosts=(str(file.parent / "known"),),
        host_key=(FINGERPRINT,),
        ssh_config="none",
        jump=(Host(key="gate", address="gate.example"),),
        become="sudo",
        concurrency=Concurrency(sessions=3),
    )
    assert (host.hop, host.guest, web.hop, web.guest, web.user) == ("none", None, "lxc", "web", None)
    for found in (host, web):
        assert (found.interpreter, found.venv) == ("/usr/bin/python3", None)
        assert found.env == {"A": "1"}
        assert found.vars == {"n": 1, "deep": {"list": [1, 2.5, None, True, "x"]}}
        assert found.tags == {"gpu"}
        assert found.limits == {"run": 1800.0, "stall": None}


def test_every_guest_key(file: Path) -> None:
    inventory = load(
        file,
        """
hosts:
  kpro6:
    guests:
      200: {name: train, user: trainer, python: python3.11, env: {A: b}, vars: {x: 1}, tags: [t], limits: {run: none}}
      web: {hop: lxc, user: root}
""",
    )
    train = target(inventory, "kpro6/200")
    assert (train.name, train.user, train.interpreter, train.venv) == ("train", "trainer", "python3.11", None)
    assert (train.env, train.vars) == ({"A": "b"}, {"x": 1})
    assert train.tags == {"t"}
    assert train.limits == {"run": None}
    web = target(inventory, "kpro6/web")
    assert (web.hop, web.user, web.interpreter) == ("lxc", None, "python3")


def test_a_home_folder_is_expanded(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/anna")
    host = load(file, "hosts: {a: {identity_file: ~/.ssh/id, ssh_config: '~/conf', known_hosts: [~/k]}}").hosts["a"]
    assert (host.identity_files, host.ssh_config, host.known_hosts) == (
        ("/home/anna/.ssh/id",),
        "/home/anna/conf",
        ("/home/anna/k",),
    )


def test_the_home_of_an_unknown_user_is_a_problem(file: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(file, "hosts:\n  a:\n    identity_file: ~no-such-user-here/id\n")
    (problem,) = caught.value.problems
    assert (problem.line, problem.path) == (3, "hosts.a.identity_file")


def test_nearer_wins_and_mappings_merge(file: Path) -> None:
    inventory = load(
        file,
        """
defaults: {venv: /d, env: {A: d, B: d, C: d, D: d}, vars: {v: d}, tags: [d], limits: {run: 1s, idle: 1s, stall: 1s}}
hosts:
  h:
    env: {A: h, B: h}
    vars: {v: h}
    tags: [h]
    limits: {run: 3s}
    guests:
      200: {env: {A: g}, tags: [g], limits: {run: 4s}, venv: /g}
      201: {python: py}
      202:
groups:
  all-of-h:
    members: [h]
    venv: /grp
    env: {A: grp, B: grp, C: grp}
    vars: {v: grp, w: grp}
    limits: {run: 2s, idle: 2s}
""",
    )
    near = target(inventory, "h/200")
    assert near.env == {"A": "g", "B": "h", "C": "grp", "D": "d"}
    assert near.vars == {"v": "h", "w": "grp"}
    assert near.limits == {"run": 4.0, "idle": 2.0, "stall": 1.0}
    assert near.tags == {"d", "h", "g"}
    assert (near.interpreter, near.venv) == ("/g/bin/python", "/g")
    assert (target(inventory, "h/201").interpreter, target(inventory, "h/201").venv) == ("py", None)
    assert target(inventory, "h/202").interpreter == "/grp/bin/python"


def test_login_settings_come_from_defaults_and_lists_replace(file: Path) -> None:
    inventory = load(
        file,
        """
defaults: {user: u, port: 22, identity_file: [/a, /b], become: sudo, concurrency: {logins: 2, enter: 2}, hop: lxc}
hosts:
  one: {guests: {web: }}
  two: {user: v, identity_file: /c, become: none, concurrency: {enter: 9}, guests: {100: {hop: pct}}}
""",
    )
    one, two = inventory.hosts["one"], inventory.hosts["two"]
    assert (one.user, one.port, one.identity_files, one.become) == ("u", 22, ("/a", "/b"), "sudo")
    assert (two.user, two.port, two.identity_files, two.become) == ("v", 22, ("/c",), None)
    assert (one.concurrency, two.concurrency) == (Concurrency(logins=2, enter=2), Concurrency(logins=2, enter=9))
    assert [(found.id, found.hop, found.user) for found in inventory] == [
        ("one/web", "lxc", None),
        ("two/100", "pct", None),
    ]


@pytest.mark.parametrize(
    ("host", "ids"),
    [
        ("{}", ["h"]),
        ("", ["h"]),
        ("{guests: {}}", ["h"]),
        ("{self: false}", []),
        ("{self: true}", ["h"]),
        ("{guests: {100: }}", ["h/100"]),
        ("{guests: {100: }, self: false}", ["h/100"]),
        ("{guests: {100: , 200: {}}, self: true}", ["h", "h/100", "h/200"]),
    ],
)
def test_when_a_host_is_a_target(file: Path, host: str, ids: list[str]) -> None:
    assert [found.id for found in load(file, f"hosts:\n  h: {host}\n")] == ids


def test_an_empty_file_names_nothing(file: Path) -> None:
    for text in ("", "# nothing yet\n", "---\n", "{}"):
        inventory = load(file, text)
        assert (inventory.targets, inventory.groups, len(inventory)) == ((), {}, 0)


def test_venv_paths(file: Path) -> None:
    for venv, interpreter in (("/v/", "/v/bin/python"), ("/", "/bin/python"), ("/my env", "/my env/bin/python")):
        assert load(file, f"hosts: {{h: {{venv: '{venv}'}}}}").targets[0].interpreter == interpreter


# --- files, projects, cost --------------------------------------------------------------------------------------------


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"inventory\.yaml: cannot be read: No such file"):
        Inventory.load(tmp_path / FILE_NAME)
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        Inventory.load(tmp_path)


def test_the_project_is_the_nearest_folder_with_an_inventory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REMOTERUN_PROJECT", raising=False)
    deep = tmp_path / "outer" / "inner" / "deep"
    deep.mkdir(parents=True)
    (tmp_path / "outer" / FILE_NAME).touch()
    assert find_project(deep) == tmp_path / "outer"
    (deep.parent / FILE_NAME).touch()
    assert find_project(deep) == deep.parent
    monkeypatch.chdir(deep)
    assert find_project() == deep.parent
    monkeypatch.setenv("REMOTERUN_PROJECT", str(tmp_path / "outer"))
    assert find_project() == tmp_path / "outer"
    assert find_project(deep, Path()) == deep
    monkeypatch.setenv("REMOTERUN_PROJECT", str(tmp_path / "absent"))
    with pytest.raises(ConfigError, match=r"REMOTERUN_PROJECT: .*absent is not a folder"):
        find_project()
    with pytest.raises(ConfigError, match="--project"):
        find_project(deep, tmp_path / "outer" / FILE_NAME)


def test_no_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REMOTERUN_PROJECT", raising=False)
    (tmp_path / FILE_NAME).mkdir()
    assert find_project(tmp_path) is None


def test_importing_is_cheap() -> None:
    program = (
        "import sys, remoterun.inventory, remoterun.playbook;"
        "from remoterun.inventory import Inventory;"
        "Inventory.empty().select(['root@10.1.2.6/200', 'local']);"
        "print(*sorted({name.partition('.')[0] for name in sys.modules} & {'yaml', 'pydantic', 'asyncssh', 'rich'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env={**os.environ}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "\n"


def test_a_thousand_guests(file: Path) -> None:
    guests = "".join(
        f"  h{host}:\n    address: 10.0.0.{host}\n    guests:\n"
        + "".join(
            f"      {100 + guest}:\n        name: g{host}-{guest}\n        venv: /venv\n        tags: [gpu, t{guest}]\n"
            f"        vars: {{checkpoints: /w/{guest}}}\n        limits: {{run: 1h}}\n"
            for guest in range(10)
        )
        for host in range(100)
    )
    groups = "groups:\n  gpus: {members: ['tag:gpu'], vars: {x: 1}}\n  some: [h1, 'h2*', g3-4]\n"
    inventory = load(file, f"hosts:\n{guests}{groups}")
    assert len(inventory) == 1000
    assert len(inventory.groups["gpus"]) == 1000
    assert len(inventory.select(["tag:t3"])) == 100


# --- host keys --------------------------------------------------------------------------------------------------------


def test_what_is_done_with_a_new_host_key(file: Path) -> None:
    inventory = load(
        file,
        f"""
defaults: {{host_key: accept-new}}
hosts:
  gate: {{}}
  new: {{jump: gate}}
  outside: {{jump: root@10.0.0.1}}
  careful: {{host_key: strict}}
  pinned: {{host_key: {FINGERPRINT}}}
""",
    )
    trust = {found.id: (found.host.accept_new, found.host.host_key) for found in inventory}
    assert trust == {
        "gate": (True, ()),
        "new": (True, ()),
        "outside": (True, ()),
        "careful": (False, ()),
        "pinned": (False, (FINGERPRINT,)),
    }
    for name in ("new", "outside"):
        (jump,) = target(inventory, name).host.jump or ()
        assert jump.accept_new
    assert load(file, "hosts: {a: {host_key: accept-new}, b: {host_key: [accept-new]}, c: {}}").hosts["c"] == Host(
        key="c", address="c"
    )
    assert [found.host.accept_new for found in Inventory.load(file)] == [True, True, False]


def test_the_flag_goes_for_every_hop_and_leaves_pins_alone(file: Path) -> None:
    inventory = load(
        file,
        f"""
hosts:
  gate: {{}}
  behind: {{jump: gate, host_key: strict}}
  pinned: {{host_key: {FINGERPRINT}}}
""",
    )
    chosen = inventory.select(["all", "root@10.1.2.9"], overrides=Overrides(accept_new=True))
    assert [found.host.accept_new for found in chosen] == [True] * 4
    assert [jump.accept_new for found in chosen for jump in found.host.jump or ()] == [True]
    assert chosen[2].host.host_key == (FINGERPRINT,)
    by_flag = inventory.select(["behind"], overrides=Overrides(accept_new=True, jump="root@10.0.0.1"))
    assert [jump.accept_new for jump in by_flag[0].host.jump or ()] == [True]


def test_words_about_host_keys_stand_alone(file: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(file, f"hosts:\n  a: {{host_key: [{FINGERPRINT}, accept-new]}}\n  b: {{host_key: accept}}\n")
    assert [(problem.line, problem.path) for problem in caught.value.problems] == [
        (2, "hosts.a.host_key"),
        (3, "hosts.b.host_key"),
    ]
    assert "stands alone" in caught.value.problems[0].message
    with pytest.raises(ConfigError, match="accept-new"):
        load(file, f"defaults: {{host_key: {FINGERPRINT}}}")
