"""From names and files to a plan that is whole and checked, before any login."""

from __future__ import annotations

import secrets
from collections import Counter
from dataclasses import field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from remoterun.errors import ConfigError, Problem, clean, show
from remoterun.inventory import FILE_NAME, Inventory, Overrides, find_project
from remoterun.inventory.here import path_targets
from remoterun.inventory.words import ENV_NAME, LONGEST_WORD, check_env
from remoterun.model import (
    ExecWork,
    Job,
    Json,
    Limits,
    OtherWork,
    PayloadWork,
    Plan,
    Playbook,
    RuleChanges,
    ScriptWork,
    SecretRef,
    SecretSource,
    Severity,
    Step,
    Target,
    Work,
)
from remoterun.model.limits import laid_limits, read_limits
from remoterun.playbook import find_playbook, resolve_params, unknown_flag_rules, unknown_rules
from remoterun.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from remoterun.catalog import Catalog, PayloadInfo

CHECK: Final = "check-ckpt"
_LIMIT_FLAG: Final = "--limit "
_INVENTORY_LIMITS: Final = "inventory: limits."


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Say where something is to run and under which settings; every field is what a flag of the command line says.

    `on`, `without` and `only` are selection patterns: union, minus, intersection. `values` are parameters as JSON has
    them, and `params` over these the texts of ``--set``, typed by the payload's schema. `rules` are laid over those of
    the playbook. `limits` are in seconds.
    `secrets` are variables of the environment, by name, whose values are fetched when the run starts.
    """

    on: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    values: Mapping[str, Json] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    rules: RuleChanges = RuleChanges()
    limits: Mapping[str, float | None] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, SecretSource] = field(default_factory=dict)
    overrides: Overrides | None = None
    targets_at_once: int = 64
    use_cache: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """Hold what a project folder says: its inventory and its payloads.

    Without a folder only ad hoc targets and built-in payloads are there.
    """

    root: Path | None
    inventory: Inventory
    catalog: Catalog

    @classmethod
    def none(cls) -> Project:
        """Return what is there without any folder."""
        from remoterun.catalog import Catalog

        return cls(root=None, inventory=Inventory.empty(), catalog=Catalog.load(None))

    @classmethod
    def load(cls, root: Path | None = None) -> Project:
        """Load the project at `root`, or the nearest one around the working directory.

        Raises:
            ConfigError: with every problem of the inventory.
        """
        from remoterun.catalog import Catalog

        found = find_project(Path.cwd(), root)
        file = found / FILE_NAME if found else None
        inventory = Inventory.load(file) if file and file.exists() else Inventory.empty()
        return cls(root=found, inventory=inventory, catalog=Catalog.load(found))

    def select(self, choice: Choice, default: Sequence[str] = (), where: str = "targets") -> tuple[Target, ...]:
        """Return the targets of a choice, or of the default patterns, which stand at the place `where`.

        Raises:
            ConfigError: when a pattern matches nothing, or nothing was chosen.
        """
        on = choice.on or tuple(default)
        if not on:
            raise ConfigError(
                "no target was chosen: name some with --on (a host, a guest, a group, tag:x, or root@address/200)"
            )
        return self.inventory.select(
            on, choice.without, choice.only, choice.overrides, where="--on" if choice.on else where
        )

    def plan_play(self, playbook: str | Playbook, choice: Choice) -> Plan:
        """Plan a playbook, by its name too, or a payload as a playbook of its own name.

        Raises:
            ConfigError: with every problem found.
        """
        if isinstance(playbook, str):
            playbook = find_playbook(self.root, playbook, self.catalog.names())
        else:
            playbook = _checked(playbook)
        where = f"{playbook.source or playbook.name}: targets"
        patterns = playbook.targets
        return self._planned(playbook, choice, lambda: self.select(choice, patterns, where))

    def plan_check(self, paths: Sequence[str], choice: Choice, *, fail_on: Severity = Severity.SUSPECT) -> Plan:
        """Plan the audit of checkpoints on this machine: each path is a target of its own, one after the other.

        Of the choice, `params`, `rules`, `limits`, `env`, `use_cache` and the overrides' interpreter count.

        Raises:
            ConfigError: with every path that is not there, and every other problem.
        """
        if "root" in {**choice.values, **choice.params}:
            raise ConfigError(Problem(path="--set root", message="is what the paths say: name the folder there"))
        flags = (choice.overrides or Overrides()).checked()
        # No connection can be lost here: who ends the audit, in whatever way, wants it ended.
        playbook = Playbook(name=CHECK, steps=(Step(payload=CHECK, fail_on=fail_on),), limits={"lease": None})
        # Two audits at a time would only share the disk, and take from whatever trains here.
        alone = replace(choice, targets_at_once=1)
        return self._planned(playbook, alone, lambda: path_targets(paths, flags, var="checkpoints"))

    def _planned(self, playbook: Playbook, choice: Choice, select: Callable[[], Sequence[Target]]) -> Plan:
        payloads = self._payloads(playbook)
        given = _given(choice, payloads)
        jobs: list[Job] = []
        problems = _rule_problems(playbook, payloads, choice.rules) + _secret_problems(playbook, choice)
        targets: Sequence[Target] = ()
        try:
            targets = select()
        except ConfigError as error:
            problems += error.problems
        wrong: list[tuple[Target, Problem]] = []
        for target in targets:
            for index, (step, payload) in enumerate(zip(playbook.steps, payloads, strict=True)):
                try:
                    jobs.append(_job(playbook, index, step, payload, target, given[index], choice))
                except ConfigError as error:
                    wrong += [(target, problem) for problem in error.problems]
        problems += _told_once(wrong, len(targets))
        if problems:
            raise ConfigError(problems)
        return self._plan(playbook.name, playbook.sha256, jobs, choice, playbook.secrets)

    def _payloads(self, playbook: Playbook) -> list[PayloadInfo]:
        """Find the payload of every step; all that are not there are told at once."""
        found: list[PayloadInfo] = []
        problems: list[Problem] = []
        for index, step in enumerate(playbook.steps):
            try:
                found.append(self.catalog.find(step.payload))
            except ConfigError as error:
                path = f"steps.{index}.payload" if playbook.source else None
                problems += [replace(problem, file=playbook.source, path=path) for problem in error.problems]
        if problems:
            raise ConfigError(problems)
        return found

    def plan_other(self, run_id: str, choice: Choice) -> Plan:
        """Plan to look after a run that was started on another machine: what it is, its targets say.

        Raises:
            ConfigError: when nothing was chosen.
        """
        jobs = [
            Job(
                target=target,
                step=0,
                work=OtherWork(),
                limits=limits,
                limits_set_by=set_by,
            )
            for target in self.select(choice)
            for limits, set_by in (_limits_of(target, choice),)
        ]
        # `lease: none` is for runs that are begun: of one that may be at work there, nobody would be asked for it.
        jobs = [replace(job, limits=replace(job.limits, lease=job.limits.lease or Limits().lease)) for job in jobs]
        return replace(self._plan("attached", None, jobs, choice), run_id=run_id)

    def plan_work(self, name: str, work: Work, choice: Choice) -> Plan:
        """Plan a script or a program on the chosen targets.

        Raises:
            ConfigError: when a word or a variable can't be given to a program, or nothing was chosen.
        """
        if problems := [*_word_problems(work), *_env_problems(choice.env), *_secret_problems(None, choice)]:
            raise ConfigError(problems)
        jobs = [
            Job(
                target=target,
                step=0,
                work=work,
                limits=limits,
                limits_set_by=set_by,
                env={**target.env, **choice.env},
                secret_env={name: name for name in choice.secrets},
            )
            for target in self.select(choice)
            for limits, set_by in (_limits_of(target, choice),)
        ]
        return self._plan(name, None, jobs, choice)

    def _plan(
        self,
        name: str,
        sha256: str | None,
        jobs: Iterable[Job],
        choice: Choice,
        secrets: Mapping[str, SecretSource] = MappingProxyType({}),
    ) -> Plan:
        return Plan(
            run_id=new_run_id(),
            playbook=name,
            playbook_sha256=sha256,
            jobs=tuple(jobs),
            secrets={**secrets, **choice.secrets},
            targets_at_once=choice.targets_at_once,
            use_cache=choice.use_cache,
            project=str(self.root.resolve()) if self.root else "",
        )


def _checked(playbook: Playbook) -> Playbook:
    """Return a playbook that a program has made, with targets, limits and severities read as those of a file are.

    Raises:
        ConfigError: with every one that is none.
    """
    steps: list[Step] = []
    problems: list[Problem] = []
    for number, step in enumerate(playbook.steps):
        try:
            limits, fail_on = read_limits(step.limits, f"steps.{number}.limits"), Severity(step.fail_on)
            steps.append(replace(step, limits=limits, fail_on=fail_on))
        except ConfigError as error:
            problems += error.problems
        except ValueError:
            message = f"must be {', '.join(Severity)}, not {show(step.fail_on)}"
            problems.append(Problem(path=f"steps.{number}.fail_on", message=message))
    if problems:
        raise ConfigError(problems)
    targets = (playbook.targets,) if isinstance(playbook.targets, str) else tuple(playbook.targets)
    return replace(playbook, targets=targets, steps=tuple(steps), limits=read_limits(playbook.limits, "limits"))


def _job(
    playbook: Playbook,
    index: int,
    step: Step,
    payload: PayloadInfo,
    target: Target,
    given: Mapping[str, Json],
    choice: Choice,
) -> Job:
    """Resolve one target and step: flag > step > playbook > target > the payload's own."""
    source = playbook.source or playbook.name
    where = f"{source}: steps.{index}.params ({target.id})"
    params = {**resolve_params(step, target, playbook=playbook.name), **given}
    limits, set_by = laid_limits(
        (
            (f"payload {payload.name}: limits.", payload.limits),
            (_INVENTORY_LIMITS, target.limits),
            (f"{source}: limits.", playbook.limits),
            (f"{source}: steps.{index}.limits.", step.limits),
            (_LIMIT_FLAG, choice.limits),
        )
    )
    secret_params = {
        name: value.secret for name, value in step.params.items() if isinstance(value, SecretRef) and name not in given
    }
    try:
        checked = payload.check_params(params, where=where, variables=target.vars, secret=secret_params)
    except ConfigError as error:
        raise ConfigError(_where_given(problem, where, given) for problem in error.problems) from None
    rules = choice.rules.among(payload.rules).over(step.rules).document()
    work = PayloadWork(pack=payload.pack(), params={**checked, "rules": rules} if rules else checked)
    said: dict[str, str | SecretRef] = {**target.env, **step.env, **choice.env}
    env = {name: value for name, value in said.items() if not isinstance(value, SecretRef)}
    secret_env = {name: value.secret for name, value in said.items() if isinstance(value, SecretRef)}
    if problems := _env_problems(env):
        raise ConfigError(problems)
    return Job(
        target=target,
        step=index,
        work=work,
        limits=limits,
        limits_set_by=set_by,
        env=env,
        secret_params=secret_params,
        secret_env={**secret_env, **{name: name for name in choice.secrets}},
        fail_on=step.fail_on,
    )


