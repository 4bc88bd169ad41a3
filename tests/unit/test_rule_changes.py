"""What playbooks and flags say of single rules: checked before any login, and handed to the payload."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoterun.api import Choice, Project
from remoterun.errors import ConfigError
from remoterun.model import PayloadWork, RuleChanges, Severity

if TYPE_CHECKING:
    from remoterun.errors import Problem
    from remoterun.model import Json

INFO, SUSPECT, BAD = Severity.INFO, Severity.SUSPECT, Severity.BAD


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a project with this machine as its target, and the payloads `one` and `two`, which share the rule S1."""
    (tmp_path / "inventory.yaml").write_text("hosts: {here: {transport: local}}\n", "utf-8")
    (tmp_path / "payloads").mkdir()
    (tmp_path / "playbooks").mkdir()
    for name, rules in (("one", '["S1", "S2"]'), ("two", '["S1", "T2"]'), ("bare", "[]")):
        head = f'# /// payload\n# name = "{name}"\n# version = "1.0.0"\n# description = "d"\n# rules = {rules}\n# ///\n'
        (tmp_path / "payloads" / f"{name}.py").write_text(f"{head}def run(ctx): ...\n", "utf-8")
    return tmp_path


def planned(project: Path, name: str, changes: RuleChanges | None = None) -> list[Json]:
    """Plan and return what each job's payload gets as its rules."""
    plan = Project.load(project).plan_play(name, Choice(rules=changes or RuleChanges()))
    works = [job.work for job in plan.jobs]
    return [work.params.get("rules") for work in works if isinstance(work, PayloadWork)]


def refused(project: Path, name: str, changes: RuleChanges | None = None) -> tuple[Problem, ...]:
    with pytest.raises(ConfigError) as caught:
        planned(project, name, changes)
    return caught.value.problems


def playbook(project: Path, text: str) -> Path:
    path = project / "playbooks/mine.yaml"
    path.write_text(text, "utf-8")
    return path


def test_each_step_gets_its_own(project: Path) -> None:
    playbook(
        project,
        "steps:\n"
        "  - {payload: one, rules: {ignore: S2, severity: {S1: info}}}\n"
        "  - {payload: two}\n"
        "  - {payload: two, rules: {severity: {T2: bad}}}\n",
    )
    assert planned(project, "mine") == [
        {"ignore": ["S2"], "severity": {"S1": "info"}},
        None,
        {"severity": {"T2": "bad"}},
    ]


def test_unknown_rules_are_told_with_line_and_nearest(project: Path) -> None:
    path = playbook(
        project,
        "steps:\n"
        "  - payload: one\n"
        "    rules:\n"
        "      ignore: [S1,\n"
        "        S22]\n"
        "      severity:\n"
        "        T2: bad\n"
        "  - payload: two\n"
        "    rules: {ignore: S2}\n"
        "  - payload: bare\n"
        "    rules: {ignore: [S1]}\n"
        "    params: {x: 1}\n",
    )
    told = refused(project, "mine")
    rules = [problem for problem in told if problem.line is not None]
    assert [(each.file, each.line, each.path) for each in rules] == [
        (str(path), 5, "steps.0.rules.ignore.1"),
        (str(path), 7, "steps.0.rules.severity.T2"),
        (str(path), 9, "steps.1.rules.ignore"),
        (str(path), 11, "steps.2.rules.ignore.0"),
    ]
    assert rules[0].message == "one has no rule 'S22'"
    assert rules[0].nearest[0] == "S2"
    assert rules[3].message == "bare has no rules that can be changed"
    assert any("no parameters" in problem.message for problem in told)


def test_a_rule_is_not_ignored_and_changed_at_once(project: Path) -> None:
    playbook(
        project,
        "steps:\n  - payload: one\n    rules:\n      ignore: [S1]\n      severity: {S2: bad,\n        S1: info}\n",
    )
    (problem,) = refused(project, "mine")
    assert (problem.line, problem.path) == (6, "steps.0.rules.severity.S1")


def test_flags_beat_the_playbook_rule_by_rule(project: Path) -> None:
    playbook(project, "steps: [{payload: one, rules: {ignore: [S1], severity: {S2: info}}}, {payload: two}]")
    flags = RuleChanges(ignore=("S2",), severity={"S1": BAD})
    assert planned(project, "mine", flags) == [
        {"ignore": ["S2"], "severity": {"S1": "bad"}},
        {"severity": {"S1": "bad"}},
    ]
    assert planned(project, "one", RuleChanges(ignore=("S1",))) == [{"ignore": ["S1"]}]


def test_flags_name_rules_that_some_step_has(project: Path) -> None:
    playbook(project, "steps: [{payload: one}, {payload: two}]")
    assert planned(project, "mine", RuleChanges(ignore=("T2",))) == [None, {"ignore": ["T2"]}]
    ignored, changed = refused(project, "mine", RuleChanges(ignore=("T22",), severity={"X": BAD}))
    assert (ignored.path, ignored.message, ignored.nearest) == ("--ignore", "one and two have no rule 'T22'", ("T2",))
    assert changed.path == "--severity"


def test_a_payload_without_rules_has_none_to_change(project: Path) -> None:
    (problem,) = refused(project, "bare", RuleChanges(ignore=("S1",)))
    assert problem.message == "bare has no rules that can be changed"


RULES = st.sampled_from(["S1", "S2", "S3"])


@st.composite
def changes(draw: st.DrawFn) -> RuleChanges:
    severity = draw(st.dictionaries(RULES, st.sampled_from(Severity)))
    ignore = draw(st.lists(RULES.filter(lambda rule: rule not in severity), unique=True)) if len(severity) < 3 else []
    return RuleChanges(ignore=tuple(ignore), severity=severity)


@given(changes(), changes())
def test_the_nearer_word_on_a_rule_counts(near: RuleChanges, far: RuleChanges) -> None:
    def word(said: RuleChanges, rule: str) -> str | None:
        return "ignored" if rule in said.ignore else said.severity.get(rule)

    both = near.over(far)
    assert not {*both.ignore} & {*both.severity}
    for rule in ("S1", "S2", "S3"):
        assert word(both, rule) == (word(near, rule) or word(far, rule))
    assert both.among(("S1",)) == near.among(("S1",)).over(far.among(("S1",)))
