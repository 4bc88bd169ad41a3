"""One audit from its beginning to its end: play, compare, write reports, tell people."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import time
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from remoterun.api import Choice, Project, carry_out, secrets_of
from remoterun.audit.account import Account
from remoterun.audit.file import EventKind, doubled, nothing_to_play, twice
from remoterun.audit.ledger import Event, tell
from remoterun.audit.lock import Lock, audit_folder, refuse_if_held
from remoterun.audit.notify import Delivery, deliver, need_apprise, queued
from remoterun.audit.outcome import Audit, Cut, cut_text
from remoterun.audit.reports import Material, write_report
from remoterun.audit.state import Reported, State, load_state, save_state
from remoterun.errors import ConfigError, Problem, clean
from remoterun.history import History, HistoryError, Journal
from remoterun.model.times import now_text
from remoterun.report.documents import plain
from remoterun.report.text import clip, plural
from remoterun.runner import Control

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from remoterun.audit.account import Say
    from remoterun.audit.ending import Ending
    from remoterun.audit.file import Settings
    from remoterun.audit.lock import Holder
    from remoterun.compare import Difference
    from remoterun.compare.numbers import Tolerance
    from remoterun.events import Event as RunEvent
    from remoterun.model import Plan, Run
    from remoterun.secrets import Vault

_LONGEST: Final = 1000
_MOST_EARLIER: Final = 20
_MOST_EARLIER_RECORDS: Final = 20_000


def wait_for_turn(root: Path, state: Path, splay_s: float, on_wait: Callable[[float], None]) -> None:
    """Wait for a random time up to this; who finds another audit going on does not.

    Nothing is held meanwhile, so that a person's own audit is not kept out. `on_wait` takes how many seconds it is.

    Raises:
        BusyError: another audit of the project goes on.
        ConfigError: the folder of the state can't be used.
    """
    if splay_s:
        refuse_if_held(audit_folder(state, root), root)
        seconds = random.uniform(0, splay_s)  # noqa: S311  # nobody gains by guessing it
        on_wait(seconds)
        time.sleep(seconds)


def perform_audit(
    root: Path, state: Path, settings: Settings, names: Sequence[str], ending: Ending, say: Say | None = None
) -> Audit:
    """Carry out an audit of the project at `root`: the playbooks `names`, or those of its settings.

    `state` is the folder of the history; `say` takes each step, as it is done. Nobody is ever asked for anything.

    Raises:
        BusyError: another audit of the project goes on.
        ConfigError: something in the project is wrong, and nothing was started.
    """
    if settings.alerts is not None:
        need_apprise()
    folder = audit_folder(state, root)
    with Lock.take(folder, root) as lock:
        job = _Job(root, state, folder, settings, lock, ending, Account(say))
        return job.perform(tuple(names) or settings.playbooks)


class _Job:
    """Hold what one audit needs."""

    def __init__(
        self, root: Path, state: Path, folder: Path, settings: Settings, lock: Lock, ending: Ending, account: Account
    ) -> None:
        self._root = root
        self._account = account
        self._history = state
        self._folder = folder
        self._settings = settings
        self._lock = lock
        self._ending = ending
        self._problems: list[str] = []
        self._state = self._load()
        self._audit = Audit(
            project=str(root), started_at=lock.started_at, cut=self._former(), cut_earlier=lock.left.more
        )

    def perform(self, names: Sequence[str]) -> Audit:
        """Carry it out; that it failed is told too, whatever it was."""
        try:
            self._audit = replace(self._audit, runs=tuple(self._play_all(self._plans(names))))
            self._audit = replace(self._audit, ended_as=self._ending.status)
            if self._ending.status is None:
                self._report()
                self._lock.told()
            else:
                # Nobody may have been there to read of it: the next audit tells, of this one and of those before.
                self._lock.keep_words()
                self._audit = replace(self._audit, cut=(), cut_earlier=0)
        except Exception as error:
            self._tell(self._failure(str(error) or type(error).__name__))
            raise
        return replace(self._audit, problems=tuple(self._problems), finished_at=now_text())

    # --- playing ---

    def _plans(self, names: Sequence[str]) -> list[tuple[Plan, Vault]]:
        """Plan everything before anything starts."""
        if not names:
            raise nothing_to_play(self._root)
        project = Project.load(self._root)
        planned: list[tuple[Plan, Vault]] = []
        problems = [Problem(message=twice(names[number])) for number in doubled(names)]
        for name in names:
            try:
                plan = project.plan_play(name, Choice())
                planned.append((plan, secrets_of(plan)))
            except ConfigError as error:
                problems += [problem for problem in error.problems if problem not in problems]
        if problems:
            raise ConfigError(problems)
        self._account.planned([plan for plan, _ in planned])
        return planned

    def _play_all(self, planned: Sequence[tuple[Plan, Vault]]) -> list[Run]:
        runs: list[Run] = []
        for plan, vault in planned:
            if self._ending.status is None:
                self._lock.note(plan.run_id)
                self._account.playing(plan)
                runs.append(asyncio.run(self._play(plan, vault)))
                self._account.played(runs[-1])
        return runs

    async def _play(self, plan: Plan, vault: Vault) -> Run:
        control = Control()
        journal = Journal(self._history, self._problems.append)

        def listen(event: RunEvent) -> None:
            journal(event)
            self._account.heard(event)

        try:
            with self._ending.reaching(control):
                return await carry_out(plan, listen, control, vault=vault)
        finally:
            journal.close()

    # --- what was before ---

    def _load(self) -> State:
        try:
            return load_state(self._folder)
        except (OSError, ValueError) as error:
            self._problems.append(f"what was reported before can't be read, so everything counts as new: {error}")
            return State()

    def _former(self) -> tuple[Cut, ...]:
        """Tell of former audits that were cut; how far each came, its journal says."""
        return tuple(map(self._cut, self._lock.left.cut))

    def _cut(self, holder: Holder) -> Cut:
        if not holder.runs:
            return Cut(holder=holder)
        run_id = holder.runs[-1]
        try:
            with History.open(self._history) as history:
                kept = history.find(run_id)
        except HistoryError:
            return Cut(holder=holder, run_id=run_id)
        return Cut(
            holder=holder,
            run_id=run_id,
            ended=kept.status is not None,
            done=sum(kept.counts.values()),
            jobs=kept.jobs,
        )

    # --- telling ---

    def _report(self) -> None:
        """Compare with what was reported last, write the files, and tell people what they don't know yet."""
        # Kept at once: what goes wrong from here on takes none of it away.
        self._keep(self._compare())
        self._write(self._settings.reports)
        self._forget()
        if self._problems:
            self._tell(self._failure("; ".join(self._problems)))
        else:
            self._tell(self._recovery())
        if self._audit.events or self._audit.delivery != Delivery():
            # It says who was told, which was not known before, since people are told of what can't be written.
            self._write([kind for kind in self._settings.reports if kind == "json"])

    def _compare(self) -> list[Event]:
        """Compare each run by itself: one that can't be keeps no other from it."""
        events: list[Event] = []
        failed: dict[str, list[str]] = {}
        for run in self._audit.runs:
            try:
                events += self._compare_one(run)
            except (HistoryError, sqlite3.Error) as error:
                failed.setdefault(str(error), []).append(run.playbook)
        for why, playbooks in failed.items():
            everything = len(playbooks) == len(self._audit.runs)
            what = "nothing could" if everything else f"{', '.join(playbooks)} could not"
            self._problems.append(f"{what} be compared: {why}")
        return events

    def _compare_one(self, run: Run) -> list[Event]:
        alerts, last, events = self._settings.alerts, self._state.reported.get(run.playbook), list[Event]()
        with History.open(self._history) as history:
            if last is None:
                self._look_for_former_project(history)
            difference = _difference(history, last, run, self._settings.tolerances)
        self._account.compared(difference)
        told = last.told if last else Reported(run_id="").told
        if alerts is not None:
            told, events = tell(told, difference, run, alerts)
        reported = {**self._state.reported, run.playbook: Reported(run_id=run.run_id, told=told)}
        self._state = replace(self._state, reported=reported)
        self._audit = replace(self._audit, differences=(*self._audit.differences, difference))
        return events

    def _look_for_former_project(self, history: History) -> None:
        found = history.gone_projects(str(plain(str(self._root))))
        self._audit = replace(self._audit, former=tuple(found))

    def _forget(self) -> None:
        try:
            with History.open(self._history) as history:
                count = history.forget(timedelta(seconds=self._settings.keep_s))
        except (HistoryError, sqlite3.Error) as error:
            self._problems.append(f"old runs could not be forgotten: {error}")
        else:
            if count:
                self._account.say(f"{plural(count, 'old run')} forgotten")

    def _failure(self, message: str) -> list[Event]:
        """Return the event of an audit that failed, unless people know that already."""
        if self._state.failing is not None:
            return []
        event = Event(template="failed", message=clip(clean(message), _LONGEST), since=self._lock.started_at)
        self._state = replace(self._state, failing=event)
        return [event]

    def _recovery(self) -> list[Event]:
        """Return the event of an audit that works again."""
        event = self._state.failing
        self._state = replace(self._state, failing=None)
        return [replace(event, template="working")] if event is not None else []

    def _tell(self, events: Sequence[Event]) -> None:
        """Tell people these events of the audit itself, and all that waits for them.

        It is kept before it is sent, and that somebody was told right after: who is killed in between tells the others
        the next time.
        """
        alerts = self._settings.alerts
        self._keep(self._own(events))
        if alerts is not None:
            if self._wants_failures():
                # What waits to be told does so, whatever becomes of this audit.
                self._lock.told()
            self._state, delivery = deliver(self._state, alerts, self._root.name, self._take)
            self._audit = replace(self._audit, delivery=delivery)
            self._account.delivered(delivery)

    def _take(self, state: State) -> None:
        self._state = state
        self._save()

    def _own(self, events: Sequence[Event]) -> list[Event]:
        """Return events of the audit itself, with that of former ones that were cut, if people want to hear of them."""
        audit = self._audit
        cut = (
            [Event(template="failed", message=cut_text(audit), since=audit.cut[0].holder.started_at)]
            if audit.cut
            else []
        )
        return [*events, *cut] if self._wants_failures() else []

    def _wants_failures(self) -> bool:
        alerts = self._settings.alerts
        return alerts is None or EventKind.FAILED in alerts.events

    def _keep(self, events: Sequence[Event]) -> None:
        self._audit = replace(self._audit, events=(*self._audit.events, *events))
        self._state = queued(self._state, self._settings.alerts, events)
        self._save()

    def _save(self) -> None:
        try:
            save_state(self._folder, self._state)
        except OSError as error:
            problem = f"what was reported can't be kept, so it comes again the next time: {error}"
            if problem not in self._problems:
                self._problems.append(problem)

    def _write(self, kinds: Iterable[str]) -> None:
        for kind in kinds:
            done = replace(self._audit, problems=tuple(self._problems), finished_at=now_text())
            earlier = self._earlier() if kind == "html" else ()
            material = Material(audit=done, exit_on=self._settings.exit_on, earlier=earlier)
            problem = write_report(kind, self._settings.reports[kind], material)
            self._account.written(kind, self._settings.reports[kind], problem)
            if problem is not None and problem not in self._problems:
                self._problems.append(problem)

    def _earlier(self) -> list[Run]:
        """Return runs before those of this audit, the newest first, so many that a page of them opens fast."""
        found: list[Run] = []
        room = _MOST_EARLIER_RECORDS
        # Why it lacks some, the problems tell: a run that can't be compared is among them.
        with suppress(HistoryError, sqlite3.Error), History.open(self._history) as history:
            for run in self._audit.runs:
                kept, left = history.previous(history.find(run.run_id)), _MOST_EARLIER
                while kept is not None and left > 0 and room > 0:
                    found.append(history.run(kept))
                    room -= sum(len(outcome.records) for outcome in found[-1].outcomes)
                    kept, left = history.previous(kept), left - 1
        return found


def _difference(history: History, last: Reported | None, run: Run, tolerances: Sequence[Tolerance]) -> Difference:
    """Compare a run with the one that was reported last, whatever somebody has played in between."""
    after = history.find(run.run_id)
    try:
        before = history.find(last.run_id) if last is not None else None
    except HistoryError:  # it has been forgotten
        before = None
    if before is not None and before.project != after.project:  # another project has gone on with it
        before = None
    return history.difference(before, after, tolerances)
