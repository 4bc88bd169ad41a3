"""What is remembered of checkpoints: kept privately, bounded, believed only when it is whole."""

from __future__ import annotations

import calendar
import copy
import json
import math
import os
import random
import shutil
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from remoterun.catalog import Catalog
from remoterun.payloads.check_ckpt.find.discover import discover
from remoterun.payloads.check_ckpt.model import Found
from remoterun.payloads.check_ckpt.report import Report
from remoterun.payloads.check_ckpt.series import store
from remoterun.payloads.check_ckpt.series.memory import Memory, look
from remoterun.payloads.check_ckpt.series.profile import Mark
from remoterun.payloads.check_ckpt.series.store import Store, identify, is_settled, key_of, open_store
from tests.unit.payloads.check_ckpt.support import Heard, audit, hear, overwrite, place_of, save, settle, training_state

pytestmark = pytest.mark.torch

HEADER: store.Header = {"record": {"name": "step_1", "path": "/c/\udcff"}, "found": [], "n": 1}
MARKS = [
    Mark("a", "model", "", "float32", (2, 3), (), 6, 2**64 - 1, 1.5, -1.0, 1.0),
    Mark("b", "optimizer", "exp_avg", "float32", (4, 3), (2, 0)),
]
KEY = "0" * 64


@pytest.fixture
def folder(own_home: Path) -> Path:
    """Return where the cache is."""
    return own_home / ".cache/remoterun/digests"


def opened() -> Store:
    """Open the cache, which must have nothing to complain about."""
    said: list[str] = []
    result = open_store(said.append)
    assert said == []
    return result


def test_what_is_kept_comes_back(folder: Path) -> None:
    opened().keep(KEY, HEADER, MARKS)
    assert opened().find(KEY) == HEADER
    assert opened().marks(KEY) == MARKS
    assert [path.name for path in folder.iterdir()] == [KEY]
    assert [oct(path.stat().st_mode & 0o777) for path in (folder, folder / KEY)] == ["0o700", "0o600"]
    assert opened().find("1" * 64) is None
    assert opened().marks("1" * 64) is None


