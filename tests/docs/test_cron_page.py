"""The guide for audits shows the paragraph that an audit says, word for word and line for line."""

from __future__ import annotations

import re
from dataclasses import replace

from remoterun.audit.outcome import Audit
from remoterun.audit.summary import paragraph
from tests.docs.generate import DOCS
from tests.docs.pages import blocks_of
from tests.support.audits import audited, nan, run
from tests.support.compared import compare

GUESTS = [f"kpro6/{number}" for number in range(200, 220)]


def test_the_paragraph_is_what_an_audit_says() -> None:
    (shown,) = [
        block.text for block in blocks_of(DOCS / "cron.md") if block.text.startswith("remoterun audit of /srv/fleet,")
    ]
    earlier_id, run_id = re.findall(r"\d{8}T\d{6}Z-\w+", shown)
    (moment,) = re.findall(r"(\d{4}-\d\d-\d\d) (\d\d:\d\d) UTC", shown)
    before = replace(run(0, *(audited(guest, (2028,)) for guest in GUESTS)), run_id=earlier_id)
    damaged = audited(GUESTS[0], (2028, 2029), nan(2029, "model.w", 4))
    after = run(1, damaged, *(audited(guest, (2028,)) for guest in GUESTS[1:]))
    after = replace(after, run_id=run_id)
    said = Audit(
        project="/srv/fleet",
        started_at="{}T{}:24.000Z".format(*moment),
        runs=(after,),
        differences=(compare(before, after),),
    )
    assert paragraph(said) == shown
