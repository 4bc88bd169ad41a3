"""No quoting, ever: any bytes arrive as they were sent, through sshd, a login shell, `pct`, and into the program."""

from __future__ import annotations

import asyncio
import json
import string
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from remoterun.api import Choice, Project, carry_out
from remoterun.model import ExecWork, Job, Outcome, PayloadWork, Plan, ScriptWork, Status, Work
from tests.support.lab import Lab, LabHost
from tests.support.project import write_project

SHELLS = {
    "bash": "/bin/bash",
    "dash": "/bin/dash",
    "zsh": "/usr/bin/zsh",
    "fish": "/usr/bin/fish",
    "tcsh": "/usr/bin/tcsh",
}

PHASES = (Phase.explicit, Phase.reuse, Phase.generate)

NASTY = [
    "",
    "'",
    '"',
    "$HOME",
    "`id`",
    "\n",
    "\r\n",
    "{a,b}",
    "!",
    "!!",
    "*",
    "?",
    "~",
    "\\",
    "\\'",
    "--",
    "-n",
    "#",
    ";",
    "|",
    "&",
    "\t",
    " ",
    "\x01",
    "\x7f",
    "é",
    "\u202e",
    "𝔘",
    "$(touch /tmp/pwned)",
    "%s",
    "\x1b[31m",
]
TEXT = st.one_of(
    st.sampled_from(NASTY),
    st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=60),
    st.lists(st.sampled_from(NASTY), max_size=6).map("".join),
)
WORD = st.one_of(
    TEXT.map(lambda text: text.encode()), st.binary(max_size=60).map(lambda data: data.replace(b"\0", b""))
)
NAME = st.text(string.ascii_letters, min_size=1, max_size=12).map(lambda name: f"X_{name}")
VALUE = st.one_of(
    TEXT, st.binary(max_size=40).map(lambda data: data.replace(b"\0", b"").decode("utf-8", "surrogateescape"))
)

ECHO = b"""\
import os, sys
out = os.fdopen(os.dup(1), "wb")
for word in sys.argv[1:]:
    data = os.fsencode(word)
    out.write(b"%d:" % len(data) + data)
"""

DUMP = r"""
import os, sys
out = os.fdopen(os.dup(1), "wb")
for word in sys.argv[1:]:
    data = os.fsencode(word)
    out.write(b"%d:" % len(data) + data)
for key, data in sorted(os.environb.items()):
    if key.startswith(b"X_"):
        out.write(key + b"=%d:" % len(data) + data)
"""

PAYLOAD = "def run(ctx):\n    ctx.emit({'got': ctx.params['given']})\n"


@pytest.fixture(scope="module", params=SHELLS)
def shelled(request: pytest.FixtureRequest, lab: Lab) -> LabHost:
    """Return a host whose root has this login shell, and a guest."""
    return lab.host(f"shell-{request.param}", guests=[200], shell=SHELLS[request.param])


def packed(words: list[bytes]) -> bytes:
    """Write words the way the programs above do."""
    return b"".join(b"%d:%s" % (len(word), word) for word in words)


def play(folder: Path, host: LabHost, words: list[bytes], env: dict[str, str], given: object) -> list[Outcome]:
    """Run a script, a program and a payload with these bytes, in one run."""
    project = write_project(folder, [host])
    project.payload("mirror", PAYLOAD, params={"given": {"type": "json", "required": True}})
    loaded = Project.load(folder)
    target = loaded.select(Choice(on=(f"{host.name}/200",)))[0]
    pack = loaded.catalog.find("mirror").pack()
    works: tuple[Work, ...] = (
        ScriptWork(name="echo.py", source=ECHO, args=tuple(words)),
        ExecWork(argv=(target.interpreter.encode(), b"-c", DUMP.encode(), *words)),
        PayloadWork(pack=pack, params={"given": given}),  # type: ignore[dict-item]
    )
    jobs = tuple(Job(target=target, step=index, work=work, env=env) for index, work in enumerate(works))
    plan = Plan(run_id="hostile", playbook="hostile", playbook_sha256=None, jobs=jobs)
    return list(asyncio.run(carry_out(plan)).outcomes)