def _where_given(problem: Problem, where: str, given: Collection[str]) -> Problem:
    """Name what was given with the call, or by a file of --params, as that: it does not stand in the playbook."""
    name = (problem.path or "").removeprefix(f"{where}.")
    return replace(problem, path=f"params.{name}") if name.partition("[")[0].partition(".")[0] in given else problem


def _limits_of(target: Target, choice: Choice) -> tuple[Limits, dict[str, str]]:
    return laid_limits(((_INVENTORY_LIMITS, target.limits), (_LIMIT_FLAG, choice.limits)))


def _given(choice: Choice, payloads: Sequence[PayloadInfo]) -> list[dict[str, Json]]:
    """Share out the parameters of a choice; a name that no step knows is a problem."""
    result: list[dict[str, Json]] = [{} for _ in payloads]
    for name in {**choice.values, **choice.params}:
        takers = [index for index, payload in enumerate(payloads) if name in {param.name for param in payload.params}]
        # When none takes it, the first one says what it knows.
        for index in takers or [0]:
            if name in choice.params:
                result[index][name] = payloads[index].parse_param(name, choice.params[name])
            else:
                result[index][name] = choice.values[name]
    return result


def _told_once(wrong: Sequence[tuple[Target, Problem]], targets: int) -> list[Problem]:
    """Tell each problem once, and leave the target out of what is wrong on every one of several."""
    bare = [replace(each, path=each.path and each.path.replace(f" ({target.id})", "", 1)) for target, each in wrong]
    counts = Counter(bare)
    told = (each if counts[each] == targets > 1 else own for each, (_, own) in zip(bare, wrong, strict=True))
    return list(dict.fromkeys(told))


