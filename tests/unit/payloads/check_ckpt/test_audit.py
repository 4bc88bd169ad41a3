"""The audit as a whole: records in order, a summary at the end, and nothing that stops the rest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from remoterun.payloads.check_ckpt.scan.engines import choose_engine
from tests.support.programs import let_all_enter
from tests.unit.payloads.check_ckpt.support import (
    ENGINES,
    Heard,
    NothingError,
    audit,
    hear,
    network,
    save,
    settle,
    training_state,
    write,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.torch

REPO = Path(__file__).resolve().parents[4]


@pytest.fixture
def ten(tmp_path: Path) -> Path:
    """Lay out ten checkpoints of which three are broken in different ways."""
    for number in range(1, 11):
        state = training_state(number) | {"global_step": 100 * number}
        path = tmp_path / f"step_{100 * number}" / "checkpoint.pt"
        if number == 4:
            state["model_state_dict"]["2.weight"][3, :5] = float("nan")
        if number == 7:
            state["optimizer_state_dict"]["state"][1]["exp_avg_sq"][0] = float("inf")
        save(state, path)
        if number == 10:
            write(path, path.read_bytes()[:-5000])
    return tmp_path


@pytest.mark.parametrize("engine", ENGINES)
def test_ten_checkpoints_of_which_three_are_broken(ten: Path, engine: str) -> None:
    heard = audit(ten, engine=engine)
    assert [record["name"] for record in heard.records] == [f"step_{100 * number}" for number in range(10, 0, -1)]
    assert [record["step"] for record in heard.records] == [100 * number for number in range(10, 0, -1)]
    verdicts = {record["name"]: record["verdict"] for record in heard.records}
    assert {name for name, verdict in verdicts.items() if verdict != "ok"} == {"step_1000", "step_700", "step_400"}
    by_name = {record["name"]: record for record in heard.records}
    assert by_name["step_400"]["nan_weights"] == 5
    assert by_name["step_700"]["inf_optimizer"] == 1
    assert {each["subject"] for each in heard.findings} == {"step_1000", "step_700", "step_400"}
    assert heard.summary == {
        "kind": "summary",
        "checkpoints": 10,
        "verdicts": {"bad": 3, "ok": 7},
        "resume_from": "step_900",
        "resume_path": by_name["step_900"]["path"],
        "trainings": [
            {
                "folder": ".",
                "checkpoints": 10,
                "resume_from": "step_900",
                "resume_path": by_name["step_900"]["path"],
            }
        ],
        "root": str(ten),
        "found": 10,
        "companions": [],
        "skipped": [],
    }
    done = [step[0] for step in heard.steps]
    total = sum(record["bytes"] for record in heard.records)
    assert done == sorted(done)
    assert heard.steps[-1][:3] == (total, total, "bytes")


@pytest.mark.parametrize("engine", ENGINES)
def test_the_norm_of_the_weights_is_told_where_it_is_one(tmp_path: Path, engine: str) -> None:
    torch.manual_seed(7)
    weights = {"linear.weight": torch.randn(300, 7), "linear.bias": torch.randn(300), "norm.running_var": torch.ones(9)}
    save({"model_state_dict": weights, "step": 1}, tmp_path / "step_1" / "model.pt")
    spoiled = {**weights, "linear.bias": torch.full((300,), float("nan"))}
    save({"model_state_dict": spoiled, "step": 2}, tmp_path / "step_2" / "model.pt")
    records = {record["step"]: record for record in audit(tmp_path, engine=engine).records}
    norm = torch.cat([weights["linear.weight"].flatten(), weights["linear.bias"]]).double().norm().item()
    assert records[1]["weight_norm"] == pytest.approx(norm, rel=1e-5)
    assert "weight_norm" not in records[2]


def test_only_the_newest_and_only_what_matches(ten: Path) -> None:
    assert [record["name"] for record in audit(ten, newest=2).records] == ["step_1000", "step_900"]
    assert [record["name"] for record in audit(ten, match="step_[12]00").records] == ["step_200", "step_100"]
    assert [record["name"] for record in audit(ten, match="*00", newest=1).records] == ["step_1000"]
    with pytest.raises(NothingError, match=r"is called like other\*; there are: step_1000, step_900"):
        audit(ten, match="other*")


@pytest.mark.parametrize("how", ["by its name", "by who writes it"])
def test_a_save_in_progress_is_not_one_of_the_newest(tmp_path: Path, how: str) -> None:
    for step in (1, 2, 3):
        save(training_state(step, global_step=step), tmp_path / f"step_{step}" / "c.pt")
    unfinished = tmp_path / "step_3"
    with ExitStack() as stack:
        if how == "by its name":
            unfinished = unfinished.rename(tmp_path / "step_3.tmp")
        else:
            file = stack.enter_context((unfinished / "c.pt").open("ab"))
            file.truncate(5000)
            program = stack.enter_context(subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=file))
            stack.callback(program.terminate)
        for newest, steps in ((1, {"step_2"}), (2, {"step_2", "step_1"}), (9, {"step_2", "step_1"})):
            heard = audit(tmp_path, newest=newest, cache=False)
            assert {each["name"]: each["verdict"] for each in heard.records} == {
                unfinished.name: "in_progress",
                **dict.fromkeys(steps, "ok"),
            }
            assert (heard.summary["resume_from"], heard.nothing_judged) == ("step_2", "")


def test_nothing_to_check_says_where_was_looked(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "notes.txt").touch()
    with pytest.raises(
        NothingError, match=f"{tmp_path}/checkpoints/now does not exist; {tmp_path} holds models, notes.txt"
    ):
        audit(tmp_path / "checkpoints" / "now")
    with pytest.raises(NothingError, match=r"no checkpoint below .*2 files and folders.*\.safetensors"):
        audit(tmp_path)
    os.mkfifo(tmp_path / "pipe.pt")
    with pytest.raises(NothingError, match=r"passed over: .*pipe\.pt \(no regular file\)"):
        audit(tmp_path)


def test_files_that_only_go_with_a_checkpoint_need_no_tensors(tmp_path: Path) -> None:
    """Their damage still counts."""
    model, optimizer = network()
    folder = tmp_path / "checkpoint-500"
    save(model.state_dict(), folder / "weights.pt")
    save(optimizer.state_dict(), folder / "moments.pt")
    save({"last_epoch": 500, "_step_count": 501}, folder / "lr_scheduler.pt")
    save({"cpu": torch.get_rng_state()}, folder / "rng_state.pth")
    arguments = save({"lr": 1e-3}, folder / "args.bin")
    heard = audit(tmp_path)
    assert {record["name"] for record in heard.records} == {"checkpoint-500/weights.pt", "checkpoint-500/moments.pt"}
    assert {record["verdict"] for record in heard.records} == {"ok"}
    assert sorted(heard.summary["companions"]) == [
        "checkpoint-500/args.bin",
        "checkpoint-500/lr_scheduler.pt",
        "checkpoint-500/rng_state.pth",
    ]
    assert heard.summary["resume_from"] == "checkpoint-500/weights.pt"
    write(arguments, arguments.read_bytes()[:300])
    heard = audit(tmp_path)
    assert [record["verdict"] for record in heard.records if "args" in record["name"]] == ["bad"]
    assert heard.summary["resume_from"] is None, "a part of that checkpoint is broken"


def test_what_is_not_finished_is_in_progress(tmp_path: Path) -> None:
    whole = save(training_state(), tmp_path / "step_1" / "c.pt").read_bytes()
    write(tmp_path / "step_2.tmp" / "c.pt", whole[:5000])
    heard = audit(tmp_path)
    record = heard.records[0]
    assert (record["name"], record["verdict"], record["bytes_checked"]) == ("step_2.tmp", "in_progress", 0)
    assert heard.of("CK026")["severity"] == "info"
    assert heard.rules(above_info=True) == set()
    assert heard.summary["resume_from"] == "step_1"


def test_where_nothing_is_finished_nothing_was_judged(tmp_path: Path) -> None:
    """To say nothing of a checkpoint is no pass, whatever lies beside it."""
    whole = save(training_state(), tmp_path / "whole.dat").read_bytes()
    for step in range(1, 6):
        write(tmp_path / "run" / f"step_{step}.tmp" / "c.pt", whole)
    save({"last_epoch": 1}, tmp_path / "run" / "scheduler.pt")
    heard = audit(tmp_path / "run")
    assert len(heard.records) == 5
    assert heard.summary["companions"] == ["scheduler.pt"]
    assert heard.nothing_judged.startswith("nothing was judged, since nothing is finished: step_")
    assert heard.nothing_judged.endswith(" and 2 more")
    assert heard.hint == "Run again when the save is done."
    assert heard.summary["verdicts"] == {"in_progress": 5}
    write(tmp_path / "run" / "step_0" / "c.pt", whole[:9000])
    assert audit(tmp_path / "run").nothing_judged == "", "one that is damaged was judged"


@pytest.fixture
def growing(tmp_path: Path) -> Iterator[Path]:
    """Write a checkpoint all the time, without keeping it open."""
    whole = save(training_state(), tmp_path / "whole.pt").read_bytes()
    path = tmp_path / "run" / "c.pt"
    path.parent.mkdir()
    path.write_bytes(whole[:30_000])
    stop = threading.Event()

    def grow() -> None:
        while not stop.wait(0.01):
            with path.open("ab") as file:
                file.write(b"x")

    thread = threading.Thread(target=grow)
    thread.start()
    yield path
    stop.set()
    thread.join()


def test_a_growing_file_is_in_progress(growing: Path) -> None:
    heard = audit(growing.parent)
    assert heard.record["verdict"] == "in_progress"
    assert heard.rules() == {"CK026"}
    assert heard.record["params"] is None


def test_a_file_that_is_open_for_writing_is_in_progress(tmp_path: Path) -> None:
    """However long its writer pauses."""
    data = save(training_state(), tmp_path / "c.pt").read_bytes()
    path = write(tmp_path / "run" / "c.pt", data[:20_000])
    script = "import sys, time; file = open(sys.argv[1], 'ab'); print('open', flush=True); sys.stdin.read()"
    argv = [sys.executable, "-c", script, str(path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        heard = audit(path.parent)
        assert heard.record["verdict"] == "in_progress"
        assert "open for writing" in heard.of("CK026")["message"]
        writer.communicate()
    assert audit(path.parent).record["verdict"] == "bad"


def test_a_fresh_file_that_holds_still_is_judged(tmp_path: Path) -> None:
    data = save(training_state(), tmp_path / "c.pt").read_bytes()
    (tmp_path / "c.pt").write_bytes(data[:20_000])
    started = time.monotonic()
    assert audit(tmp_path).record["verdict"] == "bad"
    assert time.monotonic() - started < 30


class Meddler:
    """Do something to a file as soon as the audit is seen reading it."""

    def __init__(self, act: Any) -> None:
        self.act = act

    def __call__(self, *_: object) -> None:
        act, self.act = self.act, lambda: None
        act()


@pytest.mark.parametrize("what", ["replaced", "deleted", "written to", "moved away", "grew"])
def test_a_file_that_changes_while_it_is_read_is_in_progress(tmp_path: Path, what: str) -> None:
    """The audit is watched by its progress, which it reports between two reads."""
    path = save({"model": {"w": torch.zeros(12_000_000)}}, tmp_path / "c.pt")
    other = save(training_state(), tmp_path / "other.dat")

    def append() -> None:
        with path.open("ab") as file:
            file.write(b"x")

    acts = {
        "replaced": lambda: other.replace(path),
        "deleted": path.unlink,
        "written to": lambda: os.utime(path),
        "moved away": lambda: path.rename(tmp_path / "moved.dat"),
        "grew": append,
    }
    heard = Heard({"root": str(tmp_path), "depth": 0, "engine": "stdlib", "workers": 1})
    meddler = Meddler(acts[what])
    heard.progress = meddler  # type: ignore[assignment]
    hear(heard)
    assert heard.record["verdict"] == "in_progress"
    # A file is deleted by its last link: renaming over it does so, too.
    assert {"replaced": "deleted"}.get(what, what) in heard.of("CK026")["message"]
    assert heard.summary["resume_from"] is None
    assert heard.nothing_judged.endswith(": c.pt")


BECOMES_NOBODY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody who may not read")


def audit_as_nobody(tmp_path: Path, below: str = ".") -> list[dict[str, Any]]:
    """Return the records and findings that somebody gets to see who may read only what all may."""
    let_all_enter(tmp_path)
    script = f"""
