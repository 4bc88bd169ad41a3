"""audit.yaml: what it says, and every problem in it at once, with its line and without a secret."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from remoterun.audit import crontab, systemd
from remoterun.audit.file import REPORTS, EventKind, ExitOn, Settings, audit_file_schema, load_settings
from remoterun.audit.schedule import Schedule, schedule_name
from remoterun.audit.words import NAMES, TEMPLATES
from remoterun.compare.numbers import Tolerance
from remoterun.errors import ConfigError
from remoterun.inventory.yamlfile import parse
from remoterun.model import Json, SecretSource, Severity

WHOLE = """\
playbooks: [check-ckpt, probe]
splay: 5m
keep: 30d
exit_on: changed
tolerance: [5%, weight_norm=0.5%]
reports: {json: out/audit.json, html: out/audit.html, metrics: /var/lib/x/remoterun.prom, junit: out/audit.xml}
alerts:
  to: {chat: {env: CHAT_URL}, mail: {file: mail.url}, pager: {command: [pass, show, pager]}}
  events: [findings, failed]
  severity: bad
  unreachable_after: 3
  most_per_hour: 4
  templates: {new: "$target has $rule ($$)"}
"""


def load(folder: Path, text: str) -> Settings:
    (folder / "audit.yaml").write_text(text, "utf-8")
    return load_settings(folder)


def problems(folder: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(folder, text)
    return [str(problem).removeprefix(f"{folder / 'audit.yaml'}:") for problem in caught.value.problems]


def test_a_report_has_a_file_of_its_own(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (tmp_path / "link").symlink_to("out")
    (out / "one.xml").touch()
    os.link(out / "one.xml", out / "hard")
    (tmp_path / "mail.url").touch()
    reports = "{html: out/../link/new, json: ./out/new, junit: out/one.xml, metrics: out/hard}"
    said = problems(tmp_path, f"playbooks: [probe]\nreports: {reports}\n")
    assert sorted(line.partition(": ")[2] for line in said) == [
        f"reports.json: {out}/new is the file of the report html already",
        f"reports.junit: {out}/one.xml is the file of the report metrics already",
    ]


def test_no_report_takes_the_place_of_a_file_that_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "playbooks").mkdir()
    (tmp_path / "playbooks" / "other.yml").touch()
    for name, what in {
        "audit.yaml": "the audit's settings",
        "./inventory.yaml": "the inventory",
        "playbooks/probe.yaml": "the playbook probe",
        "playbooks/other.yml": "the playbook other",
        "mail.url": "the URL of mail",
        "state/remoterun/history.sqlite3": "the history",
        "state/remoterun/history.sqlite3-wal": "the history",
        "state/remoterun/key": "the key that signs what is kept",
    }.items():
        (only,) = problems(
            tmp_path,
            f"playbooks: [probe@1]\nreports: {{html: {name}}}\nalerts: {{to: {{mail: {{file: mail.url}}}}}}\n",
        )
        assert f"is the file of {what} already" in only


def test_all_of_it(tmp_path: Path) -> None:
    settings = load(tmp_path, WHOLE)
    assert settings.playbooks == ("check-ckpt", "probe")
    assert (settings.splay_s, settings.keep_s, settings.exit_on) == (300.0, 30 * 86400.0, ExitOn.CHANGED)
    assert settings.tolerances == (Tolerance(None, share=0.05), Tolerance("weight_norm", share=0.005))
    out = tmp_path / "out"
    assert settings.reports == {
        "json": f"{out}/audit.json",
        "html": f"{out}/audit.html",
        "metrics": "/var/lib/x/remoterun.prom",
        "junit": f"{out}/audit.xml",
    }
    alerts = settings.alerts
    assert alerts is not None
    assert alerts.to == {
        "chat": SecretSource(kind="env", words=("CHAT_URL",)),
        "mail": SecretSource(kind="file", words=(f"{tmp_path}/mail.url",)),
        "pager": SecretSource(kind="command", words=("pass", "show", "pager"), folder=str(tmp_path)),
    }
    assert alerts.events == {EventKind.FINDINGS, EventKind.FAILED}
    assert (alerts.severity, alerts.unreachable_after, alerts.most_per_hour) == (Severity.BAD, 3, 4)
    assert alerts.templates == {**TEMPLATES, "new": "$target has $rule ($$)"}


def test_what_is_left_out(tmp_path: Path) -> None:
    assert load_settings(tmp_path) == Settings()
    settings = load(tmp_path, "playbooks: [probe]\nalerts: {to: {chat: {env: CHAT_URL}}}\n")
    assert (settings.splay_s, settings.keep_s, settings.exit_on) == (0.0, 90 * 86400.0, ExitOn.ALWAYS)
    assert settings.alerts is not None
    assert settings.alerts.events == set(EventKind)
    assert (settings.alerts.severity, settings.alerts.unreachable_after) == (Severity.SUSPECT, 2)


def test_every_problem_at_once(tmp_path: Path) -> None:
    text = """\
