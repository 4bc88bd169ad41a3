"""What people are told of a row of runs: each thing once, and once more when it is over."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoterun.audit.file import Alerts, EventKind
from remoterun.audit.ledger import MOST_KNOWN, Event, Told, tell
from remoterun.errors import clean
from remoterun.model import Finding, Outcome, Phase, Run, Severity, Status
from tests.support.compared import compare
from tests.support.runs import CHECK_CKPT, checkpoint, error, run_of, texts

ALERTS = Alerts(to={})


def outcome(target: str, *bad: int, severity: Severity = Severity.BAD, steps: Sequence[int] = (1, 2, 3)) -> Outcome:
    """Make the outcome of a target with some checkpoints, of which some hold NaN."""
    path = "/workspace/checkpoints/step_{}/checkpoint.pt"
    findings = tuple(
        Finding(
            rule="CK010",
            severity=severity,
            subject=f"step_{step}",
            message=f"{step} NaN",
            data={"path": path.format(step)},
        )
        for step in bad
    )
    return Outcome(
        target=target,
        name=f"name-of-{target}",
        step=0,
        status=Status.FINDINGS if bad else Status.OK,
        phase=Phase.COLLECT,
        payload=CHECK_CKPT,
        records=tuple(checkpoint(step) for step in steps),
        findings=findings,
    )


def silent(target: str, code: str = "connect_refused") -> Outcome:
    return Outcome(
        target=target,
        name=None,
        step=0,
        status=Status.UNREACHABLE,
        phase=Phase.CONNECT,
        error=error(code, f"{target}: nothing listens."),
    )


def row(*runs: Sequence[Outcome]) -> list[Run]:
    return [
        replace(run_of(*outcomes), run_id=f"run-{number}", started_at=f"2026-03-0{number}T02:00:00.000Z")
        for number, outcomes in enumerate(runs, 1)
    ]


def told_of(runs: Sequence[Run], alerts: Alerts = ALERTS) -> list[list[str]]:
    """Audit runs one after the other, each compared with the one before; return what people are told."""
    told, said = Told(), []
    for number, run in enumerate(runs):
        difference = compare(runs[number - 1] if number else None, run, runs[: max(number - 1, 0)])
        told, events = tell(told, difference, run, alerts)
        said.append([f"{event.template} {event.target} {event.subject}".strip() for event in events])
    return said


def test_a_finding_is_told_once_and_once_when_it_is_gone() -> None:
    runs = row([outcome("a")], [outcome("a", 2)], [outcome("a", 2)], [outcome("a", steps=(1, 3))], [outcome("a")])
    assert told_of(runs) == [[], ["new a step_2"], [], ["cleared a step_2"], []]


def test_what_an_event_says() -> None:
    runs = row([outcome("a", 2)])
    ((event,),) = [tell(Told(), compare(None, runs[0]), runs[0], ALERTS)[1]]
    assert event == Event(
        template="new",
        playbook="check-ckpt",
        target="a",
        name="name-of-a",
        subject="step_2",
        rule="CK010",
        severity="bad",
        message="2 NaN",
        since="2026-03-01T02:00:00.000Z",
    )
    assert Event.read(event.document()) == event


def test_what_nobody_could_look_at_is_not_cleared() -> None:
    runs = row([outcome("a", 2)], [silent("a")], [silent("a")], [outcome("a", 2)], [outcome("a")])
    assert told_of(runs) == [["new a step_2"], [], ["unreachable a"], ["reachable a"], ["cleared a step_2"]]


def test_a_target_is_told_after_so_many_times() -> None:
    runs = row(*([silent("a"), outcome("b")] for _ in range(4)))
    assert told_of(runs) == [[], ["unreachable a"], [], []]
    assert told_of(runs, replace(ALERTS, unreachable_after=1)) == [["unreachable a"], [], [], []]
    assert told_of(runs, replace(ALERTS, unreachable_after=4)) == [[], [], [], ["unreachable a"]]
    count = tell(Told(), compare(runs[2], runs[3], runs[:2]), runs[3], ALERTS)[1][0]
    assert (count.count, count.since, count.message) == (4, "2026-03-01T02:00:00.000Z", "nothing listens.")


def test_a_target_that_is_not_asked_any_more_stays_as_it_is_known() -> None:
    runs = row([outcome("a", 2), outcome("b")], [outcome("b")], [outcome("a", 2), outcome("b")], [outcome("a")])
    assert told_of(runs) == [["new a step_2"], [], [], ["cleared a step_2"]]


def test_what_others_saw_in_between_is_told_all_the_same() -> None:
    first, by_hand, second = row([outcome("a")], [outcome("a", 2)], [outcome("a", 2)])
    told, _ = tell(Told(), compare(None, first), first, ALERTS)
    # To the history the finding is not new any more, and by hand nobody is told.
    told, events = tell(told, compare(by_hand, second, [first]), second, ALERTS)
    assert [(event.template, event.since) for event in events] == [("new", "2026-03-02T02:00:00.000Z")]
    (after,) = [replace(run, run_id="run-4") for run in row([outcome("a")])]
    cleared_by_hand = compare(after, after, [first, by_hand, second])
    assert [event.template for event in tell(told, cleared_by_hand, after, ALERTS)[1]] == ["cleared"]


def test_only_what_people_want_to_hear() -> None:
    runs = row([outcome("a", 2), silent("b")], [outcome("a"), silent("b")])
    assert told_of(runs, replace(ALERTS, events=frozenset({EventKind.UNREACHABLE}))) == [[], ["unreachable b"]]
    assert told_of(runs, replace(ALERTS, events=frozenset({EventKind.FINDINGS}))) == [
        ["new a step_2"],
        ["cleared a step_2"],
    ]
    assert told_of(runs, replace(ALERTS, events=frozenset({EventKind.FAILED}))) == [[], []]


def test_severities_below_are_told_once_they_rise() -> None:
    runs = row(
        [outcome("a", 2, severity=Severity.INFO)],
        [outcome("a", 2, severity=Severity.SUSPECT)],
        [outcome("a", 2, severity=Severity.BAD)],
        [outcome("a")],
    )
    assert told_of(runs) == [[], ["new a step_2"], ["new a step_2"], ["cleared a step_2"]]
    assert told_of(runs, replace(ALERTS, severity=Severity.BAD)) == [[], [], ["new a step_2"], ["cleared a step_2"]]


def test_a_finding_that_gets_worse_is_told_again() -> None:
    suspect, bad = (outcome("a", 2, severity=severity) for severity in (Severity.SUSPECT, Severity.BAD))
    assert told_of(row([suspect], [suspect], [bad], [bad], [suspect])) == [
        ["new a step_2"],
        [],
        ["new a step_2"],
        [],
        [],
    ]


def test_an_event_of_a_kind_that_nobody_knows_is_none() -> None:
    kept = Event(template="new").document()
    assert Event.read(kept) == Event(template="new")
    with pytest.raises(ValueError, match="no template"):
        Event.read({**kept, "template": "later"})


def test_a_flood_is_bounded_and_told_as_others_are_over() -> None:
    one = outcome("a", 2)
    flood = [replace(one.findings[0], data={"tensor": f"layers.{number}"}) for number in range(MOST_KNOWN + 2)]
    much, less = replace(one, findings=tuple(flood)), replace(one, findings=tuple(flood[3:]))
    first, second = row([much], [less])
    told, events = tell(Told(), compare(None, first), first, ALERTS)
    assert len(told.findings) == len(events) == MOST_KNOWN
    told, events = tell(told, compare(first, second), second, ALERTS)
    assert [event.template for event in events] == ["cleared"] * 3 + ["new"] * 2
    assert len(told.findings) == MOST_KNOWN - 1


def test_what_is_known_and_becomes_worse_is_told_in_a_flood_too() -> None:
    one = outcome("a", 2, severity=Severity.SUSPECT)
    flood = [replace(one.findings[0], data={"tensor": f"layers.{number}"}) for number in range(MOST_KNOWN + 1)]
    worse = replace(flood[7], severity=Severity.BAD)
    first, second = row([replace(one, findings=tuple(flood))], [replace(one, findings=(worse, *flood[:7], *flood[8:]))])
    told, _ = tell(Told(), compare(None, first), first, ALERTS)
    _, events = tell(told, compare(first, second), second, ALERTS)
    assert [(event.template, event.tensor, event.severity) for event in events] == [("new", "layers.7", "bad")]


@given(st.lists(st.sampled_from(["clean", "bad", "silent", "absent"]), min_size=1, max_size=8))
def test_whatever_happens_each_thing_is_told_in_turns(fates: list[str]) -> None:
    """New and cleared, unreachable and back alternate; what people know at the end is what was last seen."""
    made = {"clean": [outcome("a")], "bad": [outcome("a", 2)], "silent": [silent("a")], "absent": []}
    said = [line for lines in told_of(row(*([*made[fate], outcome("b")] for fate in fates))) for line in lines]
    findings = [line for line in said if "step_2" in line]
    assert findings == ["new a step_2", "cleared a step_2"] * (len(findings) // 2) + findings[:1] * (len(findings) % 2)
    seen = [fate for fate in fates if fate in {"clean", "bad"}]
    assert len(findings) % 2 == (seen[-1:] == ["bad"])
    reach = [line for line in said if "step_2" not in line]
    assert reach == ["unreachable a", "reachable a"] * (len(reach) // 2) + ["unreachable a"] * (len(reach) % 2)


@given(texts())
def test_what_targets_say_is_made_clean(said: str) -> None:
    bad = outcome("a", 2)
    hostile = replace(bad, findings=(replace(bad.findings[0], message=said, subject=said),))
    (run,) = row([hostile])
    events = tell(Told(), compare(None, run), run, ALERTS)[1]
    assert events
    for event in events:
        assert event.message == clean(event.message)
        assert event.subject == clean(event.subject)
        json.dumps(event.document()).encode()
        event.message.encode()


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("kpro7/300: nothing listens", "nothing listens"),
        ("kpro7: nothing listens", "nothing listens"),
        ("kpro7 hung up", "kpro7 hung up"),
        ("kpro7: ", "unreachable"),
    ],
)
def test_a_line_names_its_target_once(message: str, said: str) -> None:
    gone = replace(silent("kpro7/300"), error=error("connect_refused", message))
    (run,) = row([gone])
    _, (event,) = tell(Told(), compare(None, run), run, replace(ALERTS, unreachable_after=1))
    assert event.message == said
