"""`run` and `exec`: what people reach for when no payload exists yet."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.support.lab import Lab, LabHost, guest
from tests.support.project import Project, write_project
from tests.support.started import Started


@pytest.fixture(scope="module")
def host(lab: Lab) -> LabHost:
    """Return a host with two guests."""
    return lab.host("programs", guests=[guest(200, venv="/root/venv"), guest(201, venv="/root/venv")])


@pytest.fixture
def project(tmp_path: Path, host: LabHost) -> Project:
    """Return a project with that host."""
    guests = {200: {"venv": "/root/venv"}, 201: {"venv": "/root/venv"}}
    return write_project(tmp_path, [host], programs={"guests": guests})


@pytest.mark.lab
def test_script_runs_in_the_venv(project: Project, host: LabHost) -> None:
    host.guest(200).make_venv("/root/own", modules={"only_here": "WORD = 'inside'\n"})
    script = project.folder / "look.py"
    script.write_text(
        "import json, os, sys, only_here\n"
        "print(json.dumps({'word': only_here.WORD, 'prefix': sys.prefix, 'venv': os.environ['VIRTUAL_ENV'],"
        " 'path': os.environ['PATH'].split(':')[0], 'name': __name__, 'argv0': sys.argv[0]}))\n",
        "utf-8",
    )
    result = project.run("run", str(script), "--on", "programs/200", "--venv", "/root/own")
    assert result.status == 0, result
    assert json.loads(result.stdout) == {
        "word": "inside",
        "prefix": "/root/own",
        "venv": "/root/own",
        "path": "/root/own/bin",
        "name": "__main__",
        "argv0": "look.py",
    }


@pytest.mark.lab
def test_script_from_stdin(project: Project) -> None:
    result = project.run("run", "-", "--on", "programs/200", "--", "a b", stdin=b"import sys\nprint(sys.argv)\n")
    assert result.stdout == b"['<stdin>', 'a b']\n"


@pytest.mark.lab
def test_one_target_is_raw_and_several_are_prefixed(project: Project) -> None:
    one = project.run("exec", "--on", "programs/200", "--", "printf", "no newline \\377")
    assert one.stdout == b"no newline \xff"
    several = project.run("exec", "--on", "programs", "--", "sh", "-c", "echo out; echo err >&2")
    assert sorted(several.stdout.splitlines()) == [b"programs/200 | out", b"programs/201 | out"]
    assert "programs/201 | err" in several.stderr


@pytest.mark.lab
def test_output_streams_while_the_program_runs(project: Project) -> None:
    with Started(project.argv("exec", "--on", "programs/200", "--", "sh", "-c", "echo first; sleep 600")) as command:
        command.says(b"^first$")
        assert command.end().status == 130


@pytest.mark.lab
def test_large_output_is_whole_on_stdout_and_truncated_in_the_document(project: Project) -> None:
    count = 20_000_000
    words = ("exec", "--on", "programs/200", "--", "sh", "-c", f"head -c {count} /dev/zero | tr '\\0' x")
    raw = project.run(*words)
    assert raw.stdout == b"x" * count
    at = words.index("--")
    outcome = project.run(*words[:at], "--output", "json", *words[at:]).outcome("programs/200")
    assert outcome["truncated"] is True
    assert "bytes left out" in outcome["stdout"]
    assert 8_000_000 < len(outcome["stdout"]) < 9_000_000


@pytest.mark.lab
def test_exit_status(project: Project) -> None:
    assert project.run("exec", "--on", "programs", "--", "false").status == 1
    assert project.run("exec", "--on", "programs/200", "--exit-status", "--", "sh", "-c", "exit 42").status == 42
    assert project.run("exec", "--on", "programs", "--exit-status", "--", "true").status == 2
    script = project.folder / "fails.py"
    script.write_text("import sys\nsys.exit(5)\n", "utf-8")
    outcome = project.run("run", str(script), "--on", "programs/200", "--output", "json").outcome("programs/200")
    assert outcome["exit_status"] == 5
    assert outcome["error"]["code"] == "nonzero_exit"


@pytest.mark.lab
def test_dry_run_logs_in_nowhere(project: Project, host: LabHost) -> None:
    before = host.sshd_log
    result = project.run("exec", "--on", "programs", "--dry-run", "--output", "json", "--", "true")
    assert result.status == 0, result
    jobs = result.document["jobs"]
    assert [job["target"] for job in jobs] == ["programs/200", "programs/201"]
    assert jobs[0]["command"].startswith("/usr/sbin/pct exec 200 -- /bin/sh -c ")
    assert host.sshd_log == before


@pytest.mark.lab
def test_environment_is_built_from_nothing(project: Project, host: LabHost) -> None:
    outcome = project.run("exec", "--on", "programs/200", "--env", "MINE=a b", "--output", "json", "--", "env")
    names = {line.partition("=")[0] for line in outcome.outcome("programs/200")["stdout"].splitlines()}
    assert "SSH_CONNECTION" not in names
    assert names == {
        "HOME", "USER", "LOGNAME", "SHELL", "LANG", "PATH", "PYTHONUTF8", "VIRTUAL_ENV", "MINE", "REMOTERUN_RUN",
    }  # fmt: skip


@pytest.mark.lab
def test_one_login_serves_all_guests_of_a_host(project: Project, host: LabHost) -> None:
    before = host.sshd_log.count("Accepted publickey")
    assert project.run("exec", "--on", "programs", "--", "true").status == 0
    assert host.sshd_log.count("Accepted publickey") == before + 1


@pytest.mark.lab
def test_jump_host(lab: Lab, tmp_path: Path) -> None:
    bastion = lab.host("bastion")
    inner = lab.host("behind", guests=[guest(200)], behind=bastion)
    keys = {"known_hosts": str(lab.known_hosts(bastion, inner))}
    project = write_project(tmp_path, [bastion, inner], bastion=keys, behind={**keys, "jump": "bastion"})
    result = project.run("exec", "--on", "behind/200", "--output", "json", "--", "hostname")
    assert result.status == 0, result


@pytest.mark.lab
def test_nothing_reads_our_own_stdin(project: Project) -> None:
    done = subprocess.run(
        [
            "bash",
            "-c",
            "echo precious | { " + " ".join(project.argv("exec", "--on", "programs/200", "--", "true")) + "; cat; }",
        ],
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == b"precious\n"
