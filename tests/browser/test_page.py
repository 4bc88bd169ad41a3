"""The HTML report in a real browser: it draws itself, answers clicks and keys, and obeys no string of a target."""

from __future__ import annotations

import base64
import itertools
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from selenium.webdriver.common.keys import Keys

from remoterun.compare import difference_document
from remoterun.errors import TargetError
from remoterun.model import ErrorInfo, Finding, Json, Run, Severity, Status
from remoterun.report import document
from remoterun.report.page import page_of
from tests.browser.chromium import LAPTOP, PHONE, Browser, Colours
from tests.browser.conftest import Write
from tests.browser.fleets import all_good, large, nights, nothing_reachable, run_at, with_findings
from tests.support.audits import audited, nan, path_of, run
from tests.support.compared import compare
from tests.support.runs import CHECK_CKPT, checkpoint, mixed_run, runs

HOSTILE = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(2)>",
    '"><svg onload=alert(3)>',
    "</script><script>alert(4)</script>",
    "javascript:alert(5)",
    "{{ 7 * 7 }}${7 * 7}",
    "__proto__",
    "constructor",
)
STATES: dict[str, tuple[Callable[[], Run], str]] = {
    "good": (all_good, "All 12 targets are ok."),
    "findings": (with_findings, "6 of 13 targets have findings, 3 gave no result."),
    "silence": (nothing_reachable, "None of the 9 targets could be reached."),
}


@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("size", [LAPTOP, PHONE], ids=["laptop", "phone"])
@pytest.mark.parametrize("state", STATES)
def test_a_state_at_a_glance(
    chromium: Browser, write: Write, tmp_path: Path, state: str, size: tuple[int, int], colours: Colours
) -> None:
    make, headline = STATES[state]
    run = make()
    chromium.open(write([run]), size, colours)
    assert chromium.texts(".headline") == [headline]
    assert chromium.texts("#plain") == []
    assert len(chromium.all(".row")) == len(run.outcomes)
    # Nothing is cut off at the right; what is wider than the screen scrolls by itself.
    assert chromium.run("return document.documentElement.scrollWidth <= innerWidth")
    assert (_lightness(chromium, "body", "backgroundColor") > 0.5) is (colours == "light")
    picture = chromium.picture(whole=True)
    assert picture.startswith(b"\x89PNG")
    # REMOTERUN_PICTURES=FOLDER keeps them, to be looked at.
    folder = Path(os.environ.get("REMOTERUN_PICTURES") or tmp_path)
    (folder / f"{state}-{size[0]}-{colours}.png").write_bytes(picture)


def test_one_target_in_a_sentence(chromium: Browser, write: Write) -> None:
    said = {}
    for outcome in mixed_run().outcomes[:4]:
        chromium.open(write([run_at(7, outcome)]))
        said[outcome.status.value] = chromium.texts(".headline")[0]
    assert said == {
        "findings": "The target has findings.",
        "failed": "The target gave no result.",
        "timeout": "The target gave no result.",
        "unreachable": "The target could not be reached.",
    }


def _lightness(chromium: Browser, selector: str, what: str) -> float:
    return float(
        chromium.run(
            "const style = getComputedStyle(document.querySelector(arguments[0]));"
            "const [r, g, b] = style[arguments[1]].match(/[\\d.]+/g).map(Number);"
            "return (r + g + b) / 765",
            selector,
            what,
        )
    )


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_signs_and_words_stand_out_from_what_is_behind_them(chromium: Browser, write: Write, colours: Colours) -> None:
    chromium.open(write([with_findings()]), colours=colours)
    faint = chromium.run(
        """
        const light = (color) => {
          const [r, g, b] = color.match(/[\\d.]+/g).map((each) => Number(each) / 255)
            .map((each) => (each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4));
          return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        const behind = (node) => {
          const color = getComputedStyle(node).backgroundColor;
          return color === "rgba(0, 0, 0, 0)" ? behind(node.parentElement) : color;
        };
        const contrast = (node) => {
          const [low, high] = [light(getComputedStyle(node).color), light(behind(node))].sort((a, b) => a - b);
          return (high + 0.05) / (low + 0.05);
        };
        return [...document.querySelectorAll(".sign, .cell, .dim, .count, .sort, .choice, td, p, a, h1, h2, button")]
          .filter((node) => node.offsetParent && node.textContent && contrast(node) < 4.5)
          .map((node) => `${node.className}: ${node.textContent} ${contrast(node)}`);
        """
    )
    assert faint == []


