"""`remoterun check`: the audit on this machine, as its users start it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.lab import wait_for
from tests.support.programs import lacking
from tests.support.project import REMOTERUN, Project, Result, remoterun
from tests.support.started import Started

DATA = Path(__file__).parents[2] / "remoterun/lab/data"
# A user who is not root, but may read what root owns: this machine's root by another number.
UNPRIVILEGED = ("unshare", "--user", "--map-user=1000", "--map-group=1000")


@pytest.fixture(scope="module")
def warm_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a home that these tests share, so that the payload's code is compiled once for all of them."""
    return tmp_path_factory.mktemp("warm")


@pytest.fixture
def folder(tmp_path: Path, warm_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with two runs: `good` has one checkpoint, `bad` has one with NaN and one without."""
    monkeypatch.setenv("HOME", str(warm_home))
    for name in ("CACHE", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(warm_home / name.lower()))
    for name, steps in (("good", ("201/step_1000",)), ("bad", ("200/step_4000", "200/step_4001"))):
        for step in steps:
            shutil.copytree(DATA / step, tmp_path / name / Path(step).name)
    return tmp_path


def check(folder: Path, *words: str | bytes, before: tuple[str, ...] = (), **environment: str) -> Result:
    """Run `remoterun check` in a folder."""
    given = {**os.environ, **environment}
    if not before:
        return remoterun("check", *map(os.fsdecode, words), cwd=folder, env=given, timeout=120)
    argv = [*before, *REMOTERUN, "check", *words]
    done = subprocess.run(argv, cwd=folder, env=given, capture_output=True, timeout=120, check=False)
    return Result(status=done.returncode, stdout=done.stdout, stderr=done.stderr.decode("utf-8", "replace"))


def names(result: Result, target: str) -> list[str]:
    return [record["name"] for record in result.outcome(target)["records"] if record["kind"] == "checkpoint"]


def test_a_folder_that_is_well(folder: Path) -> None:
    result = check(folder, "good")
    assert result.status == 0, result
    head, row, footer, *_ = result.stdout.decode().splitlines()
    assert head.startswith("good  ok  1 checkpoint")
    assert row.split() == ["step_1000:", "step=1000", "epoch=0", "params=2120", "nan_w=0", "inf_w=0", "opt_nan=0", "ok"]
    assert footer == "  resume from step_1000"


def test_several_paths_are_one_table_and_one_document(folder: Path) -> None:
    words = ("bad", "good", "bad/step_4000/checkpoint.pt")
    result = check(folder, *words)
    assert result.status == 1
    lines = result.stdout.decode().splitlines()
    assert [line.split()[0] for line in lines if line.startswith(words)] == [*words]
    assert lines[-1].startswith("3 targets: 2 ok, 1 with findings (1 bad)")
    told = [line.split() for line in result.stderr.splitlines()[1:]]
    assert [(line[0], line[1]) for line in told] == [("bad", "findings"), ("good", "ok"), (words[2], "ok")]
    document = check(folder, *words, "--output", "json")
    assert document.status == 1
    assert [each["target"] for each in document.document["outcomes"]] == [str(folder / word) for word in words]
    assert [each["name"] for each in document.document["outcomes"]] == [*words]
    assert [each["status"] for each in document.document["outcomes"]] == ["findings", "ok", "ok"]
    assert names(document, "bad") == ["step_4001", "step_4000"]
    assert document.outcome("bad")["findings"][0]["rule"] == "CK001"


def test_lines_of_json(folder: Path) -> None:
    result = check(folder, "good", "--output", "jsonl", "-q")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["type"] for line in lines] == ["run_started", "record", "record", "outcome", "run_finished"]
    assert {line["target"] for line in lines if "target" in line} == {str(folder / "good")}
    assert result.stderr == ""


def test_paths_are_taken_from_here_and_from_home(folder: Path) -> None:
    words = (".", "../bad/.", "step_1000//", "~/bad/step_4000")
    result = check(folder / "good", *words, "--output", "json", HOME=str(folder))
    assert result.status == 1, result
    for target, place in zip(words, ("good", "bad", "good/step_1000", "bad/step_4000"), strict=True):
        outcome = result.outcome(str(folder / place))
        assert outcome["name"] == {"../bad/.": "../bad", "step_1000//": "step_1000"}.get(target)
        record, *_, summary = outcome["records"]
        assert Path(summary["root"]).is_absolute()
        assert Path(summary["root"]).samefile(folder / place)
        assert Path(record["path"]).is_relative_to(summary["root"])


def test_a_path_is_looked_at_once(folder: Path) -> None:
    words = ("good", "./good/", str(folder / "good"), "bad/../good")
    result = check(folder, *words, "--output", "json")
    assert [each["target"] for each in result.document["outcomes"]] == [str(folder / "good")]


def test_a_path_is_one_target_however_it_is_written(folder: Path) -> None:
    for words, place in ((("good",), folder), ((".",), folder / "good"), ((str(folder / "good"),), folder / "bad")):
        assert check(place, *words).status == 0
    trails = remoterun("history", "--output", "json", cwd=folder).document["trails"]
    below = [(each["target"], len(each["runs"])) for each in trails if each["target"].startswith(str(folder))]
    assert below == [(str(folder / "good"), 3)]
    assert remoterun("diff", "--output", "json", cwd=folder).document["changes"] == []


def test_names_that_no_terminal_should_see(folder: Path) -> None:
    tricky = [b"two\nlines.pt", b"\x1b[31mred.pt", b"not \xff utf-8.pt", "grün und weiß.pt".encode()]
    for name in tricky:
        shutil.copy(folder / "good/step_1000/checkpoint.pt", folder / os.fsdecode(name))
    result = check(folder, *tricky, "--output", "json")
    assert result.status == 0, result
    assert [each["name"] for each in result.document["outcomes"]] == [
        "two\\nlines.pt",
        "\\x1b[31mred.pt",
        "not \\udcff utf-8.pt",
        "grün und weiß.pt",
    ]
    assert "\x1b" not in check(folder, tricky[1]).stdout.decode()


# --- what is wrong is told before anything starts ---------------------------------------------------------------------


def test_paths_that_are_not_there_are_told_at_once_with_the_nearest(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    (folder / "latest").symlink_to("gone")
    words = ("good", "god", "bad/step_400", "", "latest", "pipe", "good/step_1000/checkpoint.pt/x", "~nobody-here")
    result = check(folder, *words, "--output", "json")
    assert result.status == 2
    told = {each["path"]: (each["message"], each["nearest"]) for each in result.document["problems"]}
    assert told == {
        "god": ("does not exist", ["good"]),
        "bad/step_400": ("does not exist", ["bad/step_4001", "bad/step_4000"]),
        "PATH": ("the path is empty", []),
        "latest": ("is a link to gone, which does not exist", []),
        "pipe": ("is neither a file nor a folder", []),
        "good/step_1000/checkpoint.pt/x": ("does not exist", []),
        str(folder / "~nobody-here"): ("does not exist", []),
    }
    assert result.stderr.count("\n") == len(told) + 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "PATH"),
        (("good", "--set", "mach=x"), "match"),
        (("good", "--set", "root=/"), "name the folder there"),
        (("good", "--limit", "rn=3s"), "run"),
        (("good", "--venv", ".", "--python", "python3"), "not both"),
        (("good", "--ignore", "CK-022"), "CK022"),
        (("good", "gone", "--ignore", "CK-022"), "gone: does not exist"),
        (("good", "--severity", "CK0011=bad"), "CK001"),
        (("good", "--severity", "CK001=bd"), "bad"),
        (("good", "--severity", "CK001"), "RULE=LEVEL"),
        (("good", "--severity", "CK001=info", "--ignore", "CK001"), "as well"),
    ],
)
def test_mistakes(folder: Path, words: tuple[str, ...], told: str) -> None:
    result = check(folder, *words)
    assert result.status == 2, result
    assert result.stdout == b""
    assert told in result.stderr
    assert "Traceback" not in result.stderr


def test_nothing_to_check_is_no_pass_and_keeps_nobody_else(folder: Path) -> None:
    (folder / "empty").mkdir()
    result = check(folder, "empty", "good", "--output", "json")
    assert result.status == 3
    error = result.outcome("empty")["error"]
    assert error["code"] == "nothing_to_check"
    assert str(folder / "empty") in error["message"]
    assert result.outcome("good")["status"] == "ok"


def test_what_is_not_finished_is_no_pass(folder: Path) -> None:
    """`check ckpt.pt && deploy` does not go on with a file that nobody has judged."""
    path = folder / "good" / "step_1000" / "checkpoint.pt"
    with path.open("r+b") as writer:
        writer.truncate(9000)
        alone = check(folder, str(path.relative_to(folder)), "--output", "json", "--no-cache")
        shutil.copytree(folder / "bad" / "step_4000", folder / "good" / "step_500")
        beside = check(folder, "good", "--no-cache")
    assert alone.status == 3, alone
    outcome = alone.outcome(str(path.relative_to(folder)))
    assert (outcome["status"], outcome["error"]["code"]) == ("failed", "nothing_to_check")
    assert outcome["error"]["message"].endswith("nothing is finished: checkpoint.pt")
    assert [record.get("verdict") for record in outcome["records"]] == ["in_progress", None]
    assert beside.status == 0, beside
    assert beside.stdout.decode().splitlines()[-4:-2] == [
        "  resume from step_500",
        "  not judged   1 checkpoint that is not finished",
    ]


def test_each_training_is_resumed_from_its_own(folder: Path) -> None:
    result = check(folder, ".", "--no-cache")
    assert result.status == 1, result
    assert result.stdout.decode().splitlines()[-4:-2] == [
        "  resume from step_4000  in bad",
        "  resume from step_1000  in good",
    ]


def test_a_dry_run_starts_nothing(folder: Path) -> None:
    words = ("good", "bad", "--set", "newest=2", "--ignore", "CK028", "--severity", "CK120=bad", "--dry-run")
    jobs = check(folder, *words, "--output", "json").document["jobs"]
    assert [job["name"] for job in jobs] == ["good", "bad"]
    for job in jobs:
        assert job["params"]["root"] == job["target"] == str(folder / job["name"])
        assert job["params"]["newest"] == 2
        assert job["params"]["rules"] == {"ignore": ["CK028"], "severity": {"CK120": "bad"}}
        assert (job["transport"], job["interpreter"]) == ("local", sys.executable)
    text = check(folder, *words).stdout.decode()
    assert 'rules = {"ignore": ["CK028"], "severity": {"CK120": "bad"}}' in text
    assert "this machine, without SSH" in text


# --- what findings count for ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "status", "verdict"),
    [
        ((), 1, "bad"),
        (("--ignore", "CK001"), 0, "ok"),
        (("--severity", "CK001=suspect"), 1, "suspect"),
        (("--severity", "CK001=suspect", "--fail-on", "bad"), 0, "suspect"),
    ],
)
def test_single_rules_can_be_ignored_or_changed(
    folder: Path, words: tuple[str, ...], status: int, verdict: str
) -> None:
    result = check(folder, "bad/step_4001", *words, "--output", "json")
    assert result.status == status
    record, *_ = result.outcome("bad/step_4001")["records"]
    assert record["verdict"] == verdict
    assert record.get("ignored") == ({"CK001": 1} if "--ignore" in words else None)


def test_a_playbook_says_the_same(folder: Path) -> None:
    project = Project(folder=folder)
    (folder / "inventory.yaml").write_text(
        f"hosts: {{here: {{transport: local, python: {sys.executable}, vars: {{checkpoints: {folder}/bad}}}}}}", "utf-8"
    )
    (folder / "playbooks").mkdir()
    playbook = folder / "playbooks/audit.yaml"
    playbook.write_text("steps:\n  - payload: check-ckpt\n    rules: {ignore: [CK001]}\n", "utf-8")
    result = project.run("play", "audit", "--output", "json")
    assert result.status == 0, result
    assert result.outcome("here")["records"][0]["ignored"] == {"CK001": 1}
    assert project.run("play", "audit", "--severity", "CK001=bad", "--quiet").status == 1
    playbook.write_text("steps:\n  - payload: check-ckpt\n    rules:\n      ignore: [CK-022]\n", "utf-8")
    result = project.run("play", "audit")
    assert (result.status, result.stdout) == (2, b"")
    assert f"{playbook}:4: steps.0.rules.ignore.0: check-ckpt has no rule 'CK-022'" in result.stderr
    assert "CK022" in result.stderr


@pytest.mark.torch
def test_the_load_test_runs_in_the_chosen_environment(folder: Path) -> None:
    result = check(folder, "bad/step_4001", "--set", "load=true", "--set", "load_memory=1GiB", "--output", "json")
    outcome = result.outcome("bad/step_4001")
    assert outcome["records"][0]["load"]["accepted"] is True
    assert outcome["records"][0]["load"]["torch"]
    assert outcome["survivors"] == 0


# --- which Python -----------------------------------------------------------------------------------------------------


def test_another_python(folder: Path) -> None:
    (folder / "venv").symlink_to(sys.prefix)
    for words in (("--venv", "venv"), ("--python", str(folder / "venv/bin/python"))):
        result = check(folder, "good", *words, "--output", "json")
        assert result.outcome("good")["facts"]["interpreter"] == str(folder / "venv/bin/python"), words
    own = check(folder, "good", "--output", "json").outcome("good")["facts"]["interpreter"]
    assert own == sys.executable


def test_a_python_that_is_not_there(folder: Path) -> None:
    result = check(folder, "good", "--venv", "good", "--output", "json")
    assert result.status == 3
    assert result.outcome("good")["error"]["code"] == "venv_missing"
    assert str(folder / "good") in result.outcome("good")["error"]["message"]


# --- what it does not need --------------------------------------------------------------------------------------------


def test_no_project_is_read(folder: Path) -> None:
    (folder / "inventory.yaml").write_text("hosts: [", "utf-8")
    (folder / "payloads").mkdir()
    (folder / "payloads/check_ckpt.py").write_text("# /// payload\n# name = 3\n# ///\n", "utf-8")
    assert check(folder, "good").status == 0
    assert check(folder, "good", "--project", ".").status == 2


def test_neither_ssh_nor_what_speaks_it_is_needed(folder: Path) -> None:
    code = (
        "import sys; sys.modules['asyncssh'] = None\n"
        "from remoterun.__main__ import main\n"
        "sys.argv = ['remoterun', 'check', 'good', '--output', 'json']; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "PATH": "/nowhere"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["outcomes"][0]["status"] == "ok"


def test_nothing_heavy_is_imported_for_a_plan(folder: Path) -> None:
    code = (
        "import sys; sys.argv = ['remoterun', 'check', 'good', '--dry-run']\n"
        "from remoterun.__main__ import main\n"
        "try: main()\n"
        "finally: sys.stderr.write(str(sorted(sys.modules)))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True).stderr
    for module in ("asyncssh", "pydantic", "yaml", "rich", "numpy", "remoterun.payloads.check_ckpt"):
        assert f"'{module}'" not in loaded


def test_a_killed_check_leaves_nothing_at_work(folder: Path) -> None:
    checkpoint = folder / "big.safetensors"
    size = 60 << 20
    header = json.dumps({"w": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}}).encode()
    checkpoint.write_bytes(len(header).to_bytes(8, "little") + header + bytes(size))
    words = ("check", str(checkpoint), "--set", "max_mbps=1", "--output", "jsonl")
    with Started([*REMOTERUN, *words]) as command:
        command.says(b'"run_started"')
        run_id = next(command.events())["run_id"]
        wait_for(lambda: _marked(run_id) != [], "the audit to begin")
    wait_for(lambda: _marked(run_id) == [], "everything to end")


def _marked(run_id: str) -> list[str]:
    found = []
    for place in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"REMOTERUN_RUN={run_id}/".encode() in place.read_bytes():
                found.append(place.parent.name)
    return found


def test_root_is_not_needed(folder: Path, own_home: Path) -> None:
    before: tuple[str, ...] = ()
    if os.geteuid() == 0:
        said = subprocess.run([*UNPRIVILEGED, "id", "-u"], capture_output=True, text=True, check=False)
        if said.stdout.strip() != "1000":
            lacking(f"this machine lets nobody be another user: {said.stderr.strip()}")
        before = UNPRIVILEGED
    result = check(folder, "good", "bad", "--output", "json", before=before)
    assert result.status == 1, result
    assert names(result, "good") == ["step_1000"]