def _rule_problems(playbook: Playbook, payloads: Sequence[PayloadInfo], flags: RuleChanges) -> list[Problem]:
    """Say which rules are named, by the playbook or by flags, that the payloads do not have."""
    problems: list[Problem] = []
    for index, payload in enumerate(payloads):
        problems += unknown_rules(playbook, index, payload.name, payload.rules)
    known = {rule: None for payload in payloads for rule in payload.rules}
    return [*problems, *unknown_flag_rules(flags, [payload.name for payload in payloads], known)]


def _secret_problems(playbook: Playbook | None, choice: Choice) -> list[Problem]:
    """Say which secrets of flags mean two things."""
    problems = [
        Problem(path=f"--secret {name}", message="is given by --env as well: keep one of the two")
        for name in choice.secrets
        if name in choice.env
    ]
    problems += [
        Problem(path=f"--secret {clean(name)}", message=f"is not {ENV_NAME.what}: {ENV_NAME.rule}")
        for name in choice.secrets
        if not ENV_NAME.fits(name)
    ]
    own = playbook.secrets if playbook is not None else {}
    return problems + [
        Problem(path=f"--secret {name}", message="the playbook has a secret of this name: refer to that in its `env`")
        for name, source in choice.secrets.items()
        if own.get(name, source) != source
    ]


