"""Playbooks: files, implicit playbooks of payloads, and parameters that refer to a target's variables."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoterun.errors import ConfigError, Problem
from remoterun.inventory import Inventory
from remoterun.model import (
    Host,
    Json,
    Playbook,
    RuleChanges,
    SecretRef,
    SecretSource,
    Severity,
    Step,
    Target,
    VarRef,
)
from remoterun.playbook import find_playbook, load_playbook, playbook_names, resolve_params

ROOT = Path(__file__).parents[2]
HOST = Host(key="h", address="h")
NAMES = ("check-ckpt", "probe")


def load(folder: Path, text: str) -> Playbook:
    path = folder / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return load_playbook(path)


def problems(folder: Path, text: str) -> tuple[Problem, ...]:
    with pytest.raises(ConfigError) as caught:
        load(folder, text)
    return caught.value.problems


def test_the_playbook_that_is_shipped() -> None:
    path = ROOT / "playbooks" / "check-ckpt.yaml"
    playbook = find_playbook(ROOT, "check-ckpt", ["check-ckpt"])
    assert playbook == load_playbook(path)
    assert (playbook.name, playbook.targets, playbook.source) == ("check-ckpt", ("training",), str(path))
    assert playbook.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    (step,) = playbook.steps
    assert step.payload == "check-ckpt@1"
    assert step.params == {"root": VarRef(var="checkpoints", default="/workspace/checkpoints", has_default=True)}
    (target,) = Inventory.load(ROOT / "inventory.yaml").select(playbook.targets)
    assert resolve_params(step, target, playbook=playbook.name) == {"root": "/workspace/checkpoints"}


def test_every_key(tmp_path: Path) -> None:
    playbook = load(
        tmp_path,
        """
description: Everything
targets: [a, "tag:b"]
limits: {run: 1h}
steps:
  - payload: one@1.2
    params:
      plain: [1, {x: null}, 2.5, text, true]
      bare: {var: v}
      with: {var: v, default: null}
      not-a-reference: {var: v, more: 1}
      neither: {default: 1}
    rules: {ignore: [CK054, CK001], severity: {CK120: info}}
    env: {A: b}
    limits: {stall: none, run: 30s}
    fail_on: bad
  - payload: two
""",
    )
    assert playbook == Playbook(
        name="mine",
        description="Everything",
        targets=("a", "tag:b"),
        limits={"run": 3600.0},
        steps=(
            Step(
                payload="one@1.2",
                params={
                    "plain": [1, {"x": None}, 2.5, "text", True],
                    "bare": VarRef(var="v"),
                    "with": VarRef(var="v", default=None, has_default=True),
                    "not-a-reference": {"var": "v", "more": 1},
                    "neither": {"default": 1},
                },
                rules=RuleChanges(ignore=("CK054", "CK001"), severity={"CK120": Severity.INFO}),
                env={"A": "b"},
                limits={"stall": None, "run": 30.0},
                fail_on=Severity.BAD,
            ),
            Step(payload="two"),
        ),
        sha256=playbook.sha256,
        source=str(tmp_path / "mine.yaml"),
    )


def test_one_target_pattern_needs_no_list(tmp_path: Path) -> None:
    assert load(tmp_path, "targets: all\nsteps: [{payload: p}]").targets == ("all",)


def test_a_playbook_is_for_all_targets_unless_it_says_so(tmp_path: Path) -> None:
    assert load(tmp_path, "steps: [{payload: p}]").targets == ("all",)


def test_every_problem_at_once_with_its_line(tmp_path: Path) -> None:
    found = problems(
        tmp_path,
        """target: all
limits: {run: 1}
steps:
  - payload: one@x
    fail_on: sus
  - payload: two@1.2.3.4
    parms: {}
    params:
      a: {var: 3}
      b: {var: "", default: 1}
    env: {A: 1}
  - params: {}
