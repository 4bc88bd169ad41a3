"""Where bytes leave the program: slow readers, broken pipes, closed streams."""

from __future__ import annotations

import io
import os
import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

import pytest

from remoterun.console.outlet import Outlet, same_place

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def pipe() -> Iterator[tuple[int, TextIO]]:
    """Open a pipe: the descriptor to read from, the stream to write to."""
    reader, writer = os.pipe()
    with open(writer, "w", encoding="utf-8", closefd=False) as stream:
        yield reader, stream
    for descriptor in (reader, writer):
        try:
            os.close(descriptor)
        except OSError:
            continue


def read_all(descriptor: int, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        data += os.read(descriptor, 1 << 16)
    return bytes(data)


def test_a_reader_that_pauses_holds_nobody_up_and_loses_nothing() -> None:
    data = os.urandom(1 << 20)
    with pipe() as (reader, stream):
        outlet = Outlet(stream)
        for start in range(0, len(data), 10_000):
            outlet.write(data[start : start + 10_000])  # a pipe holds 64 KiB: most of this has to wait
        assert os.read(reader, 1000) == data[:1000]
        got: list[bytes] = []
        thread = threading.Thread(target=lambda: got.append(read_all(reader, len(data) - 1000)))
        thread.start()
        outlet.drain()
        thread.join(60)
        assert got == [data[1000:]]
        assert not outlet.broken


def test_what_waits_goes_on_when_there_is_room() -> None:
    with pipe() as (reader, stream):
        outlet = Outlet(stream)
        outlet.write(b"x" * 200_000)
        first = os.read(reader, 1 << 20)
        outlet.pump()
        assert os.read(reader, 1 << 20)
        assert len(first) < 200_000


def test_a_socket_is_treated_like_a_pipe() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, ours.makefile("w") as stream:
        outlet = Outlet(stream)
        outlet.write(b"y" * 5_000_000)
        assert theirs.recv(10) == b"y" * 10
        assert not outlet.broken


def test_a_reader_that_left_breaks_the_outlet_once_and_quietly() -> None:
    calls: list[str] = []
    with pipe() as (reader, stream):
        outlet = Outlet(stream, on_broken=lambda error: calls.append("broken"))
        os.close(reader)
        for _ in range(3):
            outlet.write(b"data")
            outlet.pump()
            outlet.drain()
        assert outlet.broken
        assert calls == ["broken"]


def test_a_closed_stream_is_broken_too() -> None:
    stream = io.StringIO()
    outlet = Outlet(stream)
    stream.close()
    outlet.text("anything")
    assert outlet.broken


def test_writing_never_waits_and_what_waits_is_told() -> None:
    size = 100 << 20
    with pipe() as (reader, stream):
        outlet = Outlet(stream)
        outlet.write(b"z" * size)
        in_the_pipe = size - outlet.waiting
        assert 0 < in_the_pipe <= 1 << 20
        got: list[int] = []
        thread = threading.Thread(target=lambda: got.append(len(read_all(reader, size))))
        thread.start()
        outlet.drain()
        thread.join(60)
        assert (got, outlet.waiting) == ([size], 0)


def test_files_get_bytes_in_order_with_what_the_stream_already_held(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with path.open("w", encoding="latin-1") as stream:
        outlet = Outlet(stream)
        stream.write("first ")
        outlet.write(b"\xff\x00")
        outlet.text("\u65e5 \xe9")
    assert path.read_bytes() == b"first \xff\x00? \xe9"


def test_same_place(tmp_path: Path) -> None:
    with pipe() as (_, stream), (tmp_path / "f").open("w") as file:
        with os.fdopen(os.dup(stream.fileno()), "w") as again:
            assert same_place(stream, again)
        assert not same_place(stream, file)
    buffer = io.StringIO()
    assert same_place(buffer, buffer)
    assert not same_place(buffer, io.StringIO())


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_text_that_the_encoding_lacks_does_not_stop_anything(encoding: str) -> None:
    buffer = io.BytesIO()
    outlet = Outlet(io.TextIOWrapper(buffer, encoding=encoding))
    outlet.text("ok \ud800 ")
    outlet.text("done")
    assert buffer.getvalue().endswith(b"done")
