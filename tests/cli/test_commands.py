"""The command line as a process: what it prints where, and how it ends. Everything here runs on this machine."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from remoterun.cli.app import command
from remoterun.version import VERSION
from tests.docs.generate import COMMANDS
from tests.support.project import REMOTERUN, Project, Result, piped, remoterun, strict_json
from tests.support.terminal import on_a_terminal

INVENTORY = f"""\
defaults: {{python: {sys.executable}}}
hosts:
  here: {{transport: local, tags: [mine], vars: {{checkpoints: /tmp}}}}
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Return a project whose only target is this machine."""
    (tmp_path / "inventory.yaml").write_text(INVENTORY, "utf-8")
    made = Project(folder=tmp_path)
    made.payload(
        "hello",
        "def run(ctx):\n    ctx.emit({'hello': ctx.params['name']})\n",
        params={"name": {"type": "string", "default": "you"}},
    )
    return made


def bare(*words: str, **more: str) -> Result:
    """Run a command line without a project."""
    return remoterun(*words, env={**os.environ, **more})


@pytest.mark.parametrize("words", [("--version",), ("--version", "play")])
def test_version(words: tuple[str, ...]) -> None:
    assert bare(*words).stdout.decode().strip() == f"remoterun {VERSION}"


def test_version_imports_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['remoterun', '--version']\n"
        "from remoterun.__main__ import main; main(); print(sorted(sys.modules))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    for module in ("asyncio", "asyncssh", "pydantic", "rich", "typer", "yaml", "json"):
        assert f"'{module}'" not in shown


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (("exec", "--on", "here", "uname", "-a"), "behind `--`: remoterun exec --on TARGET -- PROGRAM -a"),
        (("run", "x.py", "--on", "here", "--step", "2"), "behind `--`: remoterun run SCRIPT.py --on TARGET -- --step"),
        (("run", "x.py", "--limt", "run=1s"), "No such option: --limt (did you mean --limit?); what belongs"),
        (("play", "hello", "--fail-on", "bad"), "`fail_on: bad` belongs to a step of a playbook"),
        (("play", "hello", "--fail_on=bad"), "`fail_on: bad` belongs to a step of a playbook"),
    ],
)
def test_an_option_that_belongs_elsewhere_is_told_where(project: Project, words: tuple[str, ...], advice: str) -> None:
    result = project.run(*words)
    assert (result.status, result.stdout) == (2, b"")
    assert result.stderr.startswith("remoterun: No such option: ")
    assert advice in result.stderr


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("play", "'PLAYBOOK'; there are check-ckpt, hello, nightly, probe"),
        ("show", "'RUN'; `remoterun runs` lists them, and `last` is the newest"),
        ("payload show", "'NAME'; `remoterun payload show --help` says what there is"),
    ],
)
def test_what_is_missing_is_named_with_what_there_is(project: Project, line: str, said: str) -> None:
    (project.folder / "playbooks").mkdir()
    (project.folder / "playbooks/nightly.yaml").touch()
    result = remoterun(*line.split(), cwd=project.folder)
    assert (result.status, result.stderr) == (2, f"remoterun: Missing argument {said}\n")
    (project.folder / "inventory.yaml").write_text("hosts: [")
    assert remoterun("play", cwd=project.folder).stderr.endswith("; `remoterun play --help` says what there is\n")


@pytest.mark.parametrize("words", [("exec", "--verbos", "--", "uname", "-a"), ("history", "--newst", "3")])
def test_an_option_that_is_mistyped_is_told_so_alone(project: Project, words: tuple[str, ...]) -> None:
    result = project.run(*words)
    assert re.fullmatch(r"remoterun: No such option: --\w+ \(did you mean --[^;]*\?\)\n", result.stderr)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("play hello here", "'here' is a word too many; each target has an --on of its own: `--on here`"),
        ("play here hello", "'hello' is a word too many; the playbook comes first: `remoterun play hello --on here`"),
        (
            "play --limit run=5s here hello",
            "'hello' is a word too many; the playbook comes first: `remoterun play hello --on here`",
        ),
        ("play hello --set name = me", "'=' stands between blanks: write NAME=VALUE as one word"),
        ("play hello \u2013-on here", "'\u2013-on' begins with a dash where hyphens belong: write --on"),
        ("play hello \u2014on here", "'\u2014on' begins with a dash where hyphens belong: write --on"),
        ("play hello --target here", "No such option: --target (did you mean --on here?)"),
        ("play hello -t here", "No such option: -t (did you mean --on here?)"),
        ("play hello --name=me", "No such option: --name (did you mean --set name=me?)"),
        ("play hello --name=a;b", "No such option: --name (did you mean --set name='a;b'?)"),
        ("play hello --name", "No such option: --name (did you mean --set name=VALUE?)"),
        ("play hello --timeout 5m", "No such option: --timeout (did you mean --limit run=5m?)"),
        (
            "play hello --limit rn=5m",
            "--limit: there is no limit 'rn'; there are connect, enter, upload, idle, stall, run, lease, total "
            "(did you mean run?)",
        ),
        ("play hello --json", "No such option: --json (did you mean --output json?)"),
        ("play hello --targets-at-once x", "Invalid value for '--targets-at-once': 'x' is not a whole number."),
        ("exec --host here -- uname", "No such option: --host (did you mean --on here?)"),
        ("check . --newest 3", "No such option: --newest (did you mean --set newest=3?)"),
        (
            "check . --on here",
            "No such option: --on: `check` looks at this machine; `remoterun play check-ckpt --on here`",
        ),
        ("hostkeys show here", "'here' is a word too many; each target has an --on of its own: `--on here`"),
        ("history here", "No such command 'here'; `--target here` chooses a target"),
        ("runs last", "Got unexpected extra argument(s) (last); `remoterun runs --help` says what there is"),
        ("play hello --xyz", "No such option: --xyz; `remoterun play --help` says what there is"),
        ("runs -h", "No such option: -h (did you mean --help?)"),
        ("hello --on here", "No such command 'hello'; `remoterun play hello` plays it"),
        ("help", "No such command 'help'; `remoterun --help` says what there is"),
        ("it's", 'No such command "it\'s"; `remoterun --help` says what there is'),
        ("paly hello", "No such command 'paly'. Did you mean 'play'?"),
    ],
)
def test_a_mistake_is_told_with_what_was_meant(project: Project, line: str, said: str) -> None:
    result = remoterun(*line.split(), cwd=project.folder)
    assert (result.status, result.stderr, result.stdout) == (2, f"remoterun: {said}\n", b"")


def test_a_mistake_is_told_where_the_project_has_some_too(project: Project) -> None:
    (project.folder / "inventory.yaml").write_text("hosts: [")
    result = remoterun("play", "hello", "--name", "me", cwd=project.folder)
    assert result.stderr.startswith("remoterun: No such option: --name")
    assert result.status == 2


def test_play_does_not_parse_an_unchanged_inventory_again(project: Project) -> None:
    words = project.argv("play", "hello", "--dry-run")[2:]
    code = (
        f"import sys; sys.argv = {words!r}\n"
        "from remoterun.cli.guard import run; run(sys.argv[1:]); sys.stderr.write(str(sorted(sys.modules)))"
    )
    loaded = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr
        for _ in range(2)
    ]
    assert "'yaml'" in loaded[0]
    assert "'pydantic'" in loaded[0]
    assert "'yaml'" not in loaded[1]
    assert "'pydantic'" not in loaded[1]
    assert "'asyncssh'" not in loaded[1]


def test_no_words_show_the_commands_by_what_they_are_for() -> None:
    result = bare(COLUMNS="100", NO_COLOR="1", TERM="dumb")
    assert (result.status, result.stderr) == (2, "")
    shown = result.stdout.decode()
    panels = re.findall(r"^╭─ (.*?) ─|^│ ([a-z]+) ", shown, re.MULTILINE)
    assert [panel for panel, _ in panels if panel] == [
        "Options",
        "Look at targets",
        "Look back at runs",
        "Go on with runs",
        "Unattended",
        "Set up",
        "Find your way",
    ]
    names = [name for _, name in panels if name]
    assert names.index("history") == names.index("runs") + 3
    assert shown.strip().endswith("New here? remoterun demo")


def _help(
    words: tuple[str, ...], columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    for name, value in (("COLUMNS", str(columns)), ("NO_COLOR", "1"), ("TERM", "dumb")):
        monkeypatch.setenv(name, value)
    command(words).main([*words, "--help"], prog_name="remoterun", standalone_mode=False)
    return capsys.readouterr().out


@pytest.mark.parametrize("words", COMMANDS)
def test_no_help_breaks_a_word_at_80_columns(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    narrow, wide = (_help(words, columns, monkeypatch, capsys) for columns in (80, 300))
    assert max(map(len, narrow.splitlines())) == 80
    assert set(re.sub("[─╭╮╰╯│]", " ", narrow).split()) == set(re.sub("[─╭╮╰╯│]", " ", wide).split())
    usage = narrow.split("Usage: ")[1].partition("\n")[0]
    assert not set("{}<>") & set(usage)


def test_what_has_to_be_given_stands_plainly_in_the_usage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, told in (
        (("check",), "check [OPTIONS] PATH..."),
        (("run",), "run [OPTIONS] SCRIPT.py [-- ARGS...]"),
        (("exec",), "exec [OPTIONS] -- PROGRAM ARGS..."),
        (("history",), "history [OPTIONS] [COMMAND] [ARGS]..."),
        (("schema",), "schema [OPTIONS] DOCUMENT"),
    ):
        assert f"Usage: remoterun {told} " in _help(words, 80, monkeypatch, capsys)


def test_play_on_this_machine(project: Project) -> None:
    result = project.run("play", "hello", "--on", "here", "--set", "name=x y", "--output", "json")
    assert result.status == 0, result
    assert result.outcome("here")["records"] == [{"hello": "x y"}]


def test_tables_go_to_stdout_and_the_rest_to_stderr(project: Project) -> None:
    result = project.run("play", "hello")
    assert b"here" in result.stdout
    assert b"\x1b" not in result.stdout
    quiet = project.run("play", "hello", "--quiet")
    assert quiet.stderr == ""
    assert quiet.stdout == result.stdout or b"here" in quiet.stdout


def test_inventory_list(project: Project) -> None:
    text = project.run("inventory", "list").stdout.decode().splitlines()
    assert text[0].split() == ["TARGET", "NAME", "ADDRESS", "INTERPRETER", "TAGS"]
    assert text[1].split() == ["here", "-", "local", sys.executable, "mine"]
    assert project.run("inventory", "check").stdout.decode().endswith(": ok, 1 target, 0 playbooks, 3 payloads\n")
    document = project.run("inventory", "list", "--output", "json").document
    assert [target["id"] for target in document["targets"]] == ["here"]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (len(sys.executable) + 8, ("inventory", "list")),
        (84, ("payload", "list")),
        (84, ("payload", "show", "check-ckpt")),
        (84, ("play", "hello", "--dry-run", "--set", "name=" + "somebody " * 20)),
    ],
)
def test_a_terminal_breaks_no_word_and_a_pipe_no_line(project: Project, columns: int, words: tuple[str, ...]) -> None:
    piped_text, text = project.run(*words).stdout.decode(), on_a_terminal(project.argv(*words), columns)
    assert text.split() == piped_text.split()
    assert len(text.splitlines()) > len(piped_text.splitlines())
    wide = [line for line in text.splitlines() if len(line) > columns]
    # The command line is there to be copied.
    assert [line.split()[0] for line in wide] == (["command"] if "--dry-run" in words else [])


def test_mistakes_are_broken_at_blanks_on_a_terminal(project: Project) -> None:
    (project.folder / "inventory.yaml").write_text("hosts: {a: {adress: x}, b: {port: a word and not a number}}\n")
    argv = project.argv("inventory", "check")
    columns = len(str(project.folder)) + 45
    text = on_a_terminal(argv, columns, "stderr")
    assert text.split() == project.run("inventory", "check").stderr.split()
    assert [len(line) <= columns for line in text.splitlines()] == [True] * 5
    assert [line[:4] == "    " for line in text.splitlines()] == [False, False, True, False, True]


def test_inventory_check_tells_every_problem(project: Project) -> None:
    assert project.run("inventory", "check").status == 0
    (project.folder / "inventory.yaml").write_text("hosts:\n  a: {adress: x}\n  b: {port: no}\n", "utf-8")
    result = project.run("inventory", "check", "--output", "json")
    assert result.status == 2
    problems = result.document["problems"]
    assert [(problem["line"], problem["path"]) for problem in problems] == [(2, "hosts.a.adress"), (3, "hosts.b.port")]
    assert "address" in problems[0]["nearest"]
    assert result.stderr.count("\n") == 3
    assert result.stderr.startswith("remoterun: 2 problems:\n")
    assert project.run("play", "hello").stderr.startswith("remoterun: 2 problems; nothing was started:\n")


def test_inventory_check_looks_at_every_file_whatever_is_wrong_in_others(project: Project) -> None:
    folder = project.folder
    (folder / "playbooks").mkdir()
    (folder / "playbooks/one.yaml").write_text("stepz: 1\nsteps: [{payload: helo, bogus: 1}, {payload: hello}]\n")
    (folder / "playbooks/two.yaml").write_text("targets: nobody\nsteps: [{payload: helo}]\n")
    (folder / "playbooks/three.yml").write_text("steps: [{payload: hello, params: {nam: x}}]\n")
    (folder / "audit.yaml").write_text("playbooks: [helo, one, probe]\nexit_onn: 3\n")

    def told() -> set[tuple[str | None, int | None, str | None]]:
        result = project.run("inventory", "check", "--output", "json")
        assert result.status == 2
        problems = result.document["problems"]
        return {(each["file"] and Path(each["file"]).name, each["line"], each["path"]) for each in problems}

    always = {
        ("one.yaml", 1, "stepz"),
        ("one.yaml", 2, "steps.0.bogus"),
        ("one.yaml", 2, "steps.0.payload"),
        ("two.yaml", 2, "steps.0.payload"),
        ("audit.yaml", 1, "playbooks.0"),
        ("audit.yaml", 2, "exit_onn"),
    }
    found = told()
    assert always <= found
    others = sorted(path for _, _, path in found - always if path)
    assert [Path(path.split(":")[0]).name for path in others] == ["three.yml", "two.yaml"]
    assert others[1].endswith("two.yaml: targets")
    # An unknown key that can't be meant for anything that is missing takes nothing away.
    (folder / "inventory.yaml").write_text("hosts: {here: {transprt: local, transport: local}}\n")
    assert told() == found | {("inventory.yaml", 1, "hosts.here.transprt")}


def checked(project: Project) -> dict[str, list[str]]:
    """Return what is wrong in each file of a project, as messages with their places."""
    document = project.run("inventory", "check", "--output", "json").document
    told: dict[str, list[str]] = {}
    for each in document["problems"]:
        file, _, place = (f"{each['file']}: {each['path']}" if each["file"] else str(each["path"])).partition(": ")
        told.setdefault(Path(file).name, []).append(f"{place}: {each['message']}")
    return told


PLAYBOOK = """\
targets: [here, {target}]
stepz: 1
steps:
  - payload: hello
    params: {{name: 3, nmae: you}}
  - payload: check-ckpt
    params: {{root: {{var: chekpoints}}, newset: 3}}
    rules: {{ignore: [CK999]}}