""",
    )
    assert [(problem.line, problem.path) for problem in found] == [
        (1, "target"),
        (2, "limits.run"),
        (4, "steps.0.payload"),
        (5, "steps.0.fail_on"),
        (7, "steps.1.parms"),
        (11, "steps.1.env.A"),
        (12, "steps.2.payload"),
    ]
    by_path = {problem.path: problem for problem in found}
    assert by_path["target"].nearest[0] == "targets"
    assert by_path["steps.1.parms"].nearest[0] == "params"
    assert by_path["steps.0.fail_on"].nearest == ("suspect",)
    assert "missing" in by_path["steps.2.payload"].message
    assert all(problem.file == str(tmp_path / "mine.yaml") for problem in found)


def test_references_and_versions_are_checked_beside_other_problems(tmp_path: Path) -> None:
    found = problems(
        tmp_path,
        "extra: 1\nsteps:\n- payload: a@1.2.3.4\n- payload: b\n  params:\n    x: {var: 3}\n    y: {var: 'a b'}\n",
    )
    assert [(problem.line, problem.path) for problem in found] == [
        (1, "extra"),
        (3, "steps.0.payload"),
        (6, "steps.1.params.x.var"),
        (7, "steps.1.params.y.var"),
    ]


def test_secrets(tmp_path: Path) -> None:
    playbook = load(
        tmp_path,
        """
secrets:
  one: {env: HF_TOKEN}
  two: {file: keys/two}
  three: {command: [pass, show, three]}
steps:
  - payload: p
    params:
      token: {secret: one}
      not-a-reference: {secret: one, more: 1}
    env: {A: b, B: {secret: two}}
""",
    )
    assert playbook.secrets == {
        "one": SecretSource(kind="env", words=("HF_TOKEN",)),
        "two": SecretSource(kind="file", words=(str(tmp_path / "keys/two"),)),
        "three": SecretSource(kind="command", words=("pass", "show", "three"), folder=str(tmp_path)),
    }
    (step,) = playbook.steps
    assert step.params == {"token": SecretRef(secret="one"), "not-a-reference": {"secret": "one", "more": 1}}
    assert step.env == {"A": "b", "B": SecretRef(secret="two")}
    target = Target(id="t", host=HOST)
    assert resolve_params(step, target, playbook="mine") == {"not-a-reference": {"secret": "one", "more": 1}}


def test_problems_of_secrets(tmp_path: Path) -> None:
    found = problems(
        tmp_path,
        """secrets:
  none: {}
  both: {env: A, file: b}
  "a b": {env: A}
  dash: {env: A-B}
  empty: {command: []}
  text: hunter22
  typo: {fiel: x}
steps:
  - payload: p
    env: {A: {secret: 3}, B: {secret: x, default: y}, C: [x]}
""",
    )
    assert [(problem.line, problem.path) for problem in found] == [
        (2, "secrets.none"),
        (3, "secrets.both"),
        (4, 'secrets."a b"'),
        (5, "secrets.dash.env"),
        (6, "secrets.empty.command"),
        (7, "secrets.text"),
        (8, "secrets.typo.fiel"),
        (11, "steps.0.env.A"),
        (11, "steps.0.env.B"),
        (11, "steps.0.env.C"),
    ]
    assert found[0].message == "must say one of env, file and command"
    assert not any("hunter22" in str(problem) for problem in found)
    assert found[6].nearest == ("file",)


def test_a_secret_that_is_referred_to_must_be_there(tmp_path: Path) -> None:
    found = problems(
        tmp_path,
        """secrets: {hf_token: {env: HF_TOKEN}}
steps:
  - payload: p
    params:
      a: {secret: hf_tokne}
      b: {secret: [x]}
    env: {B: {secret: other}}
