"""What stands around a payload in its own process: parameters in, records out, and the truth about how it ended.

It is sent as text, compiled on the target, started by the supervisor from memory, and hands the payload a `Context`.
Records leave through a private pipe, so whatever the payload does to stdout cannot touch them.
"""

from __future__ import annotations

import gc
import os
import sys
import time

from remoterun.remote.importer import importable
from remoterun.remote.wire import DONE, ERROR, FINDING, LOG, PROGRESS, RECORD, Encoder, to_json

_SEVERITIES = ("info", "suspect", "bad")
_PROGRESS_EVERY_S = 0.2


class NothingToCheckError(Exception):
    """End a step as `nothing_to_check`: looking at nothing is never a pass."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class PayloadFailedError(Exception):
    """End a step as `payload_failed`, with the payload's own words."""


class Channel:
    """Write messages to the supervisor, from any thread and any forked worker."""

    def __init__(self, fd: int, token: bytes) -> None:
        self._fd = fd
        self._token = token
        self._renew()
        # A child forked while another thread held the lock would wait for ever.
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        import _thread

        self._lock = _thread.allocate_lock()
        self._encoder = Encoder(self._token, os.getpid())

    def send(self, kind: int, value: object) -> None:
        """Send one message; blocks while the supervisor's queue is full.

        Raises:
            ValueError: for NaN or infinite numbers, which JSON has no words for.
            TypeError: for what JSON cannot hold, bytes among it.
        """
        body = to_json(value).encode("ascii")
        with self._lock:
            for frame in self._encoder.frames(kind, body):
                view = memoryview(frame)
                while view:
                    view = view[os.write(self._fd, view) :]


class Context:
    """Give a payload its parameters and take what it has to say.

    `params` are checked and completed by the controller before anything is started.
    """

    def __init__(self, params: dict[str, object], channel: Channel) -> None:
        self.params = params
        self._channel = channel
        self._progress_due = 0.0

    def emit(self, record: dict[str, object]) -> None:
        """Emit one record, for instance one per checkpoint. Numbers are finite; write "nan" and "inf" as text."""
        if not isinstance(record, dict):
            raise TypeError("a record is a dict, not %s" % type(record).__name__)
        self._channel.send(RECORD, record)

    def finding(
        self,
        rule: str,
        severity: str,
        subject: str,
        message: str,
        next_step: str = "",
        evidence: object = None,
        **data: object,
    ) -> None:
        """Report a finding about a subject; `severity` is info, suspect or bad."""
        if severity not in _SEVERITIES:
            raise ValueError("severity is one of %s, not %r" % (", ".join(_SEVERITIES), severity))
        self._channel.send(
            FINDING,
            {
                "rule": str(rule),
                "severity": severity,
                "subject": str(subject),
                "message": str(message),
                "next_step": str(next_step),
                "evidence": evidence,
                "data": data,
            },
        )

    def progress(self, done: float, total: float | None = None, unit: str = "", what: str = "") -> None:
        """Tell how far the work is. Cheap to call often: at most five a second are sent, and always the last step."""
        now = time.monotonic()
        if now < self._progress_due and done != total:
            return
        self._progress_due = now + _PROGRESS_EVERY_S
        self._channel.send(PROGRESS, {"done": done, "total": total, "unit": str(unit)[:32], "what": str(what)[:500]})

    def log(self, text: str) -> None:
        """Say something, of at most 4000 characters, to the person who watches."""
        self._channel.send(LOG, {"text": str(text)[:4000]})

    def nothing(self, message: str, hint: str | None = None) -> None:
        """End this step as `nothing_to_check`, saying where was looked.

        `hint` says what to do; left out, that is to look elsewhere, and "" says that there is nothing to be done.
        """
        raise NothingToCheckError(message, None if hint is None else str(hint)[:1000])

    def fail(self, message: str) -> None:
        """End this step as `payload_failed`."""
        raise PayloadFailedError(message)


def missing_modules(names: list[str]) -> list[str]:
    """Return those of the named modules that cannot be found; of an inner one, those around it are imported.

    Raises:
        Exception: whatever keeps one of these from being imported.
    """
    if not names:
        return []
    from importlib.util import find_spec

    def found(name: str) -> bool:
        try:
            return find_spec(name) is not None
        except ModuleNotFoundError as error:
            # To look for an inner module, those around it are imported, and may lack others.
            if not (name + ".").startswith((error.name or name) + "."):
                raise
            return False
        except ValueError:
            return False

    return [name for name in names if not found(name)]