"""


def test_inventory_check_looks_at_parameters_where_no_target_is_found(project: Project) -> None:
    (project.folder / "playbooks").mkdir()
    playbook = "{targets: nowhere, steps: [{payload: hello, params: {name: 3}}]}"
    (project.folder / "playbooks/nightly.yaml").write_text(playbook)
    result = project.run("inventory", "check")
    assert result.status == 2
    assert "targets: 'nowhere' matches no target" in result.stderr
    assert "steps.0.params.name: expected a string, got int 3" in result.stderr


def test_inventory_check_tells_in_one_round_what_does_not_hang_on_other_mistakes(project: Project) -> None:
    folder = project.folder
    (folder / "playbooks").mkdir()
    (folder / "playbooks/one.yaml").write_text(PLAYBOOK.format(target="tag:mien"))
    text = INVENTORY.replace("here:", "here: {port: no, transport: local}\n  there:")
    (folder / "inventory.yaml").write_text(f"{text}groups: {{all-of-it: [here, 'tag:mien', here/300]}}\n")
    told = checked(project)
    assert [each.split(": ")[0] for each in told["inventory.yaml"]] == [
        "hosts.here.port",
        "groups.all-of-it.1",
        "groups.all-of-it.2",
    ]
    assert [each.split(": ")[0] for each in told["one.yaml"]] == [
        "stepz",
        "targets",
        "steps.0.params.name",
        "steps.0.params.nmae",
        "steps.1.rules.ignore.0",
        "steps.1.params.newset",
    ]
    # The variables of a target that is whole are known, whatever is wrong with others.
    assert "the target here has no variable 'chekpoints'" in str(told["check-ckpt.params.root"])
    assert "or say --set root=VALUE" in str(told["check-ckpt.params.root"])


@pytest.mark.parametrize(
    ("wrong", "place"),
    [
        ("guest: {300: }", "guest"),
        ("guests: {300: }, guests: {200: }", "guests"),
        ("guests: 300", "guests"),
        ("guests: {3%: }", 'guests."3%"'),
        ("machines: {301: }", "machines"),
        ("guests: {200: {called: kpro6-x}}", "guests.200.called"),
    ],
)
def test_inventory_check_blames_nothing_for_what_could_not_be_read(project: Project, wrong: str, place: str) -> None:
    folder = project.folder
    (folder / "playbooks").mkdir()
    (folder / "playbooks/one.yaml").write_text("targets: [kpro6/301, elsewhere/1]\nsteps: [{payload: probe}]\n")
    (folder / "inventory.yaml").write_text(f"hosts: {{kpro6: {{{wrong}}}}}\ngroups: {{gpu: [kpro6/301, 'tag:gpu']}}\n")
    told = checked(project)
    assert [each.split(": ")[0] for each in told.pop("inventory.yaml")] == [f"hosts.kpro6.{place}"]
    assert told == {
        "one.yaml": [
            "targets: 'elsewhere/1' matches no target",
            "None: its targets (kpro6/301) and their variables can be checked once the mistakes of the inventory are "
            "mended",
        ]
    }


def test_inventory_check_says_what_it_could_not_check(project: Project) -> None:
    folder = project.folder
    (folder / "playbooks").mkdir()
    (folder / "playbooks/one.yaml").write_text("steps: [{payload: probe, params: {bogus: 1}}]\n")
    (folder / "playbooks/two.yaml").write_text("steps: [{payload: [probe]}]\n")
    (folder / "inventory.yaml").write_text("hosts: [\n")
    told = checked(project)
    assert told["one.yaml"] == [
        "None: its targets and their variables can be checked once the mistakes of the inventory are mended",
        "steps.0.params.bogus: there is no such parameter; there are: gpu, min_free_pct, min_free, answer_within",
    ]
    assert (
        told["two.yaml"][-1] == "None: its steps and targets can be checked once the mistakes of this file are mended"
    )


def test_inventory_check_looks_at_audits(project: Project) -> None:
    audit = project.folder / "audit.yaml"
    audit.write_text("playbooks: [check-ckpt]\n")
    result = project.run("inventory", "check")
    assert (result.status, result.stdout.decode().strip()[-12:]) == (0, ", audit.yaml")
    audit.write_text("playbooks: [check-ckpt\n")
    result = project.run("inventory", "check")
    assert (result.status, str(audit) in result.stderr) == (2, True)


def test_payload_commands(project: Project) -> None:
    listed = {item["name"]: item for item in project.run("payload", "list", "--output", "json").document["payloads"]}
    assert {"hello", "probe", "check-ckpt"} <= set(listed)
    shown = project.run("payload", "show", "hello", "--output", "json").document
    assert shown["sha256"] == listed["hello"]["sha256"]
    assert [param["name"] for param in shown["params"]] == ["name"]
    assert project.run("payload", "show", "helo").status == 2


@pytest.mark.parametrize("kind", ["package", "file", "program"])
def test_new_payload_plays_at_once(project: Project, kind: str) -> None:
    made = project.run("payload", "new", f"my-{kind}", "--kind", kind)
    assert made.status == 0, made
    # All that lies in /tmp may be more than a run may tell.
    result = project.run("play", f"my-{kind}", "--set", f"root={project.folder}", "--output", "json")
    assert result.outcome("here")["status"] in {"ok", "findings"}, result.outcome("here")
    assert project.run("payload", "new", f"my-{kind}", "--kind", kind).status == 2


def test_a_new_payload_takes_no_place_of_one_that_is_there(project: Project) -> None:
    made = project.run("payload", "new", "check-ckpt")
    assert (made.status, (project.folder / "payloads/check_ckpt").exists()) == (2, False)
    assert "would take its place: choose another name" in made.stderr


def test_how_a_new_payload_is_played_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where there is no project yet: the commands can be pasted, and then it plays."""
    folder = tmp_path / "a folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    made = bare("payload", "new", "disk-speed")
    assert made.status == 0
    assert all(Path(line).is_file() for line in made.stdout.decode().splitlines())
    first, *commands = made.stderr.splitlines()
    assert first.startswith("nothing finds it here until there is an inventory.yaml")
    script = "\n".join(commands).replace("remoterun", shlex.join(REMOTERUN))
    monkeypatch.chdir("/")
    done = subprocess.run(
        ["/bin/sh", "-ec", f"{script} --set root='{folder}' --output json"], capture_output=True, check=True
    )
    assert json.loads(done.stdout)["outcomes"][0]["payload"]["name"] == "disk-speed"
    monkeypatch.chdir(folder)
    told = bare("payload", "new", "other", "--kind", "file").stderr
    assert told == f"to play it:\n  remoterun play other --project '{folder}' --on TARGET\n"


