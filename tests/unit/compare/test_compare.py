"""What is different between runs: what was looked at is told, what was not is unknown, and nothing is guessed."""

from __future__ import annotations

import json
import unicodedata
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from remoterun.compare import (
    Difference,
    FactChange,
    Kind,
    NumberChange,
    State,
    TargetChange,
    TargetState,
    diff_schema,
    difference,
    difference_document,
    difference_text,
    fold,
)
from remoterun.compare.numbers import parse_tolerance
from remoterun.model import Json, Outcome, Phase, Run, Severity, Status
from tests.support import runs as samples
from tests.support.audits import audited, nan, path_of, run, sequences, silent, summary
from tests.support.compared import compare, follow
from tests.support.project import strict_json

A, B, C = "kpro6/200", "kpro6/201", "kpro7/300"


def told(difference: Difference) -> list[tuple[str, str]]:
    """Name what changed, and where."""
    return [(change.kind.value, change.target) for change in difference.changes]


def unknown(difference: Difference) -> list[str]:
    return [each.identity.subject for each in difference.unknown]


# --- findings ---------------------------------------------------------------------------------------------------------


def test_a_finding_is_new_once_persists_and_is_gone_once() -> None:
    clean, bad = audited(A, [3, 2]), audited(A, [3, 2], nan(3))
    days = [run(0, clean), run(1, bad), run(2, bad), run(3, clean), run(4, clean)]
    found = [compare(before, after, days[:at]) for at, (before, after) in enumerate(pairwise(days))]
    changes = [[change for change in each.changes if change.kind.startswith("finding")] for each in found]
    assert [[change.kind for change in each] for each in changes] == [
        [Kind.FINDING_NEW],
        [],
        [Kind.FINDING_GONE],
        [],
    ]
    assert [each.since.run_id for each in changes[2] if each.kind is Kind.FINDING_GONE] == [days[1].run_id]
    assert [each.since.at for each in found[1].persisting] == [days[1].started_at]


def test_other_words_and_numbers_make_no_other_finding() -> None:
    more = nan(3, count=4000, severity=Severity.SUSPECT, next_step="Something else.")
    difference = compare(run(0, audited(A, [3], nan(3))), run(1, audited(A, [3], more)))
    assert [change for change in difference.changes if change.kind is not Kind.NUMBER_MOVED] == []
    assert [each.finding for each in difference.persisting] == [more]


def test_each_tensor_has_a_finding_of_its_own() -> None:
    before, after = audited(A, [3], nan(3)), audited(A, [3], nan(3), nan(3, "model.wpe"))
    new = [change for change in compare(run(0, before), run(1, after)).changes if change.kind is Kind.FINDING_NEW]
    assert [change.identity.tensor for change in new if change.kind is Kind.FINDING_NEW] == ["model.wpe"]


def test_each_record_of_an_archive_has_a_finding_of_its_own() -> None:
    first, second = (
        nan(1, rule="CK022", data={"file": path_of(1), "tensors": [name], "record": f"checkpoint/data/{number}"})
        for number, name in enumerate(("model.a", "model.b"))
    )
    known = run(0, audited(A, [1], first, second))
    found = compare(known, run(1, audited(A, [1], second)))
    assert [each.identity.tensor for each in found.persisting] == ["checkpoint/data/1"]
    assert [each.kind for each in found.changes] == [Kind.FINDING_GONE]


def test_a_checkpoint_that_vanishes_takes_its_findings_along() -> None:
    difference = compare(run(0, audited(A, [3, 2], nan(3))), run(1, audited(A, [2])))
    assert told(difference) == [("finding_gone", A), ("checkpoint_vanished", A)]
    assert [change.vanished for change in difference.changes if change.kind is Kind.FINDING_GONE] == [True]


def test_without_an_earlier_run_everything_is_new_but_checkpoints() -> None:
    difference = compare(None, run(0, audited(A, [3], nan(3)), silent(B)))
    assert told(difference) == [("finding_new", A), ("target_unreachable", B)]
    assert difference.before is None


