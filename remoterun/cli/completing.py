"""What a shell offers while a command line is typed: names of the project at hand and of the runs that were kept.

A file that cannot be read offers nothing: the command itself says what is wrong with it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from remoterun.api import Project
    from remoterun.catalog import Catalog, PayloadInfo

Offer: TypeAlias = tuple[str, str]
"""A word and what it stands for."""

_MOST_RUNS = 30
_LONGEST_HELP = 60
_FOR_SHELLS = frozenset(" \"'\\$`;&|<>(){}[]*?!^#~")


def _offers(find: Callable[[typer.Context], Iterable[Offer]]) -> Callable[[typer.Context, str], list[Offer]]:
    """Offer what is found and begins as the word does; nothing at all where something is wrong."""

    def complete(ctx: typer.Context, incomplete: str) -> list[Offer]:
        from remoterun.errors import RemoterunError, clean

        try:
            found = [(word, clean(said)[:_LONGEST_HELP]) for word, said in find(ctx) if word.startswith(incomplete)]
        except (RemoterunError, OSError):
            return []
        # A shell would break such words, or do what they say, and a terminal might act on them.
        return [offer for offer in found if offer[0].isprintable() and not _FOR_SHELLS.intersection(offer[0])]

    complete.__name__, complete.__doc__ = find.__name__, find.__doc__
    # typer looks at them to know what to hand over; it would follow `functools.wraps`.
    complete.__annotations__ = {"ctx": typer.Context, "incomplete": str, "return": list[Offer]}
    return complete


def typed_words() -> list[str]:
    """Return the words so far, the program's name first; none where no shell asks."""
    if "_REMOTERUN_COMPLETE" not in os.environ:
        return []
    return (os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or "").split()


def _said(ctx: typer.Context, option: str) -> str | None:
    """Return what an option was given; the parser stops at a last option that still lacks its value."""
    said: Any = ctx.params.get(option)
    words = typed_words()
    flag = f"--{option}"
    return str(said) if said else words[words.index(flag) + 1] if flag in words[:-1] else None


def _project(ctx: typer.Context) -> Project:
    from remoterun.api import Project

    said = _said(ctx, "project")
    return Project.load(Path(said) if said else None)


def _payloads(ctx: typer.Context) -> list[PayloadInfo]:
    """Return the payloads of what is about to be played; those of a playbook's steps, too."""
    from remoterun.playbook import find_playbook

    project = _project(ctx)
    words = typed_words()[2:3]
    name = str(ctx.params.get("name") or "".join(words))
    if ctx.info_name == "check" or name.startswith("-"):
        name = "check-ckpt"
    playbook = find_playbook(project.root, name, project.catalog.names())
    return [project.catalog.find(step.payload) for step in playbook.steps]


@_offers
def playbooks(ctx: typer.Context) -> Iterable[Offer]:
    """Offer playbooks of the project, then payloads."""
    from remoterun.playbook import playbook_names

    project = _project(ctx)
    own = playbook_names(project.root)
    yield from ((name, "a playbook of the project") for name in own)
    yield from (offer for offer in _whole(project.catalog) if offer[0] not in own)


@_offers
def payloads(ctx: typer.Context) -> Iterable[Offer]:
    """Offer payloads."""
    return _whole(_project(ctx).catalog)


def _whole(catalog: Catalog) -> list[Offer]:
    """Return the payloads that are not broken, each with what its highest version says of itself."""
    return [(name, versions[0].description) for name in catalog.names() if (versions := catalog.versions(name))]


@_offers
def targets(ctx: typer.Context) -> Iterable[Offer]:
    """Offer everything that a selection pattern may be."""
    inventory = _project(ctx).inventory
    offers = {"all": "every target"}
    offers |= {name: f"a group of {len(members)}" for name, members in inventory.groups.items()}
    offers |= dict.fromkeys(inventory.hosts, "a host with all its guests")
    offers |= {target.name: target.id for target in inventory.targets if target.name}
    offers |= {target.id: target.name or "a target" for target in inventory.targets}
    offers |= {f"tag:{tag}": "every target with this tag" for target in inventory.targets for tag in target.tags}
    return offers.items()


@_offers
def runs(ctx: typer.Context) -> Iterable[Offer]:
    """Offer the newest runs."""
    from remoterun.history import History, default_folder

    with History.open(default_folder()) as history:
        kept = history.runs(_MOST_RUNS)
    newest = [("last", "the newest run")] if kept else []
    return [*newest, *((run.run_id, f"{run.playbook}, {run.status or 'cut'}") for run in kept)]


@_offers
def parameters(ctx: typer.Context) -> Iterable[Offer]:
    """Offer the names of parameters, ready for their values."""
    return {f"{param.name}=": param.help for payload in _payloads(ctx) for param in payload.params}.items()


@_offers
def rules(ctx: typer.Context) -> Iterable[Offer]:
    """Offer the ids of rules."""
    return [(rule, payload.name) for payload in _payloads(ctx) for rule in payload.rules]


@_offers
def limits(ctx: typer.Context) -> Iterable[Offer]:
    """Offer the names of limits, ready for their durations."""
    from remoterun.model import LIMIT_NAMES

    return [(f"{name}=", "a limit") for name in LIMIT_NAMES]
