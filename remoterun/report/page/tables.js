// Everything as a table: findings, checkpoints or targets, searched and sorted.

const AT_ONCE = 100;

const mark = (value) => (value === null || value === undefined ? "\u2013" : value);
const amount = (name) => ({ value: (each) => number(each.record[name]), show: (each) => countText(each.record, name) ?? "\u2013", right: true });

const VIEWS = {
  findings: {
    label: "Findings", none: "Nothing was found.", rows: (model) => model.findings, sort: ["Severity", true],
    open: (each) => (each.checkpoint ? openCheckpoint(each.checkpoint) : openRow(each.row)),
    columns: {
      Severity: { value: (each) => each.rank, show: (each) => badge(SEVERITIES, each.severity), words: (each) => each.severity },
      Rule: { value: (each) => each.rule, show: (each) => element("code", null, each.rule) },
      Target: { value: (each) => each.row.target, show: (each) => each.row.target, words: (each) => `${each.row.target} ${each.row.name}` },
      Subject: { value: (each) => each.subject, show: (each) => each.subject },
      Finding: { value: (each) => each.message, show: (each) => each.message, wide: true },
      Since: { value: (each) => (each.since ? instant(each.since.at) : null), show: (each) => sinceShort(each.since), only: (model) => model.changes.known },
    },
  },
  checkpoints: {
    label: "Checkpoints", none: "No checkpoint was looked at.", rows: (model) => model.checkpoints, sort: ["Verdict", true],
    open: openCheckpoint,
    columns: {
      Verdict: { value: (each) => each.rank, show: (each) => badge(VERDICTS, each.verdict), words: (each) => each.verdict },
      Target: { value: (each) => each.row.target, show: (each) => each.row.target, words: (each) => `${each.row.target} ${each.row.name}` },
      Checkpoint: { value: (each) => each.name, show: (each) => each.name, words: (each) => `${each.name} ${each.path}` },
      Step: { value: (each) => each.step, show: (each) => mark(each.step), right: true },
      Parameters: { value: (each) => number(each.record.params), show: (each) => parameters(each.record.params) || "\u2013", right: true },
      "NaN w.": amount("nan_weights"),
      "Inf w.": amount("inf_weights"),
      "NaN opt.": amount("nan_optimizer"),
      Size: { value: (each) => number(each.record.bytes), show: (each) => bytes(each.record.bytes) || "\u2013", right: true },
      Written: { value: (each) => instant(each.record.mtime), show: (each) => (each.record.mtime ? moment(each.record.mtime) : "\u2013"), right: true },
    },
  },
  targets: {
    label: "Targets", none: "There is no target.", rows: (model) => model.rows, sort: ["Status", true],
    open: openRow,
    columns: {
      Status: { value: gravity, show: (row) => badge(STATUSES, row.status), words: (row) => row.status },
      Target: { value: (row) => row.target, show: (row) => row.target, words: (row) => `${row.target} ${row.name}` },
      Name: { value: (row) => row.name, show: (row) => row.name, only: (model) => model.rows.some((row) => row.name) },
      Step: { value: (row) => row.step, show: (row) => row.step, only: (model) => model.rows.some((row) => row.step) },
      Checkpoints: { value: (row) => row.checkpoints.length, show: (row) => whole(row.checkpoints.length), right: true },
      Findings: { value: (row) => row.findings.length, show: (row) => whole(row.findings.length), right: true },
      "Resume from": { value: resumeWords, show: (row) => resumeWords(row) || "\u2013", only: (model) => model.rows.some((row) => row.resumes.length) },
      Error: { value: (row) => errorText(row.outcome), show: (row) => errorText(row.outcome), wide: true, only: (model) => model.rows.some((row) => errorText(row.outcome)) },
      Time: { value: (row) => number(map(row.outcome.timings_s).total), show: (row) => seconds(map(row.outcome.timings_s).total) || "\u2013", right: true },
    },
  },
};

// What is different from the run before; the most notable first.
VIEWS.changes = {
  label: "Changes", none: "Nothing is different from the run before.", rows: (model) => model.changes.changes, sort: ["Change", false],
  only: (model) => model.changes.known,
  open: (each, model) => { const row = model.rows.find((one) => one.id === each.target); if (row) openRow(row); },
  columns: {
    Change: { value: (each) => `${each.routine === true ? 1 : 0} ${line(each.kind, 40)}`, show: (each) => wordOf(each.kind), words: (each) => wordOf(each.kind) },
    Target: { value: (each) => line(each.target, 300), show: (each) => line(each.target, 300) },
    What: { value: changeText, show: changeText, wide: true },
  },
};

function resumeWords({ resumes }) {
  const told = resumes.map(({ name, folder }) => `${name || "none"}${folder && ` in ${folder}`}`);
  return resumes.some(({ name }) => name) ? told.join(", ") : "";
}