def _env_problems(env: Mapping[str, str]) -> list[Problem]:
    """Hold what comes from flags and programs to the rule of the inventory."""
    problems: list[Problem] = []
    for name, value in env.items():
        try:
            check_env(name, value)
        except ValueError as error:
            problems.append(Problem(path=f"env {clean(name)}", message=str(error)))
    return problems


def _word_problems(work: Work) -> list[Problem]:
    if isinstance(work, ExecWork) and not (work.argv and work.argv[0]):
        return [Problem(message="there is no program to run: its name is the first word of the command")]
    argv = work.argv if isinstance(work, ExecWork) else ()
    args = work.args if isinstance(work, ScriptWork) else ()
    words = [(f"word {index} of the command", word) for index, word in enumerate(argv)]
    problems = [
        Problem(path=what, message=f"is {len(word)} bytes long; Linux takes at most {LONGEST_WORD} in one word")
        for what, word in words
        if len(word) > LONGEST_WORD
    ]
    return problems + [
        Problem(path=what, message="holds a zero byte, which no program can be given")
        for what, word in (*words, *((f"argument {index}", word) for index, word in enumerate(args)))
        if b"\0" in word
    ]


def new_run_id() -> str:
    """Make an id that sorts by time and is nobody else's."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    return f"{stamp}-{secrets.token_hex(4)}"
