"""Messages: what targets say stands in them as text, in few words, the gravest first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from remoterun.audit.ledger import Event
from remoterun.audit.messages import MOST_LINES, line_of, message, summary
from remoterun.audit.words import NAMES, TEMPLATES, check_template

NEW = Event(
    template="new",
    playbook="check-ckpt",
    target="kpro6/200",
    name="dflash-train",
    subject="step_2029",
    rule="CK010",
    severity="bad",
    message="152 NaN in the weights",
    since="2026-11-30T02:00:00.000Z",
)


def test_one_of_each() -> None:
    events = [
        Event(template="cleared", target="a", subject="s", rule="CK001", severity="bad", since="2026-01-01T00:00:00Z"),
        NEW,
        Event(template="unreachable", target="b", message="nothing listens", count=2, since="2026-01-01T00:00:00Z"),
        Event(template="failed", message="audit.json could not be written"),
    ]
    made = message("fleet", events, TEMPLATES)
    assert made.title == "remoterun fleet: audit failed, 1 new, 1 without a result, 1 cleared"
    assert made.body.splitlines() == [
        "the audit itself failed: audit.json could not be written",
        "new: kpro6/200: step_2029: CK010 bad: 152 NaN in the weights",
        "no result: b: 2 times in a row, since 2026-01-01T00:00:00Z: nothing listens",
        "cleared: a: s: CK001 bad, since 2026-01-01T00:00:00Z",
    ]


def test_the_worst_of_all_targets_comes_first() -> None:
    severities = ("info", "bad", "suspect", "bad")
    events = [Event(template="new", target=f"t{number}", severity=each) for number, each in enumerate(severities)]
    body = message("fleet", events, {**TEMPLATES, "new": "$target"}).body
    assert body.split() == ["t1", "t3", "t2", "t0"]


def test_a_flood_is_counted() -> None:
    events = [Event(template="new", target=f"t{number}") for number in range(MOST_LINES + 25)]
    lines = message("fleet", [*events, events[0]], TEMPLATES, dropped=3).body.splitlines()
    assert len(lines) == MOST_LINES + 2
    assert lines[-2] == "and 25 more: remoterun diff, or remoterun show last"
    assert lines[-1] == "3 older events were dropped unsent"
    long = [Event(template="new", target=f"{number}", message="x" * 300) for number in range(30)]
    assert len(message("fleet", long, TEMPLATES).body) < 4200


def test_templates_of_ones_own() -> None:
    template = check_template("$rule at ${target} ($name) costs $$5: $tensor")
    assert line_of(NEW, {**TEMPLATES, "new": template}) == "CK010 at kpro6/200 (dflash-train) costs $5: "
    assert all(check_template(text) == text for text in TEMPLATES.values())


@given(st.text(st.sampled_from("ab ${}%\\\"'<&>:*_`\n{{}}"), max_size=30), st.sampled_from(NAMES))
def test_nothing_that_a_target_says_is_obeyed(said: str, name: str) -> None:
    event = Event(template="new", target=said, subject=said, message=said)
    assert line_of(event, {"new": f"$target|${name}|$message"}).startswith(f"{said}|")
    assert line_of(event, {"new": "$target|$message"}) == f"{said}|{said}"


def test_counting() -> None:
    assert summary([NEW, NEW, Event(template="working")]) == "2 new, audit works again"
