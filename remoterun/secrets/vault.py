"""The values of a run's secrets: fetched on this machine before any login, handed only to the jobs that name them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from remoterun.errors import BugError, ConfigError, Problem, clean, show
from remoterun.model import Captured, PayloadWork
from remoterun.secrets.redact import SHORTEST, Redactor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from remoterun.model import Job, Outcome, Plan, SecretSource

LONGEST: Final = 64 << 10
COMMAND_S: Final = 30.0
_MOST_SAID: Final = 300
_LOOK_S: Final = 0.1


class Vault:
    """Hold the values of secrets by name."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values
        self.redactor = Redactor(values)

    def __repr__(self) -> str:
        return f"Vault({', '.join(sorted(self._values))})"

    def opened(self, job: Job) -> Job:
        """Return a job with the values that it may have in place of their names."""
        if not job.secret_env and not job.secret_params:
            return job
        env = {name: self._values[secret] for name, secret in job.secret_env.items()}
        work = job.work
        if isinstance(work, PayloadWork):
            params = {name: self._values[secret] for name, secret in job.secret_params.items()}
            work = replace(work, params={**work.params, **params})
        return replace(job, work=work, env={**job.env, **env})

    def cleaned(self, outcome: Outcome) -> Outcome:
        """Return an outcome without secrets in what was said around the payload; the rest was cleaned as it came."""
        redactor = self.redactor
        if not redactor:
            return outcome
        error = outcome.error
        return replace(
            outcome,
            error=error and replace(error, message=redactor.text(error.message), hint=redactor.text(error.hint)),
            noise=_cleaned(outcome.noise, redactor),
            log=tuple(map(redactor.text, outcome.log)),
        )

    def bug(self, error: Exception) -> Exception:
        """Return an error as it may be written down: itself, unless it or its traceback holds a secret."""
        if not self.redactor:
            return error
        import traceback

        said = "".join(traceback.format_exception(error))
        clean_said = self.redactor.text(said)
        if clean_said == said:
            return error
        return BugError(self.redactor.text(f"{type(error).__name__}: {error}"), clean_said)


def _cleaned(captured: Captured, redactor: Redactor) -> Captured:
    head, tail = redactor.data(captured.head), redactor.stream().finish_after_gap(captured.tail)
    growth = len(head) + len(tail) - len(captured.head) - len(captured.tail)
    return Captured(head=head, tail=tail, total=captured.total + growth)


NO_SECRETS: Final = Vault({})


def open_vault(
    plan: Plan, done: Iterable[tuple[str, int]] = (), on_missing: Callable[[Problem], None] | None = None
) -> Vault:
    """Fetch the secrets that a plan's jobs need, but for those jobs (by target and step) that are done. Blocks.

    `on_missing` takes what would else be raised, where nothing is to be started: those secrets are then left out.

    Raises:
        ConfigError: with every secret that cannot be had, or cannot be used. No message holds a value.
    """
    finished = set(done)
    jobs = [job for job in plan.jobs if (job.target.id, job.step) not in finished]
    needed = {name: None for job in jobs for name in (*job.secret_params.values(), *job.secret_env.values())}
    if not needed:
        return NO_SECRETS
    values: dict[str, str] = {}
    problems: list[Problem] = []
    for name in needed:
        try:
            values[name] = fetch(plan.secrets[name])
        except ValueError as error:
            problems.append(Problem(path=f"secrets.{name}", message=str(error)))
    if problems and on_missing is None:
        raise ConfigError(problems)
    if on_missing is not None:
        for problem in problems:
            on_missing(problem)
    return Vault(values)


def fetch(source: SecretSource) -> str:
    """Fetch the value of one secret. Blocks.

    Raises:
        ValueError: it cannot be had, or cannot be used. The message does not hold the value.
    """
    return _checked(_fetch(source))


def _checked(value: bytes) -> str:
    """Return a value as text that a parameter and an environment can hold, without the newline that ends a file."""
    value = value.removesuffix(b"\n").removesuffix(b"\r")
    if len(value) > LONGEST:
        raise ValueError(f"is longer than {LONGEST >> 10} KiB, the most that a secret may have")
    if len(value) < SHORTEST:
        what = "is empty" if not value else f"is shorter than {SHORTEST} bytes"
        raise ValueError(f"{what}: it could not be kept out of the output")
    if b"\0" in value:
        raise ValueError("holds a zero byte, which no program can be given")
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError("is no UTF-8 text: encode it (base64)") from None  # the error holds the value


def _fetch(source: SecretSource) -> bytes:
    if source.kind == "env":
        value = os.environb.get(os.fsencode(source.words[0]))
        if value is None:
            raise ValueError(f"the environment variable {source.words[0]} is not set")
        return value
    return _read(source.words[0]) if source.kind == "file" else _run(source)


def _read(path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return file.read(LONGEST + 3)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error


def _run(source: SecretSource) -> bytes:
    """Return what a command prints; it has no terminal, so it cannot ask for anything."""
    program = show(source.words[0])
    try:
        process = subprocess.Popen(
            source.words,
            cwd=source.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise ValueError(f"the command {program} cannot be started: {error.strerror or error}") from error
    with process:  # its pipes are closed at last, whoever else has them still
        try:
            out, said = _output(process)
        except BaseException as error:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            text = f"the command {program} was not done after {COMMAND_S:g}s, and cannot ask for anything"
            raise ValueError(text) from None
    if process.returncode != 0:
        last = clean(said.decode("utf-8", "replace")[-_MOST_SAID:]).strip()
        how = f"exit status {process.returncode}" if process.returncode > 0 else f"signal {-process.returncode}"
        raise ValueError(f"the command {program} ended with {how}" + (f" and said: {last}" if last else ""))
    return out


def _output(process: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """Return what a program has said by its end; what it leaves in the background, as an agent, may hold the pipes."""
    give_up = time.monotonic() + COMMAND_S
    while True:
        # Before they are read: by then everything is in them.
        ended = process.poll() is not None
        try:
            return process.communicate(timeout=_LOOK_S)
        except subprocess.TimeoutExpired as error:
            if ended:
                return error.output or b"", error.stderr or b""
            if time.monotonic() >= give_up:
                raise
