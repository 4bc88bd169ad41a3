"""Targets that say too much, too deep or too cleverly: each harms its own outcome and nothing else.

What is shown elsewhere:

==========================================  ============================================================================
a header that claims too much, forged       tests/unit/remote/test_wire.py: a_header_that_claims_too_much,
frames, frames of another nonce             frames_of_another_nonce; test_conversation.py: a_frame_on_a_stream_of_nobody
a result that is only claimed               tests/unit/runner/test_execute.py: a_result_is_worth_nothing_before
records by number, bytes and depth;         tests/unit/runner/test_collect.py; tests/faults/test_target_side.py
records and findings of a whole run         tests/unit/runner/test_collect.py, test_spool.py
output by bytes                             tests/faults/test_target_side.py: streamed_output_is_kept_to_8_mb
a controller or a leg that does not read    tests/faults/test_target_kills.py: a_slow_controller, a_flood_without_a_leg
a session that nobody reads                 tests/conformance/test_transports_traps.py
terminal escapes                            tests/unit/test_report_text.py, test_report_table.py, test_console_*.py
==========================================  ============================================================================
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from remoterun.model import Limits, Outcome, Plan, Status
from remoterun.runner import execute
from tests.support.here import job, nothing_left, payload
from tests.support.project import Project, Result

# A target that knows the protocol, starts nothing, and says whatever it likes.
_LIAR = """\
#!PYTHON
import marshal, os, sys, time
sys.path.insert(0, ROOT)
from remoterun.remote import wire
for _ in range(4):
    header = sys.stdin.buffer.read(int(sys.stdin.buffer.readline()))
nonce = marshal.loads(header)["nonce"]
leg, supervisor = wire.Encoder(nonce, wire.LEG_STREAM), wire.Encoder(nonce, wire.SUPERVISOR_STREAM)
again = wire.Encoder(nonce, wire.SUPERVISOR_STREAM)
again.seq = 1

def say(kind, body, encoder=supervisor):
    write(b"".join(encoder.frames(kind, body)))

def write(data):
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()

say(wire.HELLO, b"{}", leg)
say(wire.STARTED, b"{}")
try:
    SAYS
    sys.stdin.read()
except BrokenPipeError:
    os._exit(0)
"""
_ENDLESS = {
    "output": ("say(wire.STDOUT, bytes(1 << 14))", "total_timeout"),
    "noise": ("write(bytes(1 << 14))", "idle_timeout"),
    "heartbeats": ("say(wire.HEARTBEAT, b'{}')", "total_timeout"),
    "log": ('say(wire.LOG, b\'{"text": "x"}\')', "total_timeout"),
    "findings": ('say(wire.FINDING, b\'{"severity": "bad", "message": "\' + b\'y\' * 30000 + b\'"}\')', "output_limit"),
    "records": ("say(wire.RECORD, b'{\"x\": \"' + b'y' * 1000000 + b'\"}')", "output_limit"),
    "lists": ("say(wire.RECORD, b'{\"x\": [' + b'[],' * 30000 + b'0]}')", "output_limit"),
}
_ONCE = {
    "a large record": ("say(wire.RECORD, b'{\"x\": \"' + b'y' * (18 << 20) + b'\"}')", "result_damaged"),
    "a deep record": ("say(wire.RECORD, b'{\"x\":' * 100000 + b'1' + b'}' * 100000)", "result_damaged"),
    "a deep problem": ("say(wire.PROBLEM, b'[' * 1000000)", "result_damaged"),
    "a long number": ("say(wire.RECORD, b'{\"x\": 1' + b'0' * 100000 + b'}')", "result_damaged"),
    # It waits for nothing, and what follows counts.
    "a huge frame": (
        "write(supervisor.frames(wire.LOG)[0][:-6] + b'\\xff' * 6); say(wire.RECORD, b'{\"n\": 1}', again)",
        "idle_timeout",
    ),
}
_CODES = {name: code for name, (_, code) in (_ENDLESS | _ONCE).items()}


def _liars(folder: Path) -> dict[str, Path]:
    endless = {name: f"while True: {says}; time.sleep(0.002)" for name, (says, _) in _ENDLESS.items()}
    found = {}
    for name, says in (endless | {name: says for name, (says, _) in _ONCE.items()}).items():
        path = found[name] = folder / name.replace(" ", "-")
        text = _LIAR.replace("PYTHON", sys.executable).replace("ROOT", repr(str(Path(__file__).parents[2])))
        path.write_text(text.replace("SAYS", says))
        path.chmod(0o755)
    return found


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """Run all of them at once, and some that are honest beside them."""
    folder = tmp_path_factory.mktemp("liars")
    jobs = {}
    for name, liar in _liars(folder).items():
        total = 4.0 if _CODES[name] == "total_timeout" else None
        jobs[name] = job(payload("ctx.emit({})"), str(liar), limits=Limits(idle=7.0, total=total))
    jobs |= {f"honest {number}": job(payload("for n in range(100): ctx.emit({'n': n})")) for number in range(3)}
    planned = tuple(replace(each, target=replace(each.target, id=name)) for name, each in jobs.items())
    (folder / "run").mkdir(mode=0o700)
    with pytest.MonkeyPatch.context() as patch, nothing_left() as run_id:
        patch.setenv("XDG_RUNTIME_DIR", str(folder / "run"))
        plan = Plan(run_id=run_id, playbook="caps", playbook_sha256=None, jobs=planned, use_cache=False)
        run = asyncio.run(execute(plan, lambda event: None))
    return {outcome.target: outcome for outcome in run.outcomes}


@pytest.mark.parametrize("name", _CODES)
def test_a_target_that_says_too_much_has_an_outcome_of_its_own(outcomes: dict[str, Outcome], name: str) -> None:
    outcome = outcomes[name]
    assert outcome.error is not None
    assert outcome.error.code == _CODES[name], outcome.error
    assert outcome.status is not Status.OK
    kept = sum(len(each.head) + len(each.tail) for each in (outcome.stdout, outcome.stderr, outcome.noise))
    assert kept <= 4 << 20
    assert len(outcome.log) <= 1000
    assert sum(len(str(record)) for record in outcome.records) < 100 << 20
    assert name != "a huge frame" or outcome.records == ({"n": 1},)


def test_honest_targets_beside_them_come_to_no_harm(outcomes: dict[str, Outcome]) -> None:
    honest = [outcome for name, outcome in outcomes.items() if name.startswith("honest")]
    assert [(outcome.status, outcome.error) for outcome in honest] == [(Status.OK, None)] * 3
    assert all([record["n"] for record in outcome.records] == list(range(100)) for outcome in honest)


# No two of its records are alike, so that nothing makes them small.
_TALK = """
import os