def test_what_can_be_done_with_a_detached_run_can_be_pasted(project: Project) -> None:
    left = project.run("exec", "--on", "here", "--detach", "--", "sleep", "60")
    first, *commands = left.stderr.splitlines()[-4:]
    run_id = first.removeprefix("1 target is at work on run ").removesuffix(":")
    assert [line.split("  #")[0].split() for line in commands] == [
        ["remoterun", verb, run_id] for verb in ("attach", "collect", "cancel")
    ]
    script = commands[-1].replace("remoterun", shlex.join(REMOTERUN), 1)
    assert subprocess.run(["/bin/sh", "-c", script], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("name", ["inventory", "playbook", "run", "error", "event"])
def test_schemas_are_schemas(name: str) -> None:
    schema = strict_json(bare("schema", name).stdout)
    jsonschema.Draft202012Validator.check_schema(schema)


def test_runs_are_counted_in_the_words_of_the_table(project: Project) -> None:
    project.payload("doubt", "def run(ctx):\n    ctx.finding('R1', 'suspect', 'n 2', 'it is even')\n")
    played = project.run("play", "doubt")
    assert b"1 with findings" in played.stdout
    head, row = bare("runs").stdout.decode().splitlines()
    assert head.split() == ["RUN", "PLAYBOOK", "TARGET", "STATUS", "TOOK", "OUTCOMES"]
    assert re.search(r"doubt     here    findings  [0-9.]+ s  1 with findings$", row)


def test_runs_name_their_projects_where_there_are_several(project: Project, tmp_path: Path) -> None:
    project.run("play", "hello")
    other = tmp_path / "below" / ("long" * 10)
    other.mkdir(parents=True)
    (other / "inventory.yaml").write_text(INVENTORY, "utf-8")
    Project(folder=other).run("play", "probe")
    head, *rows = [line.split() for line in bare("runs").stdout.decode().splitlines()]
    assert (head[1], rows[0][1], rows[1][1]) == (
        "PROJECT",
        f"...{str(other)[-29:]}",
        str(tmp_path) if len(str(tmp_path)) <= 32 else f"...{str(tmp_path)[-29:]}",
    )
    heads = [on_a_terminal([*REMOTERUN, "runs"], columns).splitlines()[0].split() for columns in (200, 85, 64)]
    assert heads == [
        head,
        [word for word in head if word != "PROJECT"],
        [word for word in head if word not in {"PROJECT", "TOOK"}],
    ]


def test_a_schema_of_nothing_is_told_with_the_nearest_name() -> None:
    result = bare("schema", "rum")
    assert (result.status, result.stdout) == (2, b"")
    assert "audit-file" in result.stderr
    assert result.stderr.endswith("(did you mean run?)\n")


def test_dry_run_starts_nothing_and_shows_everything(project: Project) -> None:
    result = project.run("play", "hello", "--dry-run", "--limit", "run=90s", "--env", "TOKEN=secret-value")
    text = result.stdout.decode()
    assert result.status == 0
    for part in ("hello 1.0.0", "sha256:", 'name = "you"', "run=90s", "/bin/sh -c", "TOKEN"):
        assert part in text
    assert "secret-value" not in text


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("play", "helo"), "hello"),
        (("play", "hello", "--on", "heer"), "here"),
        (("play", "hello", "--set", "nme=1"), "--set nme: there is no such parameter; there are: name"),
        (("play", "hello", "--limit", "rn=3s"), "run"),
        (("play", "hello", "--limit", "run=3"), "duration"),
        (("play", "hello", "--env", "X"), "NAME=VALUE"),
    ],
)
def test_mistakes_are_told_with_the_nearest_name(project: Project, words: tuple[str, ...], told: str) -> None:
    result = project.run(*words)
    assert result.status == 2
    assert result.stdout == b""
    assert told in result.stderr
    assert "Traceback" not in result.stderr


