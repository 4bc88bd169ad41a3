"""The page itself: a template, a style and a script of our own, and the documents as data.

The browser is told to run this script and to use this style, and nothing else: no string of a target can become
either. The script makes text of strings, never markup.
"""

from __future__ import annotations

import base64
import hashlib
from importlib import resources
from typing import TYPE_CHECKING, Final

from remoterun.errors import clean
from remoterun.records import dataclass
from remoterun.report.documents import counts, plain
from remoterun.report.page.data import packed, packed_document, packed_run
from remoterun.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from remoterun.model import Json, Run

_SCRIPTS: Final = ("dom", "words", "model", "details", "grid", "tables", "charts", "series", "timings", "runs", "main")
_STYLES: Final = ("page", "parts", "print")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    """Hold what the page says of a run before anything is unpacked, and all of it, packed."""

    head: Mapping[str, Json]
    data: str

    @property
    def order(self) -> tuple[str, str]:
        """Sort runs by when they began."""
        return str(self.head["started_at"]), str(self.head["run_id"])


def page(runs: Iterable[Run], differences: Iterable[Mapping[str, Json]] = ()) -> bytes:
    """Write runs as one page, opened at the newest of them.

    `differences` are documents that tell what is different in some of them from the ones before (remoterun/diff/1).
    """
    return _page([_Shown(head=_head_of(run), data=packed_run(run)) for run in runs], differences)


def page_of(documents: Iterable[Mapping[str, Json]], differences: Iterable[Mapping[str, Json]] = ()) -> bytes:
    """Write the same of documents that `runs_of` let through."""
    return _page([_Shown(head=_head(each), data=packed_document(each)) for each in documents], differences)


def _page(shown: list[_Shown], differences: Iterable[Mapping[str, Json]]) -> bytes:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    shown.sort(key=lambda run: run.order)
    style, script = _joined(_STYLES, "css"), f'"use strict";\n(() => {{\n{_joined(_SCRIPTS, "js")}}})();\n'
    index: dict[str, Json] = {
        "runs": [dict(run.head) for run in shown],
        "differences": [dict(each) for each in differences],
    }
    environment = Environment(
        loader=PackageLoader("remoterun.report.page", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    text = environment.get_template("page.html.j2").render(
        title=_title(shown),
        version=VERSION,
        policy=_policy(style, script),
        style=Markup(style),  # noqa: S704  # our own files
        script=Markup(script),  # noqa: S704
        runs=[_words(run.head) for run in reversed(shown)],
        index=packed(index),
        data=[run.data for run in shown],
    )
    return text.encode("utf-8")


def _head_of(run: Run) -> dict[str, Json]:
    return {
        "run_id": plain(run.run_id),
        "playbook": plain(run.playbook),
        "started_at": plain(run.started_at),
        "finished_at": plain(run.finished_at),
        "status": run.status.value,
        "counts": counts(run.outcomes),
    }


def _head(whole: Mapping[str, Json]) -> dict[str, Json]:
    playbook, numbers = whole.get("playbook"), whole.get("counts")
    name = playbook.get("name") if isinstance(playbook, dict) else None
    return {
        **{key: whole[key] for key in ("run_id", "started_at", "finished_at", "status")},
        "playbook": name if isinstance(name, str) else "",
        "counts": numbers if isinstance(numbers, dict) else {},
    }


def _words(head: Mapping[str, Json]) -> dict[str, str]:
    """Say of a run what can be said where scripts don't run."""
    numbers = head["counts"]
    told = [f"{count} {status}" for status, count in numbers.items() if count] if isinstance(numbers, dict) else []
    texts = {key: str(head[key]) for key in ("run_id", "playbook", "started_at", "status")}
    return {key: clean(text) for key, text in {**texts, "counts": ", ".join(told)}.items()}


def _title(shown: Sequence[_Shown]) -> str:
    if not shown:
        return "remoterun"
    newest = _words(shown[-1].head)
    return f"{newest['playbook']}: {newest['status']}, {newest['started_at'][:10]}"


def _policy(style: str, script: str) -> str:
    """Allow this style and this script, and nothing else: no request, no frame, no string that becomes code."""
    parts = {
        "default-src": "'none'",
        "style-src": _digest(style),
        "script-src": _digest(script),
        "base-uri": "'none'",
        "form-action": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in parts.items())


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _joined(names: Iterable[str], suffix: str) -> str:
    folder = resources.files("remoterun.report.page")
    return "".join((folder / f"{name}.{suffix}").read_text("utf-8") for name in names)
