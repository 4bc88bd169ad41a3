"""Write the generated pages of docs/: `python -m tests.docs.generate`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

from remoterun.errors import CODES
from remoterun.model import Limits, Status, format_duration
from remoterun.payloads.check_ckpt.rules.catalogue import GROUPS, RULES
from remoterun.payloads.check_ckpt.rules.rule import MEANT, Rule
from remoterun.runner import keep

DOCS = Path(__file__).resolve().parents[2] / "docs"
CHECK_CKPT = DOCS.parent / "remoterun/payloads/check_ckpt"
MANIFEST = CHECK_CKPT / "payload.toml"

COMMANDS = (
    (),
    ("play",),
    ("check",),
    ("run",),
    ("exec",),
    ("runs",),
    ("show",),
    ("resume",),
    ("rerun",),
    ("attach",),
    ("collect",),
    ("cancel",),
    ("history",),
    ("diff",),
    ("report",),
    ("history", "gc"),
    ("history", "move"),
    ("audit",),
    ("schedule",),
    ("schedule", "show"),
    ("schedule", "install"),
    ("schedule", "remove"),
    ("notify",),
    ("notify", "test"),
    ("inventory",),
    ("inventory", "list"),
    ("inventory", "check"),
    ("hostkeys",),
    ("hostkeys", "show"),
    ("hostkeys", "accept"),
    ("payload",),
    ("payload", "list"),
    ("payload", "show"),
    ("payload", "new"),
    ("payload", "gc"),
    ("schema",),
    ("demo",),
)


def errors_page() -> str:
    """Build docs/errors.md from the list of codes."""
    return "\n".join(_errors()) + "\n"


def _errors() -> Iterator[str]:
    yield "# Error codes"
    yield ""
    yield "Every outcome that is neither `ok` nor `findings` has an `error` with one of these codes."
    yield "A code's meaning never changes, and a code is never used again for something else."
    yield "This page is generated: `python -m tests.docs.generate`."
    for status in Status:
        rows = [(name, code) for name, code in CODES.items() if code.status == status.value]
        if rows:
            yield ""
            yield f"## Status `{status.value}`"
            yield ""
            yield "| code | meaning | what to do |"
            yield "| --- | --- | --- |"
            yield from (f"| `{name}` | {code.meaning} | {code.hint} |" for name, code in rows)


def limits_page() -> str:
    """Build docs/limits.md from the limits themselves."""
    rows = [
        f"| `{item.name}` | {format_duration(getattr(Limits(), item.name))} | {item.metadata['help']} |"
        for item in fields(Limits)
    ]
    return "\n".join(
        [
            "# Limits",
            "",
            "Each phase of a target's way has a limit.",
            "Set them in the inventory (`defaults`, hosts, guests, groups), in a playbook or its steps,",
            "or with `--limit run=2h`.",
            "Nearer wins: flag > step > playbook > guest > host > group > defaults > the payload's own > these.",
            "Where a limit was set, `--dry-run` says, and the outcome of what it ended.",
            "Durations are `500ms`, `30s`, `20m`, `2h`, `1d` or `none`; bare numbers are refused.",
            "This page is generated: `python -m tests.docs.generate`.",
            "",
            "| limit | default | what it bounds |",
            "| --- | --- | --- |",
            *rows,
            "",
            *_caps(),
            "",
        ]
    )


def _caps() -> Iterator[str]:
    """Say what is kept of what targets send."""
    yield "## What is kept"
    yield ""
    yield "A target may send whatever it likes; what is kept of it has these bounds, which nothing changes."
    yield "A payload that goes beyond one is ended, and its outcome is `failed` with the code `output_limit`."
    yield "All that had arrived before is kept, in its order and without a gap."
    yield "No other target's outcome is touched by that."
    yield ""
    yield "| what | of one target and step | of the whole run | beyond that |"
    yield "| --- | --- | --- | --- |"
    own = f"{keep.MAX_RECORDS:,} of them; {_mib(keep.MAX_BYTES)} as they were sent"
    own = f"{own}; {keep.MAX_CONTAINERS:,} lists and objects in them"
    jobs = keep.MAX_RUN_BYTES // keep.MAX_BYTES
    run = f"{keep.MAX_RUN_BYTES >> 30} GiB as they were sent: above {jobs} targets, each may send an equal share of it"
    yield f"| records and findings | {own} | {run} | `output_limit` |"
    memory = f"{_mib(keep.FINDINGS_IN_MEMORY)} of memory: half in equal shares, half for whoever needs more first"
    yield f"| findings and lines of the log | 1,000 lines | {memory} | findings: `output_limit`; lines are left out |"
    file = "they go to a file without a name, in `TMPDIR`, `/var/tmp` or `/tmp`; without room there: `output_limit`"
    yield f"| records in memory | | {_mib(keep.RECORDS_IN_MEMORY)}, shared out in the same way | {file} |"
    output = "4 MiB of head and of tail of each stream, 512 KiB of a payload's"
    yield f"| output | {output} | {_mib(keep.KEPT_OUTPUT)}, in equal shares | the middle is left out, and counted |"
    yield "| one record | 16 MiB, nested 64 deep | | `output_limit`, or `result_damaged` |"
    yield ""
    yield "So the controller needs about as much memory for a large run as for a small one."
    yield "The file holds the records compressed, and is gone when the process ends, however it ends."
    yield "The history keeps them as well, in a folder of its own ([history.md](history.md))."


def _mib(count: int) -> str:
    return f"{count >> 20} MiB"


def cli_page() -> str:
    """Build docs/cli.md from the help of every command."""
    return "\n".join(_cli()) + "\n"


def _cli() -> Iterator[str]:
    yield "# Command line"
    yield ""
    yield "This page is generated: `python -m tests.docs.generate`."
    for words, text in zip(COMMANDS, helps_of(COMMANDS), strict=True):
        yield ""
        yield f"## `{' '.join(('remoterun', *words))}`"
        yield ""
        yield "```text"
        yield text
        yield "```"


# One process for all: starting one for each takes most of the time that they take.
_HELPS = """
import contextlib, io, json, sys
from remoterun.cli.app import command

