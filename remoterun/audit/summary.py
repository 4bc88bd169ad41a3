"""What an audit has to say, as one paragraph of plain text: a mail of cron, or a line of a journal. Pure."""

from __future__ import annotations

import re
import textwrap
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from remoterun.audit.outcome import cut_text
from remoterun.compare import CheckpointChange, FactChange, FindingChange, Kind, NumberChange, TargetChange, fold
from remoterun.errors import clean
from remoterun.history.text import former_text
from remoterun.model import Severity
from remoterun.report.text import clip, without_place

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from remoterun.audit.outcome import Audit
    from remoterun.compare import Change, Difference, Fold, Silence
    from remoterun.model import Run

_WIDTH: Final = 78
_MOST_TOLD: Final = 12
_MOST_NAMED: Final = 3
_LONGEST: Final = 240
_COMMAND: Final = re.compile(r"`remoterun [^`]+`")
# Stands for a blank; cleaned texts have none.
_NO_BREAK: Final = "\0"
_TARGET_WORDS: Final[Mapping[Kind, str]] = MappingProxyType(
    {
        Kind.TARGET_BACK: "results again",
        Kind.TARGET_NEW: "new target",
        Kind.TARGET_LEFT: "not audited any more",
    }
)


def sentences(audit: Audit) -> str:
    """Write it with a line for each sentence, broken at a mail's width."""
    return "".join(_filled(clean(each), indent="  ") for each in _sentences(audit))


def in_one_line(audit: Audit) -> str:
    """Write it, however long that is."""
    return " ".join(clean(sentence) for sentence in _sentences(audit))


def paragraph(audit: Audit) -> str:
    """Write it in lines of a mail's width, the last one ended too."""
    return _filled(in_one_line(audit))


