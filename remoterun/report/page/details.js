// The panel that tells everything about one checkpoint or one outcome.

const MOST_FINDINGS = 100;
const MOST_RECORDS = 50;

const panel = element("dialog", { class: "panel", "aria-labelledby": "panel-title" });
panel.addEventListener("click", (event) => {
  if (event.target === panel) panel.close();
});

function open(title, kind, body, around) {
  const [newer, older] = around || [];
  const walk = (label, go) => go !== undefined && button("quiet", label, go || (() => {}), { disabled: !go });
  panel.replaceChildren(
    element("header", { class: "panel-head" },
      element("div", { class: "panel-title" }, element("p", { class: "kind" }, kind), element("h2", { id: "panel-title", tabindex: "-1" }, title)),
      element("div", { class: "panel-actions" },
        walk("\u2190 Newer", newer) || "", walk("Older \u2192", older) || "",
        button("quiet", "Close", () => panel.close()))),
    element("div", { class: "panel-body" }, body));
  if (!panel.open) panel.showModal();
  panel.querySelector("#panel-title").focus();
  panel.querySelector(".panel-body").scrollTop = 0;
}

function openCheckpoint(each) {
  const { record, row } = each;
  const near = (index) => (row.checkpoints[index] ? () => openCheckpoint(row.checkpoints[index]) : null);
  open(each.name, [row.target, row.name, row.step].filter(Boolean).join(" \u00b7 "), [
    element("p", { class: "lead" }, badge(VERDICTS, each.verdict), " ", shareText(record)),
    findingList(each.findings, each.verdict === "ok" ? "Nothing was found." : ""),
    facts([
      ["Step", record.step], ["Epoch", record.epoch], ["Parameters", parameters(record.params)],
      ["NaN in weights", countText(record, "nan_weights")], ["Infinite weights", countText(record, "inf_weights")],
      ["NaN in optimizer", countText(record, "nan_optimizer")], ["Infinite in optimizer", countText(record, "inf_optimizer")],
      ["Weight norm", number(record.weight_norm) === null ? null : measure(record.weight_norm)],
      ["Size", bytes(record.bytes)], ["Checked", bytes(record.bytes_checked)],
      ["Written", typeof record.mtime === "string" ? moment(record.mtime) : null],
      ["Format", record.format], ["Path", record.path],
    ]),
    unfolded("Whole record", JSON.stringify(record, null, 2)),
  ], [near(each.index - 1), near(each.index + 1)]);
}

function shareText(record) {
  return partly(record) && element("span", { class: "dim" }, `only ${bytes(record.bytes_checked)} of ${bytes(record.bytes)} checked`);
}

function openRow(row) {
  const { outcome } = row;
  const timings = Object.entries(map(outcome.timings_s)).map(([name, value]) => [wordOf(name), seconds(value)]);
  const about = row.findings.filter((finding) => !finding.checkpoint);
  open(row.target, [row.name, row.step].filter(Boolean).join(" \u00b7 ") || "Target", [
    element("p", { class: "lead" }, badge(STATUSES, row.status), " ",
      element("span", { class: "dim" }, `ended in phase ${wordOf(outcome.phase)}`)),
    isMap(outcome.error) && errorBox(outcome),
    resumeList(row),
    row.checkpoints.length > 0 && tallyLine(row),
    row.checkpoints.length > 1 && element("p", null, button("quiet", "Over the steps", () => { panel.close(); showSeries(row); })),
    about.length > 0 && findingList(about),
    facts([
      ...Object.entries(map(outcome.facts)).map(([name, value]) => [wordOf(name), value]),
      ["payload", [row.payload, line(map(outcome.payload).version, 40)].filter(Boolean).join(" ")],
      ["exit status", outcome.exit_status],
      ["connections", outcome.connections],
    ]),
    facts(timings),
    row.others.slice(0, MOST_RECORDS).map((record, index) =>
      unfolded(`Record ${index + 1}${typeof record.kind === "string" ? `: ${line(record.kind, 40)}` : ""}`, JSON.stringify(record, null, 2))),
    row.others.length > MOST_RECORDS && element("p", { class: "dim" }, `and ${plural(row.others.length - MOST_RECORDS, "more record")}: see the JSON`),
    leftOut(outcome),
    ["stdout", "stderr", "noise"].map((name) => outcome[name] ? unfolded(name, outcome[name], name === "stderr") : ""),
    list(outcome.log).length > 0 && unfolded("log", list(outcome.log).map((each) => line(each)).join("\n")),
  ]);
}