texts = []
for words in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.suppress(SystemExit):
        command(words).main([*words, "--help"], prog_name="remoterun", standalone_mode=True)
    texts.append(text.getvalue())
json.dump(texts, sys.stdout)
"""


def helps_of(commands: Sequence[tuple[str, ...]]) -> list[str]:
    """Return the help texts of commands as they look at 100 columns without a terminal."""
    environment = {**os.environ, "COLUMNS": "100", "TERMINAL_WIDTH": "100", "NO_COLOR": "1", "TERM": "dumb"}
    done = subprocess.run(
        [sys.executable, "-c", _HELPS],
        env=environment,
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        check=True,
    )
    return ["\n".join(line.rstrip() for line in text.strip().splitlines()) for text in json.loads(done.stdout)]


# --- the rules of check-ckpt ------------------------------------------------------------------------------------------

TIERS = {
    "header": "names, headers and metadata, without reading the data",
    "scan": "the one pass over all bytes",
    "series": "the comparison with other checkpoints of the same training",
}
TOLD = {
    "what": "What",
    "why": "Why it matters",
    "how": "How it is found",
    "guards": "Guards against false alarms",
}
ANCHOR = re.compile(r"[^a-z0-9 _-]")


def rules_page() -> str:
    """Build docs/rules.md from the rules of check-ckpt and what is said of them.

    Raises:
        ValueError: when something about a rule is not said.
    """
    gaps = rule_gaps()
    if gaps:
        raise ValueError("; ".join(gaps))
    return "\n".join(_rules()) + "\n"


def rule_gaps() -> list[str]:
    """Return what rules and their texts lack, or have too much."""
    return [gap for group in GROUPS for gap in gaps_of(group)]


def gaps_of(group: ModuleType) -> Iterator[str]:
    """Yield what the rules of a group lack."""
    file, told = _texts_file(group).name, rule_texts(group)
    yield from (f"{file} tells of {name}, which is no rule of its group" for name in told if name not in group.RULES)
    for name, rule in group.RULES.items():
        about = told.get(name, {})
        texts = {key: about.get(key) for key in ("title", "since", *TOLD)} | {"next step": rule.next_step}
        yield from (f"{file}: {name} lacks {key}" for key, text in texts.items() if not _is_text(text))
        if about.get("tier") not in TIERS:
            yield f"{file}: {name} has no tier of {', '.join(TIERS)}"
        if not isinstance(about.get("proof"), bool):
            yield f"{file}: {name} does not say whether it is proof"
        if about.keys() - {"title", "since", "tier", "proof", *TOLD}:
            yield f"{file}: {name} says more than the page shows"


def _is_text(text: object) -> bool:
    return isinstance(text, str) and text.strip() == text and text != ""


def rule_texts(group: ModuleType) -> dict[str, dict[str, Any]]:
    """Return what is said of the rules of a group, by id."""
    file = _texts_file(group)
    return tomllib.loads(file.read_text("utf-8")) if file.exists() else {}


def _texts_file(group: ModuleType) -> Path:
    return CHECK_CKPT / "rules/texts" / f"{group.__name__.rpartition('.')[2]}.toml"


def _rules() -> Iterator[str]:
    yield RULES_HEAD
    groups = [group for group in GROUPS if group.RULES]
    for group in groups:
        yield ""
        yield f"**{_title(group)}**"
        yield ""
        yield "| id | rule | severity | seen in | kind | since |"
        yield "| --- | --- | --- | --- | --- | --- |"
        for name, rule in sorted(group.RULES.items()):
            about = rule_texts(group)[name]
            link = f"[{about['title']}](#{ANCHOR.sub('', _heading(name, about).lower()).replace(' ', '-')})"
            yield f"| {name} | {link} | {rule.severity} | {about['tier']} | {_kind(about)} | {about['since']} |"
    for group in groups:
        yield ""
        yield f"## {_title(group)}"
        for name, rule in sorted(group.RULES.items()):
            yield from _rule(name, rule, rule_texts(group)[name])


def _rule(name: str, rule: Rule, about: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    yield f"### {_heading(name, about)}"
    yield ""
    yield f"Severity {rule.severity}; {_kind(about)}; seen in {TIERS[about['tier']]}; since {about['since']}."
    for key, title in TOLD.items():
        yield ""
        yield f"**{title}.** {about[key]}"
    yield ""
    mild = "" if rule.mild in (MEANT, rule.next_step) else f" As information: {rule.mild[0].lower()}{rule.mild[1:]}"
    yield f"**What to do.** {rule.next_step}{mild}"


def _title(group: ModuleType) -> str:
    return re.split(r"[.;]", group.__doc__ or "")[0]


def _heading(name: str, about: Mapping[str, Any]) -> str:
    return f"{name}: {about['title']}"


def _kind(about: Mapping[str, Any]) -> str:
    return "proof" if about["proof"] else "judgement"


RULES_HEAD = f"""\
# Rules of check-ckpt

