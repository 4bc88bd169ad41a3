"""`remoterun report`: runs as one page for a browser."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from remoterun.cli.apart import into_file, kept_files
from remoterun.cli.opened import opened, project_at_hand, tolerances_of
from remoterun.cli.output import write, write_document
from remoterun.errors import ConfigError, Problem
from remoterun.history import HistoryError
from remoterun.store import place_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from remoterun.history import History, Kept
    from remoterun.model import Json

_STDOUT: Final = "-"


def report(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN]...",
            help="Ids, their beginnings, or last for the newest of all. Several make a timeline. Default: the newest "
            "of a playbook or payload, in the project around this folder if there is one.",
        ),
    ] = None,
    *,
    newest: Annotated[
        int | None,
        typer.Option(
            "--newest", min=1, max=1000, metavar="N", help="So many runs of the playbook that ran last, the newest."
        ),
    ] = None,
    playbook: Annotated[
        str | None,
        typer.Option("--playbook", metavar="PLAYBOOK", help="Without RUN: the newest of this playbook or payload."),
    ] = None,
    given: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="Runs of a document that --output json wrote, instead of the history's. Repeat for more; - reads "
            "stdin.",
        ),
    ] = None,
    file: Annotated[
        str | None,
        typer.Option("-o", metavar="FILE", help="Write to this file; - is stdout. Default: remoterun-RUN.html here."),
    ] = None,
) -> int:
    """Write runs as one HTML file to look at, which needs no network and no other file; print its name."""
    chosen = [name for name, value in (("RUN", runs), ("--newest", newest), ("--from", given)) if value]
    if len(chosen) > 1:
        raise ConfigError(Problem(path=chosen[1], message=f"goes with no {chosen[0]}: both say which runs to show"))
    if playbook is not None and (runs or given):
        raise ConfigError(Problem(path="--playbook", message=f"goes with no {chosen[0]}: both say which runs to show"))
    name, data = _of_documents(given) if given else _of_history(runs, newest or 1, playbook)
    place = file if file is not None else f"remoterun-{re.sub(r'[^0-9A-Za-z_-]', '_', name)[:100]}.html"
    if place == _STDOUT:
        write_document(data)
        return 0
    with into_file(place, [*kept_files(), *(("--from", path) for path in given or ())]):
        write_document(data)
    write(f"{place}\n")
    return 0


def _of_history(names: Sequence[str] | None, most: int, playbook: str | None) -> tuple[str, bytes]:
    """Make a page of kept runs, with what is different in each of them from the one before; name the newest too."""
    from remoterun.report.page import page

    with opened() as history:
        if names:
            found = list({kept.run_id: kept for kept in map(history.find, names)}.values())
        else:
            found = _newest(history, most, playbook)
        data = page(map(history.run, found), _differences(history, found))
    return max(found, key=lambda kept: kept.started_at).run_id, data


def _newest(history: History, most: int, playbook: str | None) -> list[Kept]:
    project = project_at_hand()
    newest = history.newest(playbook=playbook, project=project)
    if newest is None:
        what, where = playbook or "a playbook or payload", f" in {project}" if project else ""
        raise HistoryError(f"no run of {what} has been kept{where}: name a RUN, such as last for the newest of all")
    return [kept for kept in history.runs() if _line(kept) == _line(newest)][:most]


def _line(kept: Kept) -> tuple[str, str]:
    return kept.project, kept.playbook


def _differences(history: History, found: Sequence[Kept]) -> Iterator[dict[str, Json]]:
    from remoterun.compare import difference_document

    tolerances = {kept.project: tolerances_of(kept) for kept in {kept.project: kept for kept in found}.values()}
    for kept in found:
        before = history.previous(kept)
        # What goes on still, or was left to itself, can't be compared yet.
        if before is not None and kept.status is not None and not kept.running:
            try:
                yield difference_document(history.difference(before, kept, tolerances[kept.project]))
            except HistoryError:
                continue


def _of_documents(files: Sequence[str]) -> tuple[str, bytes]:
    """Make a page of the runs of some files; name the newest too."""
    from remoterun.report.page import page_of

    places: dict[object, str] = {}
    for name in files:
        place = name if name == _STDOUT else place_of(name)
        if place in places:
            raise ConfigError(Problem(path="--from", message=f"{name} and {places[place]} are one file: name it once"))
        places[place] = name
    found = {str(run["run_id"]): run for name in files for run in _read(name)}
    newest = max(found.values(), key=lambda run: str(run["started_at"]))
    return str(newest["run_id"]), page_of(found.values())


def _read(name: str) -> list[dict[str, Json]]:
    """Read the runs of a file.

    Raises:
        ConfigError: when it can't be read, or holds none.
    """
    import json

    from remoterun.report.page import NotRunsError, runs_of

    try:
        data = sys.stdin.buffer.read() if name == _STDOUT else Path(name).read_bytes()
        runs = runs_of(json.loads(data))
    except OSError as error:
        raise ConfigError(Problem(path="--from", file=name, message=f"can't be read: {error.strerror}")) from error
    except NotRunsError as error:
        raise ConfigError(Problem(path="--from", file=name, message=str(error))) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(Problem(path="--from", file=name, message=f"it is no JSON: {error}")) from error
    if not runs:
        raise ConfigError(Problem(path="--from", file=name, message="it holds no run"))
    return runs