import json, os, sys
sys.path.insert(0, {str(REPO / "remoterun" / "payloads")!r})
import check_ckpt
os.setgid(65534); os.setuid(65534)
class Context:
    params = {{"root": {str(tmp_path / below)!r}, "engine": "stdlib"}}
    emit = lambda self, record: print(json.dumps(record))
    progress = log = lambda self, *args, **data: None
    def finding(self, rule, severity, subject, message, *args, **data):
        self.emit({{"rule": rule, "severity": severity, "subject": subject, "message": message}})
    def nothing(self, message, hint=None):
        self.emit({{"nothing": message, "hint": hint}})
        sys.exit()
check_ckpt.run(Context())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


@BECOMES_NOBODY
@pytest.mark.parametrize("below", [".", "closed"])
def test_who_may_not_read_what_is_there_is_told_so(tmp_path: Path, below: str) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    os.mkfifo(tmp_path / "a.pt")
    *_, last = audit_as_nobody(tmp_path, below)
    assert f"{tmp_path}/closed" in last["nothing"]
    assert "Permission denied" in last["nothing"]
    assert last["hint"] == "Run it as a user who may read what is there."


@BECOMES_NOBODY
def test_a_file_that_may_not_be_read_does_not_stop_the_rest(tmp_path: Path) -> None:
    save(training_state(), tmp_path / "good.pt")
    save(training_state(), tmp_path / "secret.pt").chmod(0)
    good, secret, summary = (each for each in audit_as_nobody(tmp_path) if "kind" in each)
    if good["name"] != "good.pt":
        good, secret = secret, good
    assert (good["verdict"], secret["verdict"], secret["findings"]) == ("ok", "unsupported", ["CK030"])
    assert secret["params"] is None
    assert summary["verdicts"] == {"ok": 1, "unsupported": 1}


