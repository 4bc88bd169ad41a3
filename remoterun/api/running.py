"""Runs as other programs use them: awaited, iterated over, or simply called."""

from __future__ import annotations

import asyncio
import warnings
from os import PathLike, fsdecode, fsencode, fspath
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from remoterun.api.blocking import wait_for
from remoterun.api.carry import carry_out
from remoterun.api.project import Choice, Project
from remoterun.errors import ConfigError, Problem, nearest, show
from remoterun.events import OutcomeReady
from remoterun.inventory import Overrides
from remoterun.model import ExecWork, RuleChanges, ScriptWork, SecretSource
from remoterun.model.limits import read_limits

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence
    from types import TracebackType
    from typing import Self, Unpack

    from remoterun.events import Event, OnEvent
    from remoterun.model import Json, Outcome, Plan, Playbook, Run


class Options(TypedDict, total=False):
    """Say where something runs, and how: every key may be left out.

    - `on`, `without`, `only`: selection patterns as ``--on`` takes them, a single one by itself too: union, minus,
      intersection.
    - `params`: parameters of the payload, as JSON has them.
    - `rules`: which findings count, laid over what the playbook says.
    - `limits`: seconds, texts as "20m", or None for no limit, by name.
    - `env`, `secrets`: variables of the program's environment; those of `secrets` are kept out of everything shown.
    - `overrides`: how targets are reached, where it differs from the inventory.
    - `targets_at_once`: how many run at the same time; 64 when left out.
    - `use_cache`: False sends all code anew and leaves no copy of it on the target.
    - `project`: a folder, or what was loaded of one; the nearest around the working directory when left out.
    - `on_event`: called with each of `remoterun.events` as it happens, in the thread of the event loop. When it
      raises, the run is ended in an orderly way and the exception comes out of the call.
    - `history`: True keeps the run for ``remoterun show``, ``diff`` and ``resume``, as the command line does.
    """

    on: Sequence[str]
    without: Sequence[str]
    only: Sequence[str]
    params: Mapping[str, Json]
    rules: RuleChanges
    limits: Mapping[str, float | str | None]
    env: Mapping[str, str]
    secrets: Mapping[str, SecretSource]
    overrides: Overrides
    targets_at_once: int
    use_cache: bool
    project: Project | str | PathLike[str]
    on_event: OnEvent
    history: bool


