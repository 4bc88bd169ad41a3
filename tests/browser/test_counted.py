"""What a page says of numbers that were counted in a part alone, and of messages beside their target."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tests.support.audits import audited, run
from tests.support.runs import checkpoint, mixed_run

if TYPE_CHECKING:
    from tests.browser.chromium import Browser
    from tests.browser.conftest import Write


def test_a_zero_of_a_part_is_none_that_can_be_relied_on(chromium: Browser, write: Write) -> None:
    records = (checkpoint(2, verdict="bad", bytes_checked=5_000, nan_weights=3), checkpoint(1))
    chromium.open(write([run(0, replace(audited("box", [1]), records=records))]))
    chromium.one(".row-cells .tone-bad").click()
    facts = chromium.texts(".panel-body")[0].splitlines()
    assert facts[facts.index("NaN in weights") + 1] == "3"
    assert facts[facts.index("NaN in optimizer") + 1] == "0?"
    # Neither is there a point for it in the chart of the optimizer's.
    assert chromium.texts(".readout")[0] == "step_2: weights 3"
    assert chromium.texts("td")[5:8] == ["3", "0?", "0?"]


def test_a_message_does_not_name_the_target_that_it_stands_beside(chromium: Browser, write: Write) -> None:
    chromium.open(write([mixed_run()]))
    assert "connect_refused: nothing listens on 10.1.2.7 port 22." in " ".join(chromium.texts(".row-text"))
