"""What the report files of an audit say, read by others' parsers."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

from junitparser import Failure, JUnitXml
from prometheus_client.openmetrics.parser import text_string_to_metric_families


def metric(path: Path, name: str, **labels: str) -> float:
    """Return the sum of a metric's samples that have these labels."""
    families = text_string_to_metric_families(path.read_text("utf-8"))  # type: ignore[no-untyped-call]
    samples = [sample for family in families for sample in family.samples if sample.name == name]
    return float(sum(sample.value for sample in samples if labels.items() <= sample.labels.items()))


def failures(path: Path) -> dict[str, str]:
    """Return what failed of the test cases of a JUnit file, by their names."""
    suites = JUnitXml.fromfile(str(path))
    return {
        str(case.name): str(result.message)
        for suite in suites
        for case in suite
        for result in case.result
        if isinstance(result, Failure)
    }


def page_data(path: Path) -> list[dict[str, Any]]:
    """Return what a page holds: its index, and the documents of its runs."""
    held = re.findall(r'<script type="text/plain" id="[^"]*">([^<]*)</script>', path.read_text("utf-8"))
    return [json.loads(gzip.decompress(base64.b64decode(text))) for text in held]