def _show_traceback(error: BaseException, code: str = "") -> None:
    """Print a traceback without the frame of this file, which says nothing to the payload's author."""
    import traceback

    trace = error.__traceback__
    inner = trace.tb_next if trace is not None else None
    lines = "".join(traceback.format_exception(type(error), error, inner or trace))
    # The code lies under a path that means nothing to anybody by now.
    sys.stderr.write(lines.replace(code + "/", "") if code else lines)
    sys.stderr.flush()


def _say_error(channel: Channel, error: BaseException) -> None:
    """Tell the supervisor of an uncaught exception, by its kind."""
    module = error.name if isinstance(error, ModuleNotFoundError) else None
    kinds: dict[type[BaseException], str] = {NothingToCheckError: "nothing", PayloadFailedError: "fail"}
    kind = kinds.get(type(error), "module" if module else "crash")
    channel.send(
        ERROR,
        {
            "kind": kind,
            "type": type(error).__name__,
            "message": _words(error)[:4000],
            "hint": error.hint if isinstance(error, NothingToCheckError) else None,
        },
    )


def _words(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as trouble:
        return "its text cannot be had: %s" % type(trouble).__name__


def run_payload(config: dict[str, object], channel: Channel) -> int:
    """Call the payload's entry function and return the exit status."""
    entry = str(config["entry"])
    try:
        missing = missing_modules(config["requires"])  # type: ignore[arg-type]
        if missing:
            message = "No module named %s" % ", ".join(repr(name) for name in missing)
            channel.send(ERROR, {"kind": "module", "type": "ModuleNotFoundError", "message": message})
            return 1
        module, _, function = entry.partition(":")
        context = Context(config["params"], channel)  # type: ignore[arg-type]
        getattr(__import__(module, fromlist=["*"]), function)(context)
    except (NothingToCheckError, PayloadFailedError) as error:
        _say_error(channel, error)
        return 1
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        _say_error(channel, error)
        _show_traceback(error, str(config["path"]))
        return 1
    channel.send(DONE, {})
    return 0


def run_script(config: dict[str, object], channel: Channel) -> int:
    """Run a person's script as `__main__`, with exact arguments, as `python script.py ARGS...` would."""
    name = str(config["name"])
    source: bytes = config["source"]  # type: ignore[assignment]
    main = sys.modules["__main__"]
    main.__dict__.clear()
    # The file name in tracebacks is the person's own; __file__ is a path that can be opened here, which
    # multiprocessing's spawn needs.
    main.__dict__.update(__name__="__main__", __file__=config["path"], __builtins__=__builtins__, __annotations__={})
    main.__dict__.update(dict.fromkeys(("__cached__", "__doc__", "__loader__", "__package__", "__spec__")))
    sys.argv = [name] + [os.fsdecode(word) for word in config["args"]]  # type: ignore[attr-defined]
    try:
        code = compile(source, name, "exec", dont_inherit=True)
        import linecache

        text = source.decode("utf-8", "replace")
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
        exec(code, main.__dict__)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        _say_error(channel, error)
        _show_traceback(error)
        return 1
    return 0


def main(config: dict[str, object]) -> None:
    """Run what the configuration says, and leave with its exit status.

    `config` comes from the supervisor: fd, token, mode, path (of the code, as a /proc/PID/fd path or a folder), modules
    (where they stand in it, see `importable`) and what the mode needs.
    """
    fd: int = config["fd"]  # type: ignore[assignment]
    os.set_inheritable(fd, False)
    if hasattr(gc, "freeze"):
        # What is there before the payload begins stays to the end: looking through it for garbage, at the end once
        # more, takes as long as a tenth of the start.
        gc.freeze()
    channel = Channel(fd, config["token"])  # type: ignore[arg-type]
    if config["mode"] == "script":
        status = run_script(config, channel)
    else:
        importable(str(config["path"]), config["modules"])  # type: ignore[arg-type]
        sys.argv = [str(config["entry"])]
        status = run_payload(config, channel)
    sys.exit(status)