playbooks: [probe, probe@1]
splay: none
keep: 91d
report: {}
reports: {json: same, junit: same}
alerts:
  to: {chat: "json://user:secret-of-the-chat@host"}
  templates:
    new: "costs 5$"
    cleared: "$target $Rule"
"""
    said = problems(tmp_path, text)
    assert [line.partition(": ")[0] for line in said] == ["1", "2", "3", "4", "5", "7", "9", "10"]
    told = "\n".join(said)
    assert "the playbook 'probe' stands there twice" in told
    assert "did you mean reports?" in told
    assert "91d is too long" in told
    assert f"{tmp_path}/same is the file of the report" in told
    assert "write $$ for the sign itself" in told
    assert "'Rule'" in told
    assert "did you mean $rule?" in told
    assert "secret-of-the-chat" not in told


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("reports: {json: x}\n", "the key 'playbooks' is missing"),
        ("playbooks: []\n", "playbooks: must not be empty"),
        ("playbooks: [probe]\nalerts: {severity: bad}\n", "the key 'to' is missing"),
        ("playbooks: [probe]\nalerts: {to: {}}\n", "must not be empty"),
        ("playbooks: [probe]\nalerts: {to: {chat: {env: A, file: b}}}\n", "must say one of env, file and command"),
        ("playbooks: [probe]\nexit_on: change\n", "did you mean changed?"),
        ("playbooks: [probe]\nsplay: 5\n", "5 is not a duration"),
        ("playbooks: [probe]\nsplay: 31d\n", "31d is too long"),
        ("playbooks: [probe]\ntolerance: [much]\n", "tolerance.0: 'much' is neither a share like 5%"),
        ("playbooks: [probe]\ntolerance: 5%\n", "tolerance: must be a list"),
    ],
)
def test_one_problem(tmp_path: Path, text: str, said: str) -> None:
    assert said in "\n".join(problems(tmp_path, text))


def test_the_schema_takes_what_the_loader_takes(tmp_path: Path) -> None:
    schema = audit_file_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    assert validator.is_valid(parse(WHOLE.encode(), "audit.yaml").root)
    assert not validator.is_valid(parse(b"playbooks: [probe]\nreport: {}\n", "audit.yaml").root)
    assert schema["title"] == "remoterun audit"


def test_the_guide_shows_what_the_program_takes_and_makes(tmp_path: Path) -> None:
    guide = (Path(__file__).parents[3] / "docs" / "cron.md").read_text("utf-8")
    blocks = re.findall(r"```(\w+)\n(.*?)```", guide, re.DOTALL)
    (audit,) = [text for kind, text in blocks if kind == "yaml"]
    assert set(load(tmp_path, audit).reports) == set(REPORTS)
    fleet = Path("/srv/fleet")
    schedule = Schedule(
        name=schedule_name(fleet),
        project=fleet,
        command=("/opt/remoterun/bin/remoterun", "audit", "--project", str(fleet)),
        environment={
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "LANG": "C.UTF-8",
            "HOME": "/root",
        },
        every_s=21600.0,
    )
    assert ("text", crontab.lines(schedule)) in blocks
    daily = replace(schedule, every_s=None, calendar="*-*-* 06:30")
    for name, text in systemd.units(daily, user=False).items():
        assert ("ini", f"# /etc/systemd/system/{name}\n{text}") in blocks


def test_the_guide_names_every_key() -> None:
    guide = (Path(__file__).parents[3] / "docs" / "cron.md").read_text("utf-8")
    named = set(re.findall(r"\w+", guide))
    assert named >= {*keys_of(audit_file_schema()), *NAMES, *ExitOn, *EventKind}


def keys_of(part: Json) -> Iterator[str]:
    """Yield every key that a schema describes."""
    if isinstance(part, dict):
        properties = part.get("properties")
        yield from properties if isinstance(properties, dict) else ()
        for inner in part.values():
            yield from keys_of(inner)
    elif isinstance(part, list):
        for inner in part:
            yield from keys_of(inner)
