"""`remoterun demo`: a host with three containers inside this process, and the real thing played against it."""

from __future__ import annotations

import resource
import shlex
import shutil
import signal
import sys
import tempfile
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Self

import typer

from remoterun.cli.options import Format, OutputOption, Showing
from remoterun.cli.signals import SignalledError
from remoterun.errors import ConfigError
from remoterun.model import RunStatus

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from remoterun.lab import Guest, Lab
    from remoterun.model import Run
    from remoterun.report.text import Style

_NOT_AS_TOLD: Final = 1
_WIDEST: Final = 100
_FILES: Final = 64
_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_MEANINGS: Final = {
    RunStatus.OK: "all was checked and nothing found.",
    RunStatus.FINDINGS: "all was checked, and something found.",
    RunStatus.INCOMPLETE: "not everything could be checked, which counts for more than findings (1).",
}
_TO_TRY: Final = (
    ("What runs where, down to the remote command line, without a login:", "remoterun play check-ckpt --dry-run"),
    ("The same results for another program:", "remoterun play check-ckpt --on kpro6/200 --output json"),
    ("Another payload, with the facts about a machine:", "remoterun play probe --on small-run"),
    ("Any program, word for word, no shell in between:", "remoterun exec --on kpro6/200 -- uname -a"),
    (
        "Any Python file, in the guest's own environment:",
        "echo 'import sys; print(sys.version)' | remoterun run - --on dflash-train",
    ),
)


def demo(
    *,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave it running after the play, to try things; Ctrl-C ends it.")
    ] = False,
    folder: Annotated[
        Path | None,
        typer.Option("--dir", metavar="DIR", help="Lay the files out in this new or empty folder, and leave them."),
    ] = None,
    output: OutputOption = Format.TABLE,
) -> int:
    """Play check-ckpt against a small host with real checkpoints, all inside this process.

    Needs no root, Proxmox, torch or GPU, and no network but loopback.
    """
    from remoterun.lab import Lab
    from remoterun.lab.demo import HOST, lay_out

    _need_files()
    status: int | None = None
    try:
        with ExitStack() as stack:
            signals = stack.enter_context(_Signals())
            place = stack.enter_context(_place(folder))
            signals.watch()  # not before: what is being made has nobody yet who would remove it
            lab = stack.enter_context(Lab.start(place, lay_out(place), host=HOST))
            # The first to run on the way out: what follows takes seconds at most, and must not be cut short.
            stack.callback(signals.ignore)
            run, status = _play(lab, output, signals)
            signals.watch()  # the play had them
            status = _judge(run, status)
            if keep and status in (0, _NOT_AS_TOLD):
                _wait(lab)
    except SignalledError as error:
        if status is None:
            raise
        return error.status  # the play's own document is out
    _say_what_is_left(place, keep=keep)
    return status


# --- the story --------------------------------------------------------------------------------------------------------


def _play(lab: Lab, output: Format, signals: _Signals) -> tuple[Run, int]:
    """Play the playbook as `remoterun play` does, with a word before."""
    from remoterun.api import Choice, Project
    from remoterun.cli.perform import perform
    from remoterun.lab.demo import PLAYBOOK

    _tell(
        f"A host named {lab.host} now runs inside this process: an SSH server on 127.0.0.1 port {lab.port}, with `pct` "
        "and three containers. What runs in them are programs of this machine; everything else is as with a real host: "
        "inventory, SSH, payload, and checkpoints that torch has written.",
        *(f"{lab.host}/{guest.id}  {guest.name:<14}{_state(guest)}" for guest in lab.guests),
        style="bold",
    )
    _tell("What a user types:", f"cd {shlex.quote(str(lab.folder))}", f"remoterun play {PLAYBOOK}")
    # The guests share this account's home, where a cached copy of the payload would outlive the demo.
    plan = Project.load(lab.folder).plan_play(PLAYBOOK, Choice(use_cache=False))
    signals.watch()
    return perform(plan, Showing(output=output))


def _judge(run: Run, status: int) -> int:
    """Say what the play's end means, and return the demo's own exit status."""
    from remoterun.lab.demo import departures

    if run.status not in _MEANINGS:
        return status
    wrong = departures(run)
    _tell(f"The play ended with exit status {status}, {run.status}: {_MEANINGS[run.status]}", before="\n")
    if wrong:
        _tell(f"That is not how the demo should go: {'; '.join(wrong)}. Please report it.")
    return _NOT_AS_TOLD if wrong else 0


def _state(guest: Guest) -> str:
    return "running" if guest.running else "stopped"


