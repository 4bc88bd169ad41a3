"""What is known of a payload before it runs: its description, its parameters, its pack."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, TypeAlias

from remoterun.catalog.packing import canonical_zip, code_size, collect_file, collect_folder, lean_member
from remoterun.catalog.params import Param, check_params, unknown_param
from remoterun.catalog.versions import Version, parse_version
from remoterun.errors import ConfigError, Problem
from remoterun.model import Json, Pack, PayloadRef
from remoterun.store import remember

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

Origin: TypeAlias = Literal["project", "entry point", "built-in"]


# No slots: the pack is kept in the instance's __dict__ once it was built.
@dataclass(frozen=True, kw_only=True)
class PayloadInfo:
    """Describe a payload as its manifest does, without importing it.

    `path` is its folder or its single file; `shadows` names what it hides, such as ``built-in 1.0.0``. `entry` is
    ``module:function`` inside the Python package `package`; `program` instead is a file of the folder, to execute.
    `python` is the oldest version that will do. `limits` are the payload's own defaults, in seconds. `rules` are the
    ids of the rules that a playbook may change.
    """

    name: str
    version: str
    description: str
    origin: Origin
    path: Path
    params: tuple[Param, ...]
    limits: Mapping[str, float | None]
    requires: tuple[str, ...]
    python: tuple[int, int]
    package: str
    entry: str | None
    program: str | None
    include: tuple[str, ...]
    rules: tuple[str, ...] = ()
    shadows: str | None = None

    @property
    def order(self) -> Version:
        """Return the version as numbers, for comparing."""
        return parse_version(self.version) or (0, 0, 0)

    def check_params(
        self,
        given: Mapping[str, Json],
        *,
        where: str,
        variables: Mapping[str, Json] = MappingProxyType({}),
        secret: Collection[str] = (),
    ) -> dict[str, Json]:
        """Return every parameter of the payload with its checked value: durations in seconds, sizes in bytes.

        Args:
            given: the values as a playbook holds them.
            where: the place they were given at, for messages.
            variables: the target's variables, which supply the defaults of parameters that have a `var`.
            secret: parameters that are given as secrets, and so are left out of the result.

        Raises:
            ConfigError: with every unknown, missing and wrong parameter.
        """
        return check_params(self.params, given, variables, where=where, secret=secret)

    def parse_param(self, name: str, text: str) -> Json:
        """Read the text of ``--set name=text`` as the value a playbook would hold, to be checked with the others.

        Raises:
            ConfigError: for an unknown name and a text that its type refuses.
        """
        known = {param.name: param for param in self.params}
        if name not in known:
            raise ConfigError(replace(unknown_param(name, list(known), where=""), path=f"--set {name}"))
        problems: list[Problem] = []
        value = known[name].parse(text, path=f"--set {name}", problems=problems)
        if problems:
            raise ConfigError(problems)
        return value

    def pack(self) -> Pack:
        """Return the payload's code, read on the first call.

        Raises:
            ConfigError: when a file can't be packed (see `packing`).
        """
        return self._pack

    @cached_property
    def _pack(self) -> Pack:
        if self.origin == "built-in" and not self.include:
            # What is remembered is bound to the state of all modules of this package, which hold all its code.
            inputs = repr((str(self.path), self.package, self.program))
            data, size = remember("pack", inputs.encode("utf-8", "surrogateescape"), self._packed)
        else:
            data, size = self._packed()
        ref = PayloadRef(name=self.name, version=self.version, sha256=hashlib.sha256(data).hexdigest())
        return Pack(
            ref=ref,
            data=data,
            code_size=size,
            entry=self.entry,
            program=self.program,
            requires=self.requires,
            python=self.python,
            shadows=self.shadows,
        )

    def _packed(self) -> tuple[bytes, int]:
        """Return the bytes of the pack, and how many are of Python code."""
        if self.path.is_dir():
            package = None if self.program else self.package
            members = collect_folder(self.path, package=package, program=self.program, include=self.include)
        else:
            members = collect_file(self.path, f"{self.package}.py")
        if self.origin == "built-in":
            members = [lean_member(member) for member in members]
        return canonical_zip(members), code_size(members)