def test_several_mistakes_are_told_at_once(project: Project) -> None:
    result = project.run("play", "hello", "--limit", "rn=3s", "--limit", "run=3", "--output", "json")
    assert len(result.document["problems"]) == 2


def test_project_is_found_from_below(project: Project) -> None:
    below = project.folder / "a/b"
    below.mkdir(parents=True)
    done = remoterun("inventory", "list", "--output", "json", cwd=below)
    assert done.document["targets"][0]["id"] == "here"


def test_exec_into_a_closed_pipe(project: Project) -> None:
    done = piped(project.argv("exec", "--on", "here", "--", "yes"), "head -n 2")
    assert (done.stdout, done.status) == (b"y\ny\n", 141)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("playbooks", ["inventory", "check"]),
        ("playbooks", ["play", "hello", "--on", "here"]),
        ("payloads/mine", ["payload", "list"]),
        ("playbooks", ["audit", "hello"]),
    ],
)
def test_what_nobody_may_look_into_is_named(project: Project, place: str, words: list[str]) -> None:
    shut = project.folder / place
    shut.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "XDG_STATE_HOME": str(project.folder.parent / "state")}
    # Root may look everywhere, unless it gives that up.
    plain = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    argv = [*plain, *project.argv(*words, "--output", "json")]
    shut.chmod(0o000)
    try:
        done = subprocess.run(argv, capture_output=True, timeout=60, check=False, env=environment, cwd="/")
    finally:
        shut.chmod(0o755)
    assert done.returncode == 2
    (problem,) = strict_json(done.stdout)["problems"]
    assert "Permission denied" in problem["message"]
    assert str(shut) in problem["file"]


def test_help_tells_first_of_where_and_of_the_run() -> None:
    lines = bare("play", "--help").stdout.decode().splitlines()
    titles = [line.strip("╭╮─ ") for line in lines if line.startswith("╭")]
    assert titles == ["Arguments", "Options", "Where", "The run", "How to get there"]
    flags = [match[1] for line in lines if (match := re.match(r"│ (--[\w-]+)", line))]
    assert flags.index("--on") < flags.index("--set") < flags.index("--env") < flags.index("--user")