NOT_LOOKED_AT: dict[str, Outcome] = {
    "unreachable": silent(A),
    "lost": silent(A, Status.LOST, "connection_lost"),
    "no checkpoint found": silent(A, Status.FAILED, "nothing_to_check"),
    "nothing finished": replace(
        silent(A, Status.FAILED, "nothing_to_check"),
        payload=samples.CHECK_CKPT,
        records=(samples.checkpoint(4, path=path_of(4), verdict="in_progress"), summary(4)),
    ),
    "in progress": audited(A, [3], records=(samples.checkpoint(3, path=path_of(3), verdict="in_progress"), summary(3))),
    "headers only": audited(A, [3], records=(samples.checkpoint(3, path=path_of(3), bytes_checked=0), summary(3))),
    "not chosen": audited(A, [2], records=(samples.checkpoint(2, path=path_of(2)), summary(2, found=2))),
    "another folder": audited(A, [2], records=(samples.checkpoint(2, path="/other/2.pt"), summary(2, root="/other"))),
    "ignored": audited(
        A, [3], records=(samples.checkpoint(3, path=path_of(3), ignored={"CK001": 1}), summary(3, ignored={"CK001": 1}))
    ),
    "summed up": audited(A, [3], nan(3, "model.other"), nan(3, "", data={"file": path_of(3), "more": 7})),
}


@pytest.mark.parametrize("after", NOT_LOOKED_AT.values(), ids=NOT_LOOKED_AT)
def test_what_nobody_looked_at_is_neither_gone_nor_new(after: Outcome) -> None:
    days = [run(0, audited(A, [3], nan(3))), run(1, after), run(2, audited(A, [3], nan(3)))]
    between = compare(days[0], days[1])
    assert Kind.FINDING_GONE not in [change.kind for change in between.changes]
    assert Kind.CHECKPOINT_VANISHED not in [change.kind for change in between.changes]
    assert unknown(between) == ["step_3"]
    back = compare(days[1], days[2], days[:1])
    assert Kind.FINDING_NEW not in [change.kind for change in back.changes]
    assert [(each.identity.subject, each.since.run_id) for each in back.persisting] == [("step_3", days[0].run_id)]


def test_what_was_found_before_the_connection_was_lost_is_told() -> None:
    cut = replace(audited(A, [3], nan(3)), status=Status.LOST, phase=Phase.RUN, error=silent(A).error)
    difference = compare(run(0, audited(A, [3])), run(1, cut))
    assert told(difference) == [("finding_new", A), ("target_failed", A)]


def test_payloads_of_one_target_are_told_apart() -> None:
    probe = replace(samples.CHECK_CKPT, name="probe")
    low = nan(0, rule="P001", subject="/", data={})
    before = run(0, audited(A, [3], nan(3)), audited(A, [], low, payload=probe, records=(), step=1))
    failed = replace(silent(A, Status.FAILED, "payload_failed"), step=1, payload=probe)
    difference = compare(before, run(1, audited(A, [3]), failed))
    assert told(difference)[:2] == [("finding_gone", A), ("target_failed", A)]
    assert unknown(difference) == ["/"]


def test_what_each_payload_says_of_its_target_is_told_once() -> None:
    probe = {"payload": replace(samples.CHECK_CKPT, name="probe"), "step": 1}
    before, after = (
        run(day, *(audited(A, [3], facts={"kernel": kernel}, **more) for more in ({}, probe)))
        for day, kernel in enumerate(("6.8.4", "6.8.12"))
    )
    assert told(compare(before, after)) == [("fact_changed", A)]


# --- targets ----------------------------------------------------------------------------------------------------------


def test_silence_is_told_when_it_begins_and_ends_and_counted_between() -> None:
    ok = audited(A, [3])
    days = [run(0, ok), *(run(day, silent(A)) for day in (1, 2, 3)), run(4, ok)]
    found = [compare(days[at], days[at + 1], days[:at]) for at in range(4)]
    assert [told(each) for each in found] == [[("target_unreachable", A)], [], [], [("target_back", A)]]
    assert [[(each.runs, each.since.at) for each in one.silent] for one in found] == [
        [(1, days[1].started_at)],
        [(2, days[1].started_at)],
        [(3, days[1].started_at)],
        [],
    ]
    assert [change.runs for change in found[3].changes if isinstance(change, TargetChange)] == [3]


