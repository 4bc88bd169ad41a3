"""Put the rooms together: from names and files to a plan, and from a plan to its run."""

from __future__ import annotations

from remoterun.api.carry import carry_out, look_at_host_keys, secrets_of
from remoterun.api.project import CHECK, Choice, Project, new_run_id

__all__ = ["CHECK", "Choice", "Project", "carry_out", "look_at_host_keys", "new_run_id", "secrets_of"]
