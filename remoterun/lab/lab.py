"""A lab to use: a served host, and the project folder that leads to it."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from remoterun.inventory.project import FILE_NAME
from remoterun.lab.pct import Guest

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from remoterun.lab.server import Server
    from remoterun.model import Json

_HEADER: Final = """\
# Written by remoterun's lab: a host with its guests, all of them inside one process on this machine.
# The port and the keys are good for as long as it runs. And so is what runs in its guests: with `lease: none` it ends
# with its connection.
"""
_DEFAULT: Final = (Guest(id=100, name="guest"),)


class Lab:
    """Serve a host with guests on loopback, while the `with` or `async with` block lasts.

    `folder` is a project and `inventory` its file: what is played there goes through real SSH. `with` serves from a
    thread of its own, so that the block may block; `async with` serves from the event loop around it.
    """

    def __init__(self, folder: Path, guests: tuple[Guest, ...], host: str) -> None:
        self.folder = folder
        self.host = host
        self.guests = guests
        self.port = 0
        self._server: Server | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()

    @classmethod
    def start(
        cls,
        folder: Path | str,
        guests: Iterable[Guest] = _DEFAULT,
        *,
        host: str = "lab",
        payloads: Path | str | None = None,
    ) -> Lab:
        """Prepare a lab; entering the block starts it.

        Args:
            folder: where the inventory and the keys are written; made if need be.
            guests: the containers.
            host: the name of the host in the inventory.
            payloads: a folder of payloads that the lab's project is to have.

        Raises:
            FileExistsError: the folder holds an inventory or payloads already.
        """
        place = Path(folder).resolve()
        if (place / FILE_NAME).exists():
            raise FileExistsError(f"{place / FILE_NAME} exists: give the lab a folder of its own")
        place.mkdir(parents=True, exist_ok=True)
        if payloads is not None:
            (place / "payloads").symlink_to(Path(payloads).resolve(), target_is_directory=True)
        return cls(place, tuple(guests), host)

    @property
    def inventory(self) -> Path:
        """Return the inventory file."""
        return self.folder / FILE_NAME

    async def __aenter__(self) -> Self:
        from remoterun.lab.server import Server

        keys = self.folder / "keys"
        keys.mkdir(mode=0o700, exist_ok=True)
        self._server = Server(self.host, {str(guest.id): guest for guest in self.guests})
        try:
            self.port = await self._server.start(keys)
            self.inventory.write_text(_HEADER + _inventory(self.host, self.port, self.guests), encoding="utf-8")
        except BaseException:
            await self._server.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            await self._server.close()

    def __enter__(self) -> Self:
        started: Future[None] = Future()
        runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = runner.get_loop()

        def serve() -> None:
            with runner:
                runner.run(self._serve(started))

        # A daemon: should the program end inside the block, the guests' processes see their input end, and follow.
        self._thread = threading.Thread(target=serve, name="remoterun-lab", daemon=True)
        self._thread.start()
        try:
            started.result()
        except BaseException:
            self._end_thread()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_thread()

    def _end_thread(self) -> None:
        if self._loop is not None and self._thread is not None:
            with suppress(RuntimeError):  # the loop is closed: serving has ended by itself
                self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    async def _serve(self, started: Future[None]) -> None:
        try:
            async with self:
                started.set_result(None)
                await self._stop.wait()
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)


def _inventory(host: str, port: int, guests: tuple[Guest, ...]) -> str:
    import yaml

    from remoterun.lab.server import ADDRESS, KEY, KNOWN_HOSTS

    document = {
        "hosts": {
            host: {
                "address": ADDRESS,
                "port": port,
                "user": "root",
                "identity_file": f"keys/{KEY}",
                "known_hosts": f"keys/{KNOWN_HOSTS}",
                "ssh_config": "none",
                "limits": {"lease": "none"},
                "guests": {guest.id: _guest(guest) for guest in guests},
            }
        }
    }
    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    return text


def _guest(guest: Guest) -> dict[str, Json]:
    said: dict[str, Json] = {"name": guest.name, "python": guest.python}
    if guest.vars:
        said["vars"] = dict(guest.vars)
    if guest.tags:
        said["tags"] = list(guest.tags)
    return said
