"""Secrets: where they come from, who gets them, and how they are kept out of everything that is written."""

from remoterun.secrets.redact import SHORTEST, RedactedStream, Redactor
from remoterun.secrets.vault import NO_SECRETS, Vault, fetch, open_vault

__all__ = ["NO_SECRETS", "SHORTEST", "RedactedStream", "Redactor", "Vault", "fetch", "open_vault"]