def test_each_verdict_has_a_sign_beside_its_colour(chromium: Browser, write: Write) -> None:
    chromium.open(write([with_findings()]))
    signs = chromium.run(
        "return [...new Set([...document.querySelectorAll('.row-cells .cell')]"
        ".map((each) => each.title.split(': ')[1].split(',')[0] + '=' + each.textContent))].sort()"
    )
    assert signs == ["bad=\u00d7", "in progress=\u2026", "ok=", "suspect=?", "unsupported=u"]


# --- clicks and keys --------------------------------------------------------------------------------------------------


def test_a_cell_opens_what_was_found(chromium: Browser, write: Write) -> None:
    chromium.open(write([mixed_run()]))
    chromium.one(".row-cells .tone-bad").click()
    assert chromium.texts("#panel-title") == ["step_2029"]
    assert "152 NaN in the weights, the first in layers.3" in chromium.texts(".findings")[0]
    assert "Resume from step_2000" in chromium.texts(".findings .next")[0]
    assert chromium.texts(".panel .kind") == ["kpro6/200 \u00b7 dflash-train"]
    next(each for each in chromium.all(".panel-actions button") if "Older" in each.text).click()
    assert chromium.texts("#panel-title") == ["step_2000"]
    assert "Nothing was found." in chromium.texts(".panel-body")[0]
    chromium.press(Keys.ESCAPE)
    assert not chromium.run("return document.querySelector('dialog').open")


def test_each_training_of_a_target_says_where_to_resume(chromium: Browser, write: Write) -> None:
    trainings: list[Json] = [
        {"folder": "sft", "checkpoints": 2, "resume_from": "sft/step_4"},
        {"folder": "dpo", "checkpoints": 1, "resume_from": None},
        {"folder": "vision", "checkpoints": 1, "resume_from": "vision/step_9"},
    ]
    unchecked: dict[str, Json] = {"resume_from": None, "trainings": [], "verdicts": {"unchecked": 1}}
    none: dict[str, Json] = {"resume_from": None, "trainings": trainings[1:2]}
    summaries: dict[str, dict[str, Json]] = {
        "several": {"resume_from": "vision/step_9", "trainings": trainings},
        "one": {"resume_from": "step_1", "trainings": trainings[:1]},
        "none": none,
        "unchecked": unchecked,
    }
    outcomes = [
        replace(audited(name, [1]), records=(checkpoint(1), {"kind": "summary", **summary}))
        for name, summary in summaries.items()
    ]
    chromium.open(write([run(0, *outcomes)]))
    assert chromium.texts(".row-end") == [
        "Resume 2 of 3 trainings",
        "Resume from step_1",
        "No checkpoint to resume from",
        "1 checkpoint",
    ]
    said = {}
    for name in summaries:
        next(each for each in chromium.all(".row-head") if name in each.text).click()
        said[name] = chromium.texts(".panel-body")[0]
        chromium.press(Keys.ESCAPE)
    assert (
        "Resume from sft/step_4 in sft.\nNo checkpoint in dpo to resume from.\nResume from vision/step_9 in vision."
        in (said["several"])
    )
    assert "Resume from step_1.\n" in said["one"]
    assert "No checkpoint to resume from." in said["none"]
    assert "Where to resume is not known, since no values were checked." in said["unchecked"]
    next(each for each in chromium.all("#tables .choice") if "Targets" in each.text).click()
    cells = chromium.texts('#tables td[data-name="Resume from"]')
    assert sorted(cells) == sorted(
        ["sft/step_4 in sft, none in dpo, vision/step_9 in vision", "step_1", "\u2013", "\u2013"]
    )