def _wait(lab: Lab) -> None:
    """Leave the lab to its user until Ctrl-C."""
    program, path = _program()
    _tell("The host goes on running. In another terminal:", f"cd {shlex.quote(str(lab.folder))}", *path)
    for what, command in _TO_TRY:
        _tell(what, command.replace("remoterun", program))
    _tell(
        "The files there are yours to change: inventory.yaml, playbooks/check-ckpt.yaml, and the checkpoints under "
        "guests/. Ctrl-C here ends it."
    )
    try:
        while True:
            signal.pause()
    except SignalledError as error:
        if error.number != signal.SIGINT:
            raise


def _program() -> tuple[str, list[str]]:
    """Return how this very program is called in another terminal, and what must be typed there before."""
    ours = Path(sys.executable).with_name("remoterun")
    if not ours.is_file():
        return f"{shlex.quote(sys.executable)} -m remoterun", []
    found = shutil.which("remoterun")
    if found is not None and Path(found).samefile(ours):
        return "remoterun", []
    return "remoterun", [f'export PATH={shlex.quote(str(ours.parent))}:"$PATH"']


def _say_what_is_left(place: Path, *, keep: bool) -> None:
    end = f"the files are in {place}" if place.exists() else f"{place} has been removed"
    _tell(f"The host has ended with all its processes; {end}.", before="\n" if keep else "")
    if not keep:
        program, path = _program()
        _tell("To leave it running, and try things on it:", *path, f"{program} demo --keep")


def _tell(text: str, *below: str, style: Style = "hint", before: str = "") -> None:
    """Write a paragraph to standard error, and commands or the like below it, unbroken so that they can be copied."""
    from remoterun.cli.output import use_color
    from remoterun.report.text import Page, Span, render

    color = use_color(sys.stderr)
    page = Page(min(shutil.get_terminal_size().columns, _WIDEST), color=color)
    page.line(Span(text))
    lines = [render((Span("  "), Span(line, style)), color=color) + "\n" for line in below]
    with suppress(OSError):  # nobody reads the story: what is read is standard output
        sys.stderr.write(f"{before}{page.text()}{''.join(lines)}\n")
        sys.stderr.flush()


def _need_files() -> None:
    """See to it that the host and the play can have their files open: both are in this process.

    Raises:
        ConfigError: too few are allowed.
    """
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed != resource.RLIM_INFINITY and allowed < _FILES:
        raise ConfigError(f"the demo has up to {_FILES} files open at once, and {allowed} are allowed: `ulimit -n 256`")


# --- what has to be cleared up ----------------------------------------------------------------------------------------


@contextmanager
def _place(folder: Path | None) -> Iterator[Path]:
    """Make the project's folder; a temporary one is removed in the end.

    Raises:
        ConfigError: the named folder holds something, or it cannot be made.
    """
    from remoterun.history.moving import DEMO_PREFIX

    if folder is None:
        try:
            place = Path(tempfile.mkdtemp(prefix=DEMO_PREFIX)).resolve()
        except OSError as error:
            raise ConfigError(f"no temporary folder can be made: {error.strerror}; name one by --dir") from error
        try:
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        taken = any(folder.iterdir())
    except OSError as error:
        raise ConfigError(f"--dir {folder}: cannot be used: {error.strerror}") from error
    if taken:
        raise ConfigError(f"--dir {folder}: holds files already: name a new folder, or an empty one")
    yield folder.resolve()


class _Signals:
    """Turn the signals that end a program into exceptions, so that all is cleared up; in the end none comes through.

    They are raised between `watch` and `ignore`, and only noted before. What is raised anywhere may be swallowed there
    (by a bare `except` in somebody's import), so it is noted as well. Only one is raised: clearing up takes a while.
    """

    def __init__(self) -> None:
        # nohup's word stands
        self._ours = [number for number in _ENDING if number != signal.SIGHUP or not _ignored(number)]
        self._came: int | None = None
        self._raising = False

    def __enter__(self) -> Self:
        self._take_over()
        return self

    def __exit__(self, *_: object) -> None:
        self.ignore()

    def watch(self) -> None:
        """Take the signals over, and raise what has come but got lost."""
        self._take_over()
        self._raising = True
        if self._came is not None:
            raise SignalledError(self._came)

    def ignore(self) -> None:
        """Let none of them come through."""
        for number in self._ours:
            signal.signal(number, signal.SIG_IGN)

    def _take_over(self) -> None:
        for number in self._ours:
            signal.signal(number, self._note)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        first, self._came = self._came is None, self._came or number
        if first and self._raising:
            raise SignalledError(number)


def _ignored(number: int) -> bool:
    return signal.getsignal(number) == signal.SIG_IGN
