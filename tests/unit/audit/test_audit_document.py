"""What an audit says: the paragraph, the document and its schema, and the exit status."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from jsonschema import Draft202012Validator

from remoterun.audit.document import audit_pieces, audit_schema, busy_document
from remoterun.audit.file import Alerts, ExitOn
from remoterun.audit.ledger import Event, Told, tell
from remoterun.audit.lock import Holder
from remoterun.audit.messages import message
from remoterun.audit.notify import Delivery
from remoterun.audit.outcome import Audit, Cut, exit_code
from remoterun.audit.summary import paragraph, sentences
from remoterun.audit.words import TEMPLATES
from remoterun.compare import difference_text
from remoterun.model import Finding, Outcome, Phase, Run, RunStatus, Severity, Status
from remoterun.report.junit import junit
from remoterun.report.table import table
from tests.support.compared import compare
from tests.support.project import strict_json
from tests.support.runs import CHECK_CKPT, checkpoint, error, run_of, runs

HOLDER = Holder(pid=7, host="desk", started_at="2026-03-01T02:00:00.000Z", runs=("run-1",))


def ok(target: str) -> Outcome:
    return Outcome(
        target=target,
        name=None,
        step=0,
        status=Status.OK,
        phase=Phase.COLLECT,
        payload=CHECK_CKPT,
        records=(checkpoint(1),),
    )


def bad(target: str) -> Outcome:
    finding = Finding(rule="CK010", severity=Severity.BAD, subject="step_1", message="3 NaN in w")
    return replace(ok(target), status=Status.FINDINGS, findings=(finding,))


def silent(target: str) -> Outcome:
    refused = error("connect_refused", f"{target}: nothing listens.")
    return Outcome(target=target, name=None, step=0, status=Status.UNREACHABLE, phase=Phase.CONNECT, error=refused)


def late(target: str) -> Outcome:
    over = error("run_timeout", f"{target}: it took longer than 30m.")
    return replace(bad(target), status=Status.TIMEOUT, phase=Phase.RUN, error=over)


def audit(*row: list[Outcome]) -> Audit:
    """Make the audit of the last of a row of runs."""
    done = [
        replace(run_of(*outcomes), run_id=f"run-{number}", started_at=f"2026-03-0{number}T02:00:00.000Z")
        for number, outcomes in enumerate(row, 1)
    ]
    difference = compare(done[-2] if len(done) > 1 else None, done[-1], done[:-2])
    return Audit(
        project="/srv/fleet",
        started_at=done[-1].started_at,
        finished_at=done[-1].finished_at,
        runs=(done[-1],),
        differences=(difference,),
    )


def said(audit: Audit) -> str:
    text = paragraph(audit)
    assert text.endswith("\n")
    assert "\n\n" not in text
    assert all(len(line) <= 78 for line in text.splitlines() if " " in line)
    return " ".join(text.split())


def test_a_finding_of_many_targets_is_said_once() -> None:
    names = [f"k/{number}" for number in range(200, 205)]
    found = audit([ok(name) for name in names], [bad(name) for name in names])
    assert said(found) == (
        "remoterun audit of /srv/fleet, 2026-03-02 02:00 UTC. check-ckpt on 5 targets: findings: 5 new findings. "
        "New: k/200, k/201, k/202 and 2 more: step_1: CK010 bad: 3 NaN in w. "
        "More: `remoterun diff run-1 run-2`."
    )


@pytest.mark.parametrize("length", range(1, 50))
def test_a_command_is_never_broken(length: int) -> None:
    """Pasted from two lines, it would be two commands."""
    made = audit([ok("a")], [bad("n" * length)])
    for text in (paragraph(made), sentences(made)):
        assert sum("`remoterun diff run-1 run-2`" in line for line in text.splitlines()) == 1
        assert all(len(line) <= 78 for line in text.splitlines() if " " in line.strip())


def test_findings_of_several_tensors_are_said_once() -> None:
    torn = [
        Finding(
            rule="CK022",
            severity=Severity.BAD,
            subject="step_1",
            message=f"w{number} has another CRC-32",
            data={"tensors": [f"w{number}"], "record": f"data/{number}"},
        )
        for number in range(8)
    ]
    broken = replace(bad("a"), findings=(*torn, *bad("a").findings))
    new, over = audit([ok("a")], [broken]), audit([broken], [ok("a")])
    assert said(new).partition("9 new findings. ")[2] == (
        "New: a: step_1: CK022 bad (8 of them): w0 has another CRC-32. New: a: step_1: CK010 bad: 3 NaN in w. "
        "More: `remoterun diff run-1 run-2`."
    )
    assert said(over).count("Cleared: a: step_1: CK022 bad (8 of them), there since 2026-03-01 02:00 UTC.") == 1
    assert said(over).count("Cleared") == 2


def test_findings_are_in_the_order_of_the_table() -> None:
    said_of = [("step_2", "CK040"), ("step_1", "CK090"), ("step_1", "CK010"), ("step_2", "CK031")]
    severities = {"CK040": Severity.SUSPECT, "CK090": Severity.BAD, "CK010": Severity.BAD, "CK031": Severity.SUSPECT}
    findings = tuple(
        Finding(rule=rule, severity=severities[rule], subject=subject, message="so it is") for subject, rule in said_of
    )
    found = audit([ok("a")], [replace(bad("a"), findings=findings)])
    order = ["CK090", "CK010", "CK040", "CK031"]
    assert re.findall(r"CK\d+", said(found)) == order
    for text in (table(found.runs[0], width=100, color=False), junit(found.runs).decode()):
        assert re.findall(r"CK\d+", text) == order
    _, events = tell(Told(), found.differences[0], found.runs[0], Alerts(to={}))
    assert re.findall(r"CK\d+", message("fleet", events, TEMPLATES).body) == order


def test_a_target_without_a_result_has_the_status_of_its_run() -> None:
    stopped = error("guest_stopped", "a: container 202 is not running")
    failed = Outcome(target="a", name=None, step=0, status=Status.FAILED, phase=Phase.ENTER, error=stopped)
    over = audit([ok("a"), ok("b")], [failed, silent("b")])
    assert "Failed: a: container 202 is not running. Unreachable: b: nothing listens. " in said(over)
    told = difference_text(over.differences[0], width=100, color=False)
    assert "  a  failed  guest_stopped: container 202 is not running\n" in told


def test_what_is_cleared_and_what_is_silent() -> None:
    over = audit([bad("a"), bad("b"), silent("c")], [ok("a"), silent("b"), silent("c")])
    assert said(over) == (
        "remoterun audit of /srv/fleet, 2026-03-02 02:00 UTC. check-ckpt on 3 targets: incomplete: 1 cleared finding, "
        "1 finding of which nothing is known now, 2 targets without a result. "
        "Cleared: a: step_1: CK010 bad, there since 2026-03-01 02:00 UTC. Unreachable: b: nothing listens. "
        "Still no result: c (2 times in a row, since 2026-03-01 02:00 UTC). "
        "More: `remoterun diff run-1 run-2`."
    )


def test_a_silent_target_is_told_once() -> None:
    over = audit([ok("a"), ok("b")], [late("a"), late("b")], [silent("a"), late("b")])
    assert said(over).partition("without a result. ")[2] == (
        "Unreachable: a: nothing listens. "
        "Still no result: b (2 times in a row, since 2026-03-02 02:00 UTC). "
        "More: `remoterun diff run-2 run-3`."
    )


def test_what_the_audit_itself_has_to_say() -> None:
    cut = Cut(holder=HOLDER, run_id="run-1", done=3, jobs=20)
    delivery = Delivery(failed=("chat was not told: no route.",), held=("pager",))
    text = said(replace(audit([ok("a")]), cut=(cut,), problems=("x.json was not written",), delivery=delivery))
    assert (
        "The former audit (process 7 on desk, since 2026-03-01T02:00:00.000Z) was cut during run run-1, when 3 of 20 "
        "outcomes were there. check-ckpt on 1 target: ok: nothing new. More: `remoterun show run-1`. "
        "X.json was not written. Chat was not told: no route; it is tried again at the next audit. "
        "pager had enough messages this hour: the rest follows with the next audit."
    ) in text
    ended = replace(audit([ok("a")]), ended_as=RunStatus.TERMINATED, differences=())
    assert "It was terminated before it was done: nothing was compared, and nobody was told." in said(ended)
    cuts = (Cut(holder=HOLDER), Cut(holder=HOLDER), Cut(holder=Holder()), replace(cut, ended=True))
    assert (
        "6 former audits were cut: 3 earlier ones; before anything had started (process 7 on desk, since "
        "2026-03-01T02:00:00.000Z); before anything had started (it has left no name); after run run-1 had ended, "
        "before that was reported (process 7 on desk, since 2026-03-01T02:00:00.000Z). Check-ckpt"
    ).lower() in said(replace(audit([ok("a")]), cut=cuts, cut_earlier=2)).lower()


@pytest.mark.parametrize(
    ("row", "noteworthy", "always", "changed", "findings"),
    [
        ([[ok("a")]], False, 0, 0, 0),
        ([[ok("a")], [ok("a")]], False, 0, 0, 0),
        ([[bad("a")]], True, 1, 1, 1),
        ([[bad("a")], [bad("a")]], False, 1, 0, 1),
        ([[bad("a")], [ok("a")]], True, 0, 1, 0),
        ([[ok("a")], [silent("a")]], True, 3, 3, 0),
        ([[silent("a")], [silent("a")]], True, 3, 0, 0),
        ([[silent("a"), bad("b")], [silent("a"), bad("b")]], True, 3, 0, 1),
        ([[silent("a")], [ok("a")]], True, 0, 1, 0),
        ([[late("a")], [late("a")]], True, 3, 0, 1),
    ],
)
def test_when_it_speaks_and_how_it_ends(
    row: list[list[Outcome]], noteworthy: bool, always: int, changed: int, findings: int
) -> None:
    made = audit(*row)
    assert made.noteworthy is noteworthy
    ends = {ExitOn.ALWAYS: always, ExitOn.CHANGED: changed, ExitOn.FINDINGS: findings}
    assert {exit_on: exit_code(made, exit_on) for exit_on in ExitOn} == ends
    for exit_on in ExitOn:
        assert exit_code(replace(made, problems=("x.json was not written",)), exit_on) == 3
        assert exit_code(replace(made, ended_as=RunStatus.TERMINATED), exit_on) == 143
    undelivered = replace(made, delivery=Delivery(failed=("chat was not told",)))
    assert undelivered.noteworthy
    assert {exit_on: exit_code(undelivered, exit_on) for exit_on in ExitOn} == ends


def test_nothing_that_ran_is_no_success() -> None:
    assert exit_code(Audit(project="/srv/fleet", started_at=""), ExitOn.ALWAYS) == 3


def test_the_schema_holds() -> None:
    Draft202012Validator.check_schema(audit_schema())
    validator = Draft202012Validator(audit_schema())
    cut = Cut(holder=HOLDER, run_id="run-1", done=3, jobs=20)
    whole = replace(
        audit([ok("a"), bad("b")], [bad("a"), silent("b")]),
        cut=(cut,),
        problems=("x",),
        events=(Event(template="new", target="a"),),
        delivery=Delivery(sent=("chat",)),
    )
    for made in (whole, replace(whole, cut=())):
        document = strict_json(b"".join(audit_pieces(made, ExitOn.ALWAYS)))
        validator.validate(document)
        assert not validator.is_valid({**document, "runs": [{}]})
        assert not validator.is_valid({**document, "differences": [{}]})
    validator.validate(busy_document("/srv/fleet", HOLDER, 75))
    assert not validator.is_valid({**busy_document("/srv/fleet", HOLDER, 75), "status": "ok"})


@settings(max_examples=30)
@given(runs())
def test_any_run_is_told_in_one_clean_paragraph(run: Run) -> None:
    difference = compare(None, run)
    made = Audit(project="/srv/fleet", started_at=run.started_at, runs=(run,), differences=(difference,))
    text = paragraph(made)
    assert all(line.isprintable() or not line.isascii() for line in text.splitlines())
    assert "\x1b" not in text
    several = replace(made, runs=(run, run), differences=(difference, difference))
    for each in (made, several, replace(made, runs=())):
        assert len(strict_json(b"".join(audit_pieces(each, ExitOn.ALWAYS)))["runs"]) == len(each.runs)