def _filled(text: str, *, indent: str = "") -> str:
    """Break a text at a mail's width, but no command of ours that it names: on two lines it can't be pasted."""
    kept = _COMMAND.sub(lambda command: command[0].replace(" ", _NO_BREAK), text)
    filled = textwrap.fill(kept, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return filled.replace(_NO_BREAK, " ") + "\n"


def _sentences(audit: Audit) -> Iterator[str]:
    yield f"remoterun audit of {audit.project}, {_time(audit.started_at)}."
    if audit.cut:
        yield f"{_capital(cut_text(audit))}."
    if audit.former:
        yield f"{_capital(former_text(audit.project, audit.former))}."
    compared = {difference.after.run_id: difference for difference in audit.differences}
    for run in audit.runs:
        yield from _of_run(run, compared.get(run.run_id))
    for problem in audit.problems:
        yield _sentence(problem)
    if audit.ended_as is not None:
        yield f"It was {audit.ended_as} before it was done: nothing was compared, and nobody was told."
    for failure in audit.delivery.failed:
        yield f"{_capital(_short(failure))}; it is tried again at the next audit."
    if audit.delivery.held:
        yield f"{', '.join(audit.delivery.held)} had enough messages this hour: the rest follows with the next audit."


def _of_run(run: Run, difference: Difference | None) -> Iterator[str]:
    targets = len({outcome.target for outcome in run.outcomes})
    said = f"{run.playbook} on {_count(targets, 'target')}: {run.status}"
    if difference is None:
        yield f"{said}. More: `remoterun show {run.run_id}`."
        return
    yield f"{said}: {counts_text(difference)}."
    folds = [folded for folded in fold(difference.changes) if not folded.change.routine]
    alike = _alike(folds)
    told, left_out = alike[:_MOST_TOLD], alike[_MOST_TOLD:]
    for first, *others in told:
        yield _sentence(_told(first, 1 + len(others)))
    if left_out:
        yield f"And {sum(map(len, left_out))} more."
    just_told = {target for first, *_ in told if _falls_silent(first.change) for target in first.targets}
    lasting = [each for each in difference.silent if each.runs > 1 and each.target not in just_told]
    if lasting:
        yield f"Still no result: {_many([_silence(silence) for silence in lasting])}."
    # Whatever somebody has played in between: an audit is compared with the last one.
    before = difference.before
    yield f"More: `remoterun diff {before.run_id} {run.run_id}`." if before else f"More: `remoterun show {run.run_id}`."


def _alike(folds: Sequence[Fold]) -> list[list[Fold]]:
    """Put together what differs in nothing but the tensor: a damaged checkpoint may have a finding for each."""
    groups: dict[tuple[object, ...], list[Fold]] = {}
    for number, folded in enumerate(folds):
        change = folded.change
        key: tuple[object, ...] = (number,)
        if isinstance(change, FindingChange) and change.identity.tensor:
            found, since = change.finding, change.since
            key = (change.kind, folded.targets, found.subject, found.rule, found.severity, since, change.vanished)
        groups.setdefault(key, []).append(folded)
    return list(groups.values())


def _falls_silent(change: Change) -> bool:
    return change.kind in (Kind.TARGET_UNREACHABLE, Kind.TARGET_FAILED)


def counts_text(difference: Difference) -> str:
    """Count what changed, checkpoints too, and what stays; what goes on anyway is no news."""
    kinds = [change.kind for change in difference.changes if isinstance(change, CheckpointChange) or not change.routine]
    persisting, unknown = (
        sum(each.finding.severity is not Severity.INFO for each in part)
        for part in (difference.persisting, difference.unknown)
    )
    words = (
        (kinds.count(Kind.FINDING_NEW), "new finding", ""),
        (kinds.count(Kind.FINDING_GONE), "cleared finding", ""),
        (persisting, "persisting finding", ""),
        (unknown, "finding", " of which nothing is known now"),
        (len(difference.silent), "target", " without a result"),
        (kinds.count(Kind.CHECKPOINT_NEW), "new checkpoint", ""),
        (kinds.count(Kind.CHECKPOINT_VANISHED), "vanished checkpoint", ""),
        (kinds.count(Kind.FACT_CHANGED), "changed fact", ""),
        (kinds.count(Kind.NUMBER_MOVED), "moved number", ""),
    )
    return ", ".join(_count(count, word) + more for count, word, more in words if count) or "nothing new"


def _told(folded: Fold, count: int) -> str:
    """Say what changed, and where: as messages of alerts do, but equal changes of several targets once.

    `count` tells how many of the kind there are, this one among them.
    """
    change, where = folded.change, _many(folded.targets)
    if isinstance(change, FindingChange):
        what = f"{where}: {change.finding.subject}: {change.finding.rule} {change.finding.severity}"
        what += f" ({count} of them)" if count > 1 else ""
        if change.kind is Kind.FINDING_NEW:
            return f"new: {what}: {change.finding.message}"
        gone = "; its checkpoint is gone" if change.vanished else ""
        return f"cleared: {what}, there since {_time(change.since.at)}{gone}"
    if isinstance(change, TargetChange):
        back = f" after {change.runs} times without" if change.kind is Kind.TARGET_BACK else ""
        message = without_place(change.message, change.target)
        word = _TARGET_WORDS.get(change.kind) or (change.status.value if change.status else "no result")
        return f"{word}: {where}{back}" + (f": {message}" if message else "")
    if isinstance(change, FactChange) and change.fact == "boot_id":
        return f"started anew: {where}"
    if isinstance(change, FactChange):
        return f"changed: {where}: {change.fact} is {change.after}, was {change.before}"
    if isinstance(change, NumberChange):
        return f"moved: {where}: {change.number} of {change.subject} is {change.after:g}, was {change.before:g}"
    return f"{where}: {change.kind.value} {change.name}"


def _silence(silence: Silence) -> str:
    return f"{silence.target} ({silence.runs} times in a row, since {_time(silence.since.at)})"


def _many(names: Sequence[str]) -> str:
    if len(names) <= _MOST_NAMED:
        return ", ".join(names)
    return f"{', '.join(names[:_MOST_NAMED])} and {len(names) - _MOST_NAMED} more"


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _time(moment: str) -> str:
    """Write a moment of a document for people, to the minute."""
    return f"{moment[:10]} {moment[11:16]} UTC"


def _short(text: str) -> str:
    return clip(clean(text), _LONGEST).rstrip(".")


def _sentence(text: str) -> str:
    """Begin and end a sentence; a list that goes on, or was cut, keeps its dots."""
    said = clip(clean(text), _LONGEST)
    return _capital(said if said.endswith("...") else f"{said.rstrip('.')}.")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