def test_a_target_opens_why_it_has_no_result(chromium: Browser, write: Write) -> None:
    chromium.open(write([mixed_run()]))
    next(each for each in chromium.all(".row-head") if "kpro6/203" in each.text).click()
    said = chromium.texts(".panel-body")[0]
    assert "run_timeout The payload ran longer than the limit" in said
    assert "hosts.kpro6.guests.203.limits.run" in said
    assert "warning: /mnt/nfs answers slowly" in said
    assert "set by" not in said


@pytest.mark.parametrize(("set_by", "told"), [({"run": "--limit run"}, "(set by --limit run)"), ({}, "(default)")])
def test_a_limit_is_told_with_the_place_where_it_was_set(
    chromium: Browser, write: Write, set_by: dict[str, str], told: str
) -> None:
    error = ErrorInfo.of(TargetError("run_timeout", "too long", limit=("run", 60.0, "limits.run")), set_by)
    late = replace(audited("a", []), status=Status.TIMEOUT, error=error)
    chromium.open(write([run(0, late)]))
    chromium.one(".row-head").click()
    assert f"Limit run, 60.0 s: limits.run {told}" in chromium.texts(".panel-body")[0]


def test_the_fleet_is_walked_by_keys(chromium: Browser, write: Write) -> None:
    chromium.open(write([with_findings()]))
    assert len(chromium.all('.grid [tabindex="0"]')) == 1
    chromium.run("document.querySelector('.grid [tabindex=\"0\"]').focus()")
    chromium.press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_DOWN)
    assert chromium.run("return document.activeElement.title") == "step_9500: ok"
    chromium.press(Keys.END)
    assert chromium.run("return document.activeElement.title") == "step_500: ok"
    chromium.press(Keys.ENTER)
    assert chromium.texts("#panel-title") == ["step_500"]
    chromium.press(Keys.ESCAPE)
    assert chromium.run("return document.activeElement.title") == "step_500: ok"
    assert len(chromium.all('.grid [tabindex="0"]')) == 1


def test_the_fleet_is_searched_filtered_and_ordered(chromium: Browser, write: Write) -> None:
    chromium.open(write([with_findings()]))
    shown = "#fleet .row-name strong"
    assert chromium.texts(shown)[:4] == ["kpro1/202", "kpro1/207", "kpro9/201", "kpro9/203"]
    _choose(chromium, "#fleet", "Without result")
    assert chromium.texts(shown) == ["kpro9/201", "kpro9/203", "kpro9/300"]
    chromium.one("#fleet .search").send_keys("not running")
    assert chromium.texts(shown) == ["kpro9/201"]
    chromium.one("#fleet .search").send_keys(" whatever")
    assert chromium.texts("#fleet [role=status]") == ["No target is like that."]
    chromium.one("#fleet .search").clear()
    chromium.one("#fleet .search").send_keys("kpro")
    _choose(chromium, "#fleet", "All")
    chromium.one("#fleet select option[value=name]").click()
    assert chromium.texts(shown)[:3] == ["kpro1/200", "kpro1/201", "kpro1/202"]


def _choose(chromium: Browser, where: str, label: str) -> None:
    next(each for each in chromium.all(f"{where} .choice") if each.text.startswith(label)).click()


def _column(chromium: Browser, name: str) -> Sequence[str]:
    return chromium.texts(f'#tables td[data-name="{name}"]')


