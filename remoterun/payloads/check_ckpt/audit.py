"""The audit: find the checkpoints, read each once, say what it is worth."""

from __future__ import annotations

import errno
import gc
import os
import time
from typing import TYPE_CHECKING, Callable, List

from .auditor import Auditor
from .find.discover import Discovery, discover
from .find.names import EXTENSIONS
from .find.unit import Unit, age_of, newest_first
from .model import clean_text, count_of
from .rules.catalogue import next_step, severity
from .scan.engines import EngineError, choose_engine
from .series.memory import Memory
from .series.store import Store, open_store
from .settings import Settings, settings_of
from .summary import not_judged, overall, summary

if TYPE_CHECKING:
    from remoterun.remote.runtime import Context

_DENIED = "Run it as a user who may read what is there."


def run(ctx: Context, clock: Callable[[], float] = time.time) -> None:
    """Audit every checkpoint below the parameter `root`: one record each, then a summary.

    `clock` tells the seconds since 1970.
    """
    # Nothing here makes cycles, and the collector would walk the same millions of objects over and over.
    collecting = gc.isenabled()
    gc.disable()
    try:
        _run(ctx, settings_of(ctx.params), clock)
    finally:
        if collecting:
            gc.enable()


def _run(ctx: Context, settings: Settings, clock: Callable[[], float]) -> None:
    now = clock()
    discovery = _discover(ctx, settings)
    chosen = _choose(ctx, settings, discovery, now)
    # The other is said by who wants nothing to be left on this machine.
    cache = settings.cache and not os.environ.get("REMOTERUN_NO_CACHE")
    store = open_store(ctx.log) if cache else Store(None)
    memory = Memory(settings.root, chosen, store, deep=settings.deep, recheck_s=settings.recheck_s, now=now)
    unread = sum(each.size for each in chosen if not memory.knows(each)) if settings.deep else 0
    try:
        engine = choose_engine(settings.engine, unread, ctx.log)
    except EngineError as error:
        ctx.fail(str(error))
        return
    auditor = Auditor(ctx, settings, engine, memory, sum(each.size for each in chosen), clock)
    for unit in chosen:
        auditor.audit(unit)
    store.close()
    auditor.finish()
    told, ignored = settings.changes.apply_to(list(overall(discovery, auditor.judged)))
    for subject, found in told:
        data = {"file": clean_text(os.path.join(settings.root, subject), 1000), **(found.data or {})}
        name = clean_text(subject) or "."
        ctx.finding(found.rule, severity(found), name, found.message, next_step(found), found.evidence, **data)
    auditor.ignored.update(ignored)
    last = summary(settings.root, discovery, auditor.judged)
    ctx.emit({**last, "ignored": dict(auditor.ignored)} if auditor.ignored else last)
    reason = not_judged(auditor.judged)
    if reason:
        ctx.nothing(*reason)


def _discover(ctx: Context, settings: Settings) -> Discovery:
    try:
        discovery = discover(settings.root, settings.depth)
    except OSError as error:
        denied = isinstance(error, PermissionError)
        ctx.nothing(_tell_missing(settings.root, error), _DENIED if denied else None)
        raise
    for skipped in discovery.skipped:
        ctx.log("%s: passed over: %s" % (clean_text(skipped.path, 1000), skipped.reason))
    return discovery


def _tell_missing(root: str, error: OSError) -> str:
    """Say why a root can't be looked at, and what there is instead."""
    if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return "%s: %s" % (root, error.strerror)
    parent = os.path.dirname(os.path.abspath(root))
    while parent != "/" and not os.path.isdir(parent):
        parent = os.path.dirname(parent)
    try:
        names = sorted(os.listdir(parent))
    except OSError:
        names = []
    shown = ", ".join(clean_text(name, 60) for name in names[:10]) + (", ..." if len(names) > 10 else "")
    return "%s does not exist; %s holds %s" % (root, parent, shown or "nothing")


def _choose(ctx: Context, settings: Settings, discovery: Discovery, now: float) -> List[Unit]:
    found = newest_first(discovery.units)
    named = found
    if settings.match is not None:
        import fnmatch

        named = [each for each in found if fnmatch.fnmatchcase(each.name, settings.match)]
    since = settings.since
    chosen = named if since is None else [each for each in named if each.mtime_ns / 1e9 >= _moment(since, now)]
    if chosen:
        return chosen if settings.newest is None else _newest(chosen, settings.newest)
    if named:
        newest = max(each.mtime_ns for each in named)
        ctx.nothing(
            "no checkpoint below %s was written since then; the newest was %s ago" % (settings.root, age_of(newest))
        )
    if found:
        names = ", ".join(clean_text(each.name, 60) for each in found[:10])
        ctx.nothing("no checkpoint below %s is called like %s; there are: %s" % (settings.root, settings.match, names))
    denied = [each for each in discovery.skipped if os.strerror(errno.EACCES) in each.reason]
    passed = "; passed over: %s (%s)" % (denied or discovery.skipped)[0] if discovery.skipped else ""
    looked = "looked at %s files and folders, %s deep, for %s" % (
        format(discovery.entries, ","),
        count_of(settings.depth, "level"),
        " ".join(EXTENSIONS),
    )
    ctx.nothing("no checkpoint below %s: %s%s" % (settings.root, looked, passed), _DENIED if denied else None)
    return []


def _newest(units: List[Unit], count: int) -> List[Unit]:
    """Return so many that are finished, and what stands above them: of the unfinished that is told."""
    from .find.liveness import growing

    for index, unit in enumerate(units):
        count -= not (unit.temporary or unit.companion or growing(unit))
        if not count:
            return units[: index + 1]
    return units


def _moment(since: float, now: float) -> float:
    return since if since >= 0 else now + since
