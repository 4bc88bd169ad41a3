"""The audit of one checkpoint after the other."""

from __future__ import annotations

import collections
import errno
import math
import os
import time
from typing import TYPE_CHECKING, Callable, Counter, Dict, List, Optional, Sequence, Tuple

from .find.names import COUNTERS
from .find.unit import Unit, age_of
from .model import VOCABULARY, Checkpoint, Found, clean_text
from .readers.families import family
from .readers.folder import ChangedError, Folder, Sources
from .readers.reader import read_torch_file
from .report import UNCHECKED, Report, judge, worsened
from .rules.catalogue import OK, bounded, next_step, severity
from .rules.rule import BAD
from .rules.training import pairs as moment_pairs
from .scan.crc import Checksum, best_checksum
from .scan.scanner import Pace, Scanned, Scanner
from .scan.spans import claim
from .scan.workers import WorkerError
from .series.memory import Entry, Memory, look
from .series.naming import epoch_in
from .source import NotRegularError, ShrunkError
from .summary import Judged

if TYPE_CHECKING:
    from remoterun.remote.runtime import Context

    from .loadtest import LoadTests
    from .scan.engine import Engine
    from .settings import Settings

# What PyTorch Lightning puts into each of its files.
_LIGHTNING = "pytorch-lightning_version"
# What may be found in a checkpoint only because it is still being written.
_UNFINISHED = ("CK020", "CK021", "CK025", "CK060", "CK061", "CK062", "CK063", "CK064", "CK066")
# Checkpoints that the record of a series names.
_MOST_NAMED = 100
# So long, records wait for what older checkpoints tell of theirs: no more is lost with an audit that is cut off.
_HOLD_S = 120.0
# Checkpoints and findings that wait.
_HOLD_MOST = 10_000
# Those that say that a file is not there.
_LACKING = ("CK060", "CK063", "CK066")