def test_it_is_told_when_a_silent_target_is_entered_and_fails() -> None:
    difference = compare(run(0, silent(A)), run(1, silent(A, Status.FAILED, "payload_failed")))
    assert told(difference) == [("target_failed", A)]
    assert [each.runs for each in difference.silent] == [2]


@pytest.mark.parametrize("status", [Status.CANCELLED, Status.NOT_STARTED])
def test_what_a_person_ended_says_nothing_of_a_target(status: Status) -> None:
    days = [run(0, audited(A, [3], nan(3))), run(1, silent(A, status, "cancelled")), run(2, audited(A, [3], nan(3)))]
    between = compare(days[0], days[1])
    assert (told(between), between.silent, unknown(between)) == ([], (), ["step_3"])
    assert told(compare(days[1], days[2], days[:1])) == []


def test_targets_that_come_and_go_are_told_as_routine() -> None:
    difference = compare(run(0, audited(A, [3]), audited(B, [3])), run(1, audited(B, [3]), audited(C, [3])))
    assert told(difference) == [("target_new", C), ("target_left", A)]
    assert (difference.changed, difference.notable) == (True, False)


def test_a_target_is_compared_with_its_last_results_whenever_these_were() -> None:
    old = audited(A, [3], facts={"kernel": "6.8.4"})
    days = [run(0, old, audited(B, [3])), run(1, silent(A), audited(B, [3])), run(2, audited(A, [4, 3]))]
    difference = compare(days[1], days[2], days[:1])
    assert told(difference) == [
        ("target_back", A),
        ("target_left", B),
        ("checkpoint_new", A),
        ("fact_changed", A),
    ]


# --- checkpoints, facts, numbers --------------------------------------------------------------------------------------


def test_checkpoints_come_and_go_as_routine() -> None:
    difference = compare(run(0, audited(A, [3, 2])), run(1, audited(A, [4, 3])))
    assert told(difference) == [("checkpoint_new", A), ("checkpoint_vanished", A)]
    assert (difference.changed, difference.notable) == (True, False)
    nameless = audited(A, [4], records=(samples.checkpoint(4, name="", path=path_of(4)), summary(4)))
    shown = difference_text(compare(run(0, audited(A, [3])), run(1, nameless)), width=100, color=False)
    assert f"new   {path_of(4)}" in shown


def probe(**changes: Json) -> dict[str, Json]:
    """Make a record as the payload `probe` emits it."""
    return {
        "kind": "probe",
        "python": {"torch": {"version": "2.5.1", "cuda": "12.4"}, "numpy": "2.1.0"},
        "gpu": {"driver": "550.90.07", "gpus": [{"name": "NVIDIA L4"}, {"name": "NVIDIA L4"}]},
        "memory": {"total": 64_000_000_000},
        "mounts": [{"point": "/", "state": "ok", "read_only": False, "total": 10**12, "free_pct": 40.0}],
        **changes,
    }


CHANGED: dict[str, tuple[dict[str, Json], list[tuple[str, object, object]]]] = {
    "torch": ({"python": {"torch": {"version": "2.6.0", "cuda": "12.4"}}}, [("torch", "2.5.1", "2.6.0")]),
    "torch is gone": ({"python": {"torch": None}}, [("torch", "2.5.1", "none"), ("cuda", "12.4", "none")]),
    "not looked for": ({"python": {}}, []),
    "driver": ({"gpu": {"driver": "565.57.01"}}, [("gpu driver", "550.90.07", "565.57.01")]),
    "a device less": ({"gpu": {"gpus": [{"name": "NVIDIA L4"}]}}, [("gpus", "2 x NVIDIA L4", "1 x NVIDIA L4")]),
    "a little memory": ({"memory": {"total": 63_999_000_000}}, []),
    "half the memory": ({"memory": {"total": 32_000_000_000}}, [("memory total", 64e9, 32e9)]),
    "read-only": (
        {"mounts": [{"point": "/", "state": "ok", "read_only": True, "total": 10**12, "free_pct": 40.0}]},
        [("disk /", "ok", "ok, read-only")],
    ),
    "fuller": ({"mounts": [{"point": "/", "state": "ok", "free_pct": 35.0}]}, []),
    "full": ({"mounts": [{"point": "/", "state": "ok", "free_pct": 3.0}]}, [("free_pct", 40.0, 3.0)]),
}