function changeText(each) {
  const kind = text(each.kind);
  if (kind.startsWith("finding")) return `${line(each.rule, 60)} ${line(each.subject, 300)}: ${line(each.message)}${each.vanished === true ? " (its checkpoint is gone)" : ""}`;
  if (kind.startsWith("checkpoint")) return `${line(each.name, 300)}${each.verdict ? ` (${wordOf(each.verdict)})` : ""}`;
  if (kind.startsWith("fact")) return `${line(each.fact, 100)}: ${line(each.before, 300)} \u2192 ${line(each.after, 300)}`;
  if (kind.startsWith("number")) return `${line(each.subject, 300)}: ${line(each.number, 100)} ${line(each.before, 40)} \u2192 ${line(each.after, 40)}`;
  return [line(each.code, 60), line(each.message)].filter(Boolean).join(": ") || (number(each.runs) ? `silent for ${plural(each.runs, "run")}` : "");
}

function sinceShort(since) {
  if (!since) return "";
  return since.fresh ? element("span", { class: "new" }, "new") : moment(since.at);
}

function tables(model) {
  const chosen = { view: model.findings.length ? "findings" : model.checkpoints.length ? "checkpoints" : "targets", words: [], shown: AT_ONCE };
  const sorts = Object.fromEntries(Object.entries(VIEWS).map(([name, view]) => [name, view.sort]));
  const told = element("p", { class: "dim", role: "status" });
  const place = element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table" });

  const draw = () => {
    const view = VIEWS[chosen.view];
    const columns = Object.entries(view.columns).filter(([, column]) => !column.only || column.only(model));
    const all = view.rows(model);
    const kept = all.filter((each) => chosen.words.every((word) => wordsOf(each, columns).includes(word)));
    told.textContent = !all.length ? view.none : kept.length === all.length ? "" : `${whole(kept.length)} of ${whole(all.length)} shown`;
    const [sorted, downwards] = sorts[chosen.view];
    kept.sort(compared(view.columns[sorted].value, downwards));
    place.replaceChildren(...(kept.length ? [tableOf(view, columns, kept.slice(0, chosen.shown), sorts[chosen.view], sortBy, model)] : []));
    if (kept.length > chosen.shown) {
      place.append(button("quiet more", `Show all ${whole(kept.length)}`, () => { chosen.shown = Infinity; draw(); }));
    }
  };
  const sortBy = (name) => {
    const [before, downwards] = sorts[chosen.view];
    sorts[chosen.view] = [name, name === before ? !downwards : Boolean(VIEWS[chosen.view].columns[name].right)];
    draw();
    place.querySelector('[aria-sort] button')?.focus();
  };
  draw();
  return section("tables", "Tables", element("div", { class: "tools" },
    search("Search the table", (words) => { chosen.words = words; chosen.shown = AT_ONCE; draw(); }),
    choices("Which table", Object.entries(VIEWS).filter(([, view]) => !view.only || view.only(model)).map(([name, view]) => [name, `${view.label} `, element("span", { class: "count" }, whole(view.rows(model).length))]),
      chosen.view, (view) => { chosen.view = view; chosen.shown = AT_ONCE; draw(); })),
  told, place);
}

// What a search looks through: made when it is asked for, and kept.
const searched = new WeakMap();

function wordsOf(each, columns) {
  if (!searched.has(each)) {
    const parts = columns.map(([, column]) => (column.words || column.value)(each));
    searched.set(each, parts.filter((part) => part !== null).join(" ").toLowerCase());
  }
  return searched.get(each);
}

// What is unknown comes last, whichever way.
function compared(value, downwards) {
  return (one, other) => {
    const [left, right] = [value(one), value(other)];
    if (left === null || right === null) return (left === null) - (right === null);
    const order = typeof left === "number" ? left - right : left.localeCompare(right, "en", { numeric: true });
    return downwards ? -order : order;
  };
}

function tableOf(view, columns, items, [sorted, downwards], sortBy, model) {
  const head = columns.map(([name, column]) =>
    element("th", { scope: "col", role: "columnheader", class: column.right ? "right" : null, "aria-sort": name === sorted ? (downwards ? "descending" : "ascending") : null },
      button("sort", [name, element("span", { class: "arrow", "aria-hidden": "true" }, name === sorted ? (downwards ? "\u2193" : "\u2191") : "")], () => sortBy(name))));
  // On a narrow screen a table is laid out as cards, so that the roles have to be said.
  const body = element("tbody", {
    role: "rowgroup",
    click: (event) => { const row = event.target.closest("tr"); if (row && !getSelection().toString()) view.open(items[Number(row.dataset.item)], model); },
    keydown: (event) => { if (event.key === "Enter" && event.target.dataset.item) view.open(items[Number(event.target.dataset.item)], model); },
  }, items.map((each, index) => element("tr", { tabindex: "0", role: "row", "data-item": index },
    columns.map(([name, column]) => element("td", { role: "cell", "data-name": name, class: [column.right && "right", column.wide && "wide"].filter(Boolean).join(" ") || null }, column.show(each))))));
  return element("table", { class: "data", role: "table", "aria-label": view.label }, element("thead", { role: "rowgroup" }, element("tr", { role: "row" }, head)), body);
}
