"""The HTML report as a file: what is in it, and that no string of a target becomes more than data."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remoterun.model import Captured, Json, Records, Run
from remoterun.report import document
from remoterun.report.page import NotRunsError, page, page_of, runs_of
from remoterun.report.page.data import MOST_CAPTURED, packed_document, packed_run
from tests.support.runs import mixed_run, outcomes, run_of, runs

SOURCES = Path(__file__).parents[2] / "remoterun" / "report" / "page"
FORBIDDEN = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "createContextual")
NETWORK = ("fetch(", "XMLHttpRequest", "WebSocket", "EventSource", "sendBeacon", "import(", "@import", "url(")


class _Reader(HTMLParser):
    """Take a page apart: its tags with their attributes, and the text of its scripts and styles."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.words: list[str] = []
        self._inside = ""
        self.feed(data.decode("utf-8"))
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag
        if tag in {"script", "style"}:
            self.texts.append((dict(attrs).get("id") or tag, ""))

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside in {"script", "style"}:
            name, before = self.texts[-1]
            self.texts[-1] = (name, before + data)
        else:
            self.words.append(data)

    def text(self, name: str) -> str:
        return dict(self.texts)[name]

    def policy(self) -> str:
        policies = [a["content"] for tag, a in self.tags if a.get("http-equiv") == "Content-Security-Policy"]
        assert len(policies) == 1
        return str(policies[0])


def _unpacked(text: str) -> Any:
    return json.loads(gzip.decompress(base64.b64decode(text, validate=True)))


def _data(data: bytes, name: str) -> Any:
    return _unpacked(_Reader(data).text(name))


def _as_held(run: Run) -> dict[str, Json]:
    """Return a run's document as a page holds it: without the bytes of what is no text."""
    whole: Any = document(run)
    for outcome in whole["outcomes"]:
        for name in ("stdout", "stderr", "noise"):
            outcome.pop(f"{name}_b64", None)
    return dict(whole)


def test_a_page_holds_the_document_of_its_run() -> None:
    assert _data(page([mixed_run()]), "run-0") == _as_held(mixed_run())
    assert _data(page_of([document(mixed_run())]), "run-0") == _as_held(mixed_run())


def test_the_index_tells_of_every_run_the_oldest_first() -> None:
    late = replace(mixed_run(), run_id="late", started_at="2026-03-02T02:00:00.000Z")
    data = page([late, mixed_run()], [{"after": {"run_id": "late"}}])
    index = _data(data, "index")
    assert [run["run_id"] for run in index["runs"]] == [mixed_run().run_id, "late"]
    assert index["differences"] == [{"after": {"run_id": "late"}}]
    assert _data(data, "run-1")["run_id"] == "late"
    assert index["runs"][1] == {
        "run_id": "late",
        "playbook": "check-ckpt",
        "started_at": "2026-03-02T02:00:00.000Z",
        "finished_at": late.finished_at,
        "status": "incomplete",
        "counts": document(late)["counts"],
    }


@settings(max_examples=30)
@given(runs())
def test_no_string_of_a_target_becomes_part_of_the_page(run: Run) -> None:
    read, known = _Reader(page([run])), _Reader(page([mixed_run()]))
    assert _unpacked(read.text("run-0")) == _as_held(run)
    # Tags, attributes, script and style are those of any other page of one run.
    assert [(tag, [*attributes]) for tag, attributes in read.tags] == [(tag, [*each]) for tag, each in known.tags]
    assert read.policy() == known.policy()
    assert read.text("script") == known.text("script")


def test_a_page_says_without_a_script_how_runs_ended() -> None:
    run = replace(mixed_run(), playbook="<b>&\x1b[31m\u202e")
    words = "".join(_Reader(page([run])).words)
    assert "<b>&" in words
    assert "\u202e" not in words
    assert "1 ok, 1 findings, 1 failed, 1 timeout, 2 unreachable" in words