@pytest.mark.parametrize(("changes", "expected"), CHANGED.values(), ids=CHANGED)
def test_facts_and_numbers_of_a_machine(changes: dict[str, Json], expected: list[tuple[str, object, object]]) -> None:
    before, after = (audited(A, [], records=(record,)) for record in (probe(), probe(**changes)))
    difference = compare(run(0, before), run(1, after))
    found = [
        (change.fact if isinstance(change, FactChange) else change.number, change.before, change.after)
        for change in difference.changes
        if isinstance(change, FactChange | NumberChange)
    ]
    assert found == expected


def test_another_version_of_a_payload_is_told() -> None:
    newer = replace(samples.CHECK_CKPT, version="1.1.0", sha256="ab" * 32)
    difference = compare(run(0, audited(A, [3])), run(1, audited(A, [3], payload=newer)))
    facts = [change for change in difference.changes if isinstance(change, FactChange)]
    assert [(each.fact, each.before, each.after) for each in facts] == [
        ("payload check-ckpt", "1.0.0 (5c5c5c5c)", "1.1.0 (abababab)")
    ]


def test_a_checkpoint_that_somebody_wrote_to_is_told() -> None:
    rewritten = audited(A, [3], records=(samples.checkpoint(3, path=path_of(3), bytes=7), summary(3)))
    difference = compare(run(0, audited(A, [3])), run(1, rewritten))
    assert [(change.number, change.after) for change in difference.changes if isinstance(change, NumberChange)] == [
        ("bytes", 7.0)
    ]


def _last(step: int, **changes: Json) -> Outcome:
    """Make the outcome of an audit of a training that always saves to the same file."""
    record = samples.checkpoint(step, name="last.pt", path="/workspace/checkpoints/last.pt", **changes)
    return audited(A, [], records=(record, summary(step)))


def test_a_training_that_always_saves_to_one_file_goes_on_as_routine() -> None:
    difference = compare(run(0, _last(1000)), run(1, _last(2000, epoch=1, bytes=7)))
    assert [(change.number, change.after) for change in difference.changes if isinstance(change, NumberChange)] == [
        ("step", 2000.0)
    ]
    assert (difference.changed, difference.notable) == (True, False)
    back = compare(run(0, _last(2000)), run(1, _last(1000)))
    assert (told(back), back.notable) == ([("number_moved", A)], True)


@pytest.mark.parametrize(
    ("key", "before", "after", "told"),
    [
        ("loss", 2.0, 2.1, False),
        ("loss", 2.0, 4.0, True),
        ("loss", 0, 1e-9, True),
        ("loss", 2.0, "nan", False),
        ("loss", True, False, False),
        ("load_s", 1.0, 90.0, False),
        ("seconds", 1.0, 90.0, False),
        ("big", 10**400, 1, False),
        ("big", -1e308, 1e308, False),
    ],
)
def test_numbers_of_any_record_have_a_tolerance(key: str, before: Json, after: Json, told: bool) -> None:
    one, other = (audited(A, [], records=({"kind": "eval", "name": "x", key: value},)) for value in (before, after))
    changes = compare(run(0, one), run(1, other)).changes
    assert [change.kind for change in changes] == [Kind.NUMBER_MOVED] * told


def test_weights_that_are_others_under_the_same_name_are_told() -> None:
    def saved(norm: Json) -> Outcome:
        return audited(A, [3], records=(samples.checkpoint(3, path=path_of(3), weight_norm=norm), summary(3)))

    for after, moved in ((100.001, []), (100.02, [("weight_norm", 100.02)]), (None, []), ("inf", [])):
        changes = compare(run(0, saved(100.0)), run(1, saved(after))).changes
        assert [(each.number, each.after) for each in changes if isinstance(each, NumberChange)] == moved


