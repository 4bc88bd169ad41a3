"""Every state a target can be in has its own error code, hint and phase, told within its limit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.lab import Lab, LabHost, guest, wait_for
from tests.support.project import Project, write_project

VENV = "/root/venv"


@pytest.fixture(scope="module")
def host(lab: Lab) -> LabHost:
    """Return a host whose guests are in all kinds of states."""
    old = [name for name in ("2.7", "3.6") if name in lab.pythons()]
    return lab.host(
        "states",
        guests=[
            guest(300, venv=VENV),
            guest(301, state="stopped"),
            guest(303, python=None),
            guest(304, rootfs="busybox", python=None),
            *(guest(310 + index, venv=VENV, venv_python=name) for index, name in enumerate(old)),
        ],
    )


def project_of(folder: Path, host: LabHost, guests: Mapping[Any, dict[str, Any]], **more: Any) -> Project:
    """Write a project whose inventory has just these guests."""
    return write_project(folder, [host], **{host.name: {"guests": guests, **more}})


def play_one(project: Project, target: str, *words: str) -> dict[str, Any]:
    """Run `true` on one target, which must fail, and return its error."""
    result = project.run("exec", "--on", target, "--output", "json", *words, "--", "true")
    assert result.status == 3, result
    outcome = result.outcome(target)
    assert outcome["error"] is not None, outcome
    assert outcome["error"]["hint"]
    return outcome


@pytest.mark.lab
@pytest.mark.parametrize(
    ("ctid", "keys", "code"),
    [
        (301, {"venv": VENV}, "guest_stopped"),
        (399, {"venv": VENV}, "guest_not_found"),
        (300, {"venv": "/nowhere/venv"}, "venv_missing"),
        (300, {"python": "/nowhere/python3"}, "interpreter_missing"),
        (303, {"python": "python3"}, "interpreter_missing"),
        (304, {"python": "python3"}, "interpreter_missing"),
        (300, {"python": "/bin/false"}, "interpreter_broken"),
        (300, {"venv": VENV, "user": "nosuchuser"}, "user_unknown"),
    ],
)
def test_state_has_its_code(tmp_path: Path, host: LabHost, ctid: int, keys: dict[str, Any], code: str) -> None:
    outcome = play_one(project_of(tmp_path, host, {ctid: keys}), f"states/{ctid}")
    assert outcome["error"]["code"] == code, outcome
    assert outcome["status"] == "failed"
    assert outcome["phase"] == "enter"


@pytest.mark.lab
def test_missing_venv_names_those_that_are_there(tmp_path: Path, host: LabHost) -> None:
    outcome = play_one(project_of(tmp_path, host, {300: {"venv": "/nowhere/venv"}}), "states/300")
    assert VENV in outcome["error"]["message"]


@pytest.mark.lab
def test_a_venv_whose_python_is_gone_is_told_from_none(tmp_path: Path, host: LabHost) -> None:
    box = host.fresh_guest(venv=VENV)
    box.sh(f"ln -sfn /opt/gone/python3 {VENV}/bin/python", check=True)
    error = play_one(project_of(tmp_path, host, {box.ctid: {"venv": VENV}}), f"states/{box.ctid}")["error"]
    assert error["code"] == "interpreter_broken"
    assert "/opt/gone/python3" in error["message"]
    assert "anew" in error["hint"]
    box.destroy()


@pytest.mark.lab
def test_a_venv_that_may_not_be_reached_is_told_from_none(tmp_path: Path, host: LabHost) -> None:
    box = host.fresh_guest(venv=VENV)
    box.sh(f"chmod 700 /root && mkdir -p /opt/venv/bin && ln -s {VENV}/bin/python /opt/venv/bin/python", check=True)
    for venv in (VENV, "/opt/venv"):
        project = project_of(tmp_path / venv[1:], host, {box.ctid: {"venv": venv, "user": "nobody"}})
        error = play_one(project, f"states/{box.ctid}")["error"]
        assert error["code"] == "interpreter_broken"
        assert "/root may not be entered: permission denied" in error["message"]
    box.destroy()


@pytest.mark.lab
def test_a_python_that_never_answers_is_told_from_a_slow_way_in(tmp_path: Path, host: LabHost) -> None:
    box = host.fresh_guest()
    path = box.write("/usr/local/bin/hangs", "#!/bin/sh\ncat >/dev/null\n")
    path.chmod(0o755)
    project = project_of(tmp_path, host, {box.ctid: {"python": "/usr/local/bin/hangs"}})
    error = play_one(project, f"states/{box.ctid}", "--limit", "enter=2s")["error"]
    assert error["code"] == "enter_timeout"
    assert "/usr/local/bin/hangs was started there" in error["message"]
    assert "by hand" in error["hint"]
    wait_for(lambda: not box.processes(), "the guest to be empty")
    box.destroy()


@pytest.mark.lab
def test_without_proc_nothing_is_started(tmp_path: Path, host: LabHost) -> None:
    box = host.fresh_guest(venv=VENV)
    box.sh("umount -l /proc", check=True)
    error = play_one(project_of(tmp_path, host, {box.ctid: {"venv": VENV}}), f"states/{box.ctid}")["error"]
    assert error["code"] == "start_failed"
    assert "/proc" in error["message"]
    box.destroy()


@pytest.mark.lab
def test_a_login_that_gives_a_terminal_is_told_as_that(lab: Lab, tmp_path: Path) -> None:
    recorder = 'ForceCommand SHELL=/bin/sh script -qec "$SSH_ORIGINAL_COMMAND" /dev/null\n'
    host = lab.host("recorded", guests=[guest(200, venv=VENV)], sshd_config=recorder)
    error = play_one(project_of(tmp_path, host, {200: {"venv": VENV}}), "recorded/200")["error"]
    assert error["code"] == "enter_failed"
    assert "terminal" in error["message"]
    wait_for(lambda: not host.guest(200).processes(), "the guest to be empty")


@pytest.mark.lab
def test_a_variable_that_pct_runs_nothing_with_is_named(lab: Lab, tmp_path: Path) -> None:
    host = lab.host("tainted", guests=[guest(200, venv=VENV)], sshd_config="SetEnv CDPATH=/srv\n")
    error = play_one(project_of(tmp_path, host, {200: {"venv": VENV}}), "tainted/200")["error"]
    assert error["code"] == "enter_failed"
    assert "while CDPATH is in the environment" in error["message"]


@pytest.mark.lab
@pytest.mark.parametrize("version", ["2.7", "3.6"])
def test_old_python_says_so(lab: Lab, tmp_path: Path, version: str) -> None:
    if version not in lab.pythons():
        pytest.skip(f"Python {version} is not on this machine")
    host = lab.host("states-old", guests=[guest(320 + int(version[0]), venv=VENV, venv_python=version)])
    ctid = 320 + int(version[0])
    outcome = play_one(project_of(tmp_path, host, {ctid: {"venv": VENV}}), f"states-old/{ctid}")
    assert outcome["error"]["code"] == "python_too_old"
    assert version in outcome["error"]["message"]


@pytest.mark.lab
def test_no_pct(lab: Lab, tmp_path: Path) -> None:
    host = lab.host("no-pct", pct=False)
    outcome = play_one(project_of(tmp_path, host, {200: {}}), "no-pct/200")
    assert outcome["error"]["code"] == "pct_missing"


@pytest.mark.lab
@pytest.mark.parametrize(
    ("user", "become", "code"),
    [("plain", None, "not_permitted"), ("plain", "sudo", "sudo_refused")],
)
def test_login_that_may_not_enter(tmp_path: Path, host: LabHost, user: str, become: str | None, code: str) -> None:
    more = {"become": become} if become else {}
    outcome = play_one(project_of(tmp_path, host, {300: {"venv": VENV}}, user=user, **more), "states/300")
    assert outcome["error"]["code"] == code


@pytest.mark.lab
def test_sudo_enters(tmp_path: Path, host: LabHost) -> None:
    project = project_of(tmp_path, host, {300: {"venv": VENV}}, user="ops", become="sudo")
    result = project.run("exec", "--on", "states/300", "--output", "json", "--", "id", "-un")
    assert result.status == 0, result
    assert result.outcome("states/300")["stdout"] == "root\n"


@pytest.mark.lab
def test_lxc_hop_enters(tmp_path: Path, host: LabHost) -> None:
    project = project_of(tmp_path, host, {"300": {"venv": VENV, "hop": "lxc"}})
    result = project.run("exec", "--on", "states/300", "--output", "json", "--", "hostname")
    assert result.status == 0, result


@pytest.mark.lab
def test_frozen_guest_is_told_and_runs_nothing_late(tmp_path: Path, host: LabHost) -> None:
    box = host.fresh_guest(venv=VENV, state="frozen")
    target = f"states/{box.ctid}"
    project = project_of(tmp_path, host, {box.ctid: {"venv": VENV}})
    result = project.run(
        "exec", "--on", target, "--output", "json", "--limit", "enter=2s", "--", "touch", "/tmp/ran-late"
    )
    outcome = result.outcome(target)
    assert outcome["error"]["code"] == "guest_frozen", outcome
    assert outcome["status"] == "timeout"
    assert outcome["error"]["limit"] == {
        "name": "enter",
        "value_s": 2.0,
        "key": "limits.enter",
        "set_by": "--limit enter",
    }
    assert outcome["timings_s"]["enter"] < 10
    box.thaw()
    wait_for(lambda: not box.processes(), "the thawed guest to be empty")
    assert not (box.root / "tmp/ran-late").exists()
    box.destroy()


@pytest.mark.lab
def test_no_torch_is_told_as_that(tmp_path: Path, host: LabHost) -> None:
    project = project_of(tmp_path, host, {300: {"venv": VENV}})
    project.payload("wants-torch", "def run(ctx):\n    pass\n", requires=["a_module_nobody_has"])
    result = project.run("play", "wants-torch", "--on", "states/300", "--output", "json")
    error = result.outcome("states/300")["error"]
    assert error["code"] == "module_missing"
    assert "a_module_nobody_has" in error["message"]
    assert f"{VENV}/bin/python" in error["message"]
    script = tmp_path / "script.py"
    script.write_text("import a_module_nobody_has\n", "utf-8")
    error = project.run("run", str(script), "--on", "states/300", "--output", "json").outcome("states/300")["error"]
    assert error["code"] == "module_missing"


@pytest.mark.lab
def test_upload_that_does_not_end_is_told_as_that(lab: Lab, tmp_path: Path) -> None:
    host = lab.host("slow-link", guests=[guest(200, venv=VENV)])
    project = project_of(tmp_path, host, {200: {"venv": VENV}})
    big = tmp_path / "big.py"
    big.write_bytes(b"#" + lab_noise(3 << 20) + b"\n")
    host.slow_down("800kbit")
    try:
        result = project.run("run", str(big), "--on", "slow-link/200", "--output", "json", "--limit", "upload=1s")
    finally:
        host.heal()
    outcome = result.outcome("slow-link/200")
    assert outcome["error"]["code"] == "upload_timeout", outcome
    assert outcome["phase"] == "upload"
    assert outcome["error"]["limit"]["key"] == "limits.upload"
    wait_for(lambda: not host.guest(200).processes(), "the guest to be empty")


def lab_noise(size: int) -> bytes:
    """Return text that no compression makes small."""
    import random

    return bytes(random.Random(size).choices(range(33, 127), k=size))


@pytest.mark.lab
def test_stale_or_tampered_cache_never_runs(tmp_path: Path, host: LabHost) -> None:
    box = host.fresh_guest(venv=VENV)
    target = f"states/{box.ctid}"
    project = project_of(tmp_path, host, {box.ctid: {"venv": VENV}})
    # Larger than what travels with the request, so that the cache is used.
    filler = f"FILLER = {lab_noise(60_000).decode()!r}\n"
    project.payload("cached", filler + "def run(ctx):\n    ctx.emit({'which': 'first'})\n")
    assert project.run("play", "cached", "--on", target, "--output", "json").status == 0
    packs = list((box.root / "root/.cache/remoterun/packs").iterdir())
    assert len(packs) == 1
    honest = packs[0].read_bytes()
    packs[0].write_bytes(honest.replace(b"'first'", b"'wrong'"))
    # What was compiled is enough to run; only without it is the pack looked at.
    for compiled in (box.root / "root/.cache/remoterun/code").iterdir():
        compiled.write_bytes(compiled.read_bytes().replace(b"first", b"wrong"))
    again = project.run("play", "cached", "--on", target, "--output", "json").outcome(target)
    assert [record["which"] for record in again["records"]] == ["first"]
    assert packs[0].read_bytes() == honest
    project.payload("cached", filler + "def run(ctx):\n    ctx.emit({'which': 'second'})\n")
    new = project.run("play", "cached", "--on", target, "--output", "json").outcome(target)
    assert [record["which"] for record in new["records"]] == ["second"]
    assert new["payload"]["sha256"] != again["payload"]["sha256"]
    emptied = project.run("payload", "gc", "--on", target, "--output", "json").outcome(target)
    assert emptied["records"][0]["removed"] == 2
    assert not list((box.root / "root/.cache/remoterun/packs").iterdir())
    box.destroy()
