"""Show a plan without a login: every resolved target, parameter and limit, and the exact remote command line."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

from remoterun import hops
from remoterun.cli.fitting import write_line
from remoterun.cli.options import Format, no_junit
from remoterun.cli.output import write, write_json
from remoterun.errors import clean
from remoterun.model import (
    LIMIT_NAMES,
    ExecWork,
    Job,
    Json,
    PayloadWork,
    Plan,
    ScriptWork,
    SecretSource,
    format_duration,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEMA = "remoterun/plan/1"
# What people copy has no newlines of ours in it.
_VERBATIM = ("  argv ", "  command ")


def show_plan(plan: Plan, output: Format) -> int:
    """Print a plan in the chosen format and return the exit status."""
    if no_junit(output) is Format.TABLE:
        for line in _lines(plan):
            if line.startswith(_VERBATIM):
                write(f"{clean(line)}\n")
            else:
                write_line(line, hang=15)
    else:
        write_json(plan_document(plan), indent=output.indent)
    return 0


def plan_document(plan: Plan) -> dict[str, Json]:
    """Tell a plan as plain values. Values of the environment may be secrets, so only their names are shown."""
    return {
        "schema": SCHEMA,
        "playbook": {"name": plan.playbook, "sha256": plan.playbook_sha256},
        "targets_at_once": plan.targets_at_once,
        "secrets": {name: _source(source) for name, source in _needed(plan).items()},
        "jobs": [_job(job) for job in plan.jobs],
    }


def _job(job: Job) -> dict[str, Json]:
    target, host = job.target, job.target.host
    return {
        "target": target.id,
        "name": target.name,
        "step": job.step,
        "address": host.address,
        "port": host.port,
        "user": host.user,
        "transport": host.transport,
        "jump": [jump.address for jump in host.jump] if host.jump is not None else None,
        "interpreter": target.interpreter,
        **_work(job),
        "env": [*sorted(job.env)],
        "secret_params": dict(job.secret_params),
        "secret_env": dict(job.secret_env),
        "limits": {name: format_duration(getattr(job.limits, name)) for name in LIMIT_NAMES},
        "limits_set_by": dict(job.limits_set_by),
        "fail_on": job.fail_on.value,
        "command": shlex.join(hops.enter_argv(target)),
    }


def _needed(plan: Plan) -> dict[str, SecretSource]:
    """Return the secrets that jobs refer to; their values are not fetched."""
    names = {name for job in plan.jobs for name in (*job.secret_params.values(), *job.secret_env.values())}
    return {name: source for name, source in plan.secrets.items() if name in names}


def _source(source: SecretSource) -> dict[str, Json]:
    return {source.kind: [*source.words] if source.kind == "command" else source.words[0]}


def _work(job: Job) -> dict[str, Json]:
    work = job.work
    if isinstance(work, PayloadWork):
        ref = work.pack.ref
        payload: dict[str, Json] = {"name": ref.name, "version": ref.version, "sha256": ref.sha256}
        return {"payload": {**payload, "shadows": work.pack.shadows}, "params": dict(work.params)}
    if isinstance(work, ScriptWork):
        return {"script": work.name, "bytes": len(work.source), "args": [_text(word) for word in work.args]}
    if isinstance(work, ExecWork):
        return {"argv": [_text(word) for word in work.argv]}
    return {"cache": "emptied"}


def _text(word: bytes) -> str:
    return word.decode("utf-8", "backslashreplace")


def _lines(plan: Plan) -> Iterator[str]:
    jobs = len(plan.jobs)
    yield f"{plan.playbook}: {jobs} {'job' if jobs == 1 else 'jobs'} planned, nothing started"
    for name, source in _needed(plan).items():
        yield f"secret {name}: {source.kind} {' '.join(map(shlex.quote, source.words))}"
    for job in plan.jobs:
        yield ""
        yield from _job_lines(job)


def _job_lines(job: Job) -> Iterator[str]:
    target, host = job.target, job.target.host
    name = f" ({target.name})" if target.name else ""
    step = f", step {job.step}" if job.step else ""
    yield f"{target.id}{name}{step}"
    if host.transport == "local":
        yield "  through      this machine, without SSH"
    else:
        login = f"{host.user}@" if host.user else ""
        port = f":{host.port}" if host.port else ""
        jump = f" via {', '.join(item.address for item in host.jump)}" if host.jump else ""
        jump = " by Fabric" if host.transport == "fabric" else jump
        yield f"  through      {login}{host.address}{port}{jump}"
    yield f"  interpreter  {target.interpreter}"
    yield from _work_lines(job)
    for name, secret in sorted(job.secret_params.items()):
        yield f"  param        {name} = the secret {secret}"
    if job.env:
        yield f"  env          {', '.join(sorted(job.env))}"
    for name, secret in sorted(job.secret_env.items()):
        yield f"  env          {name} = the secret {secret}"
    yield "  limits       " + " ".join(f"{name}={format_duration(getattr(job.limits, name))}" for name in LIMIT_NAMES)
    if job.limits_set_by:
        yield f"  set by       {', '.join(dict.fromkeys(job.limits_set_by.values()))}"
    yield f"  command      {shlex.join(hops.enter_argv(target))}"


def _work_lines(job: Job) -> Iterator[str]:
    work = job.work
    if isinstance(work, PayloadWork):
        ref = work.pack.ref
        shadows = f"  (shadows {work.pack.shadows})" if work.pack.shadows else ""
        yield f"  payload      {ref.name} {ref.version}  sha256:{ref.sha256}{shadows}"
        for key, value in work.params.items():
            yield f"  param        {key} = {json.dumps(value, ensure_ascii=False)}"
        yield f"  fail_on      {job.fail_on.value}"
    elif isinstance(work, ExecWork):
        yield f"  argv         {' '.join(shlex.quote(_text(word)) for word in work.argv)}"
    elif isinstance(work, ScriptWork):
        args = " ".join(shlex.quote(_text(word)) for word in work.args)
        yield f"  script       {work.name} ({len(work.source)} bytes) {args}".rstrip()
    else:
        yield "  cache        emptied"