@pytest.mark.parametrize(
    ("wanted", "moved"),
    [
        ([], ["free_pct", "loss", "step"]),
        (["20%"], ["free_pct", "step"]),
        (["50%"], ["step"]),
        (["0"], ["free_pct", "loss", "step", "total"]),
        (["loss=20%"], ["free_pct", "step"]),
        (["disk /.*=100%"], ["loss", "step"]),
        (["eval x.loss=0.5", "*_pct=20"], ["step"]),
        (["step=9", "50%"], []),
        (["50%", "loss=0"], ["loss", "step"]),
        (["*=100%", "loss=5%", "loss=0.4"], []),
    ],
)
def test_tolerances_are_what_people_say(wanted: list[str], moved: list[str]) -> None:
    def seen(step: int, loss: float, total: int, free: float) -> Outcome:
        mounts: Json = [{"point": "/", "state": "ok", "total": total, "free_pct": free}]
        records: list[dict[str, Json]] = [
            samples.checkpoint(step, name="last.pt", path="/last.pt"),
            {"kind": "eval", "name": "x", "loss": loss},
            probe(mounts=mounts),
        ]
        return audited(A, [], records=tuple(records))

    state = follow(State(), run(0, seen(9, 2.0, 10**12, 40.0)))
    found = difference(state, run(1, seen(1, 2.3, 10**12 + 9, 25.0)), state, list(map(parse_tolerance, wanted)))
    assert sorted(each.number for each in found.changes if isinstance(each, NumberChange)) == moved


@pytest.mark.parametrize(
    "text", ["", "%", "five", "-1", "5 %", "=5%", "nan", "inf", "1e3", "101%", "x=", "9" * 400, "٥%"]
)
def test_what_is_no_tolerance(text: str) -> None:
    with pytest.raises(ValueError, match=r"is neither a share|is more than 100%"):
        parse_tolerance(text)


# --- folding and telling ----------------------------------------------------------------------------------------------


def test_equal_changes_are_folded_and_outliers_stand_first() -> None:
    targets = [f"kpro6/{number}" for number in range(200, 220)]
    before = run(0, *(audited(each, [3]) for each in targets))
    newer = {"kernel": "6.8.12-9-pve"}
    after = run(
        1,
        *(audited(each, [3], nan(3), facts=newer) for each in targets[1:]),
        audited(targets[0], [3], nan(3, "model.odd"), facts=newer),
    )
    folds = fold(compare(before, after).changes)
    assert [(each.change.kind, len(each.targets)) for each in folds if each.change.kind is Kind.FINDING_NEW] == [
        (Kind.FINDING_NEW, 1),
        (Kind.FINDING_NEW, 19),
    ]
    assert [len(each.targets) for each in folds if each.change.kind is Kind.FACT_CHANGED] == [20]


def _moved() -> Difference:
    """Make a difference that has one of everything."""
    probed = {"payload": replace(samples.CHECK_CKPT, name="probe"), "step": 1}
    calm = nan(2, rule="CK069", severity=Severity.INFO, message="resume from step_1")
    days = [
        run(0, audited(A, [3, 2], nan(3)), audited(B, [3], nan(3)), audited(C, [1], nan(1)), silent("kpro8/100")),
        run(
            1,
            audited(A, [4, 3, 2], nan(4), *(nan(4, f"layers.{number}") for number in range(5)), calm, nan(3)),
            audited(A, [], records=(probe(),), **probed),
            audited(B, [3], facts={"python": "3.12.1", "boot_id": "b"}),
            silent(C),
            silent("kpro8/100"),
            silent("kpro8/101", Status.TIMEOUT, "run_timeout"),
        ),
    ]
    return compare(days[0], days[1])


def test_the_text_tells_everything_at_any_width() -> None:
    difference = _moved()
    for width in (40, 80, 140):
        text = difference_text(difference, width=width, color=False)
        assert max(map(len, text.splitlines())) <= width
        told = " ".join(text.split())
        for part in (
            "new findings",
            "CK001",
            "3 more of CK001",
            "findings that are gone",
            "unreachable",
            "1 new check",
        ):
            assert part in told, (part, text)
        assert "layers.4" not in told
        assert "1 of severity info" in told
    assert "layers.4" in difference_text(difference, width=100, color=False, verbose=1)
    assert "resume from step_1" in difference_text(difference, width=100, color=False, verbose=1)