def test_a_checkpoint_without_tensors_can_be_kept() -> None:
    opened().keep(KEY, HEADER, [])
    assert opened().find(KEY) == HEADER
    assert opened().marks(KEY) == []


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _append(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _link(path: Path) -> None:
    other = path.with_name("other")
    path.rename(other)
    path.symlink_to(other)


def _forge(header: bytes, marks: bytes) -> Callable[[Path], None]:
    """Put texts into a file that is right in everything else."""
    packed = [zlib.compress(text) for text in (header, marks)]
    sums = [number for each in packed for number in (len(each), zlib.crc32(each))]
    data = struct.pack("<8sIIII", b"RRDIGEST", *sums) + b"".join(packed)

    def forge(path: Path) -> None:
        path.write_bytes(data)

    return forge


@pytest.mark.parametrize(
    "damage",
    [
        _truncate,
        _append,
        _empty,
        _fifo,
        _link,
        _forge(b"{", b"["),
        _forge(b"[" * 100_000, b"[" * 100_000),
        _forge(b"\xff", b"\xff"),
        _forge(b"1" * 10_000, b"1" * 10_000),
    ],
)
def test_what_is_damaged_is_not_believed_and_removed(folder: Path, damage: Callable[[Path], None]) -> None:
    for read in (Store.find, Store.marks):
        opened().keep(KEY, HEADER, MARKS)
        damage(folder / KEY)
        assert read(opened(), KEY) is None
        assert not os.path.lexists(folder / KEY)


def test_no_flipped_bit_is_believed(folder: Path, rng: random.Random) -> None:
    opened().keep(KEY, HEADER, MARKS)
    whole = (folder / KEY).read_bytes()
    for index in {*range(24), *rng.sample(range(len(whole)), 60)}:
        data = bytearray(whole)
        data[index] ^= 1 << rng.randrange(8)
        (folder / KEY).write_bytes(data)
        assert (opened().find(KEY), opened().marks(KEY)) != (HEADER, MARKS)
        (folder / KEY).write_bytes(data)
        assert opened().find(KEY) in (None, HEADER)
        (folder / KEY).write_bytes(data)
        assert opened().marks(KEY) in (None, MARKS)


def test_a_bomb_does_not_go_off(folder: Path) -> None:
    opened().keep(KEY, HEADER, MARKS)
    _forge(b" " * (40 << 20), b"[]")(folder / KEY)
    assert opened().find(KEY) is None


@pytest.mark.parametrize("marks", [[[1], [2]], [[["a"]] * 11], {"a": 1}, [1, 2], [["a"], 5]])
def test_marks_of_another_form_are_none(folder: Path, marks: object) -> None:
    opened().keep(KEY, HEADER, MARKS)
    _forge(b"{}", json.dumps(marks).encode())(folder / KEY)
    assert not opened().marks(KEY)


_NONSENSE: tuple[Any, ...] = (
    *(None, True, -1, 10**400, 1e308, math.nan, -math.inf),
    *("", "x", "\ud800", "x" * 5000, [], {}, [[]], ["a"], {"a": 1}),
)


def _spoiled(value: Any, rng: random.Random) -> Any:
    """Put something else into the place of a part, however deep it lies."""
    if isinstance(value, list | dict) and value and rng.random() < 0.9:
        changed = copy.copy(value)
        place = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
        changed[place] = _spoiled(changed[place], rng)
        return changed
    return rng.choice(_NONSENSE)


def test_no_nonsense_in_it_ends_an_audit(tmp_path: Path, folder: Path, rng: random.Random) -> None:
    for step in (1, 2, 3):
        save(training_state(seed=step, global_step=step), tmp_path / f"step_{step}.pt")
    audit(tmp_path, later=60)
    kept: dict[Path, tuple[bytes, bytes]] = {}
    for path in folder.iterdir():
        data = path.read_bytes()
        end = 24 + int.from_bytes(data[8:12], "little")
        kept[path] = zlib.decompress(data[24:end]), zlib.decompress(data[end:])
    save(training_state(seed=4, global_step=4), tmp_path / "step_4.pt")
    for _ in range(25):
        for path in {*kept, *folder.iterdir()}:
            if path in kept:
                texts, which = list(kept[path]), rng.randrange(2)
                texts[which] = json.dumps(_spoiled(json.loads(texts[which]), rng)).encode()
                _forge(texts[0], texts[1])(path)
            else:
                path.unlink()
        assert audit(tmp_path, later=60).summary["found"] == 4


# --- where it is not used ---


def _open_to_others(folder: Path) -> None:
    folder.chmod(0o755)


def _elsewhere(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to(folder.with_name("elsewhere"))


def _a_file(folder: Path) -> None:
    folder.rmdir()
    folder.write_text("")


def _of_somebody_else(folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    os.chown(folder, 12345, 12345)


@pytest.mark.parametrize("spoil", [_open_to_others, _elsewhere, _a_file, _of_somebody_else])
def test_a_folder_that_cannot_be_trusted_is_not_used(folder: Path, spoil: Callable[[Path], None]) -> None:
    opened()
    spoil(folder)
    said: list[str] = []
    cache = open_store(said.append)
    cache.keep(KEY, HEADER, MARKS)
    assert cache.find(KEY) is None
    cache.close()
    assert len(said) == 1
    assert said[0].startswith("nothing is remembered from audit to audit, so unchanged checkpoints are read again: ")
    assert not list(folder.parent.rglob(KEY))


def test_a_missing_home_is_no_reason_to_fail(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "missing"))
    said: list[str] = []
    assert open_store(said.append).find(KEY) is None
    assert "can't be made (No such file or directory)" in said[0]


# --- how much is kept ---


def test_what_was_used_longest_ago_goes(folder: Path) -> None:
    opened()
    for number in range(store.MAX_FILES + 5):
        path = folder / f"{number:064}"
        path.touch()
        os.utime(path, (number, number))
    cache = opened()
    cache.keep(KEY.replace("0", "f"), HEADER, MARKS)
    cache.close()
    assert len(list(folder.iterdir())) == store.MAX_FILES
    assert not (folder / f"{5:064}").exists()
    assert (folder / f"{6:064}").exists()
    assert (folder / KEY.replace("0", "f")).exists()


def test_what_is_large_goes_with_all_that_is_older(folder: Path) -> None:
    cache = opened()
    for number, size in enumerate((100, store.MAX_BYTES, 100)):
        path = folder / f"{number:064}"
        with path.open("wb") as file:
            file.truncate(size)
        os.utime(path, (number, number))
    cache.keep(KEY.replace("0", "f"), HEADER, MARKS)
    cache.close()
    assert sorted(path.name for path in folder.iterdir()) == [f"{2:064}", KEY.replace("0", "f")]


def test_what_is_used_is_young_again(folder: Path) -> None:
    opened().keep(KEY, HEADER, MARKS)
    os.utime(folder / KEY, (1, 1))
    opened().find(KEY)
    assert (folder / KEY).stat().st_mtime > 1_000_000


# --- what it is kept under ---


def test_any_change_of_a_file_gives_another_key(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"1234")
    os.utime(path, ns=(10**18, 10**18))
    keys = [key_of("a", identify([str(path)]), deep=True)]

    def note() -> None:
        keys.append(key_of("a", identify([str(path)]), deep=True))

    path.write_bytes(b"12345")
    note()
    os.utime(path, ns=(10**18, 10**18 + 1))
    note()
    copy = tmp_path / "b"
    copy.write_bytes(b"12345")
    copy.rename(path)
    os.utime(path, ns=(10**18, 10**18 + 1))
    note()
    path.chmod(0o600)
    note()
    keys.append(key_of("b", identify([str(path)]), deep=True))
    keys.append(key_of("a", identify([str(path)]), deep=False))
    assert len(set(keys)) == len(keys)
    assert key_of("a", identify([str(path)]), deep=True) == keys[-3]
    assert key_of("a", identify([str(path), str(path)]), deep=True) not in keys


def test_what_other_rules_found_is_not_used() -> None:
    assert Catalog.load(None).find("check-ckpt").version == store.RULES_VERSION


def test_a_file_that_was_just_changed_is_not_settled(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"")
    os.utime(path, (1, 1))
    files = identify([str(path)])
    changed = path.stat().st_ctime
    assert [is_settled(files, changed + seconds) for seconds in (-100, 0, 2.9, 3.1)] == [False, False, False, True]


# --- audits that remember ---

SOON = 10.0


def told(heard: Heard) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """Return what an audit says, but for what says that it was cached, and how long it took."""
    passing = ("cached", "checked_at", "seconds")
    return [{key: each[key] for key in each if key not in passing} for each in heard.emitted], heard.findings


def cached(heard: Heard) -> list[str]:
    return [record["name"] for record in heard.records if record.get("cached")]


def test_an_unchanged_checkpoint_is_not_read_again(tmp_path: Path) -> None:
    save(training_state(), tmp_path / "good" / "step_2.pt")
    state = training_state()
    state["model_state_dict"]["0.weight"][0, 0] = math.nan
    save(state, tmp_path / "bad" / "step_1.pt")
    first, second = audit(tmp_path, later=SOON), audit(tmp_path, later=2 * SOON)
    assert cached(first) == []
    assert cached(second) == ["good", "bad"]
    assert told(first) == told(second)
    assert first.records[1]["verdict"] == second.records[1]["verdict"] == "bad"
    assert time.time() < calendar.timegm(time.strptime(second.records[0]["checked_at"], "%Y-%m-%dT%H:%M:%SZ")) + 1
    assert second.records[0]["seconds"] < 1
    assert cached(audit(tmp_path, later=3 * SOON, engine="numpy")) == ["good", "bad"]


def test_a_change_that_leaves_size_and_time_is_seen(tmp_path: Path) -> None:
    path = save(training_state(), tmp_path / "step_1.pt")
    audit(tmp_path, later=SOON)
    offset, _ = place_of(path, "data/0")
    overwrite(path, offset, b"\0" * 8)
    heard = audit(tmp_path, later=2 * SOON)
    assert cached(heard) == []
    assert heard.record["verdict"] == "bad"


def test_what_was_read_long_ago_is_read_again(tmp_path: Path) -> None:
    save(training_state(), tmp_path / "step_1.pt")
    audit(tmp_path, later=SOON)
    day = 86400.0
    assert cached(audit(tmp_path, later=6.9 * day)) == ["step_1.pt"]
    assert cached(audit(tmp_path, later=2 * SOON, recheck=5.0)) == []
    assert cached(audit(tmp_path, later=7.1 * day)) == []
    assert cached(audit(tmp_path, later=7.2 * day)) == ["step_1.pt"]
    # A clock that was set back says nothing of how old anything is.
    assert cached(audit(tmp_path, later=SOON)) == []


def test_who_wants_no_cache_gets_and_leaves_none(tmp_path: Path, own_home: Path) -> None:
    save(training_state(), tmp_path / "step_1.pt")
    for later in (SOON, 2 * SOON):
        assert cached(audit(tmp_path, later=later, cache=False)) == []
    assert not (own_home / ".cache").exists()


def test_what_may_still_change_is_not_remembered(tmp_path: Path, folder: Path) -> None:
    save(training_state(), tmp_path / "step_1.pt")
    save(training_state(), tmp_path / "step_2.pt.tmp")
    assert {record["verdict"] for record in audit(tmp_path).records} == {"ok", "in_progress"}
    assert list(folder.iterdir()) == []
    (tmp_path / "step_1.pt").unlink()
    audit(tmp_path, later=SOON)
    assert list(folder.iterdir()) == []


def test_what_could_not_be_read_is_tried_again(tmp_path: Path, folder: Path) -> None:
    save(training_state(), tmp_path / "step_1.pt")
    (unit,) = discover(str(tmp_path), 0).units
    now = time.time() + SOON
    memory = Memory(str(tmp_path), [unit], opened(), deep=True, recheck_s=100.0, now=now)
    report = Report(unit)
    report.fail(Found("CK030", "the disk gave nothing back"))
    entry = memory.learn(report, report.outcome(), look(unit), now)
    assert memory.follow(entry) == [entry]
    assert list(folder.iterdir()) == []


def test_what_changed_while_it_was_read_is_not_remembered(tmp_path: Path, folder: Path) -> None:
    path = save(training_state(), tmp_path / "step_1.pt")
    (unit,) = discover(str(tmp_path), 0).units
    now = time.time() + SOON
    memory = Memory(str(tmp_path), [unit], opened(), deep=True, recheck_s=100.0, now=now)
    report, before = Report(unit), look(unit)
    settle(path)
    memory.learn(report, report.outcome(), before, now)
    assert list(folder.iterdir()) == []


def test_a_checkpoint_that_others_give_another_name_keeps_what_was_found(tmp_path: Path) -> None:
    save(training_state(), tmp_path / "run" / "step_1" / "model.pt")
    assert audit(tmp_path, later=SOON).record["name"] == "step_1"
    save(training_state(1), tmp_path / "other" / "step_1" / "model.pt")
    heard = audit(tmp_path, later=2 * SOON)
    assert cached(heard) == ["run/step_1"]
    assert {record["name"] for record in heard.records} == {"run/step_1", "other/step_1"}


def test_a_file_that_moved_is_another(tmp_path: Path) -> None:
    path = save(training_state(), tmp_path / "a" / "step_1.pt")
    audit(tmp_path, later=SOON)
    path.parent.rename(tmp_path / "b")
    heard = audit(tmp_path, later=2 * SOON)
    assert cached(heard) == []
    assert heard.record["path"] == str(tmp_path / "b" / "step_1.pt")


def test_damage_in_the_cache_costs_a_second_reading(tmp_path: Path, folder: Path) -> None:
    save(training_state(), tmp_path / "step_1.pt")
    first = audit(tmp_path, later=SOON)
    (kept,) = folder.iterdir()
    _truncate(kept)
    second = audit(tmp_path, later=2 * SOON)
    assert cached(second) == []
    assert told(first) == told(second)
    assert cached(audit(tmp_path, later=3 * SOON)) == ["step_1.pt"]


def test_marks_that_are_gone_are_not_missed_for_ever(tmp_path: Path, folder: Path) -> None:
    for step in (1, 2):
        save(training_state(seed=step, global_step=step), tmp_path / f"step_{step}.pt")
    audit(tmp_path, later=SOON, newest=1)
    (kept,) = folder.iterdir()
    # The header stays whole.
    overwrite(kept, kept.stat().st_size - 1, b"\0")
    assert cached(audit(tmp_path, later=2 * SOON)) == ["step_2.pt"]
    assert not kept.exists()
    assert cached(audit(tmp_path, later=3 * SOON)) == ["step_1.pt"]


def test_a_cache_that_goes_away_meanwhile_costs_no_verdict(tmp_path: Path, own_home: Path) -> None:
    class Cleaning(Heard):
        def progress(self, done: float, total: float | None = None, unit: str = "", what: str = "") -> None:
            if what == "step_1.pt":
                shutil.rmtree(own_home / ".cache", ignore_errors=True)

    for step in (1, 2):
        save(training_state(step), tmp_path / f"run/step_{step}.pt")
    heard = Cleaning({"root": str(tmp_path / "run"), "depth": 6, "engine": "auto"})
    hear(heard, later=60)
    assert not (own_home / ".cache").exists()
    assert [record["verdict"] for record in heard.records] == ["ok", "ok"]
    assert heard.summary["resume_from"] == "step_2.pt"


def test_headers_that_were_read_are_no_values(tmp_path: Path) -> None:
    save(training_state(), tmp_path / "step_1.pt")
    audit(tmp_path, later=SOON, deep=False)
    heard = audit(tmp_path, later=2 * SOON, deep=False)
    assert heard.record["verdict"] == "unchecked"
    assert cached(heard) == ["step_1.pt"]
    assert cached(audit(tmp_path, later=3 * SOON)) == []
    # Values that were checked are better than what was asked for.
    heard = audit(tmp_path, later=4 * SOON, deep=False)
    assert cached(heard) == ["step_1.pt"]
    assert heard.record["verdict"] == "ok"


_WATCHED = """
import json, sys, time
root, later = sys.argv[1], float(sys.argv[2])
opened = []
from remoterun.payloads.check_ckpt import run
class Context:
    params = {"root": root}
    verdicts = []
    def emit(self, record): self.verdicts.append((record.get("verdict"), record.get("cached")))
    def finding(self, *args, **data): pass
    def progress(self, *args): pass
    def log(self, text): pass
def watch(event, args):
    if event == "open" and str(args[0]).startswith(root) and str(args[0]).endswith(".pt"):
        opened.append(args[0])
sys.addaudithook(watch)
run(Context(), lambda: time.time() + later)
print(json.dumps([len(opened), Context.verdicts]))
"""


def test_of_200_unchanged_checkpoints_no_byte_is_read(tmp_path: Path, own_home: Path) -> None:
    state = training_state()
    for step in range(200):
        torch.save({**state, "global_step": step}, tmp_path / f"step_{step}.pt")
    answers = []
    for later in (SOON, 2 * SOON):
        argv = [sys.executable, "-c", _WATCHED, str(tmp_path), str(later)]
        done = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[4])
        answers.append(json.loads(done.stdout))
    (before, verdicts), (after, remembered) = answers
    assert before >= 200
    assert after == 0
    assert verdicts[-1] == remembered[-1] == [None, None]
    assert [verdict for verdict, _ in verdicts] == [verdict for verdict, _ in remembered]
    assert all(cached for _, cached in remembered[:-1])


def test_an_audit_without_a_home_says_so_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(training_state(), tmp_path / "step_1.pt")
    monkeypatch.setenv("HOME", "/proc")
    heard = audit(tmp_path, later=SOON)
    assert heard.record["verdict"] == "ok"
    assert len(heard.logged) == 1
    assert heard.logged[0].startswith("nothing is remembered from audit to audit")
