// The fleet at a glance: a row for each target, a cell for each checkpoint, the newest first.

const ORDERS = {
  worst: ["worst first", (one, other) => gravity(other) - gravity(one) || one.index - other.index],
  plan: ["as planned", (one, other) => one.index - other.index],
  name: ["by name", (one, other) => one.target.localeCompare(other.target, "en", { numeric: true }) || one.index - other.index],
};

// Bad checkpoints first, then targets without a result, then suspect ones.
function gravity(row) {
  const worst = Math.max(0, ...row.findings.map((finding) => finding.rank));
  return worst === 2 ? 4 : !row.told ? 3 : row.status === "findings" ? 2 : worst === 1 ? 1 : 0;
}

// Rows that are drawn at once; the others follow while somebody looks at these.
const FIRST_ROWS = 40;

function fleet(model) {
  const made = new Map();
  const rowNode = (row) => {
    if (!made.has(row)) made.set(row, gridRow(row));
    return made.get(row);
  };
  const most = Math.max(0, ...model.rows.map((row) => row.checkpoints.length));
  const size = most > 60 ? "small" : most > 24 ? "medium" : "large";
  const grid = element("div", { class: `grid cells-${size}`, role: "grid", "aria-label": "Targets and their checkpoints", "aria-readonly": "true" });
  const told = element("p", { class: "dim", role: "status" });
  const chosen = { show: "all", order: "worst", words: [] };
  let drawings = 0;

  const draw = () => {
    const kept = model.rows.filter((row) => isShown(row, chosen)).sort(ORDERS[chosen.order][1]);
    const drawn = ++drawings;
    grid.replaceChildren(...kept.slice(0, FIRST_ROWS).map(rowNode));
    const follow = (start) => {
      if (drawn !== drawings || start >= kept.length) return;
      grid.append(...kept.slice(start, start + FIRST_ROWS).map(rowNode));
      setTimeout(follow, 0, start + FIRST_ROWS);
    };
    setTimeout(follow, 0, FIRST_ROWS);
    told.textContent = kept.length === model.rows.length ? "" : kept.length ? `${whole(kept.length)} of ${whole(model.rows.length)} shown` : "No target is like that.";
    const first = grid.querySelector('[tabindex="0"]') || grid.querySelector("[tabindex]");
    if (first) first.setAttribute("tabindex", "0");
  };

  const act = (node) => {
    const row = model.rows[Number(node.closest(".row").dataset.row)];
    if (node.dataset.cell === undefined) openRow(row);
    else openCheckpoint(row.checkpoints[Number(node.dataset.cell)]);
  };
  grid.addEventListener("click", (event) => {
    const node = event.target.closest("[tabindex]");
    if (!node || !grid.contains(node)) return;
    focusOn(grid, node);
    act(node);
  });
  grid.addEventListener("keydown", (event) => walk(grid, event, act));
  draw();

  return section("fleet", "Fleet", element("div", { class: "tools" },
    search("Find a target", (words) => { chosen.words = words; draw(); }),
    showChoices(model, (show) => { chosen.show = show; draw(); }),
    model.rows.length > 1 && element("label", { class: "select" }, "Order ",
      element("select", { change: (event) => { chosen.order = event.target.value; draw(); } },
        Object.entries(ORDERS).map(([value, [label]]) => element("option", { value }, label))))),
  legend(model), told, grid);
}

function showChoices(model, choose) {
  const counts = { all: model.rows.length, ok: 0, findings: 0, none: 0 };
  for (const row of model.rows) counts[row.status === "ok" ? "ok" : row.status === "findings" ? "findings" : "none"] += 1;
  const labels = { all: "All", findings: "With findings", none: "Without result", ok: "Ok" };
  const options = Object.entries(labels).filter(([each]) => counts[each]).map(([each, label]) => [each, `${label} `, element("span", { class: "count" }, whole(counts[each]))]);
  return options.length > 2 ? choices("Which targets", options, "all", choose) : "";
}

function isShown(row, { show, words }) {
  const is = show === "all" || (show === "none" ? !row.told : row.status === show);
  return is && words.every((word) => row.words.includes(word));
}

function search(label, found) {
  return element("input", {
    type: "search", class: "search", placeholder: label, "aria-label": label, autocomplete: "off", spellcheck: "false",
    input: (event) => found(event.target.value.toLowerCase().split(/\s+/).filter(Boolean)),
  });
}

