"""What the table makes of check-ckpt's records beyond their columns: load tests, what is ignored or remembered."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from remoterun.model import Finding, Json, Outcome, Phase, Severity, Status
from remoterun.report import table
from remoterun.report.table import outcome_line
from tests.support.runs import CHECK_CKPT, checkpoint, run_of

SUMMARY: dict[str, Json] = {"kind": "summary", "resume_from": "step_2"}


def outcome(*records: Mapping[str, Json], findings: tuple[Finding, ...] = ()) -> Outcome:
    return Outcome(
        target="here",
        name=None,
        step=0,
        status=Status.OK,
        phase=Phase.COLLECT,
        payload=CHECK_CKPT,
        records=records,
        findings=findings,
    )


def lines_of(*records: Mapping[str, Json], findings: tuple[Finding, ...] = (), verbose: int = 0) -> list[str]:
    """Return the lines of one outcome, without head and totals."""
    text = table(run_of(outcome(*records, findings=findings)), width=100, color=False, verbose=verbose)
    return text.splitlines()[1:-2]


def load(**changes: Json) -> dict[str, Json]:
    fields: dict[str, Json] = {"accepted": True, "error": None, "by": "torch.load", "torch": "2.13.0", "seconds": 0.123}
    return {**fields, "rss_mib": 146.25, **changes}


@pytest.mark.parametrize(
    ("record", "told"),
    [
        (checkpoint(1, load=load()), "torch 2.13.0 loads it"),
        (checkpoint(1, verdict="bad", load=load()), "torch 2.13.0 loads it all the same"),
        (checkpoint(1, files=["a.pt", "b.pt"], load=load()), "torch 2.13.0 loads its files"),
        (checkpoint(1, load=load(accepted=False, error="no")), "torch 2.13.0 refuses it: no"),
        (checkpoint(1, load=load(accepted=None, error="no torch", torch=None)), "not loaded: no torch"),
        (checkpoint(1, load=load(by="safe_open", torch=None)), "safe_open loads it"),
    ],
)
def test_what_the_loaders_say_stands_below_the_row(record: dict[str, Json], told: str) -> None:
    assert lines_of(record)[1] == f"    {told}"
    cost = "" if record["load"] is None else " (0.12 s, 146.25 MiB)"
    assert f"    {told}{cost}" in lines_of(record, verbose=1)


@pytest.mark.parametrize("load", ["yes", [], 3, {}, {"accepted": "x"}])
def test_a_load_test_that_makes_no_sense(load: Json) -> None:
    assert lines_of(checkpoint(1, load=load))[0].startswith("  step_1: step=1")


def test_ignored_findings_are_counted_at_the_foot() -> None:
    series: dict[str, Json] = {"kind": "series", "name": "step_#", "verdict": "ok", "ignored": {"CK085": 2}}
    records: tuple[dict[str, Json], ...] = (
        checkpoint(2, ignored={"CK054": 1, "CK022": 1}),
        checkpoint(1, ignored={"CK054": 1}),
        series,
        {**SUMMARY, "ignored": {"CK069": 1}},
    )
    lines = lines_of(*records)
    assert lines[2:] == [
        "  ignored  1 finding of CK022, 2 findings of CK054, 1 finding of CK069, 2 findings of CK085",
        "  resume from step_2",
    ]
    assert "    ignored  1 finding of CK022, 1 finding of CK054" in lines_of(*records, verbose=1)


def test_remembered_verdicts_are_counted_at_the_foot() -> None:
    early, late = "2026-07-30T01:02:03Z", "2026-07-31T01:02:03Z"
    old = [checkpoint(step, cached=True, checked_at=at) for step, at in ((3, late), (2, early))]
    assert lines_of(*old, checkpoint(1), SUMMARY)[3] == f"  cached   2 of 3 checkpoints, checked {early} and later"
    assert lines_of(old[1], SUMMARY)[1] == f"  cached   1 of 1 checkpoint, checked {early}"
    assert not [line for line in lines_of(checkpoint(1), SUMMARY) if "cached" in line]


def test_a_series_shows_by_its_findings_alone() -> None:
    series: dict[str, Json] = {"kind": "series", "name": "step_#", "verdict": "suspect", "findings": ["CK080"]}
    found = Finding(rule="CK080", severity=Severity.SUSPECT, subject="step_1", message="stands still")
    lines = lines_of(checkpoint(2), checkpoint(1), series, SUMMARY, findings=(found,))
    assert [line.split()[0] for line in lines] == ["step_2:", "step_1:", "suspect", "resume"]
    assert "step_#" in "\n".join(lines_of(checkpoint(2), series, SUMMARY, verbose=1))
    said = "".join(span.text for span in outcome_line(outcome(checkpoint(2), series, SUMMARY)))
    assert said == "ok  1 checkpoint"


def test_a_changed_severity_says_what_it_usually_is() -> None:
    found = Finding(rule="CK022", severity=Severity.INFO, subject="step_1", message="m", data={"usual_severity": "bad"})
    assert lines_of(checkpoint(1), findings=(found,))[1] == "    info  CK022  m (usually bad)"


def info(subject: str, message: str, severity: Severity = Severity.INFO) -> Finding:
    return Finding(rule="CK028", severity=severity, subject=subject, message=message, next_step="Keep a sum.")


def test_information_that_is_the_same_of_several_checkpoints_is_told_once() -> None:
    records = [checkpoint(step) for step in (5, 4, 3, 2, 1)]
    everywhere = tuple(info(f"step_{step}", "no sums") for step in (5, 4, 3, 2, 1))
    some = tuple(info(f"step_{step}", "old format") for step in (4, 3, 2, 1))
    two = (info("step_2", "tied"), info("step_1", "tied"))
    alone = (info("step_3", "its own"),)
    lines = lines_of(*records, SUMMARY, findings=(*everywhere, *some, *two, *alone))
    assert [line for line in lines if not line.startswith("  step_") or line.endswith(":")] == [
        "    info  CK028  its own",
        "                 next: Keep a sum.",
        "  all 5 checkpoints:",
        "    info  CK028  no sums",
        "                 next: Keep a sum.",
        "  step_4, step_3, step_2 and 1 more:",
        "    info  CK028  old format",
        "                 next: Keep a sum.",
        "  step_2, step_1:",
        "    info  CK028  tied",
        "                 next: Keep a sum.",
        "  resume from step_2",
    ]
    assert lines.index("    info  CK028  its own") == 3  # below its own row
    assert sum(line == "    info  CK028  no sums" for line in lines_of(*records, findings=everywhere, verbose=1)) == 5


def test_what_is_worse_than_information_stands_below_each_checkpoint() -> None:
    found = tuple(info(f"step_{step}", "no sums", Severity.SUSPECT) for step in (2, 1))
    lines = lines_of(checkpoint(2), checkpoint(1), findings=found)
    assert [line.split()[0] for line in lines] == ["step_2:", "suspect", "next:", "step_1:", "suspect", "next:"]


def test_headers_alone_are_not_called_unchecked_twice() -> None:
    record = checkpoint(1, verdict="unchecked", bytes_checked=0, nan_weights=None)
    assert len(lines_of(record)) == 1
    assert lines_of(record)[0].endswith("  unchecked")


def test_of_headers_alone_nobody_knows_where_to_resume() -> None:
    unknown: dict[str, Json] = {"kind": "summary", "resume_from": None, "verdicts": {"unchecked": 2, "bad": 1}}
    told = lines_of(checkpoint(1, verdict="unchecked", bytes_checked=0), unknown)
    assert told[-1] == "  resume from: not known, since no values were checked"
    assert (
        lines_of(checkpoint(1), {**unknown, "verdicts": {"bad": 3}})[-1] == "  resume from: none of these checkpoints"
    )
    assert lines_of(checkpoint(1), {**unknown, "verdicts": 3})[-1] == "  resume from: none of these checkpoints"


def test_each_of_several_trainings_is_told_at_the_foot() -> None:
    trainings: list[Json] = [
        {"folder": "run-a", "resume_from": "step_2"},
        {"folder": ".", "resume_from": None},
        "hostile",
    ]
    verdicts: Json = {"ok": 1, "in_progress": 2}
    assert lines_of(checkpoint(1), {**SUMMARY, "trainings": trainings, "verdicts": verdicts})[1:] == [
        "  resume from step_2  in run-a",
        "  resume from: none of the checkpoints in .",
        "  resume from: none of the checkpoints in ?",
        "  not judged   2 checkpoints that are not finished",
    ]
    for one in ([], trainings[:1], 3, None):
        assert lines_of(checkpoint(1), {**SUMMARY, "trainings": one})[-1] == "  resume from step_2"
    many: dict[str, Json] = {**SUMMARY, "trainings": [trainings[0]] * 30}
    assert lines_of(checkpoint(1), many)[-1] == "  ... and 10 more trainings; -v shows them"
    assert len(lines_of(checkpoint(1), many, verbose=1)) > 30
    nothing: dict[str, Json] = {"kind": "summary", "resume_from": None, "verdicts": {"unchecked": 2}}
    told = lines_of(checkpoint(1), {**nothing, "trainings": trainings})
    assert told[-1] == "  resume from: not known, since no values were checked"


def test_many_checkpoints_with_nothing_found_are_counted() -> None:
    records = [checkpoint(step, verdict="ok" if step % 2 else "unchecked") for step in range(250)]
    assert "... and 50 more checkpoints that are unchecked or ok; -v shows all" in lines_of(*records)[200]
    same = [checkpoint(step) for step in range(202)]
    assert "... and 2 more checkpoints that are ok; -v shows all" in lines_of(*same)[200]


def test_the_files_of_a_checkpoint_are_listed_when_there_are_several() -> None:
    assert not [line for line in lines_of(checkpoint(1, files=["a.pt"]), verbose=1) if "files" in line]
    text = "\n".join(lines_of(checkpoint(1, files=["a.pt", "b.pt"]), verbose=1))
    assert "files=a.pt, b.pt" in text