def test_tables_are_searched_and_sorted(chromium: Browser, write: Write) -> None:
    chromium.open(write([with_findings()]))
    assert _column(chromium, "Severity")[:4] == ["\u00d7\nbad"] * 4
    chromium.one("#tables .search").send_keys("CK080 vision")
    assert _column(chromium, "Target") == ["kpro1/206"]
    assert chromium.texts("#tables [role=status]") == ["1 of 8 shown"]
    chromium.one("#tables .search").clear()
    chromium.one("#tables .search").send_keys("kpro1/202")
    _choose(chromium, "#tables", "Checkpoints")
    _sort(chromium, "Step")
    steps = [int(each) for each in _column(chromium, "Step")]
    assert steps == sorted(steps, reverse=True)
    assert len(steps) == 20
    _sort(chromium, "Step")
    assert [int(each) for each in _column(chromium, "Step")] == sorted(steps)
    assert chromium.run("return document.querySelector('[aria-sort]').ariaSort") == "ascending"
    assert chromium.run("return document.activeElement.innerText").startswith("Step")
    chromium.one("#tables tbody tr").click()
    assert chromium.texts("#panel-title") == ["step_500"]


def _sort(chromium: Browser, name: str) -> None:
    next(each for each in chromium.all("#tables th button") if each.text.startswith(name)).click()


def test_long_tables_are_shown_in_part_until_all_is_wanted(chromium: Browser, write: Write) -> None:
    chromium.open(write([with_findings()]))
    _choose(chromium, "#tables", "Checkpoints")
    assert len(_column(chromium, "Checkpoint")) == 100
    chromium.one("#tables .more").click()
    assert len(_column(chromium, "Checkpoint")) == 202


# --- charts and runs --------------------------------------------------------------------------------------------------


def test_series_over_the_steps(chromium: Browser, write: Write) -> None:
    chromium.open(write([with_findings()]))
    titles = chromium.texts(".chart-title")
    assert titles == [
        "NaN and infinite numbers",
        "Norm of the weights",
        "Size of the update",
        "Time since the checkpoint before",
        "Size of the checkpoint",
    ]
    # The worst target is shown first: two of its checkpoints are bad, in two lines and in those of time and size.
    assert len(chromium.all(".charts .point.tone-bad")) == 8
    chromium.wait("return document.querySelector('.chart-picture path').getAttribute('d').length > 20")
    chromium.run("document.querySelector('.chart-picture').focus()")
    chromium.press(Keys.HOME, Keys.ARROW_RIGHT)
    assert chromium.texts(".readout")[0] == "step_1000: weights 0, optimizer 0"
    chromium.press(Keys.ENTER)
    assert chromium.texts("#panel-title") == ["step_1000"]
    chromium.press(Keys.ESCAPE)
    chromium.one("#series select option:last-child").click()
    assert chromium.all(".charts .point.tone-bad") == []


def test_a_target_leads_to_its_series(chromium: Browser, write: Write) -> None:
    chromium.open(write([with_findings()]))
    next(each for each in chromium.all(".row-head") if "kpro1/207" in each.text).click()
    next(each for each in chromium.all(".panel-body button") if each.text == "Over the steps").click()
    assert chromium.run("return document.activeElement.selectedOptions[0].textContent") == "kpro1/207 \u00b7 audio"
    assert chromium.run("return document.querySelector('#series').getBoundingClientRect().top < innerHeight")
    assert len(chromium.all(".charts .point.tone-bad")) == 8


def test_what_no_checkpoint_tells_has_no_chart(chromium: Browser, write: Write) -> None:
    chromium.open(write([mixed_run()]))
    assert "Norm of the weights" not in chromium.texts(".chart-title")
    assert chromium.texts(".chart-title")[0] == "NaN and infinite numbers"


