"""JUnit XML: its readers see targets as tests, and no text from a target breaks the document."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from hypothesis import given
from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

from remoterun.errors import Problem
from remoterun.model import Json, Run, Severity, Status
from remoterun.report.junit import junit, junit_problems
from tests.support import runs as samples
from tests.support.audits import audited, nan, run, silent


def _suites(data: bytes) -> list[TestSuite]:
    ElementTree.fromstring(data)
    return list(JUnitXml.fromstring(data))


def _cases(data: bytes) -> dict[str, TestCase]:
    return {str(case.name): case for suite in _suites(data) for case in suite}


def test_targets_are_cases_that_end_as_they_did() -> None:
    calm = nan(3, rule="CK069", severity=Severity.INFO)
    day = run(
        0,
        audited("kpro6/200", [3], calm, nan(3), name="train"),
        audited("kpro6/201", [7]),
        silent("kpro7/300"),
        silent("kpro7/301", Status.NOT_STARTED, "earlier_step"),
    )
    (suite,) = _suites(junit([day]))
    assert (suite.name, suite.tests, suite.failures, suite.errors, suite.skipped) == ("check-ckpt", 4, 1, 1, 1)
    assert suite.time == 9.0
    properties = suite.properties()  # type: ignore[no-untyped-call]
    assert {item.name: item.value for item in properties} == {"run_id": day.run_id, "status": "incomplete"}
    cases = _cases(junit([day]))
    assert [type(each) for case in cases.values() for each in case.result] == [Failure, Error, Skipped]
    found = cases["kpro6/200 (train)"].result[0]
    assert (found.message, found.type) == ("1 bad", "findings")
    assert "info CK069 step_3" in found.text
    assert "bad CK001 step_3: model.wte: 152 NaN of 4096 elements (float32)" in found.text
    assert "next: Do not resume from it" in found.text
    assert cases["kpro6/201"].is_passed
    assert (cases["kpro6/201"].classname, cases["kpro6/201"].time) == ("check-ckpt", 3.0)
    silence = cases["kpro7/300"].result[0]
    assert silence.type == "connect_refused"
    assert silence.message == "unreachable (connect): kpro7/300: nothing is known of it."
    assert "sshd" in silence.text


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.OK])
def test_nothing_but_ok_passes(status: Status) -> None:
    (case,) = _cases(junit([run(0, silent("a", status))])).values()
    assert not case.is_passed


def test_several_runs_are_several_suites_and_steps_have_classes() -> None:
    first = run(0, audited("a", [3]), audited("a", [3], step=1))
    data = junit([first, run(1, silent("a"), playbook="probe")])
    assert [suite.name for suite in _suites(data)] == ["check-ckpt", "probe"]
    assert [case.classname for suite in _suites(data) for case in suite] == [
        "check-ckpt.step 1 check-ckpt",
        "check-ckpt.step 2 check-ckpt",
        "probe",
    ]
    whole = JUnitXml.fromstring(data)
    assert (whole.tests, whole.errors, whole.failures) == (3, 1, 0)


def test_each_training_says_where_to_resume() -> None:
    trainings: list[Json] = [{"folder": "sft", "resume_from": "sft/step_4"}, {"folder": "dpo", "resume_from": None}]
    summary: dict[str, Json] = {"kind": "summary", "resume_from": "sft/step_4", "trainings": trainings}
    case = _cases(junit([run(0, replace(audited("a", [4]), records=(summary,)))]))["a"]
    assert case.system_out.splitlines() == [
        "resume from sft/step_4  in sft",
        "resume from: none of the checkpoints in dpo",
    ]


def test_output_goes_with_its_case() -> None:
    outcome = audited(
        "a", [3], stdout=samples.captured(b"\x1b[31mred\x1b[0m\nnext\n"), stderr=samples.captured(b"oh\n")
    )
    case = _cases(junit([run(0, outcome)]))["a"]
    assert (case.system_out, case.system_err) == (
        "resume from: none of these checkpoints\nred\nnext",
        "oh",
    )


def test_problems_before_a_run_are_an_error() -> None:
    data = junit_problems([Problem(message="unknown key", file="inventory.yaml", line=7), Problem(message="<&>\x00")])
    (suite,) = _suites(data)
    assert (suite.tests, suite.errors) == (1, 1)
    (case,) = suite
    assert case.result[0].text == "inventory.yaml:7: unknown key\n<&>"


@pytest.mark.parametrize(
    "name", ["<script>", "a&b", "]]>", "\x00", "\x1b[2J", "\ufffe", "\ud800", "a\"b'c", "\u202e", "\x85"]
)
def test_hostile_names_stay_texts(name: str) -> None:
    outcome = replace(
        audited("t", [3], nan(3, rule=name, subject=name, message=name)), target=f"t{name}", name=name or None
    )
    (case,) = _cases(junit([run(0, outcome)])).values()
    assert str(case.name).startswith("t")
    if name.isprintable():
        assert case.name == f"t{name} ({name})"


# What a reader may get in any text of a document.
_XML = re.compile("[\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]*")


@given(samples.runs())
def test_any_run_is_a_document(run: Run) -> None:
    data = junit([run])
    root = ElementTree.fromstring(data)
    for element in root.iter():
        assert all(_XML.fullmatch(text) for text in (element.text or "", *element.attrib.values()))
    (suite,) = _suites(data)
    assert suite.tests == len(run.outcomes)
    ok = sum(outcome.status is Status.OK for outcome in run.outcomes)
    assert suite.tests - suite.failures - suite.errors - suite.skipped == ok
