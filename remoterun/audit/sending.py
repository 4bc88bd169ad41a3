"""Send one message through Apprise: the program of a process of its own, which is ended when it takes too long.

It reads a JSON object from standard input (url, title, body, limit_s) and writes one to standard output: whether the
message was `taken`, the `error` that kept it from being sent, and what was `heard` of the library.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from typing import Any

# Whoever started this has given up by then, or is gone.
_MARGIN_S = 5.0


class _Heard(logging.Handler):
    """Keep what is logged."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Take one line."""
        self.lines.append(record.getMessage().rstrip("."))


def send(url: str, title: str, body: str) -> str | None:
    """Send a message; return why it was not taken, or None: an empty text where only the log says why."""
    try:
        import apprise

        # What targets say is text: no emoji, no escapes, no markup.
        asset = apprise.AppriseAsset(
            app_id="remoterun", app_desc="remoterun", interpret_emojis=False, interpret_escapes=False, async_mode=False
        )
        service = apprise.Apprise(asset=asset)
        if not service.add(url):
            return "its URL is none that Apprise knows (https://appriseit.com/services)"
        taken = service.notify(title=title, body=body, body_format=apprise.NotifyFormat.TEXT)
    except Exception as error:
        # Services are written by many people: whatever happens in one is an answer.
        return f"{type(error).__name__}: {error}"
    return None if taken else ""


def main() -> None:
    """Read, send, answer, and wait for nobody."""
    request: dict[str, Any] = json.load(sys.stdin.buffer)
    signal.setitimer(signal.ITIMER_REAL, request["limit_s"] + _MARGIN_S)
    heard = _Heard()
    logger = logging.getLogger("apprise")
    logger.addHandler(heard)
    logger.propagate = False
    # Whatever a service prints is no answer.
    out = os.dup(1)
    os.dup2(2, 1)
    why = send(request["url"], request["title"], request["body"])
    answer = {"taken": why is None, "error": why, "heard": heard.lines}
    with open(out, "w", encoding="ascii", closefd=False) as file:
        json.dump(answer, file)
    os._exit(0)


if __name__ == "__main__":
    main()