""",
    )
    assert [(problem.line, problem.path) for problem in found] == [
        (5, "steps.0.params.a.secret"),
        (6, "steps.0.params.b.secret"),
        (7, "steps.0.env.B.secret"),
    ]
    assert found[0].message == "there is no secret 'hf_tokne' under `secrets` (did you mean hf_token?)"


@pytest.mark.parametrize("text", ["", "[]", "x", "steps:", "steps: []", "steps: {}", "steps: [x]", "steps: [[]]"])
def test_files_that_are_no_playbooks(tmp_path: Path, text: str) -> None:
    assert problems(tmp_path, text)


def test_a_payload_is_its_own_playbook() -> None:
    assert find_playbook(None, "probe", NAMES) == Playbook(
        name="probe", steps=(Step(payload="probe"),), targets=("all",)
    )
    assert find_playbook(None, "probe@1.2", NAMES).steps == (Step(payload="probe@1.2"),)


def test_the_projects_file_goes_first(tmp_path: Path) -> None:
    folder = tmp_path / "playbooks"
    folder.mkdir()
    (folder / "probe.yml").write_text("steps: [{payload: other}]", encoding="utf-8")
    assert find_playbook(tmp_path, "probe", NAMES).steps == (Step(payload="other"),)
    assert find_playbook(tmp_path, "probe@1", NAMES).steps == (Step(payload="probe@1"),)
    (folder / "probe.yaml").touch()
    with pytest.raises(ConfigError, match="there twice"):
        find_playbook(tmp_path, "probe", NAMES)
    assert playbook_names(tmp_path) == ("probe",)


def test_neither_playbook_nor_payload(tmp_path: Path) -> None:
    (tmp_path / "playbooks").mkdir()
    (tmp_path / "playbooks" / "nightly.yaml").touch()
    for name, nearest in (
        ("nightli", "nightly"),
        ("nightly.yaml", "nightly"),
        ("playbooks/nightly.yml", "nightly"),
        ("chek-ckpt", "check-ckpt"),
        ("prob@1", "probe"),
    ):
        with pytest.raises(ConfigError) as caught:
            find_playbook(tmp_path, name, NAMES)
        (problem,) = caught.value.problems
        assert problem.nearest[0] == nearest
        assert repr(name) in problem.message
    with pytest.raises(ConfigError, match="no project here"):
        find_playbook(None, "nightly", NAMES)
    (tmp_path / "playbooks" / "my nightly.yaml").touch()
    with pytest.raises(ConfigError, match="'my nightly' is no name for a playbook: use letters"):
        find_playbook(tmp_path, "my nightly", NAMES)


def test_a_folder_that_nobody_may_look_into_is_a_problem() -> None:
    with tempfile.TemporaryDirectory() as folder:
        playbooks = Path(folder, "playbooks")
        playbooks.mkdir()
        # Root looks everywhere.
        root = os.geteuid() == 0
        playbooks.chmod(0)
        Path(folder).chmod(0o755)
        try:
            if root:
                os.seteuid(65534)
            with pytest.raises(ConfigError, match=r"playbooks: can't be looked into: Permission denied"):
                find_playbook(Path(folder), "probe", NAMES)
        finally:
            if root:
                os.seteuid(0)
            playbooks.chmod(0o700)


@pytest.mark.parametrize("name", ["../mine", "/etc/passwd", "", ".", "a\0b", "x" * 3000, "-x", "\x1b[2J"])
def test_names_never_leave_the_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "playbooks").mkdir()
    (tmp_path / "mine.yaml").write_text("steps: [{payload: p}]", encoding="utf-8")
    with pytest.raises(ConfigError, match="neither a playbook") as caught:
        find_playbook(tmp_path, name, NAMES)
    assert str(caught.value).isprintable()


def target(**variables: Json) -> Target:
    return Target(id="h/1", host=HOST, vars=variables)


def test_parameters_of_a_target() -> None:
    step = Step(
        payload="p",
        params={
            "a": 1,
            "b": VarRef(var="x"),
            "c": VarRef(var="y", default=[2], has_default=True),
            "d": VarRef(var="z"),
        },
    )
    assert resolve_params(step, target(x={"k": 1}, z=None), playbook="pb") == {
        "a": 1,
        "b": {"k": 1},
        "c": [2],
        "d": None,
    }
    with pytest.raises(ConfigError) as caught:
        resolve_params(step, target(xx=1, y=0), playbook="pb")
    assert [problem.path for problem in caught.value.problems] == ["p.params.b", "p.params.d"]
    for problem, variable in zip(caught.value.problems, "xz", strict=True):
        for word in ("h/1", "playbook pb", repr(variable)):
            assert word in problem.message


@given(
    st.dictionaries(
        st.sampled_from("abc"),
        st.integers() | st.builds(VarRef, var=st.sampled_from("xyz"), default=st.integers(), has_default=st.booleans()),
    ),
    st.dictionaries(st.sampled_from("xyz"), st.integers()),
)
def test_parameters_are_all_resolved_or_all_told(params: dict[str, Json | VarRef], variables: dict[str, Json]) -> None:
    missing = [
        name
        for name, value in params.items()
        if isinstance(value, VarRef) and value.var not in variables and not value.has_default
    ]
    step = Step(payload="p", params=params)
    if missing:
        with pytest.raises(ConfigError) as caught:
            resolve_params(step, target(**variables), playbook="p")
        assert [problem.path for problem in caught.value.problems] == [f"p.params.{name}" for name in missing]
        return
    found = resolve_params(step, target(**variables), playbook="p")
    assert found.keys() == params.keys()
    assert not any(isinstance(value, VarRef) for value in found.values())
