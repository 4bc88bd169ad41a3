"""Manifests: files that say which digests the others ought to have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..model import FlawedError, clean_text
from ..patterns import pattern
from ..rules.rule import INFO
from .folder import escapes
from .small_json import read_json

if TYPE_CHECKING:
    from .members import Members

MANIFEST = "integrity.json"
_DIGEST = pattern(r"[0-9a-fA-F]{64}")


def note_manifest(members: Members) -> None:
    """Note what an integrity.json, as Megatron-LM writes it, says of the files beside it."""
    checkpoint, folder = members.checkpoint, members.folder
    try:
        root = read_json(folder, MANIFEST).root
    except FlawedError as error:
        checkpoint.found.append(error.found)
        return
    files = root.get("files") if isinstance(root, dict) else None
    if not isinstance(files, dict) or not all(isinstance(each, str) for each in files.values()):
        checkpoint.add("CK025", "%s does not say which file has which digest" % MANIFEST)
        return
    algorithm = root.get("algorithm", "sha256")
    if algorithm != "sha256" or not all(map(_DIGEST.fullmatch, files.values())):
        message = "its digests are not of a kind that is known here (%s), so they were not compared"
        checkpoint.add("CK029", message % clean_text(str(algorithm), 50), severity=INFO)
        return
    escaping = sorted(filter(escapes, files))
    if escaping:
        message = "%s points out of the checkpoint's folder: %s" % (MANIFEST, clean_text(escaping[0]))
        checkpoint.add("CK104", message, path=clean_text(escaping[0]), count=len(escaping))
        return
    listed = {name: digest.lower() for name, digest in files.items()}
    members.lack((name for name in listed if name not in folder.files), "file of %s" % MANIFEST)
    checkpoint.digests.update({folder.number(name): listed[name] for name in listed if name in folder.files})
