"""What audits keep from one to the next comes back as it was, or is said to be damaged."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from remoterun.audit.ledger import Event, Told
from remoterun.audit.state import SCHEMA, Reported, State, Waiting, load_state, save_state
from remoterun.audit.words import TEMPLATES

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
EVENTS = st.builds(
    Event,
    template=st.sampled_from(sorted(TEMPLATES)),
    target=TEXTS,
    subject=TEXTS,
    message=TEXTS,
    count=st.integers(0, 10**6),
)
KNOWN = st.dictionaries(TEXTS, EVENTS, max_size=3)
FINDINGS = st.dictionaries(st.lists(TEXTS, min_size=1, max_size=6).map(json.dumps), EVENTS, max_size=3)
STATES = st.builds(
    State,
    reported=st.dictionaries(
        TEXTS, st.builds(Reported, run_id=TEXTS, told=st.builds(Told, findings=FINDINGS, silent=KNOWN)), max_size=2
    ),
    failing=st.none() | EVENTS,
    waiting=st.dictionaries(
        TEXTS,
        st.builds(
            Waiting,
            events=st.lists(EVENTS, max_size=3).map(tuple),
            dropped=st.integers(0, 10**6),
            sent=st.lists(st.floats(0, 1e10), max_size=3).map(tuple),
        ),
        max_size=2,
    ),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(STATES)
def test_it_comes_back_as_it_was(tmp_path: Path, state: State) -> None:
    save_state(tmp_path, state)
    assert load_state(tmp_path) == state
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


def _known(key: str) -> str:
    """Return the text of a state in which a finding is known by this key."""
    finding = Event(template="new", target="a", rule="CK001", severity="bad").document()
    told = {"run": "20261130T000000Z-00000000", "findings": {key: finding}, "silent": {}}
    return json.dumps({"schema": SCHEMA, "reported": {"x": told}, "failing": None, "waiting": {}})


def test_nothing_kept_is_nothing_known(tmp_path: Path) -> None:
    assert load_state(tmp_path) == State()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"schema": "remoterun/audit-state/2"}',
        '{"schema": "remoterun/audit-state/1", "reported": [], "failing": null, "waiting": {}}',
        '{"schema": "remoterun/audit-state/1", "reported": {"x": 1}, "failing": null, "waiting": {}}',
        '{"schema": "remoterun/audit-state/1", "reported": {}, "failing": {"template": "new"}, "waiting": {}}',
        '{"schema": "remoterun/audit-state/1", "reported": {}, "failing": null, "waiting": {"x": {"events": {}}}}',
        '{"schema": "remoterun/audit-state/1", "reported": {}, "failing": 7, "waiting": {}}',
        "[" * 100_000,
        _known("["),
        _known("[]"),
        _known("{}"),
        _known("[1]"),
    ],
)
def test_what_is_damaged_is_said(tmp_path: Path, text: str) -> None:
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(ValueError, match=r"damaged|another version|Expecting value"):
        load_state(tmp_path)


@pytest.mark.parametrize("kind", ["pipe", "endless", "folder"])
def test_what_is_no_file_of_ours_keeps_nobody_waiting(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "state.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "endless":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    with pytest.raises(OSError, match=r"not a regular file|Is a directory"):
        load_state(tmp_path)
