"""The audit: find the checkpoints, read each once, say what it is worth."""

from __future__ import annotations

import errno
import fnmatch
import gc
import os
import time
from typing import TYPE_CHECKING, Dict, List, NamedTuple, Optional, Sequence, Tuple

from .find.discover import EXTENSIONS, Candidate, Discovery, discover, newest_first, step_in_name
from .model import EMA, MODEL, OPTIMIZER, Checkpoint, Found, clean_text, count_of
from .readers.reader import read_checkpoint
from .rules.catalogue import IN_PROGRESS, OK, bounded, check, next_step, severity, verdict
from .rules.facts import Facts
from .rules.rule import BAD
from .scan.crc import Checksum, best_checksum
from .scan.engines import EngineError, choose_engine
from .scan.scanner import Pace, Scanned, Scanner
from .scan.spans import Claims, claim
from .source import NotRegularError, ShrunkError, Source

if TYPE_CHECKING:
    from remoterun.remote.runtime import Context

    from .scan.engine import Engine

# Unchecked tensors that a record names one by one.
_MOST_UNCHECKED = 50


class Settings(NamedTuple):
    """Hold the parameters; see payload.toml."""

    root: str
    depth: int
    newest: Optional[int]
    match: Optional[str]
    engine: str
    workers: int
    max_bytes_per_s: Optional[float]


def run(ctx: Context) -> None:
    """Audit every checkpoint below the parameter `root`: one record each, then a summary."""
    # Nothing here makes cycles, and the collector would walk the same millions of objects over and over.
    collecting = gc.isenabled()
    gc.disable()
    try:
        _run(ctx, settings_of(ctx.params))
    finally:
        if collecting:
            gc.enable()


def settings_of(params: Dict[str, object]) -> Settings:
    """Read the parameters, which were checked before they came here."""
    newest, match, workers, mbps = (params.get(name) for name in ("newest", "match", "workers", "max_mbps"))
    return Settings(
        root=str(params["root"]),
        depth=int(str(params.get("depth", 6))),
        newest=None if newest is None else int(str(newest)),
        match=None if match is None else str(match),
        engine=str(params.get("engine", "auto")),
        workers=_workers() if workers is None else int(str(workers)),
        max_bytes_per_s=None if mbps is None else float(str(mbps)) * 1e6,
    )


