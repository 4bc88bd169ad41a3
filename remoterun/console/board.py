"""What is going on right now, target by target, as lines of a given width."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from remoterun.errors import clean
from remoterun.model import (
    ExecWork,
    Outcome,
    Phase,
    Plan,
    ScriptWork,
    Status,
)
from remoterun.report.text import (
    STATUS_STYLE,
    Line,
    Span,
    cells,
    clip,
    clip_start,
    human_bytes,
    human_count,
    number,
    pad,
    plural,
    shown_target,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remoterun.events import Progressed, TargetMoved

_WINDOW_S: Final = 8.0
"""How far back a rate looks."""
_SAMPLE_S: Final = 0.25
_MAX_LABEL: Final = 32
_ROOM_FOR_NAMES: Final = 100
_QUEUED: Final = "queued  "


@dataclass(slots=True)
class Meter:
    """Measure how fast something goes on, over the last seconds."""

    event: Progressed
    since: float
    samples: deque[tuple[float, float]] = field(default_factory=deque)

    def add(self, event: Progressed, now: float) -> None:
        """Take a reading; another total, unit or a smaller count begins a new measurement."""
        old = self.event
        if event.done < old.done or (event.total, event.unit) != (old.total, old.unit):
            self.samples.clear()
        if not self.samples or now - self.samples[-1][0] >= _SAMPLE_S:
            self.samples.append((now, event.done))
        while len(self.samples) > 1 and now - self.samples[1][0] > _WINDOW_S:
            self.samples.popleft()
        self.event = event

    def rate(self, now: float) -> float | None:
        """Return units per second; it sinks while nothing comes. None until it can be told."""
        if not self.samples:
            return None
        then, done = self.samples[0]
        return (self.event.done - done) / (now - then) if now - then >= _SAMPLE_S else None

    def left_s(self, now: float) -> float | None:
        """Return the seconds left at this rate; None when that cannot be told."""
        rate, total = self.rate(now), self.event.total
        return max(total - self.event.done, 0.0) / rate if rate and rate > 0 and total else None


@dataclass(slots=True)
class _Job:
    """Hold what is known of one target and step that has no outcome yet."""

    target: str
    name: str
    since: float
    phase: Phase | None = None
    waiting: bool = False
    meter: Meter | None = None
    records: int = 0

    @property
    def active(self) -> bool:
        return self.phase is not None and not self.waiting

    def label(self, width: int) -> str:
        """Name the target, with its friendly name where there is room."""
        return f"{self.target} {self.name}" if self.name and width >= _ROOM_FOR_NAMES else self.target


class Board:
    """Follow the events of a run and draw its present state."""

    def __init__(self) -> None:
        self.title = ""
        self.several_steps = False
        self.streams = False
        self.targets: tuple[str, ...] = ()
        self.called: dict[str, str] = {}
        self.widest = 0
        self.cancelling = False
        self._jobs: dict[tuple[str, int], _Job] = {}
        self._total = 0
        self._counts: Counter[Status] = Counter()
        self._began = 0.0

    def begin(self, plan: Plan, now: float) -> None:
        """Lay out every job of a plan as waiting."""
        self.title = plan.playbook
        self.targets = tuple(dict.fromkeys(job.target.id for job in plan.jobs))
        self.several_steps = len({job.step for job in plan.jobs}) > 1
        self.streams = any(isinstance(job.work, ScriptWork | ExecWork) for job in plan.jobs)
        self._began = now
        self._total = len(plan.jobs)
        for job in plan.jobs:
            target, name = shown_target(job.target.id, job.target.name)
            self.called[job.target.id] = target
            self._jobs[job.target.id, job.step] = _Job(clean(target), clean(name), now)
        self.widest = max(map(cells, map(clean, self.called.values())), default=0)

    def moved(self, event: TargetMoved, now: float) -> None:
        """Note a new phase."""
        job = self._jobs.get((event.target, event.step))
        if job:
            job.phase, job.waiting, job.since, job.meter = event.phase, event.waiting, now, None

    def progressed(self, event: Progressed, now: float) -> None:
        """Note how far a payload is."""
        job = self._jobs.get((event.target, event.step))
        if job:
            total = None if event.total is None else number(event.total)
            event = replace(event, done=number(event.done), total=total)
            job.meter = job.meter or Meter(event, now)
            job.meter.add(event, now)

    def recorded(self, target: str, step: int) -> None:
        """Count a record."""
        job = self._jobs.get((target, step))
        if job:
            job.records += 1

    def finished(self, outcome: Outcome) -> None:
        """Take a job off the board."""
        self._jobs.pop((outcome.target, outcome.step), None)
        self._counts[outcome.status] += 1

    # --- drawing --------------------------------------------------------------------------------

    def draw(self, now: float, width: int, height: int, *, unicode: bool) -> list[Line]:
        """Return at most `height` lines, each narrower than `width`."""
        active = [job for job in self._jobs.values() if job.active]
        busy = {job.target for job in active}
        queue = list({job.target: job for job in self._jobs.values() if job.target not in busy}.values())
        foot = self._foot(now)
        waiting = _queue_lines(queue, width, max(min(height // 6, 3), 1)) if height > 3 else []
        room = max(height - 1 - len(waiting), 0)
        shown = active if len(active) <= room else active[: max(room - 1, 0)]
        label = min(max((cells(job.label(width)) for job in shown), default=0), _MAX_LABEL, width // 3)
        lines: list[Line] = [_job_line(job, now, width, label, unicode=unicode) for job in shown]
        if len(shown) < len(active) and room:
            queued = f" ({len(queue)} queued)" if queue and not waiting else ""
            lines.append([Span(f"... and {len(active) - len(shown)} more{queued}", "dim")])
        return [_cut(line, width - 1) for line in [*lines, *waiting, foot][-max(height, 1) :]]

    def _foot(self, now: float) -> Line:
        done = sum(self._counts.values())
        spans = [Span(f"{self.title}  ", "bold"), Span(f"{done} of {self._total} done")]
        for status in Status:
            if self._counts[status]:
                spans += [Span("  "), Span(f"{self._counts[status]} {status.value}", STATUS_STYLE[status])]
        spans.append(Span(f"  {clock(now - self._began)}", "dim"))
        return [*spans, Span("  cancelling, Ctrl-C again leaves at once", "warn")] if self.cancelling else spans


def _queue_lines(queue: Sequence[_Job], width: int, limit: int) -> list[Line]:
    """Name the targets that wait, in at most so many lines."""
    if not queue:
        return []
    names = [job.label(width) for job in queue]
    room = width - len(_QUEUED) - 1
    rows, taken = _pack(names, room, limit)
    for shown in range(taken, -1, -1) if taken < len(names) else ():
        words = [*names[:shown], f"and {len(names) - shown} more"]
        rows, packed = _pack(words, room, limit)
        if packed == len(words):
            break
    heads = [_QUEUED, *(" " * len(_QUEUED) for _ in rows[1:])]
    return [[Span(head, "dim"), Span(row)] for head, row in zip(heads, rows, strict=True)]


def _pack(words: Sequence[str], width: int, limit: int) -> tuple[list[str], int]:
    """Fill at most `limit` rows with words, two blanks between them; return the rows and how many words they took."""
    rows, taken = [""], 0
    for word in words:
        longer = f"{rows[-1]}  {word}" if rows[-1] else word
        if cells(longer) <= width or not rows[-1]:
            rows[-1] = longer
        elif len(rows) < limit:
            rows.append(word)
        else:
            break
        taken += 1
    return rows, taken


def _job_line(job: _Job, now: float, width: int, label: int, *, unicode: bool) -> Line:
    phase = job.phase.value if job.phase else ""
    whole = job.label(width)
    # Guests of one host differ at the end of their ids.
    name = whole if cells(whole) <= label else clip_start(job.target, label)
    head = [Span(pad(name, label), "bold"), Span(f"  {phase:<7}  ", "hint")]
    if job.meter is None:
        records = [Span(f"  {plural(job.records, 'record')}")] if job.records else []
        return [*head, Span(clock(now - job.since), "dim"), *records]
    return [*head, *_meter_spans(job.meter, now, width, unicode=unicode)]


def _meter_spans(meter: Meter, now: float, width: int, *, unicode: bool) -> list[Span]:
    event = meter.event
    rate = meter.rate(now)
    speed = f"{_amount(rate, event.unit)}/s" if rate is not None else ""
    what = Span(f"  {event.what}", "dim")
    if not event.total:
        return [
            Span(_amount(event.done, event.unit)),
            Span(f"  {speed:<10}  "),
            Span(clock(now - meter.since), "dim"),
            what,
        ]
    part = min(max(event.done / event.total, 0.0), 1.0)
    left = meter.left_s(now)
    eta = f"{clock(left)} left" if left is not None else ""
    size = min(max(width // 6, 8), 30)
    full = int(part * size)
    done, rest = ("━", "─") if unicode else ("=", "-")
    bar = [Span(done * full, "good"), Span(rest * (size - full), "dim")]
    return [*bar, Span(f" {part * 100:3.0f}%  {speed:<10}  "), Span(f"{eta:<10}", "dim"), what]


def _amount(count: float, unit: str) -> str:
    return human_bytes(count) if unit == "bytes" else f"{human_count(round(count, 1))} {unit}".rstrip()


def clock(seconds: float) -> str:
    """Write a time that runs: ``0:07``, ``12:30``, ``1:02:03``."""
    if seconds >= 360_000:
        return "days"
    minutes, rest = divmod(int(max(seconds, 0)), 60)
    return f"{minutes}:{rest:02}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def _cut(line: Line, width: int) -> Line:
    """Keep what fits into a width."""
    kept: list[Span] = []
    for span in line:
        room = width - sum(cells(part.text) for part in kept)
        if room <= 0:
            break
        kept.append(Span(clip(span.text, room), span.style))
    return kept