class Running:
    """One run on its way.

    ``await`` it for the run that comes of it; or enter it with ``async with`` and iterate over its outcomes, in the
    order in which targets finish. Cancelling the task that waits, or leaving the context early, ends the run in an
    orderly way: every target confirms that nothing is left there before the exception goes on. A second
    cancellation leaves at once.
    """

    def __init__(
        self,
        plan: Plan,
        on_event: OnEvent | None = None,
        *,
        history: bool = False,
        fabric: Mapping[str, object] | None = None,
    ) -> None:
        from remoterun.runner import Control

        self.plan = plan
        self._on_event = on_event
        self._history = history
        self._fabric = fabric
        self._control = Control()
        self._trouble: BaseException | None = None
        self._task: asyncio.Task[Run] | None = None
        self._outcomes: asyncio.Queue[Outcome | None] = asyncio.Queue()

    @property
    def run_id(self) -> str:
        """Return the id under which the run is known on its targets and in the history."""
        return self.plan.run_id

    @property
    def run(self) -> Run:
        """Return the run when it has ended.

        Raises:
            RuntimeError: while it goes on.
        """
        if self._task is None or not self._task.done():
            raise RuntimeError("the run has not ended: iterate over its outcomes to the end, or await it")
        return self._task.result()

    def cancel(self) -> None:
        """Start nothing more and end what runs; the outcomes of these targets are `cancelled`."""
        self._control.cancel()

    def __await__(self) -> Generator[object, None, Run]:
        return self._to_end().__await__()

    async def __aenter__(self) -> Self:
        self._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task = self._begin()
        if not task.done():
            self.cancel()
        try:
            await self._ended(task)
        except Exception:
            if error is None:
                raise

    def __aiter__(self) -> Self:
        if self._task is None:
            raise RuntimeError("a run whose outcomes are iterated over is entered first: async with aplay(...) as run")
        return self

    async def __anext__(self) -> Outcome:
        outcome = await self._outcomes.get()
        if outcome is None:
            # For whoever else iterates.
            self._outcomes.put_nowait(None)
            if self._task is not None:
                self._task.result()
            raise StopAsyncIteration
        return outcome

    def _begin(self) -> asyncio.Task[Run]:
        if self._task is None:
            self._task = asyncio.create_task(self._carry_out(), name=f"remoterun {self.run_id}")
            self._task.add_done_callback(lambda _: self._outcomes.put_nowait(None))
        return self._task

    async def _to_end(self) -> Run:
        return await self._ended(self._begin())

    async def _ended(self, task: asyncio.Task[Run]) -> Run:
        """Wait for the end, also when whoever waits is cancelled."""
        left = False
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError:
                left = True
                if self._control.cancelled:
                    self._control.abort()
                self._control.cancel()
        if left:
            if not task.cancelled():
                task.exception()  # or asyncio complains that nobody asked for it
            raise asyncio.CancelledError
        return task.result()

    async def _carry_out(self) -> Run:
        from remoterun.history import Journal, default_folder

        journal = Journal(default_folder(), _warn) if self._history else None

        def listen(event: Event) -> None:
            if journal is not None:
                journal(event)
            self._tell(event)
            if isinstance(event, OutcomeReady):
                self._outcomes.put_nowait(event.outcome)

        try:
            run = await carry_out(self.plan, listen, self._control, fabric=self._fabric)
        finally:
            if journal is not None:
                journal.close()
        if self._trouble is not None:
            raise self._trouble
        return run

    def _tell(self, event: Event) -> None:
        if self._on_event is None or self._trouble is not None:
            return
        try:
            self._on_event(event)
        except BaseException as error:
            self._trouble = error
            if self._control.cancelled and not isinstance(error, Exception):
                self._control.abort()  # a second Ctrl-C, which came just now
            self._control.cancel()


def aplay(playbook: str | Playbook, **options: Unpack[Options]) -> Running:
    """Play a playbook of the project, or a payload, inside a running event loop.

    Raises:
        ConfigError: when anything in the project or the options is wrong; nothing was started then.
    """
    return _running(options, project_of(options).plan_play(playbook, choice_of(options)))


def arun_script(
    script: str | PathLike[str] | bytes, args: Sequence[str | bytes] = (), **options: Unpack[Options]
) -> Running:
    """Run a local Python file, or a source given as bytes, in the targets' environments, with exact arguments.

    Raises:
        ConfigError: when anything in the project or the options is wrong; nothing was started then.
        OSError: when the file cannot be read.
    """
    if isinstance(script, bytes):
        name, source = "script.py", script
    else:
        name, source = Path(script).name, Path(script).read_bytes()
    work = ScriptWork(name=name, source=source, args=_words("args", args))
    return _running(options, project_of(options).plan_work(name, work, choice_of(options)))


def arun_program(argv: Sequence[str | bytes], **options: Unpack[Options]) -> Running:
    """Run any program on the targets, word for word: no shell in between.

    Raises:
        ConfigError: when anything in the project or the options is wrong; nothing was started then.
    """
    work = ExecWork(argv=_words("argv", argv))
    name = fsdecode(argv[0]) if argv else ""
    return _running(options, project_of(options).plan_work(name, work, choice_of(options)))


def play(playbook: str | Playbook, **options: Unpack[Options]) -> Run:
    """Play a playbook of the project, or a payload, and return the run that came of it; as `aplay`, but it blocks.

    It may be called from any thread, also where an event loop is running, as in a notebook. Ctrl-C, or the
    cancellation of the task that it blocks, ends the run in an orderly way; a second one leaves at once.

    Raises:
        ConfigError: when anything in the project or the options is wrong; nothing was started then.
    """
    return wait_for(aplay(playbook, **options))