Every finding carries one of these ids.
A rule's id is never used again for something else.
This page is generated: `python -m tests.docs.generate`.

A checkpoint's verdict is its highest finding: `bad`, `suspect`, or `ok` with nothing above `info`.
Three verdicts are of their own: `in_progress` (still being written, which fails no run), `unsupported` (its values
could not be checked, which counts as suspect) and `unchecked` (with `deep: false`: headers only, and nothing in them).
Nothing that was not checked is called ok: `bytes_checked` and `unchecked` of a record say what was.

The severity of a rule is what its findings usually have; where a case is milder or worse, the text says so.
A rule is *proof* when what it finds cannot be in a sound checkpoint, and *judgement* when it may have another cause.
Rules are seen in

{chr(10).join(f"- `{tier}`: {text}" + ("." if tier == "series" else ";") for tier, text in TIERS.items())}

## Ignoring rules and changing severities

A step of a playbook says which findings count for nothing, and which for more or less than usual:

```yaml
steps:
  - payload: check-ckpt
    rules: {{ignore: [CK028], severity: {{CK120: suspect}}}}
```

`--ignore CK028` and `--severity CK120=suspect` of `remoterun play` and `remoterun check` do the same, and beat the
playbook.
Ignored findings are counted in the record's `ignored` (`{{"CK028": 1}}`); the data of one with another severity than
usual has its `usual_severity`.
Ignoring damage makes nothing readable: a checkpoint whose values could not be checked is then `unsupported`, not `ok`.

## All rules"""

PAGES = {"errors.md": errors_page, "limits.md": limits_page, "rules.md": rules_page, "cli.md": cli_page}


def manifest() -> str:
    """Return check-ckpt's manifest with the list of its rules, which the controller knows from there alone."""
    names = [f'"{name}"' for name in sorted(RULES)]
    lines = [", ".join(names[at : at + 10]) for at in range(0, len(names), 10)]
    listed = "rules = [\n" + "".join(f"  {line},\n" for line in lines) + "]"
    return re.sub(r"^rules = \[[^\]]*\]$", listed, MANIFEST.read_text("utf-8"), flags=re.MULTILINE)


def main() -> None:
    """Write every generated page, and the list of rules in the manifest of check-ckpt."""
    MANIFEST.write_text(manifest(), "utf-8")
    for name, build in PAGES.items():
        (DOCS / name).write_text(build(), "utf-8")


if __name__ == "__main__":
    main()