@BECOMES_NOBODY
@pytest.mark.parametrize(
    ("mode", "message"),
    [
        (0o700, "the folder was not checked: Permission denied"),
        (0o744, "step_1 was not checked: Permission denied"),
    ],
)
def test_a_folder_that_may_not_be_looked_into_is_suspect(tmp_path: Path, mode: int, message: str) -> None:
    save(training_state(), tmp_path / "good.pt")
    save(training_state(), tmp_path / "runs" / "theirs" / "step_1" / "c.pt")
    (tmp_path / "runs" / "theirs").chmod(mode)
    for usual in ("lost+found", ".cache/inner"):
        (tmp_path / usual).mkdir(parents=True)
        (tmp_path / usual).chmod(0o700)
    told = audit_as_nobody(tmp_path)
    assert [each for each in told if "rule" in each] == [
        {"rule": "CK030", "severity": "suspect", "subject": "runs/theirs", "message": message}
    ]
    assert told[-1]["verdicts"] == {"ok": 1}
    inside = "/step_1" if mode == 0o744 else ""
    skipped = {f"runs/theirs{inside}", "lost+found", ".cache/inner"}
    assert {os.path.relpath(each["path"], tmp_path) for each in told[-1]["skipped"]} == skipped


@BECOMES_NOBODY
@pytest.mark.parametrize("name", ["step_2.pt", "latest.pt"])
def test_a_link_to_where_one_may_not_look_is_not_called_dead(tmp_path: Path, name: str) -> None:
    save(training_state(), tmp_path / "step_1.pt")
    save(training_state(), tmp_path / "storage" / "data" / "0b5e")
    (tmp_path / name).symlink_to("storage/data/0b5e")
    (tmp_path / "storage").chmod(0o700)
    *told, summary = audit_as_nobody(tmp_path)
    assert [each["rule"] for each in told if each.get("subject") == name] == []
    assert {"path": f"{tmp_path}/{name}", "reason": "Permission denied"} in summary["skipped"]