def run_script(
    script: str | PathLike[str] | bytes, args: Sequence[str | bytes] = (), **options: Unpack[Options]
) -> Run:
    """Run a local Python file on the targets and return the run that came of it; as `arun_script`, but it blocks."""
    return wait_for(arun_script(script, args, **options))


def run_program(argv: Sequence[str | bytes], **options: Unpack[Options]) -> Run:
    """Run any program on the targets and return the run that came of it; as `arun_program`, but it blocks."""
    return wait_for(arun_program(argv, **options))


def project_of(options: Options) -> Project:
    """Load the project that options name."""
    said = options.get("project")
    return said if isinstance(said, Project) else Project.load(Path(fspath(said)) if said is not None else None)


def choice_of(options: Options) -> Choice:
    """Put options together as the planning takes them.

    Raises:
        ConfigError: with every option that is none, or can't be what it says.
    """
    said = {"on": options.get("on"), "without": options.get("without"), "only": options.get("only")}
    patterns = {name: _patterns(texts) for name, texts in said.items() if texts is not None}
    problems = [*_unknown(options), *_of_no_kind(options), *_unusable(patterns)]
    at_once = options.get("targets_at_once", 64)
    if at_once < 1:
        problems.append(Problem(path="targets_at_once", message=f"{at_once} lets nothing begin: give 1 or more"))
    if problems:
        raise ConfigError(problems)
    return Choice(
        on=patterns.get("on", ()),
        without=patterns.get("without", ()),
        only=patterns.get("only", ()),
        values=options.get("params", {}),
        rules=options.get("rules") or RuleChanges(),
        limits=read_limits(options.get("limits", {}), "limits"),
        env=options.get("env", {}),
        secrets=options.get("secrets", {}),
        overrides=options.get("overrides"),
        targets_at_once=at_once,
        use_cache=options.get("use_cache", True),
    )


def _unknown(options: Options) -> Iterator[Problem]:
    """Tell options that are none: who says where not to run must not be overheard."""
    for name in options:
        if name not in Options.__annotations__:
            message = (
                "is no option; parameters of the payload stand in `params`, and how targets are reached in `overrides`"
            )
            yield Problem(path=name, message=message, nearest=nearest(name, Options.__annotations__))


def _of_no_kind(options: Options) -> Iterator[Problem]:
    """Tell what would have to be a record; as in files, people write mappings."""
    secrets = options.get("secrets", {}).items()
    said: list[tuple[str, object, type]] = [
        ("rules", options.get("rules"), RuleChanges),
        ("overrides", options.get("overrides"), Overrides),
        *((f"secrets {name}", source, SecretSource) for name, source in secrets),
    ]
    for path, value, kind in said:
        if value is not None and not isinstance(value, kind):
            yield Problem(path=path, message=f"must be a remoterun.{kind.__name__}, not {show(value)}")


def _unusable(patterns: Mapping[str, Sequence[str]]) -> Iterator[Problem]:
    """Tell patterns that are no text, and that nothing was chosen: an empty list must not mean everything."""
    for name, texts in patterns.items():
        if not any(texts) and name != "without":
            yield Problem(path=name, message="names no target: leave it out for those that the playbook names")
        for text in texts:
            if not isinstance(text, str):
                yield Problem(path=name, message=f"must be text, not {show(text)}")


def _patterns(said: Sequence[str]) -> tuple[str, ...]:
    # A text is a sequence of texts, too.
    return (said,) if isinstance(said, str) else tuple(said)


def _words(what: str, said: Sequence[str | bytes]) -> tuple[bytes, ...]:
    """Return the words of a command line.

    Raises:
        ConfigError: they are one text, of which each character would be a word.
    """
    if isinstance(said, str | bytes):
        message = f"{show(said)} is one text: give a list of words, as shlex.split makes one"
        raise ConfigError(Problem(path=what, message=message))
    return tuple(map(fsencode, said))


def _running(options: Options, plan: Plan) -> Running:
    return Running(plan, options.get("on_event"), history=options.get("history", False))


def _warn(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=2)