function legend(model) {
  const seen = tally(model.checkpoints, "verdict");
  if (!seen.size) return "";
  const verdicts = [...seen.keys()].sort((one, other) => own(VERDICTS, one).rank - own(VERDICTS, other).rank);
  return element("p", { class: "legend" },
    verdicts.map((verdict) => element("span", { class: "legend-item" },
      element("span", { class: `cell tone-${own(VERDICTS, verdict).tone}`, "aria-hidden": "true" }, own(VERDICTS, verdict).sign), wordOf(verdict))),
    element("span", { class: "dim" }, "newest checkpoint first"));
}

function gridRow(row) {
  const { tone, sign } = own(STATUSES, row.status);
  const head = element("div", { class: "row-head", role: "rowheader", tabindex: "-1", "aria-label": [row.target, row.name, row.step, wordOf(row.status)].filter(Boolean).join(", ") },
    element("span", { class: `sign tone-${tone}`, "aria-hidden": "true" }, sign),
    element("span", { class: "row-name" }, element("strong", null, row.target), row.name && element("span", { class: "dim" }, row.name), row.step && element("span", { class: "dim" }, row.step)));
  return element("div", { class: "row", role: "row", "data-row": row.index }, head,
    element("div", { class: "row-cells" }, row.checkpoints.map(gridCell), !row.told || !row.checkpoints.length ? rowText(row) : ""),
    rowEnd(row));
}

function gridCell(each) {
  const { tone, sign } = own(VERDICTS, each.verdict);
  const cell = document.createElement("span");
  cell.className = `cell tone-${tone}`;
  cell.setAttribute("role", "gridcell");
  cell.setAttribute("tabindex", "-1");
  cell.dataset.cell = String(each.index);
  cell.title = `${each.name}: ${wordOf(each.verdict)}${each.findings.length ? `, ${plural(each.findings.length, "finding")}` : ""}`;
  cell.setAttribute("aria-label", cell.title);
  cell.textContent = sign;
  return cell;
}

// What stands in a row instead of checkpoints, or behind those that came before it ended.
function rowText(row) {
  if (!row.told) return element("span", { class: "row-text", role: "gridcell" }, badge(STATUSES, row.status), " ", element("span", { class: "dim" }, errorText(row.outcome)));
  const parts = [row.others.length && plural(row.others.length, "record"), row.findings.length && plural(row.findings.length, "finding")].filter(Boolean);
  return element("span", { class: "row-text dim", role: "gridcell" }, parts.join(", ") || "nothing to tell");
}

function rowEnd(row) {
  const ill = row.checkpoints.filter((each) => each.rank >= VERDICTS.unsupported.rank);
  const parts = [ill.length && `${whole(ill.length)} of ${whole(row.checkpoints.length)} not ok`, row.told && resumeShort(row)];
  const said = parts.filter(Boolean);
  if (!said.length && row.checkpoints.length) said.push(plural(row.checkpoints.length, "checkpoint"));
  return said.length ? element("div", { class: "row-end", role: "gridcell" }, said.map((part) => element("span", null, part))) : "";
}

function resumeShort({ resumes }) {
  if (resumes.length < 2) return resumes.map(resumeText).join("");
  const some = resumes.filter(({ name }) => name).length;
  return `Resume ${some === resumes.length ? "" : `${whole(some)} of `}${whole(resumes.length)} trainings`;
}

// Arrow keys go from cell to cell, Home and End to the ends of a row, Enter opens.
function walk(grid, event, act) {
  const node = event.target.closest("[tabindex]");
  if (!node || !grid.contains(node)) return;
  if (event.key === "Enter" || event.key === " ") {
    event.preventDefault();
    act(node);
    return;
  }
  const row = node.closest(".row");
  const cells = (each) => [...each.querySelectorAll("[tabindex]")];
  const at = cells(row).indexOf(node);
  const beside = (each) => (each ? cells(each)[Math.min(at, cells(each).length - 1)] : null);
  const next = {
    ArrowRight: () => cells(row)[at + 1], ArrowLeft: () => cells(row)[at - 1],
    ArrowDown: () => beside(row.nextElementSibling), ArrowUp: () => beside(row.previousElementSibling),
    Home: () => cells(row)[0], End: () => cells(row).at(-1),
  }[event.key];
  if (!next) return;
  event.preventDefault();
  const found = next();
  if (found) focusOn(grid, found);
}
