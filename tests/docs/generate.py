"""Write the generated pages of docs/: `python -m tests.docs.generate`."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from remoterun.errors import CODES
from remoterun.model import Limits, Status, format_duration
from remoterun.payloads.check_ckpt.rules.catalogue import RULES

DOCS = Path(__file__).resolve().parents[2] / "docs"

COMMANDS = (
    (),
    ("play",),
    ("run",),
    ("exec",),
    ("inventory",),
    ("inventory", "list"),
    ("inventory", "check"),
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
            "Durations are `500ms`, `30s`, `20m`, `2h`, `1d` or `none`; bare numbers are refused.",
            "This page is generated: `python -m tests.docs.generate`.",
            "",
            "| limit | default | what it bounds |",
            "| --- | --- | --- |",
            *rows,
            "",
        ]
    )


def cli_page() -> str:
    """Build docs/cli.md from the help of every command."""
    return "\n".join(_cli()) + "\n"


def _cli() -> Iterator[str]:
    yield "# Command line"
    yield ""
    yield "This page is generated: `python -m tests.docs.generate`."
    for words in COMMANDS:
        yield ""
        yield f"## `{' '.join(('remoterun', *words))}`"
        yield ""
        yield "```text"
        yield help_of(words)
        yield "```"


def help_of(words: tuple[str, ...]) -> str:
    """Return the help text of a command as it looks at 100 columns without a terminal."""
    environment = {**os.environ, "COLUMNS": "100", "TERMINAL_WIDTH": "100", "NO_COLOR": "1", "TERM": "dumb"}
    command = [sys.executable, "-m", "remoterun", *words, "--help"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())


def rules_page() -> str:
    """Build docs/rules.md from the rules of check-ckpt and what is said of them."""
    return "\n".join(_rules()) + "\n"


def _rules() -> Iterator[str]:
    yield "# Rules of check-ckpt"
    yield ""
    yield "Every finding carries one of these ids."
    yield "A rule's id is never used again for something else."
    yield "A checkpoint's verdict is its highest finding; `in_progress` and `unsupported` are verdicts of their own."
    yield "Nothing that was not checked is called ok: `bytes_checked` and `unchecked` of a record say what was."
    yield "This page is generated: `python -m tests.docs.generate`."
    texts = sorted((DOCS.parent / "remoterun/payloads/check_ckpt/rules/texts").glob("*.toml"))
    told = {name: about for path in texts for name, about in tomllib.loads(path.read_text("utf-8")).items()}
    for name, rule in sorted(RULES.items()):
        about = told[name]
        kind = "proof" if about["proof"] else "judgement"
        yield ""
        yield f"## {name}: {about['title']}"
        yield ""
        yield f"Severity {rule.severity}; {kind}; seen in the {about['tier']}; since {about['since']}."
        for word, key in (
            ("What", "what"),
            ("Why it matters", "why"),
            ("How it is found", "how"),
            ("Guards", "guards"),
        ):
            yield ""
            yield f"**{word}.** {about[key]}"
        yield ""
        yield f"**What to do.** {rule.next_step}"


PAGES = {"errors.md": errors_page, "limits.md": limits_page, "rules.md": rules_page, "cli.md": cli_page}


def main() -> None:
    """Write every generated page."""
    for name, build in PAGES.items():
        (DOCS / name).write_text(build(), "utf-8")


if __name__ == "__main__":
    main()