def _workers() -> int:
    """Leave the training job at least half of the cores."""
    return max(1, min(4, len(os.sched_getaffinity(0)) // 2))


def _run(ctx: Context, settings: Settings) -> None:
    discovery = _discover(ctx, settings)
    chosen = _choose(ctx, settings, discovery)
    total = sum(each.size for each in chosen)
    try:
        engine = choose_engine(settings.engine, total, ctx.log)
    except EngineError as error:
        ctx.fail(str(error))
        return
    auditor = Auditor(ctx, settings, engine, total)
    for candidate in chosen:
        auditor.audit(candidate)
    ctx.emit(_summary(settings, discovery, auditor.judged))


def _discover(ctx: Context, settings: Settings) -> Discovery:
    try:
        discovery = discover(settings.root, settings.depth)
    except OSError as error:
        ctx.nothing(_tell_missing(settings.root, error))
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


def _choose(ctx: Context, settings: Settings, discovery: Discovery) -> List[Candidate]:
    found = newest_first(discovery.candidates)
    chosen = [each for each in found if settings.match is None or fnmatch.fnmatchcase(each.name, settings.match)]
    if chosen:
        return chosen if settings.newest is None else chosen[: settings.newest]
    if found:
        names = ", ".join(clean_text(each.name, 60) for each in found[:10])
        ctx.nothing("no checkpoint below %s is called like %s; there are: %s" % (settings.root, settings.match, names))
    passed = "; passed over: %s (%s)" % discovery.skipped[0] if discovery.skipped else ""
    looked = "looked at %s files and folders, %s deep, for %s" % (
        format(discovery.entries, ","),
        count_of(settings.depth, "level"),
        " ".join(EXTENSIONS),
    )
    ctx.nothing("no checkpoint below %s: %s%s" % (settings.root, looked, passed))
    return []


class Judged(NamedTuple):
    """Keep what the summary needs of one audited file."""

    candidate: Candidate
    verdict: str
    step: Optional[int]
    weights: bool
    companion: bool


class Auditor:
    """Audit one file after the other, newest first."""

    def __init__(self, ctx: Context, settings: Settings, engine: Engine, total: int) -> None:
        self._ctx = ctx
        self._settings = settings
        self._engine = engine
        self._checksum: Checksum = best_checksum()
        self._pace = Pace(settings.max_bytes_per_s)
        self._total = total
        self._before = 0
        self.judged: List[Judged] = []

    def audit(self, candidate: Candidate) -> None:
        """Read one file and report it. Whatever is wrong with it is its own verdict."""
        started = time.monotonic()
        report = _Report(candidate)
        try:
            self._read(candidate, report)
        except NotRegularError:
            report.fail(Found("CK030", "it is no regular file any more"))
        except FileNotFoundError:
            report.wait("it was deleted before it could be read")
        except PermissionError as error:
            report.fail(Found("CK030", "it may not be read: %s" % error.strerror))
        except OSError as error:
            if error.errno == errno.ESTALE:
                report.wait("it was replaced on its file server while it was read")
            else:
                # Whatever the disk can't give back is lost to the training job, too.
                report.fail(Found("CK030", "it can't be read: %s" % error.strerror, severity=BAD))
        except Exception as error:  # a fault of this program on one file, which must not hide what it knows of others
            import traceback

            traceback.print_exc()
            report.fail(Found("CK030", "the audit itself failed on it (%s): please report it" % type(error).__name__))
        self._before += candidate.size
        self._ctx.progress(self._before, self._total, "bytes", clean_text(candidate.name))
        self._report(report, time.monotonic() - started)

    def _read(self, candidate: Candidate, report: _Report) -> None:
        if candidate.temporary:
            age = max(0.0, time.time() - candidate.mtime_ns / 1e9)
            report.wait("its name says that it is not finished; it was last written %s ago" % _age(age))
            return
        with Source(candidate.path) as source:
            try:
                report.checkpoint = read_checkpoint(source)
                if not report.checkpoint.unsupported:
                    self._scan(candidate, source, report)
            except ShrunkError:
                report.wait("it shrank while it was read")
                return
            changed = source.changes()
            if changed:
                report.wait("it %s while it was read" % changed)
            elif any(each.rule in ("CK020", "CK021", "CK025") for each in report.checkpoint.found):
                from .find.liveness import still_written

                report.wait(still_written(source))

    def _scan(self, candidate: Candidate, source: Source, report: _Report) -> None:
        checkpoint = report.checkpoint
        report.claims = claim(checkpoint.tensors)
        done = [self._before]

        def on_bytes(count: int) -> None:
            done[0] += count
            self._ctx.progress(min(done[0], self._total), self._total, "bytes", clean_text(candidate.name))

        scanner = Scanner(
            [source],
            checkpoint.regions,
            report.claims.views,
            engine=self._engine,
            checksum=self._checksum,
            pace=self._pace,
            on_bytes=on_bytes,
        )
        # An engine that holds the GIL leaves nothing for other threads to do but a slow CRC-32.
        helpful = self._engine.parallel or self._checksum.name == "zlib"
        report.scanned = scanner.run(self._settings.workers if helpful else 1)
        report.whole = True

    def _report(self, report: _Report, seconds: float) -> None:
        candidate, checkpoint = report.candidate, report.checkpoint
        found = report.judge()
        name = clean_text(candidate.name)
        for each in bounded(found):
            data = {"file": clean_text(candidate.path, 1000), **(each.data or {})}
            self._ctx.finding(each.rule, severity(each), name, each.message, next_step(each), each.evidence, **data)
        step: Optional[int] = int(checkpoint.step) if checkpoint.step is not None else None
        companion = candidate.companion and report.verdict == OK
        self.judged.append(Judged(candidate, report.verdict, step, report.claims.params > 0, companion))
        if not companion:
            engine = {"seconds": round(seconds, 3), "engine": self._engine.name, "crc": self._checksum.name}
            self._ctx.emit({**report.record(found), **engine})


class _Report:
    """Gather what is to be said about one file."""

    def __init__(self, candidate: Candidate) -> None:
        self.candidate = candidate
        self.checkpoint = Checkpoint("unknown", candidate.size)
        self.claims = Claims({}, 0, 0)
        self.scanned = Scanned({}, {}, {}, [])
        self.whole = False
        self.verdict = ""
        self._waiting = ""
        self._failed = False

    def wait(self, reason: str) -> None:
        """Note that the file is not finished, so that nothing found in it counts; an empty reason says nothing."""
        self._waiting = self._waiting or reason

    def fail(self, found: Found) -> None:
        """Note why the file could not be read."""
        self._failed = True
        self.checkpoint.found.append(found)

    def judge(self) -> List[Found]:
        """Return the findings and settle the verdict."""
        if self._waiting:
            found = [Found("CK026", "not finished: %s" % self._waiting)]
        else:
            facts = Facts(self.checkpoint, self.claims, self.scanned, [clean_text(self.candidate.path, 1000)])
            found = [*self.checkpoint.found, *check(facts)]
        if self.candidate.companion:
            # A scheduler's state or a set of arguments needs no tensor.
            found = [each for each in found if each.rule != "CK009"]
        unsupported = self._failed or any(each.rule in ("CK009", "CK128") for each in found)
        self.verdict = verdict(found, in_progress=bool(self._waiting), unsupported=unsupported)
        return found

    def record(self, found: Sequence[Found]) -> Dict[str, object]:
        """Return the record of the file, but for how long it took."""
        candidate, checkpoint, claims = self.candidate, self.checkpoint, self.claims
        known = checkpoint.decoded and self.whole and self.verdict != IN_PROGRESS
        weights, optimizer = self._counts(MODEL, EMA), self._counts(OPTIMIZER)
        record: Dict[str, object] = {
            "kind": "checkpoint",
            "name": clean_text(candidate.name),
            "path": clean_text(candidate.path, 4000),
            "format": checkpoint.format,
            "step": checkpoint.step,
            "epoch": checkpoint.epoch,
            "params": claims.params if known and not checkpoint.truncated else None,
            "nan_weights": weights[0] if known else None,
            "inf_weights": weights[1] if known else None,
            "nan_optimizer": optimizer[0] if known else None,
            "inf_optimizer": optimizer[1] if known else None,
            "verdict": self.verdict,
            "findings": sorted({each.rule for each in found}),
            "bytes": candidate.size,
            "bytes_checked": self._bytes_checked(),
            "unchecked": self._unchecked(),
            "tensors": len(checkpoint.tensors),
            "crc_checked": sum(region.crc is not None for region in checkpoint.regions) if self.whole else 0,
            "mtime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(candidate.mtime_ns // 10**9)),
        }
        if record["params"] is not None and claims.listed != claims.params:
            record["params_listed"] = claims.listed
        if len(checkpoint.unchecked) > _MOST_UNCHECKED:
            record["unchecked_count"] = len(checkpoint.unchecked)
        named = step_in_name(candidate.relative) if checkpoint.step is None else None
        if named is not None:
            record.update(step=named, step_from="name")
        return record

    def _counts(self, *roles: str) -> Tuple[int, int]:
        counts = Facts(self.checkpoint, self.claims, self.scanned, ()).counts(roles)
        return counts.nan, counts.inf

    def _bytes_checked(self) -> int:
        checkpoint = self.checkpoint
        if not self.whole or not checkpoint.decoded or self.verdict == IN_PROGRESS:
            return 0
        if checkpoint.truncated:
            return min(checkpoint.size, sum(region.size for region in checkpoint.regions))
        places = {each.place or each.name: each.size for each in checkpoint.unchecked}
        return max(0, checkpoint.size - sum(places.values()))

    def _unchecked(self) -> List[Dict[str, object]]:
        return [
            {"tensor": each.name, "dtype": each.dtype, "bytes": each.size, "reason": each.reason}
            for each in self.checkpoint.unchecked[:_MOST_UNCHECKED]
        ]


def _age(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return "%d %s" % (seconds // size, unit)
    return "%d s" % seconds


def _summary(settings: Settings, discovery: Discovery, judged: Sequence[Judged]) -> Dict[str, object]:
    verdicts: Dict[str, int] = {}
    for each in judged:
        if not each.companion:
            verdicts[each.verdict] = verdicts.get(each.verdict, 0) + 1
    best = _newest_good(judged)
    return {
        "kind": "summary",
        "checkpoints": sum(verdicts.values()),
        "verdicts": verdicts,
        "resume_from": None if best is None else clean_text(best.candidate.name),
        "resume_path": None if best is None else clean_text(best.candidate.path, 4000),
        "root": clean_text(settings.root, 4000),
        "found": len(discovery.candidates),
        "companions": [clean_text(each.candidate.name) for each in judged if each.companion][:100],
        "skipped": [{"path": clean_text(each.path, 1000), "reason": each.reason} for each in discovery.skipped[:100]],
    }


def _newest_good(judged: Sequence[Judged]) -> Optional[Judged]:
    """Return the newest checkpoint to resume from: one with weights, of which no part is worse than ok."""
    spoiled = {
        os.path.dirname(each.candidate.path) for each in judged if each.verdict != OK and _is_part(each.candidate)
    }
    good = [
        each
        for each in judged
        if each.verdict == OK
        and each.weights
        and not (_is_part(each.candidate) and os.path.dirname(each.candidate.path) in spoiled)
    ]
    if good and all(each.step is not None for each in good):
        return max(good, key=lambda each: each.step or 0)
    return good[0] if good else None


def _is_part(candidate: Candidate) -> bool:
    """Tell whether a file is one of several that make up the checkpoint its folder's name numbers."""
    folder, file = os.path.split(candidate.relative)
    return step_in_name(os.path.basename(folder)) is not None and step_in_name(file) is None