function leftOut(outcome) {
  const count = number(outcome.records_left_out);
  return count && element("p", { class: "note" }, `${plural(count, "record")} of this target ${count === 1 ? "was" : "were"} too much for a page; remoterun show has all.`);
}

function errorBox(outcome) {
  const { error } = outcome;
  const limit = map(error.limit);
  return element("div", { class: "box tone-bad" },
    element("p", null, element("code", null, line(error.code, 60)), " ", messageOf(outcome)),
    error.hint && element("p", null, text(error.hint)),
    limit.key && element("p", { class: "dim" }, `Limit ${line(limit.name, 40)}, ${seconds(limit.value_s)}: `, element("code", null, line(limit.key, 200)), limit.set_by && ` (${limit.set_by === "default" ? "" : "set by "}${line(limit.set_by, 300)})`));
}

function resumeText({ name, folder }) {
  if (name) return `Resume from ${name}${folder && ` in ${folder}`}`;
  return `No checkpoint${folder && ` in ${folder}`} to resume from`;
}

function resumeList({ resumes, summary }) {
  if (resumeUnknown(summary)) return element("p", null, "Where to resume is not known, since no values were checked.");
  const texts = resumes.map((each) => `${resumeText(each)}.`);
  return texts.length > 1 ? element("ul", { class: "resumes" }, texts.map((each) => element("li", null, each))) : texts.length > 0 && element("p", null, texts);
}

function tallyLine(row) {
  const counts = [...tally(row.checkpoints, "verdict")].sort(([one], [other]) => own(VERDICTS, other).rank - own(VERDICTS, one).rank);
  return element("p", { class: "tally" }, counts.map(([verdict, count]) => [badge(VERDICTS, verdict, ` ${whole(count)}`), " "]));
}

function findingList(findings, none) {
  if (!findings.length) return none ? element("p", { class: "dim" }, none) : "";
  const sorted = [...findings].sort((one, other) => other.rank - one.rank);
  return element("ul", { class: "findings" },
    sorted.slice(0, MOST_FINDINGS).map((finding) => element("li", null,
      element("p", { class: "finding-head" }, badge(SEVERITIES, finding.severity), " ", element("code", null, finding.rule), " ", sinceBadge(finding)),
      element("p", null, text(finding.data.message)),
      finding.data.next_step && element("p", { class: "next" }, text(finding.data.next_step)),
      evidence(finding.data))),
    findings.length > MOST_FINDINGS && element("li", { class: "dim" }, `and ${plural(findings.length - MOST_FINDINGS, "more finding")}: see the table`));
}

function evidence(data) {
  const parts = { ...map(data.data), ...(isMap(data.evidence) ? data.evidence : {}) };
  const pairs = Object.entries(parts).filter(([, value]) => value !== null && value !== "");
  return pairs.length ? element("ul", { class: "evidence" }, pairs.map(([name, value]) => element("li", null, element("b", null, line(name, 60)), ` ${line(value, 300)}`))) : "";
}

function sinceBadge(finding) {
  if (!finding.since) return "";
  return finding.since.fresh ? element("span", { class: "new" }, "new") : element("span", { class: "dim" }, `since ${moment(finding.since.at)}`);
}

function facts(pairs) {
  const known = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return known.length ? element("dl", { class: "facts" }, known.map(([name, value]) => [element("dt", null, line(name, 60)), element("dd", null, text(value))])) : "";
}

function unfolded(title, content, shown) {
  return element("details", { open: Boolean(shown) }, element("summary", null, title), element("pre", { tabindex: "0" }, text(content, 20000)));
}