def run(ctx):
    size = 60_000 if ctx.params["much"] else 10
    for n in range(150):
        ctx.emit({"n": n, "text": os.urandom(size).hex()})
"""
_MUCH = {"type": "bool", "var": "much", "default": False, "help": "Whether its records are large."}


def test_without_room_for_its_records_a_target_fails_and_no_other(tmp_path: Path) -> None:
    """Every folder for temporary files is full or read-only, as on a machine whose disk has run over."""
    (tmp_path / "project").mkdir()
    project = Project(folder=tmp_path / "project")
    project.payload("talk", _TALK, params={"much": _MUCH})
    host = f"transport: local, python: {json.dumps(sys.executable)}, self: true"
    hosts = "".join(f"  few{number}: {{{host}}}\n" for number in range(3))
    inventory = f"hosts:\n{hosts}  many: {{{host}, vars: {{much: true}}}}\n"
    (project.folder / "inventory.yaml").write_text(inventory, "utf-8")
    small, state = tmp_path / "small", tmp_path / "state"
    for folder in (small, state):
        folder.mkdir()
    read_only = " && ".join(f"mount --bind {at} {at} && mount -o remount,bind,ro {at}" for at in ("/tmp", "/var/tmp"))
    mounts = f"{read_only} && mount -t tmpfs -o size=256k none {small} && mount -t tmpfs none {state}"
    how = ["unshare", "-m" if os.geteuid() == 0 else "-rm", "/bin/sh", "-c", f'{mounts} && exec "$0" "$@"']
    places = {"TMPDIR": str(small), "XDG_STATE_HOME": str(state), "XDG_RUNTIME_DIR": str(state)}
    argv = [*how, *project.argv("play", "talk", "--on", "all", "--output", "json")]
    done = subprocess.run(argv, capture_output=True, timeout=120, env={**os.environ, **places}, check=False)
    result = Result(status=done.returncode, stdout=done.stdout, stderr=done.stderr.decode())
    assert result.status == 3, result.stderr
    assert [result.outcome(f"few{number}")["status"] for number in range(3)] == ["ok"] * 3
    many = result.outcome("many")
    assert (many["status"], many["error"]["code"], many["survivors"]) == ("failed", "output_limit", 0)
    assert "no room on this machine" in many["error"]["message"]
    assert f"{small}: No space left on device; /var/tmp: Read-only file system" in many["error"]["message"]
    assert "TMPDIR" in many["error"]["hint"]
    # What had arrived is there, without a gap.
    assert 50 < len(many["records"]) < 150
    assert [record["n"] for record in many["records"]] == list(range(len(many["records"])))


@pytest.mark.slow
@pytest.mark.parametrize("of", [("output", "--megabytes=8"), ("records", "--record-megabytes=2")])
def test_the_controller_stays_small_whatever_all_its_targets_say(of: tuple[str, str]) -> None:
    """Alone, each of these would be kept whole: together they would take several times as much."""
    # By way of a small process: what a process is started from counts among the memory it has had.
    argv = [sys.executable, "-m", "benchmarks.memory", "--targets", "24", "--of", *of]
    root = Path(__file__).parents[2]
    done = subprocess.run(argv, capture_output=True, check=True, timeout=300, cwd=root)
    assert json.loads(done.stdout.splitlines()[-1])["rss_mib"] < 150
