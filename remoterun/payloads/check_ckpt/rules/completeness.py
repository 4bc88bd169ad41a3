"""Rules about files that belong together."""

from __future__ import annotations

from typing import Dict

from .rule import Rule

RULES: Dict[str, Rule] = {}
