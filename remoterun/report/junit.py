"""Runs as JUnit XML, so that systems for continuous integration show targets as tests."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from remoterun.errors import clean
from remoterun.model import Captured, Outcome, Status
from remoterun.model.times import seconds_between
from remoterun.report.resuming import resume_lines
from remoterun.report.rows import is_summary
from remoterun.report.severities import severities_of, worst_first
from remoterun.report.text import last_lines, render

if TYPE_CHECKING:
    from collections.abc import Sequence
    from xml.etree.ElementTree import Element

    from remoterun.errors import Problem
    from remoterun.model import Finding, Run

# What XML 1.0 takes; all else cannot be written in any way, not even as a reference.
_ILLEGAL: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_REPLACEMENT: Final = "\ufffd"
_SKIPPED: Final = frozenset({Status.NOT_STARTED, Status.RUNNING})
_LINES: Final = 1000
"""Lines of a stream, the last ones."""


def junit(runs: Sequence[Run]) -> bytes:
    """Write runs as one document: a suite for each, in it a case for each target and step.

    Findings are a failure; whatever else kept a result from coming is an error, never a success. What was not
    started, or is still at work, is skipped.
    """
    from xml.etree.ElementTree import Element

    root = Element("testsuites", name="remoterun")
    for run in runs:
        root.append(_suite(run))
    _sum_up(root, [*root])
    return _written(root)


def junit_problems(problems: Sequence[Problem]) -> bytes:
    """Write why there is no run as a document of one case."""
    from xml.etree.ElementTree import Element, SubElement

    root = Element("testsuites", name="remoterun")
    suite = SubElement(root, "testsuite", name="remoterun")
    case = SubElement(suite, "testcase", classname="remoterun", name="before any run", time="0.000")
    _say(SubElement(case, "error", type="invalid"), str(problems[0]), "\n".join(map(str, problems)))
    _sum_up(suite, [case])
    _sum_up(root, [suite])
    return _written(root)


def _written(root: Element) -> bytes:
    from xml.etree.ElementTree import indent, tostring

    # Texts of cases are left as they are.
    indent(root)
    return bytes(tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


def _suite(run: Run) -> Element:
    from xml.etree.ElementTree import Element, SubElement

    suite = Element("testsuite", name=_text(run.playbook), timestamp=_text(run.started_at[:19]))
    properties = SubElement(suite, "properties")
    for name, value in (("run_id", run.run_id), ("status", run.status.value)):
        SubElement(properties, "property", name=name, value=_text(value))
    several = len({outcome.step for outcome in run.outcomes}) > 1
    cases = [_case(run, outcome, several=several) for outcome in run.outcomes]
    suite.extend(cases)
    _sum_up(suite, cases)
    suite.set("time", f"{max(seconds_between(run.started_at, run.finished_at) or 0.0, 0.0):.3f}")
    return suite


def _sum_up(whole: Element, parts: Sequence[Element]) -> None:
    """Note how many cases there are, and how they ended."""
    for name, tag in (("tests", None), ("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        cases = [case for part in parts for case in ([part] if part.tag == "testcase" else part.iter("testcase"))]
        count = len(cases) if tag is None else sum(case.find(tag) is not None for case in cases)
        whole.set(name, str(count))
    whole.set("time", f"{sum(float(part.get('time', '0')) for part in parts):.3f}")


def _case(run: Run, outcome: Outcome, *, several: bool) -> Element:
    from xml.etree.ElementTree import Element, SubElement

    step = f".step {outcome.step + 1}" if several else ""
    payload = f" {outcome.payload.name}" if several and outcome.payload else ""
    name = f"{outcome.target} ({outcome.name})" if outcome.name else outcome.target
    seconds = outcome.timings_s.get("total", 0.0)
    case = Element(
        "testcase",
        classname=_text(f"{run.playbook}{step}{payload}"),
        name=_text(name),
        # Whatever a number came to, its reader wants one.
        time=f"{seconds if 0 <= seconds < 1e9 else 0.0:.3f}",
    )
    told = "\n".join(map(_finding, worst_first(outcome.findings)))
    if outcome.status in _SKIPPED:
        _say(SubElement(case, "skipped"), _cause(outcome))
    elif outcome.status is Status.FINDINGS:
        _say(SubElement(case, "failure", type="findings"), ", ".join(severities_of([outcome])), told)
    elif outcome.status is not Status.OK:
        code = outcome.error.code if outcome.error else outcome.status.value
        hint = outcome.error.hint if outcome.error else ""
        _say(SubElement(case, "error", type=_text(code)), _cause(outcome), "\n".join(filter(None, (hint, told))))
    below = [told if outcome.status is Status.OK else "", _resume(outcome), _stream(outcome.stdout)]
    for tag, text in (("system-out", below), ("system-err", [_stream(outcome.stderr)])):
        if any(text):
            SubElement(case, tag).text = _text("\n".join(filter(None, text)), lines=True)
    return case


def _say(element: Element, message: str, text: str = "") -> None:
    element.set("message", _text(message))
    element.text = _text(text, lines=True) or None


def _cause(outcome: Outcome) -> str:
    """Say how an outcome ended: status, phase and message."""
    message = f": {outcome.error.message}" if outcome.error else ""
    return f"{outcome.status.value} ({outcome.phase.value}){message}"


def _finding(finding: Finding) -> str:
    subject = f"{clean(finding.subject)}: " if finding.subject else ""
    line = f"{finding.severity.value} {clean(finding.rule)} {subject}{clean(finding.message)}"
    return f"{line}\n  next: {clean(finding.next_step)}" if finding.next_step else line


def _resume(outcome: Outcome) -> str:
    """Say where the trainings of an audit of checkpoints can be resumed."""
    summaries = (record for record in outcome.records if is_summary(record) and "resume_from" in record)
    lines = (line for summary in summaries for line in resume_lines(summary, verbose=1))
    return "\n".join(clean(render(line, color=False)) for line in lines)


def _stream(captured: Captured) -> str:
    lines, before = last_lines(captured, _LINES)
    return "\n".join([*([f"[... {before} lines before]"] if before else []), *lines])


def _text(text: str, *, lines: bool = False) -> str:
    """Make a text one that XML takes: visible characters, in one line or in several."""
    cleaned = "\n".join(map(clean, text.split("\n"))) if lines else clean(text)
    return _ILLEGAL.sub(_REPLACEMENT, cleaned)
