"""Selection: what patterns mean, targets written out in full, flags laid over them, and the algebra."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoterun.errors import ConfigError, Problem
from remoterun.inventory import Inventory, Overrides
from remoterun.model import Host, Target

if TYPE_CHECKING:
    from pathlib import Path

TEXT = """
defaults: {user: root, venv: /venv, limits: {connect: 10s}, env: {E: d}, vars: {v: d}, become: sudo, jump: gate}
hosts:
  gate: {address: 10.9.9.9, self: false, jump: none}
  kpro6:
    address: 10.1.2.6
    self: true
    guests:
      200: {name: dflash-train, tags: [gpu, training]}
      201: {name: dflash-eval, tags: [gpu]}
      300:
  kpro7:
    guests:
      200: {name: other, tags: [cpu]}
      web: {hop: lxc, user: www}
  plain: {tags: [gpu]}
  here: {transport: local, guests: {500: {name: sandbox}}}
groups:
  training: [kpro6/200, "tag:training"]
  both: [training, kpro7]
"""
K6, K7 = ["kpro6", "kpro6/200", "kpro6/201", "kpro6/300"], ["kpro7/200", "kpro7/web"]
EVERYTHING = [*K6, *K7, "plain", "here/500"]
FINGERPRINT = "SHA256:" + "b" * 43


@pytest.fixture(scope="module")
def inventory(tmp_path_factory: pytest.TempPathFactory) -> Inventory:
    path = tmp_path_factory.mktemp("project") / "inventory.yaml"
    path.write_text(TEXT, encoding="utf-8")
    return Inventory.load(path)


def ids(targets: tuple[Target, ...]) -> list[str]:
    return [target.id for target in targets]


def refused(inventory: Inventory, *on: str, **more: object) -> tuple[Problem, ...]:
    with pytest.raises(ConfigError) as caught:
        inventory.select(on, **more)  # type: ignore[arg-type]
    return caught.value.problems


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["kpro6/200"], ["kpro6/200"]),
        (["dflash-train"], ["kpro6/200"]),
        (["dflash-train", "kpro6/200", "tag:training"], ["kpro6/200"]),
        (["kpro6"], K6),
        (["kpro7"], K7),
        (["plain"], ["plain"]),
        (["all"], EVERYTHING),
        (["kpro*"], [*K6, *K7]),
        (["kpro6/2*"], ["kpro6/200", "kpro6/201"]),
        (["dflash-*"], ["kpro6/200", "kpro6/201"]),
        (["kpro[7]/*", "pl?in"], [*K7, "plain"]),
        (["tag:gpu"], ["kpro6/200", "kpro6/201", "plain"]),
        (["tag:?pu"], ["kpro6/200", "kpro6/201", "kpro7/200", "plain"]),
        (["training"], ["kpro6/200"]),
        (["both"], ["kpro6/200", *K7]),
        (["300"], ["kpro6/300"]),
        (["web"], ["kpro7/web"]),
        (["plain", "kpro6/300", "kpro6"], [*K6, "plain"]),
    ],
)
def test_patterns(inventory: Inventory, patterns: list[str], expected: list[str]) -> None:
    assert ids(inventory.select(patterns)) == expected


def test_union_minus_intersection(inventory: Inventory) -> None:
    assert ids(inventory.select(["kpro6", "kpro7"], ["tag:gpu"], ["*/2*", "kpro6"])) == [
        "kpro6",
        "kpro6/300",
        "kpro7/200",
    ]
    assert ids(inventory.select(["all"], ["kpro6", "here"], ["tag:gpu", "web"])) == ["kpro7/web", "plain"]


@pytest.mark.parametrize(
    ("pattern", "nearest"),
    [
        ("kpro6/20", "kpro6/200"),
        ("dflash-trian", "dflash-train"),
        ("Kpro6", "kpro6"),
        ("trainin", "training"),
        ("tag:gppu", "tag:gpu"),
        ("plainn", "plain"),
    ],
)
def test_what_matches_nothing_is_told_with_the_nearest(inventory: Inventory, pattern: str, nearest: str) -> None:
    (problem,) = refused(inventory, pattern)
    assert problem.path == "--on"
    assert repr(pattern) in problem.message
    assert nearest in problem.nearest


def test_every_pattern_must_match_and_all_that_do_not_are_told(inventory: Inventory) -> None:
    found = refused(inventory, "kpro6", "nope", "q*", not_=["tag:nope", "200"], and_=["x/1", "all"])
    assert [(problem.path, problem.message.split("'")[1]) for problem in found] == [
        ("--on", "nope"),
        ("--on", "q*"),
        ("--not", "tag:nope"),
        ("--not", "200"),
        ("--and", "x/1"),
    ]


def test_ambiguous_words(inventory: Inventory) -> None:
    (problem,) = refused(inventory, "200")
    assert "ambiguous" in problem.message
    assert problem.nearest == ("kpro6/200", "kpro7/200")


def test_declared_words_go_before_the_keys_of_guests(tmp_path: Path) -> None:
    path = tmp_path / "inventory.yaml"
    path.write_text("hosts: {a: {hop: lxc, guests: {g: , b: , c: }}, b: {}}\ngroups: {g: [b, c]}", encoding="utf-8")
    inventory = Inventory.load(path)
    assert ids(inventory.select(["g"])) == ["a/c", "b"]
    assert ids(inventory.select(["b"])) == ["b"]
    assert ids(inventory.select(["c"])) == ["a/c"]
    assert ids(inventory.select(["a/g"])) == ["a/g"]


def test_nothing_selected_is_an_error(inventory: Inventory) -> None:
    for on, not_, and_ in (((), (), ()), (("kpro6",), ("kpro*",), ()), (("kpro6",), (), ("kpro7",))):
        (problem,) = refused(inventory, *on, not_=not_, and_=and_)
        assert "no target is left" in problem.message


def test_a_host_without_targets(inventory: Inventory) -> None:
    assert "no targets of its own" in refused(inventory, "gate")[0].message


def test_an_address_outside_is_told_how_to_be_written(inventory: Inventory) -> None:
    assert "user@address" in refused(inventory, "10.1.2.6")[0].message


def test_hostile_patterns_are_quoted(inventory: Inventory) -> None:
    for pattern in ("\x1b[2Jx", "a\nb", "", "x" * 5000, "[z-a]", "[!", "*" * 300 + "qq"):
        (problem,) = refused(inventory, pattern)
        assert str(problem).isprintable()
        assert len(str(problem)) < 400


def test_where_the_patterns_stand_is_told(inventory: Inventory) -> None:
    (problem,) = refused(inventory, "nope", where="playbooks/x.yaml: targets")
    assert problem.path == "playbooks/x.yaml: targets"


# --- written out in full ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "id_", "host"),
    [
        ("root@10.1.2.6/200", "root@10.1.2.6/200", Host(key="root@10.1.2.6", address="10.1.2.6", user="root")),
        ("root@host:2222", "root@host:2222", Host(key="root@host:2222", address="host", user="root", port=2222)),
        ("me@corp@h", "me@corp@h", Host(key="me@corp@h", address="h", user="me@corp")),
        ("[::1]:22", "[::1]:22", Host(key="[::1]:22", address="::1", port=22)),
        ("[fe80::1%eth0]/200", "[fe80::1%eth0]/200", Host(key="[fe80::1%eth0]", address="fe80::1%eth0")),
        ("u@fd00::1/200", "u@fd00::1/200", Host(key="u@fd00::1", address="fd00::1", user="u")),
        ("10.1.2.6/200", "10.1.2.6/200", Host(key="10.1.2.6", address="10.1.2.6")),
        ("pve.example:22/200", "pve.example:22/200", Host(key="pve.example:22", address="pve.example", port=22)),
        ("localhost/200", "localhost/200", Host(key="localhost", address="localhost")),
        ("local", "local", Host(key="local", address="localhost", transport="local")),
        ("local/200", "local/200", Host(key="local", address="localhost", transport="local")),
    ],
)
def test_targets_written_out_in_full(text: str, id_: str, host: Host) -> None:
    (found,) = Inventory.empty().select([text])
    guest = id_.partition("/")[2] or None
    assert found == Target(id=id_, host=host, guest=guest, hop="none" if guest is None else "pct")
    assert found.interpreter == "python3"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("root@", "not an address"),
        ("@host", "write - for them here, and < host behind the command"),
        ("@ho st", "< 'ho st' behind"),
        ("-x@host", "not a user name"),
        ("root@-oProxyCommand=x", "not an address"),
        ("root@a b", "not an address"),
        ("root@*", "not an address"),
        ("root@h:0", "not a port"),
        ("root@h:x", "not a port"),
        ("root@h:", "not a port"),
        ("root@h:٣", "not a port"),
        ("root@[h]:22", "brackets"),
        ("root@h/", "missing after the slash"),
        ("ssh://root@h/200", "without ssh://"),
        ("ssh://root@h:22", "without ssh://"),
        ("root@h/web", "set hop to lxc"),
        ("root@h/1/2", "not a VMID"),
        ("root@h/100;id", "not a VMID"),
        ("local/x", "not a VMID"),
        ("kpro9/200", "matches no target"),
        ("kpro9", "matches no target"),
        ("10.1.2.6", "matches no target"),
        ("tag:a.b/c", "matches no target"),
        ("a.*/200", "matches no target"),
        ("a,b", "matches no target"),
    ],
)
def test_what_is_not_written_out_right(text: str, words: str) -> None:
    (problem,) = refused(Inventory.empty(), text)
    assert words in problem.message


def test_written_out_targets_take_the_defaults(inventory: Inventory) -> None:
    (found,) = inventory.select(["admin@10.0.0.1:22/900"])
    gate = Host(key="gate", address="10.9.9.9", user="root", become="sudo", jump=())
    assert found.host == Host(
        key="admin@10.0.0.1:22", address="10.0.0.1", user="admin", port=22, become="sudo", jump=(gate,)
    )
    assert (found.interpreter, found.venv, found.env, found.vars) == (
        "/venv/bin/python",
        "/venv",
        {"E": "d"},
        {"v": "d"},
    )
    assert found.limits == {"connect": 10.0}
    (local,) = inventory.select(["local/900"])
    assert local.host == Host(key="local", address="localhost", transport="local", become="sudo")


def test_written_out_targets_follow_and_can_be_named_again(inventory: Inventory) -> None:
    on = ["local", "kpro6/200", "root@10.0.0.1", "local"]
    assert ids(inventory.select(on)) == ["kpro6/200", "local", "root@10.0.0.1"]
    assert ids(inventory.select(on, ["local"])) == ["kpro6/200", "root@10.0.0.1"]
    assert ids(inventory.select(on, (), ["all", "root@10.0.0.1"])) == ["kpro6/200", "root@10.0.0.1"]
    (problem,) = refused(inventory, *on, not_=["root@10.0.0.2"])
    assert (problem.path, "not among" in problem.message) == ("--not", True)


@pytest.mark.parametrize(
    ("text", "nearest"), [("kpro6/dflash-train", "kpro6/200"), (" kpro6/200 ", "kpro6/200"), ("kpro6/", "kpro6")]
)
def test_what_is_nearly_a_target_is_offered(inventory: Inventory, text: str, nearest: str) -> None:
    (problem,) = refused(inventory, text)
    assert problem.nearest[0] == nearest


@pytest.mark.parametrize("joined", [",", " ", ", "])
def test_commas_and_blanks_are_told_as_what_they_are(inventory: Inventory, joined: str) -> None:
    (problem,) = refused(inventory, f"kpro6/200{joined}kpro6/201")
    assert "one by one" in problem.message
    assert problem.nearest == ()


def test_a_host_of_the_inventory_is_not_reached_under_its_key_alone(inventory: Inventory, tmp_path: Path) -> None:
    (problem,) = refused(inventory, "root@kpro6/200")
    assert "write kpro6/200" in problem.message
    assert ids(inventory.select(["root@10.1.2.6/200"])) == ["root@10.1.2.6/200"]
    assert ids(inventory.select(["root@plain"])) == ["root@plain"]  # its key is its address: the same machine
    path = tmp_path / "inventory.yaml"
    path.write_text("hosts: {local: {guests: {100: }}, 10.0.0.1: {guests: {100: }}}", encoding="utf-8")
    mine = Inventory.load(path)
    assert mine.select(["local/100", "10.0.0.1/100"]) == mine.targets
    assert "matches no target" in refused(mine, "10.0.0.1/101")[0].message


# --- flags ------------------------------------------------------------------------------------------------------------

FLAGS = Overrides(
    venv="/flag",
    user="me",
    guest_user="worker",
    port=2022,
    become="none",
    identity_file=("key", "/k"),
    known_hosts=("known",),
    host_key=(FINGERPRINT,),
    ssh_config="none",
    jump="none",
)


def test_flags_beat_everything(inventory: Inventory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    guest, plain = inventory.select(["kpro6/200", "plain"], overrides=FLAGS)
    expected = Host(
        key="kpro6",
        address="10.1.2.6",
        user="me",
        port=2022,
        identity_files=(str(tmp_path / "key"), "/k"),
        known_hosts=(str(tmp_path / "known"),),
        host_key=(FINGERPRINT,),
        ssh_config="none",
        jump=(),
    )
    assert guest.host == expected
    assert (guest.interpreter, guest.venv, guest.user, guest.hop) == ("/flag/bin/python", "/flag", "worker", "pct")
    assert (plain.interpreter, plain.user) == ("/flag/bin/python", None)


def test_flags_on_written_out_targets(inventory: Inventory) -> None:
    (found,) = inventory.select(["admin@10.0.0.1/900", "10.0.0.2/901"][:1], overrides=FLAGS)
    assert (found.host.user, found.host.port, found.host.become, found.host.jump) == ("admin", 2022, None, ())
    assert (found.interpreter, found.user) == ("/flag/bin/python", "worker")
    (web,) = Inventory.empty().select(["root@10.0.0.1/web"], overrides=Overrides(hop="lxc", guest_user="root"))
    assert (web.hop, web.guest, web.user) == ("lxc", "web", None)


def test_flags_without_meaning_do_not_apply(inventory: Inventory) -> None:
    here, plain = inventory.select(["sandbox", "plain"], overrides=Overrides(user="me", port=1, jump="u@x", hop="lxc"))[
        ::-1
    ]
    assert here.host == Host(key="here", address="localhost", transport="local", become="sudo")
    assert (here.hop, plain.hop, plain.host.user) == ("lxc", "none", "me")


@pytest.mark.parametrize(
    ("flags", "named"), [({"jump": "u@x"}, "--jump"), ({"host_key": ("SHA256:" + "A" * 43,)}, "--host-key")]
)
def test_flags_that_fabric_takes_no_account_of_are_refused(flags: dict[str, Any], named: str, tmp_path: Path) -> None:
    (tmp_path / "inventory.yaml").write_text("hosts:\n  box: {transport: fabric}\n", "utf-8")
    inventory = Inventory.load(tmp_path / "inventory.yaml")
    (target,) = inventory.select(["box"], overrides=Overrides(user="me", port=2222))
    assert (target.host.user, target.host.port, target.host.transport) == ("me", 2222, "fabric")
    with pytest.raises(ConfigError, match=f"{named}.*reached by Fabric"):
        inventory.select(["box"], overrides=Overrides(**flags))


def test_jump_flags(inventory: Inventory) -> None:
    (found,) = inventory.select(["plain"], overrides=Overrides(jump="gate,ops@10.0.0.9:23"))
    assert found.host.jump is not None
    assert [(host.key, host.jump and len(host.jump)) for host in found.host.jump] == [
        ("gate", ()),
        ("ops@10.0.0.9:23", 1),
    ]
    for jump, words in (("gat", "did you mean gate"), ("u@-x", "not an address"), ("", "missing"), ("a,,b", "missing")):
        (problem,) = refused(inventory, "plain", overrides=Overrides(jump=jump))
        assert problem.path == "--jump"
        assert words in problem.message
    (problem,) = refused(inventory, "plain", "kpro6/200", overrides=Overrides(jump="plain"))
    assert "through itself" in problem.message


def test_every_wrong_flag_at_once(inventory: Inventory) -> None:
    wrong = Overrides(
        venv="relative",
        python="a b",
        user="-x",
        port=0,
        identity_file=("a\0b",),
        known_hosts=("\n",),
        host_key=("MD5:x",),
        jump="",
        hop="docker",
        become="su",
    )
    flags = [problem.path for problem in refused(inventory, "plain", overrides=wrong)]
    texts = "--venv --python --python --user --port --identity --known-hosts --host-key --jump --hop --become"
    assert sorted(str(flag) for flag in flags) == sorted(texts.split())


def test_a_hop_flag_must_fit_the_guest(inventory: Inventory) -> None:
    (problem,) = refused(inventory, "kpro7", overrides=Overrides(hop="pct"))
    assert problem.path == "kpro7/web"
    assert "not a VMID" in problem.message


def test_flags_not_given_change_nothing(inventory: Inventory) -> None:
    assert inventory.select(["all"], overrides=Overrides()) == inventory.targets


# --- algebra ----------------------------------------------------------------------------------------------------------

PATTERNS = st.sampled_from(
    [
        *EVERYTHING,
        "kpro7",
        "dflash-*",
        "kpro*",
        "*/2*",
        "tag:gpu",
        "tag:cpu",
        "tag:*",
        "training",
        "both",
        "all",
        "web",
        "300",
    ]
)
UNIONS = st.lists(PATTERNS, min_size=1, max_size=4)


def chosen(
    inventory: Inventory, on: list[str], not_: list[str] | None = None, and_: list[str] | None = None
) -> set[str]:
    try:
        found = ids(inventory.select(on, not_ or (), and_ or ()))
    except ConfigError as error:
        if [problem.message for problem in error.problems] == ["no target is left in the selection"]:
            return set()
        raise
    assert found == [id_ for id_ in EVERYTHING if id_ in found]
    return set(found)


@given(UNIONS, UNIONS, UNIONS)
def test_selection_is_set_algebra(inventory: Inventory, a: list[str], b: list[str], c: list[str]) -> None:
    set_a, set_b, set_c = (chosen(inventory, patterns) for patterns in (a, b, c))
    assert set_a == set().union(*(chosen(inventory, [pattern]) for pattern in a))
    assert chosen(inventory, a + b) == set_a | set_b == chosen(inventory, b + a)
    assert chosen(inventory, a, b) == set_a - set_b
    assert chosen(inventory, a, None, b) == set_a & set_b == chosen(inventory, b, None, a)
    assert chosen(inventory, a, b, c) == (set_a - set_b) & set_c
    assert chosen(inventory, a, b + c) == set_a - set_b - set_c
    assert chosen(inventory, ["all"], a) == set(EVERYTHING) - set_a
    assert chosen(inventory, a, None, ["all"]) == set_a


@given(
    st.lists(
        st.text(max_size=12) | st.sampled_from(["root@", "local", "[::1]", "tag:", "*", "/", ":22"]), max_size=4
    ).map("".join)
)
def test_no_pattern_raises_anything_but_config_errors(inventory: Inventory, pattern: str) -> None:
    for book in (inventory, Inventory.empty()):
        try:
            said = [target.id for target in book.select([pattern])]
        except ConfigError as error:
            said = [str(problem) for problem in error.problems]
        assert said
        assert all(text.isprintable() for text in said)
