"""A receiver of alerts on loopback: what `json://` of Apprise posts to it is kept."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Receiver:
    """Keep what was posted; `status` is how it answers."""

    def __init__(self, port: int) -> None:
        self.url = f"json://127.0.0.1:{port}/token-of-the-chat"
        self.status = 200
        self.messages: list[dict[str, Any]] = []

    @property
    def bodies(self) -> list[str]:
        """Return the texts of the messages that were taken, oldest first."""
        return [message["message"] for message in self.messages]


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Listen on a free port of loopback."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if receiver.status == 200:
                receiver.messages.append(json.loads(body))
            self.send_response(receiver.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver = Receiver(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