@pytest.mark.parametrize(
    ("first", "second", "said"), [((A, B), (A,), "1 target not asked"), ((A,), (A, B), "1 new target")]
)
def test_targets_that_come_and_go_are_counted(first: tuple[str, ...], second: tuple[str, ...], said: str) -> None:
    before, after = (run(day, *(audited(target, []) for target in each)) for day, each in enumerate((first, second)))
    text = difference_text(compare(before, after), width=80, color=False)
    assert text.splitlines()[-1] == said


def test_what_is_of_severity_info_is_counted_apart() -> None:
    calm = nan(1, rule="CK069", severity=Severity.INFO)
    text = difference_text(
        compare(run(0, audited(A, [1])), run(1, audited(A, [1], calm, nan(1)))), width=80, color=False
    )
    assert text.endswith("\n1 new finding, 1 new of severity info\n")


def test_no_difference_is_said() -> None:
    same = run(0, audited(A, [3]))
    assert difference_text(compare(same, run(1, audited(A, [3]))), width=80, color=False).endswith(
        "\nnothing is different\n"
    )


VALIDATOR = Draft202012Validator(diff_schema())


def test_the_document_follows_its_schema() -> None:
    Draft202012Validator.check_schema(diff_schema())
    document: dict[str, Any] = difference_document(_moved())
    VALIDATOR.validate(document)
    assert (document["changed"], document["notable"], document["exit_code"]) == (True, True, 1)
    kinds = {change["kind"] for change in document["changes"]}
    assert {"finding_new", "finding_gone", "target_unreachable", "checkpoint_new", "fact_changed"} <= kinds


@pytest.mark.parametrize("step", [True, False, 1.5, "3", None])
def test_a_step_that_is_no_whole_number_is_none(step: Json) -> None:
    odd = audited(A, [4])
    odd = replace(odd, records=({**odd.records[0], "step": step}, *odd.records[1:]))
    document: dict[str, Any] = difference_document(compare(run(0, audited(A, [])), run(1, odd)))
    VALIDATOR.validate(document)
    assert [change["step"] for change in document["changes"] if change["kind"] == "checkpoint_new"] == [None]


@settings(max_examples=30)
@given(samples.runs(), samples.runs())
def test_any_runs_can_be_compared_and_told(one: Run, other: Run) -> None:
    difference = compare(one, other)
    text = json.dumps(difference_document(difference), allow_nan=False)
    VALIDATOR.validate(strict_json(text.encode("ascii")))
    shown = difference_text(difference, width=80, color=False, verbose=1)
    assert {unicodedata.category(char) for char in shown.replace("\n", "")}.isdisjoint({"Cc", "Cf", "Cs"})


@settings(max_examples=10)
@given(samples.runs(), st.integers(0, 3))
def test_nothing_differs_from_itself(run: Run, times: int) -> None:
    difference = compare(run, run, [run] * times)
    assert difference.changes == ()
    assert all(each.runs == times + 2 for each in difference.silent)


@given(sequences())
def test_every_finding_has_exactly_one_fate(days: list[Run]) -> None:
    """A finding that stood is gone, unknown or still there; one that is there is new or was there before."""
    state = State()
    for before, after in pairwise(days):
        state = follow(state, before)
        stood = {each.identity.key for target in state.targets.values() for each in target.standing}
        now = difference(state, after, state)
        gone = [change.identity.key for change in now.changes if change.kind is Kind.FINDING_GONE]
        fates = [*gone, *(each.identity.key for each in (*now.persisting, *now.unknown))]
        assert len(fates) == len(set(fates))
        asked = {outcome.target for outcome in after.outcomes}
        assert set(fates) == {key for key in stood if json.loads(key)[0] in asked}
        new = {change.identity.key for change in now.changes if change.kind is Kind.FINDING_NEW}
        there = {key for target in follow(state, after).targets.values() for key in _keys(target)}
        assert there == (stood | new) - set(gone)
        assert new.isdisjoint(stood)


def _keys(target: TargetState) -> list[str]:
    return [each.identity.key for each in target.standing]