def test_the_policy_allows_this_script_and_this_style_alone() -> None:
    read = _Reader(page([mixed_run()]))
    allowed = {
        name: base64.b64encode(hashlib.sha256(read.text(name).encode()).digest()).decode()
        for name in ("script", "style")
    }
    assert read.policy() == (
        f"default-src 'none'; style-src 'sha256-{allowed['style']}'; script-src 'sha256-{allowed['script']}'; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    runnable = [attributes for tag, attributes in read.tags if tag == "script" and attributes.get("type") is None]
    assert len(runnable) == 1
    assert not [a for _, attributes in read.tags for a in attributes if a.startswith("on") or a in {"src", "style"}]


@pytest.mark.parametrize(
    "source", sorted(SOURCES.glob("*.js")) + sorted(SOURCES.glob("*.css")), ids=lambda file: file.name
)
def test_sources_make_no_markup_and_ask_nobody(source: Path) -> None:
    text = source.read_text("utf-8")
    assert [word for word in (*FORBIDDEN, *NETWORK) if word in text] == []
    assert set(re.findall(r"https?://[^\"]+", text)) <= {"http://www.w3.org/2000/svg"}


# --- bounds -----------------------------------------------------------------------------------------------------------


class _Endless(Records):
    """Claim a million records, and count how many are read."""

    def __init__(self) -> None:
        self.reads = 0

    def __len__(self) -> int:
        return 1_000_000

    def read(self, start: int) -> Iterator[dict[str, Json]]:
        for number in range(start, len(self)):
            self.reads += 1
            yield {"number": number, "text": "x" * 80}


def test_what_a_browser_could_not_read_is_left_out_and_told() -> None:
    endless = _Endless()
    known = mixed_run().outcomes
    run = run_of(replace(known[0], records=endless), known[5])
    held = _unpacked(packed_run(run, room=10_000))
    first, second = held["outcomes"]
    assert 10 < len(first["records"]) < 120
    assert first["records_left_out"] == 1_000_000 - len(first["records"])
    assert endless.reads == len(first["records"]) + 1
    assert second["records"] == []
    assert second["records_left_out"] == len(known[5].records)
    assert second["findings"] == []


def test_what_was_left_out_before_is_told_as_well() -> None:
    whole: Any = document(mixed_run())
    count = len(whole["outcomes"][0]["records"])
    whole["outcomes"][0]["records_left_out"] = 7
    held = _data(page_of([whole]), "run-0")["outcomes"][0]
    assert (len(held["records"]), held["records_left_out"]) == (count, 7)
    held = _unpacked(packed_document(whole, room=0))["outcomes"][0]
    assert (held["records"], held["records_left_out"]) == ([], count + 7)


@settings(max_examples=30)
@given(st.lists(outcomes(), max_size=2), st.integers(0, 3000))
def test_whatever_is_left_out_the_rest_is_whole(some: list[Any], room: int) -> None:
    run = run_of(*some)
    held = _unpacked(packed_run(run, room))
    for outcome, whole in zip(held["outcomes"], _as_held(run)["outcomes"], strict=True):  # type: ignore[arg-type]
        kept = len(outcome["records"])
        assert isinstance(whole, dict)
        assert outcome.pop("records_left_out", 0) == len(whole["records"]) - kept  # type: ignore[arg-type]
        assert outcome == {**whole, "records": whole["records"][:kept]}  # type: ignore[index]


def test_of_long_streams_the_end_is_kept() -> None:
    long = replace(mixed_run().outcomes[0], stdout=Captured(head=b"a" * 100_000 + b"the end", total=100_007))
    held = _unpacked(packed_run(run_of(long)))["outcomes"][0]
    assert held["stdout"].startswith(f"[... {100_007 - MOST_CAPTURED} characters left out ...]\naaa")
    assert held["stdout"].endswith("the end")
    assert held["truncated"] is True


# --- documents of others ----------------------------------------------------------------------------------------------


def test_runs_of_a_document_and_of_an_audit() -> None:
    one = document(mixed_run())
    assert runs_of(one) == [one]
    assert runs_of({"schema": "remoterun/audit/1", "runs": [one, one]}) == [one, one]
    assert runs_of({"schema": "remoterun/audit/1", "status": "busy"}) == []
    assert runs_of({**one, "later": float("nan")})[0]["later"] == "nan"


def _changed(**changes: object) -> dict[str, object]:
    return {**document(mixed_run()), **changes}


@pytest.mark.parametrize(
    ("given_document", "said"),
    [
        ([], "it is no JSON object"),
        ({}, "it does not say its schema"),
        ({"schema": "remoterun/error/1"}, "it is a remoterun/error/1: only runs can be shown"),
        (_changed(started_at=None), "it is a damaged run: started_at is no text"),
        (_changed(outcomes={}), "it is a damaged run: outcomes is no list"),
        (_changed(outcomes=[[]]), r"it is a damaged run: outcomes\[0\] has no target"),
        (_changed(outcomes=[{"target": "a", "records": [], "findings": 1}]), r"outcomes\[0\].findings is no list"),
    ],
)
def test_what_is_no_run_is_refused(given_document: object, said: str) -> None:
    with pytest.raises(NotRunsError, match=said):
        runs_of(given_document)