def test_one_run_of_several_is_chosen(chromium: Browser, write: Write) -> None:
    some = nights()
    differences = [difference_document(compare(before, after)) for before, after in itertools.pairwise(some)]
    chromium.open(write(some, differences))
    columns = chromium.all("#timeline .run")
    assert len(columns) == 9
    assert columns[3].get_attribute("aria-label") == "4 Mar 2026, 02:00 UTC, check-ckpt: 5 ok, 3 unreachable"
    assert columns[8].get_attribute("aria-pressed") == "true"
    assert chromium.texts(".summary .dim") == ["Since 8 Mar 2026, 02:00 UTC: 0 new findings, 0 gone."]
    columns[5].click()
    chromium.wait("return document.querySelector('.head p').innerText.startsWith('6 Mar')")
    assert chromium.texts(".summary .dim") == ["Since 5 Mar 2026, 02:00 UTC: 1 new finding, 0 gone."]
    assert _column(chromium, "Since") == ["new"]
    _choose(chromium, "#tables", "Changes")
    assert (_column(chromium, "Change")[0], _column(chromium, "Target")[0]) == ("finding new", "kpro1/202")
    assert _column(chromium, "What")[0].startswith("CK001 step_4500: model.layers.3.mlp.down_proj.weight: 1368 NaN")
    assert _column(chromium, "Change")[1:] == ["number moved"] * 2
    assert _column(chromium, "What")[1].endswith("nan_weights 0 \u2192 1368")
    chromium.one("#tables tbody tr").click()
    assert chromium.texts("#panel-title") == ["kpro1/202"]
    chromium.press(Keys.ESCAPE)
    columns = chromium.all("#timeline .run")
    chromium.run("arguments[0].focus()", columns[5])
    assert chromium.run("return document.activeElement.ariaPressed") == "true"
    chromium.press(Keys.ARROW_LEFT, Keys.ARROW_LEFT, Keys.ENTER)
    chromium.wait("return document.querySelector('.head p').innerText.startsWith('4 Mar')")
    assert chromium.texts(".headline") == ["3 of 8 targets gave no result."]


def test_findings_about_records_of_one_archive_are_told_apart(chromium: Browser, write: Write) -> None:
    torn = [
        nan(1, rule="CK022", data={"file": path_of(1), "tensors": [f"w{number}"], "record": f"data/{number}"})
        for number in range(3)
    ]
    calm = nan(1, rule="CK069", severity=Severity.INFO)
    before, after = run(0, audited("a", [1], torn[0], torn[1])), run(1, audited("a", [1], torn[1], torn[2], calm))
    chromium.open(write([before, after], [difference_document(compare(before, after))]))
    assert chromium.texts(".summary .dim")[0].endswith(": 1 new finding, 1 gone.")
    assert sorted(_column(chromium, "Since"))[1:] == ["new", "new"]
    assert sorted(_column(chromium, "Since"))[0] != "new"


def test_phases_of_the_slowest_targets(chromium: Browser, write: Write) -> None:
    chromium.open(write([mixed_run()]))
    assert chromium.texts("#timings .bar-row button")[:2] == ["kpro6/203", "kpro6/200"]
    assert (
        chromium.one("#timings .bar").get_attribute("title")
        == "connect 0.21 s, enter 0.70 s, upload 0.01 s, run 30m 00s"
    )


# --- what must never happen -------------------------------------------------------------------------------------------


def _hostile_run() -> Run:
    names = [*HOSTILE, "\u202egnp.exe", "a\u200bb\x00c\x1b[31m"]
    records = [checkpoint(100 - index, name=name, path=f"/{name}", verdict=name) for index, name in enumerate(names)]
    odd: list[dict[str, Json]] = [
        {"kind": "checkpoint", "name": [], "path": {}, "step": "x", "bytes": -1, "mtime": [], "verdict": None}
    ]
    huge = [checkpoint(10**300, weight_norm=1e308, bytes=10**400, mtime="9" * 50)]
    found = [
        Finding(rule=name, severity=Severity.BAD, subject=name, message=name, next_step=name, evidence={name: name})
        for name in names
    ]
    outcome = replace(
        mixed_run().outcomes[0],
        records=(
            *records,
            *odd,
            *huge,
            dict(zip(names, names, strict=True)),
            {"kind": "summary", "resume_from": HOSTILE[0]},
        ),
        findings=tuple(found),
        facts={name: name for name in names},
        log=tuple(names),
    )
    others = [replace(mixed_run().outcomes[3], target=name, name=name) for name in names]
    return replace(run_at(5, outcome, *others), playbook=HOSTILE[3], run_id=HOSTILE[0])