class Auditor:
    """Audit one checkpoint after the other, newest first; each is reported when those before it are known.

    In a long audit, that is only the one before it: what others tell of it then comes behind, by `finish`.
    """

    def __init__(
        self, ctx: Context, settings: Settings, engine: Engine, memory: Memory, total: int, clock: Callable[[], float]
    ) -> None:
        self._ctx = ctx
        self._settings = settings
        self._engine = engine
        self._memory = memory
        self._clock = clock
        self._checksum: Optional[Checksum] = best_checksum() if settings.deep else None
        self._pace = Pace(settings.max_bytes_per_s)
        self._total = total
        self._began = clock()
        self._held: List[Entry] = []
        self._held_count = 0
        self._before = 0
        self._tests: Optional[LoadTests] = None
        # What is ignored of companions, which have no record of their own.
        self.ignored: Counter[str] = collections.Counter()
        self.judged: List[Judged] = []

    def audit(self, unit: Unit) -> None:
        """Read one checkpoint, unless it is known, and report it as soon as it can be compared."""
        started = time.monotonic()
        entry = self._memory.recall(unit) or self._read(unit)
        self._before += unit.size
        self._ctx.progress(self._before, self._total, "bytes", clean_text(unit.name))
        entry.outcome.record["seconds"] = round(time.monotonic() - started, 3)
        for each in self._memory.follow(entry):
            self._held.append(each)
            self._held_count += 1 + len(each.outcome.found)
        if self._held_count > _HOLD_MOST or self._clock() - self._began >= _HOLD_S:
            self._report_held()

    def _report_held(self) -> None:
        for each in self._held:
            self._report(each)
        self._held, self._held_count = [], 0

    def _read(self, unit: Unit) -> Entry:
        """Read one checkpoint. Whatever is wrong with it is its own verdict."""
        files, now = look(unit), self._clock()
        report = Report(unit)
        for act in (self._audit, Report.ask):
            try:
                act(report)
            except NotRegularError:
                report.fail(Found("CK030", "it is no regular file any more"))
            except FileNotFoundError as error:
                report.wait("%s was deleted before it could be read" % _what(unit, error.filename))
            except PermissionError as error:
                report.fail(Found("CK030", "%s may not be read: %s" % (_what(unit, error.filename), error.strerror)))
            except OSError as error:
                if error.errno == errno.ESTALE:
                    report.wait("%s was replaced on its file server while it was read" % _what(unit, error.filename))
                else:
                    # Whatever the disk can't give back is lost to the training job, too.
                    message = "%s can't be read: %s" % (_what(unit, error.filename), error.strerror)
                    report.fail(Found("CK030", message, severity=BAD))
            except Exception as error:  # a fault of this program on one file must not hide what it knows of others
                import traceback

                traceback.print_exc()
                message, step = "the audit itself failed on it (%s): please report it" % type(error).__name__, None
                # A worker that was killed tells so in a line, a fault in it in a traceback.
                if isinstance(error, WorkerError) and "\n" not in str(error):
                    message, step = "it was not read to its end: %s" % error, "Run again, with workers=1 if need be."
                report.fail(Found("CK030", message, next_step=step))
        outcome = report.outcome()
        used = (self._engine.name, self._checksum.name) if self._checksum else (None, None)
        outcome.record.update(seconds=0.0, engine=used[0], crc=used[1])
        return self._memory.learn(report, outcome, files, now)

    def _audit(self, report: Report) -> None:
        unit = report.unit
        if unit.temporary:
            age = age_of(unit.mtime_ns)
            report.wait("its name says that it is not finished; it was last written %s ago" % age)
            return
        folder = Folder(unit.folder, unit.files)
        try:
            report.checkpoint = read(unit, folder)
            if not self._checksum:
                report.shallow = not report.checkpoint.unsupported
                report.claims = claim(report.checkpoint.tensors)
            with folder.sources() as sources:
                if self._checksum and not report.checkpoint.unsupported:
                    self._scan(sources, report, self._checksum)
                sources.hold()
        except ShrunkError:
            report.wait("it shrank while it was read")
            return
        except ChangedError as error:
            report.wait("%s %s while it was read" % (_what(unit, error.path), error.what))
            return
        found = {each.rule for each in (*report.checkpoint.found, *unit.found)}
        if not found.isdisjoint(_UNFINISHED):
            from .find.liveness import still_written

            report.wait(still_written(unit, folder.opened, lacking=not found.isdisjoint(_LACKING)))

    def _scan(self, sources: Sources, report: Report, checksum: Checksum) -> None:
        checkpoint, name = report.checkpoint, clean_text(report.unit.name)
        report.claims = claim(checkpoint.tensors)
        done = [self._before]
        pairs = moment_pairs(checkpoint)
        samples = self._memory.samples(report.unit, checkpoint.tensors)

        def on_bytes(count: int) -> None:
            done[0] += count
            self._ctx.progress(min(done[0], self._total), self._total, "bytes", name)

        def scan() -> Scanned:
            scanner = Scanner(
                sources,
                checkpoint.regions,
                report.claims.views,
                engine=self._engine,
                checksum=checksum,
                pace=self._pace,
                on_bytes=on_bytes,
                pairs=pairs,
                samples=samples,
            )
            return scanner.run(self._settings.workers)

        try:
            report.scanned = scan()
        except WorkerError as error:
            if self._engine.instead is None:
                raise
            # What is not indented in a traceback, behind its first line.
            reason = next(line for line in str(error).splitlines() if not line.startswith((" ", "Traceback")))
            self._ctx.log("engine=%s failed (%s): counting without it" % (self._engine.name, clean_text(reason)))
            self._engine, done[0] = self._engine.instead, self._before
            report.scanned = scan()
        if pairs:
            from .scan.elements import Elements
            from .scan.lone import lone_zeros

            report.scanned.broken.extend(
                lone_zeros(checkpoint, report.scanned, pairs, Elements(checkpoint.regions, sources, self._pace))
            )
        if checkpoint.digests or checkpoint.rounded:
            from .scan.second_look import second_look

            checkpoint.found += second_look(checkpoint, sources, self._pace)
        report.whole = True

    def _report(self, entry: Entry) -> None:
        outcome = entry.outcome
        # Who names a vocabulary wants a model; in a folder, it goes with what else is there.
        bare = not outcome.record["tensors"] and COUNTERS.fullmatch(os.path.basename(entry.unit.path))
        beside = (bare or outcome.record["format"] == VOCABULARY) and entry.unit.path != self._settings.root
        unit = entry.unit._replace(companion=entry.unit.companion or beside)
        found, ignored, level = judge(unit, outcome, self._memory.of_others(entry), self._settings.changes)
        self._tell(unit, found)
        record = {**outcome.record, "name": clean_text(unit.name), "verdict": level}
        record["findings"] = sorted({each.rule for each in found})
        if ignored:
            record["ignored"] = ignored
        card = entry.card
        if card is not None and not card.odd[0] and card.norm is not None and card.norm < math.inf:
            record["weight_norm"] = float("%.6g" % card.norm)
        if entry.recalled:
            record.update(cached=True, checked_at=_date(entry.checked_at))
        step, epoch = record["step"] if "step_from" not in record else None, record["epoch"]
        companion = unit.companion and level in (OK, UNCHECKED)
        self.judged.append(
            Judged(
                unit,
                level,
                step if isinstance(step, int) else None,
                epoch if isinstance(epoch, (int, float)) else epoch_in(unit.relative),
                outcome.weights,
                outcome.optimizer,
                companion,
            )
        )
        if self._settings.load is not None and not companion and not outcome.waiting:
            record["load"] = self._load(entry, self._settings.load)
        if companion:
            self.ignored.update(ignored)
        else:
            self._ctx.emit(record)

    def _load(self, entry: Entry, allowance: Tuple[int, float]) -> Dict[str, object]:
        """Ask the loaders themselves."""
        from .loadtest import Allowance, LoadTests

        def alive() -> None:
            self._ctx.progress(self._before, self._total, "bytes", "loading %s" % clean_text(entry.unit.name))

        self._tests = self._tests or LoadTests(Allowance(*allowance))
        return self._tests.of_checkpoint(entry.unit, entry.outcome.found, alive)

    def finish(self) -> None:
        """Report what was held back, then what was found too late: a record for each series of such checkpoints."""
        self._report_held()
        if self._tests is not None:
            self._tests.close()
        places = {each.unit.relative: index for index, each in enumerate(self.judged)}
        changes = self._settings.changes
        for series, late in self._memory.late().items():
            kept, ignored = changes.apply_to(late)
            for unit, found in kept:
                self._tell(unit, [found])
                at = places[unit.relative]
                self.judged[at] = self.judged[at]._replace(verdict=worsened(self.judged[at].verdict, [found]))
            self._ctx.emit(
                {
                    "kind": "series",
                    "name": clean_text(series),
                    "checkpoints": [clean_text(name) for name in sorted({unit.name for unit, _ in kept})[:_MOST_NAMED]],
                    "verdict": worsened(OK, [found for _, found in kept]),
                    "findings": sorted({found.rule for _, found in kept}),
                    **({"ignored": ignored} if ignored else {}),
                }
            )

    def _tell(self, unit: Unit, found: Sequence[Found]) -> None:
        name = clean_text(unit.name)
        for each in bounded(found):
            data = {"file": clean_text(unit.path, 1000), **(each.data or {})}
            self._ctx.finding(each.rule, severity(each), name, each.message, next_step(each), each.evidence, **data)


def read(unit: Unit, folder: Folder) -> Checkpoint:
    """Read what a checkpoint's headers tell, and place its tensors.

    Raises:
        OSError, NotRegularError, ChangedError: when its files can't be read as they were found.
    """
    if unit.family:
        return family(unit.family).read(folder)
    with folder.open(next(iter(unit.files))) as source:
        loaded = read_torch_file(source)
    checkpoint = loaded.checkpoint
    if _LIGHTNING in loaded.entries:
        checkpoint.format = "lightning"
    return checkpoint


def _what(unit: Unit, path: object) -> str:
    """Name the file that an error is about."""
    return clean_text(os.path.relpath(path, unit.folder), 1000) if unit.family and isinstance(path, str) else "it"


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
