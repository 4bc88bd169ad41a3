"""`remoterun demo`: a host with three containers inside this process, and the real thing played against it."""

from __future__ import annotations

import shlex
import shutil
import signal
import sys
import tempfile
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NoReturn, Self

import typer

from remoterun.cli.options import Format, OutputOption, Showing
from remoterun.errors import ConfigError
from remoterun.model import RunStatus

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from remoterun.lab import Guest, Lab
    from remoterun.report.text import Style

_NOT_AS_TOLD: Final = 1
_WIDEST: Final = 100
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

    with ExitStack() as stack:
        signals = stack.enter_context(_Signals())
        place = stack.enter_context(_place(folder))
        lab = stack.enter_context(Lab.start(place, lay_out(place), host=HOST))
        # The first to run on the way out: what follows takes seconds at most, and must not be cut short.
        stack.callback(signals.ignore)
        status = _play(lab, output, signals)
        if keep and status in (0, _NOT_AS_TOLD):
            _wait(lab)
    _say_what_is_left(place, keep=keep)
    return status


# --- the story --------------------------------------------------------------------------------------------------------


def _play(lab: Lab, output: Format, signals: _Signals) -> int:
    """Play the playbook as `remoterun play` does, with a word before and after, and return the demo's exit status."""
    from remoterun.api import Choice, Project
    from remoterun.cli.perform import perform
    from remoterun.lab.demo import PLAYBOOK, departures

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
    run, status = perform(plan, Showing(output=output))
    signals.watch()  # the play had them, and left the defaults behind
    if run.status not in _MEANINGS or status != run.status.exit_code:
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
    with suppress(KeyboardInterrupt):
        while True:
            signal.pause()


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
    from remoterun.cli.perform import use_color
    from remoterun.report.text import Page, Span, render

    color = use_color(sys.stderr)
    page = Page(min(shutil.get_terminal_size().columns, _WIDEST), color=color)
    page.line(Span(text))
    lines = [render((Span("  "), Span(line, style)), color=color) + "\n" for line in below]
    with suppress(OSError):  # nobody reads the story: what is read is standard output
        sys.stderr.write(f"{before}{page.text()}{''.join(lines)}\n")
        sys.stderr.flush()


# --- what has to be cleared up ----------------------------------------------------------------------------------------


@contextmanager
def _place(folder: Path | None) -> Iterator[Path]:
    """Make the project's folder; a temporary one is removed in the end.

    Raises:
        ConfigError: the named folder holds something, or cannot be made.
    """
    if folder is None:
        place = Path(tempfile.mkdtemp(prefix="remoterun-demo-")).resolve()
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
    """Turn the signals that end a program into exceptions, so that all is cleared up, and restore them in the end.

    What is raised anywhere may be swallowed there (by a bare `except` in somebody's import), so it is noted as well.
    """

    def __init__(self) -> None:
        self._before = {number: signal.getsignal(number) for number in _ENDING}
        self._came: int | None = None

    def __enter__(self) -> Self:
        self.watch()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def watch(self) -> None:
        """Take the signals over, and raise what has come but got lost."""
        for number, handler in self._before.items():
            if number != signal.SIGHUP or handler != signal.SIG_IGN:  # nohup's word stands
                signal.signal(number, self._note)
        if self._came is not None:
            self._raise(self._came)

    def ignore(self) -> None:
        """Let none of them come through."""
        for number in self._before:
            signal.signal(number, signal.SIG_IGN)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._came = number
        self._raise(number)

    @staticmethod
    def _raise(number: int) -> NoReturn:
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)