@pytest.mark.lab
# Shrinking would repeat real logins for minutes; the example that failed says enough.
@settings(max_examples=12, phases=PHASES, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=st.lists(WORD, max_size=5), env=st.dictionaries(NAME, VALUE, max_size=3), text=st.lists(TEXT, max_size=4))
def test_any_bytes_arrive(
    tmp_path: Path, shelled: LabHost, words: list[bytes], env: dict[str, str], text: list[str]
) -> None:
    script, program, payload = play(tmp_path, shelled, words, env, text)
    assert [outcome.status for outcome in (script, program, payload)] == [Status.OK] * 3, [script, program, payload]
    assert script.stdout.data == packed(words)
    pairs = [(key, value.encode("utf-8", "surrogateescape")) for key, value in sorted(env.items())]
    tail = b"".join(b"%s=%d:%s" % (key.encode(), len(value), value) for key, value in pairs)
    assert program.stdout.data == packed(words) + tail
    assert payload.records == ({"got": text},)
    assert not (shelled.guest(200).root / "tmp/pwned").exists()


@pytest.mark.lab
def test_large_ones_arrive(lab: Lab, tmp_path: Path) -> None:
    host = lab.host("shell-bash", guests=[200], shell=SHELLS["bash"])
    megabyte = ("'\"$`\\\n{}!*é" * 100_000).encode()[: 1 << 20].decode("utf-8", "ignore")
    longest = ("'" * (131_071 - len("X_BIG="))).encode()
    script, program, payload = play(tmp_path, host, [longest], {"X_BIG": longest.decode()}, megabyte)
    assert program.status is Status.OK, program
    assert program.stdout.data.startswith(packed([longest]))
    assert script.stdout.data == packed([longest])
    assert payload.records == ({"got": megabyte},)


@pytest.mark.lab
def test_script_of_a_megabyte_with_megabyte_arguments_arrives(lab: Lab, tmp_path: Path) -> None:
    host = lab.host("shell-bash", guests=[200], shell=SHELLS["bash"])
    write_project(tmp_path, [host])
    target = Project.load(tmp_path).select(Choice(on=("shell-bash/200",)))[0]
    word = bytes(range(1, 256)) * 4112
    source = ECHO + b"#" + b"'\"$`\\{}!* " * 100_000 + b"\n"
    job = Job(target=target, step=0, work=ScriptWork(name="big.py", source=source, args=(word, word)))
    plan = Plan(run_id="big", playbook="big", playbook_sha256=None, jobs=(job,))
    (outcome,) = asyncio.run(carry_out(plan)).outcomes
    assert outcome.status is Status.OK, outcome
    assert outcome.stdout.data == packed([word, word])


@pytest.mark.lab
def test_longer_words_are_refused_before_any_login(lab: Lab, tmp_path: Path) -> None:
    project = write_project(tmp_path, [lab.host("shell-bash", guests=[200], shell=SHELLS["bash"])])
    loaded = Project.load(project.folder)
    choice = Choice(on=("shell-bash/200",))
    from remoterun.errors import ConfigError

    with pytest.raises(ConfigError, match="131071"):
        loaded.plan_work("exec", ExecWork(argv=(b"true", b"x" * 131_072)), choice)
    with pytest.raises(ConfigError, match="131071"):
        loaded.plan_work("exec", ExecWork(argv=(b"true",)), Choice(on=choice.on, env={"X": "x" * 131_070}))


@pytest.mark.lab
def test_words_of_the_command_line_arrive(lab: Lab, tmp_path: Path) -> None:
    project = write_project(tmp_path, [lab.host("shell-bash", guests=[200], shell=SHELLS["bash"])])
    script = tmp_path / "words.py"
    script.write_text("import json, sys\nprint(json.dumps(sys.argv[1:]))\n", "utf-8")
    words = [word for word in NASTY if word != "--"] + ["--", "-x", "--output", "json"]
    result = project.run("run", str(script), "--on", "shell-bash/200", "--", *words)
    assert result.status == 0, result
    assert json.loads(result.stdout) == words