@pytest.mark.parametrize("size", [LAPTOP, PHONE], ids=["laptop", "phone"])
def test_strings_of_a_target_are_shown_as_they_are_and_do_nothing(
    chromium: Browser, write: Write, size: tuple[int, int]
) -> None:
    run = _hostile_run()
    chromium.open(write([run, replace(run, started_at="2026-03-02T00:00:00.000Z")]), size)
    # An alert would have made every command of the driver fail.
    kinds = "return [...new Set([...document.querySelectorAll('*')].map((each) => each.localName))].sort().join()"
    before = set(chromium.run(kinds).split(","))
    assert HOSTILE[3] in chromium.texts("h1")[0]
    chromium.one("#fleet .row-cells .cell").click()
    assert chromium.texts("#panel-title") == [HOSTILE[0]]
    assert [text for text in HOSTILE if text not in chromium.run("return document.body.textContent")] == []
    chromium.press(Keys.ESCAPE)
    for view in ("Checkpoints", "Targets", "Findings"):
        _choose(chromium, "#tables", view)
        assert HOSTILE[1] in " ".join(chromium.texts("#tables td"))
    for head in chromium.all(".row-head"):
        chromium.run("arguments[0].click()", head)
        chromium.press(Keys.ESCAPE)
    after = set(chromium.run(kinds).split(","))
    assert not (before | after) & {"img", "iframe", "object", "embed", "form", "link", "base"}
    assert chromium.run("return document.querySelectorAll('script').length") == 4
    # What reorders or hides is shown as a box.
    assert "\ufffdgnp.exe" in " ".join(chromium.texts("#fleet .row-name strong"))
    assert "\u202e" not in chromium.run("return document.body.innerText")


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(runs(), min_size=1, max_size=2))
def test_any_run_is_drawn(chromium: Browser, write: Write, some: list[Run]) -> None:
    chromium.open(write(some))
    assert chromium.run("return document.documentElement.dataset.ready") != "failed", chromium.texts("#trouble")
    for view in ("Checkpoints", "Targets", "Findings"):
        _choose(chromium, "#tables", view)
    chromium.run("document.querySelectorAll('.row-head, .row-cells .cell').forEach((each) => each.click())")


def test_the_policy_stops_what_would_come_in(chromium: Browser, write: Write) -> None:
    chromium.open(write([all_good()]))
    assert (
        chromium.run("try { document.body.innerHTML = '<b>x</b>' } catch (error) { return error.name }") == "TypeError"
    )
    chromium.run(
        "const node = document.createElement('img'); node.src = 'http://127.0.0.1:9/x'; document.body.append(node)"
    )
    chromium.wait("return document.querySelector('img').complete")
    said = " ".join(chromium.complaints())
    assert "TrustedHTML" in said
    assert "violates the following Content Security Policy directive" in said