def test_engines_agree_and_can_be_chosen(tmp_path: Path) -> None:
    state = training_state()
    state["model_state_dict"]["0.weight"][0, :9] = float("nan")
    save(state, tmp_path / "c.pt")
    records = [audit(tmp_path, engine=engine, workers=workers).record for engine in ENGINES for workers in (1, 2, 5)]
    for record in records:
        del record["seconds"]
    assert {record.pop("engine") for record in records} == set(ENGINES)
    assert all(record == records[0] for record in records)


def test_numpy_is_taken_where_it_pays() -> None:
    logged: list[str] = []
    assert choose_engine("auto", 1_000_000, logged.append).name == "stdlib"
    assert choose_engine("auto", 5_000_000_000, logged.append).name == "numpy"
    assert choose_engine("stdlib", 5_000_000_000, logged.append).name == "stdlib"
    assert choose_engine("numpy", 0, logged.append).name == "numpy"
    assert logged == []


def test_an_engine_that_is_not_there_is_a_failure(tmp_path: Path) -> None:
    """Where numpy is hidden from a Python, asking for it fails before anything is read."""
    save(training_state(), tmp_path / "c.pt")
    script = f"""
import sys
sys.path.insert(0, {str(REPO / "remoterun" / "payloads")!r})
sys.modules["numpy"] = None
import check_ckpt
class Context:
    params = {{"root": {str(tmp_path)!r}, "engine": "numpy"}}
    def fail(self, message): raise SystemExit("failed: " + message)
    emit = log = lambda *args: None
check_ckpt.run(Context())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "failed: engine=numpy was asked for, but numpy can't be imported here" in done.stderr


def test_reading_can_be_held_back(tmp_path: Path) -> None:
    save({"model": {"w": torch.zeros(1_000_000)}}, tmp_path / "c.pt")
    record = audit(tmp_path, max_mbps=10.0).record
    assert record["verdict"] == "ok"
    assert record["seconds"] > 0.3


def test_temporary_names_of_any_age_are_not_read(tmp_path: Path) -> None:
    write(tmp_path / "c.pt.tmp", b"")
    assert "last written" in audit(tmp_path).of("CK026")["message"]
    settle(tmp_path / "c.pt.tmp")


def test_a_root_in_the_home_of_who_is_logged_in_is_found(own_home: Path) -> None:
    save(training_state(), own_home / "runs" / "step_1.pt")
    heard = audit("~/runs")
    assert heard.summary["root"] == str(own_home / "runs")
    assert heard.record["path"] == str(own_home / "runs" / "step_1.pt")
