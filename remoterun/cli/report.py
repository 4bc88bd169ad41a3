"""`remoterun report`: runs as one page for a browser."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from remoterun.cli.apart import into_file, kept_files
from remoterun.cli.opened import opened, tolerances_of
from remoterun.cli.output import write, write_document
from remoterun.errors import ConfigError, Problem
from remoterun.history import HistoryError
from remoterun.history.reading import LAST
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
            help="Ids, their beginnings, or last for the newest, which is the default. Several make a timeline.",
        ),
    ] = None,
    *,
    newest: Annotated[
        int | None,
        typer.Option(
            "--newest", min=1, max=1000, metavar="N", help="So many runs of the playbook that ran last, the newest."
        ),
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
    name, data = _of_documents(given) if given else _of_history(runs or [LAST], newest)
    place = file if file is not None else f"remoterun-{re.sub(r'[^0-9A-Za-z_-]', '_', name)[:100]}.html"
    if place == _STDOUT:
        write_document(data)
        return 0
    with into_file(place, [*kept_files(), *(("--from", path) for path in given or ())]):
        write_document(data)
    write(f"{place}\n")
    return 0


def _of_history(names: Sequence[str], newest: int | None) -> tuple[str, bytes]:
    """Make a page of kept runs, with what is different in each of them from the one before; name the newest too."""
    from remoterun.report.page import page

    with opened() as history:
        if newest is None:
            found = list({kept.run_id: kept for kept in map(history.find, names)}.values())
        else:
            every = history.runs()
            found = [kept for kept in every if _line(kept) == _line(every[0])][:newest]
        if not found:
            raise HistoryError("no run has been kept yet")
        data = page(map(history.run, found), _differences(history, found))
    return max(found, key=lambda kept: kept.started_at).run_id, data


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