def test_it_opens_without_a_network_and_asks_for_nothing(chromium: Browser, write: Write) -> None:
    chromium.cdp("Network.enable")
    chromium.cdp("Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0, uploadThroughput=0)
    try:
        chromium.open(write([with_findings()]))
        assert chromium.texts(".headline") == [STATES["findings"][1]]
        assert chromium.run("return performance.getEntriesByType('resource').length") == 0
    finally:
        chromium.cdp("Network.disable")


def test_a_browser_of_2023_draws_it_too(chromium: Browser, write: Write) -> None:
    made = chromium.cdp("Page.addScriptToEvaluateOnNewDocument", source="delete Uint8Array.fromBase64")
    try:
        chromium.open(write([with_findings()]))
    finally:
        chromium.cdp("Page.removeScriptToEvaluateOnNewDocument", identifier=made["identifier"])
    assert chromium.texts(".headline") == [STATES["findings"][1]]


def test_an_old_browser_gets_the_essentials(chromium: Browser, write: Write) -> None:
    made = chromium.cdp("Page.addScriptToEvaluateOnNewDocument", source="delete window.DecompressionStream")
    try:
        chromium.open(write([mixed_run()]))
    finally:
        chromium.cdp("Page.removeScriptToEvaluateOnNewDocument", identifier=made["identifier"])
    said = chromium.texts("#plain")[0]
    assert "This browser is too old" in said
    assert "1 ok, 1 findings, 1 failed" in said


def test_the_document_can_be_saved_from_the_page(chromium: Browser, write: Write, tmp_path: Path) -> None:
    chromium.cdp("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    chromium.open(write([mixed_run()]))
    next(each for each in chromium.all(".head-actions button") if each.text == "Save JSON").click()
    file = tmp_path / "remoterun-0195bc5e7a0c.json"
    chromium.until(file.exists)
    assert json.loads(file.read_bytes())["run_id"] == "0195bc5e7a0c"


def test_it_is_printed_without_what_paper_cannot_do(chromium: Browser, write: Write) -> None:
    chromium.open(write([with_findings()]), colours="dark")
    printed = base64.b64decode(chromium.cdp("Page.printToPDF", printBackground=True)["data"])
    assert printed.startswith(b"%PDF")
    chromium.cdp("Emulation.setEmulatedMedia", media="print")
    try:
        hidden = chromium.run("return getComputedStyle(document.querySelector('.head-actions')).display")
        assert hidden == "none"
        assert _lightness(chromium, "body", "backgroundColor") == 1
    finally:
        chromium.cdp("Emulation.setEmulatedMedia", media="")


def test_colours_are_chosen_on_the_page_too(chromium: Browser, write: Write) -> None:
    chromium.open(write([all_good()]), colours="light")
    _choose(chromium, ".head", "Dark")
    assert _lightness(chromium, "body", "backgroundColor") < 0.2
    _choose(chromium, ".head", "System")
    assert _lightness(chromium, "body", "backgroundColor") > 0.8


def test_records_that_were_too_much_are_told(chromium: Browser, tmp_path: Path) -> None:
    whole: Any = document(mixed_run())
    whole["outcomes"][0]["records_left_out"] = 123_456
    file = tmp_path / "report.html"
    file.write_bytes(page_of([whole]))
    chromium.open(file)
    next(each for each in chromium.all(".row-head") if "kpro6/200" in each.text).click()
    assert chromium.texts(".note") == [
        "123,456 records of this target were too much for a page; remoterun show has all."
    ]


def test_runs_of_other_payloads_are_shown_as_well(chromium: Browser, write: Write) -> None:
    first = replace(
        mixed_run().outcomes[0],
        records=({"kind": "probe", "system": {"hostname": "a"}},),
        findings=(),
        status=Status.OK,
        payload=replace(CHECK_CKPT, name="probe"),
    )
    chromium.open(write([run_at(6, first, replace(first, step=1, records=()))]))
    assert chromium.texts("#fleet .row-text") == ["1 record", "nothing to tell"]
    assert "step 1: probe" in chromium.texts("#fleet .row-name")[1]
    chromium.one("#fleet .row-head").click()
    assert "Record 1: probe" in chromium.texts(".panel-body")[0]


# --- large fleets -----------------------------------------------------------------------------------------------------


def test_200_targets_with_100_checkpoints_open_in_two_seconds(chromium: Browser, write: Write) -> None:
    file = write([large()])
    assert file.stat().st_size < 8_000_000
    took: list[int] = []
    # Other tests run beside this one, so it may take more than one try.
    while len(took) < 6 and min(took, default=2000) >= 2000:
        chromium.open(file)
        took.append(int(chromium.run("return document.documentElement.dataset.ready")))
        chromium.wait("return document.querySelectorAll('.row-cells .cell').length === 20000")
    assert min(took) < 2000
