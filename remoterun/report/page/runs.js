// The runs of the page one after the other, a column each, of which one is shown.

const ORDER_OF_STATUSES = ["ok", "findings", "failed", "timeout", "unreachable", "lost", "cancelled", "not_started", "running"];

function timeline(runs, chosen, choose) {
  if (runs.length < 2) return "";
  const most = Math.max(1, ...runs.map((run) => total(run.counts)));
  const columns = runs.map((run, index) => runColumn(run, index, most, index === chosen, () => choose(index)));
  const strip = element("div", { class: "runs", role: "group", "aria-label": "Runs" }, columns);
  strip.addEventListener("keydown", (event) => {
    const at = columns.indexOf(event.target.closest(".run"));
    const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: columns.length - 1 }[event.key];
    if (at < 0 || !columns[next]) return;
    event.preventDefault();
    focusOn(strip, columns[next]);
  });
  const used = ORDER_OF_STATUSES.filter((status) => runs.some((run) => number(map(run.counts)[status])));
  return section("timeline", "Runs", element("p", { class: "legend" }, used.map((status) => element("span", { class: "legend-item" },
    element("span", { class: `cell tone-${own(STATUSES, status).tone}`, "aria-hidden": "true" }, own(STATUSES, status).sign), wordOf(status)))), element("div", { class: "scroll" }, strip));
}

const total = (counts) => Object.values(map(counts)).reduce((sum, count) => sum + (number(count) ?? 0), 0);

function runColumn(run, index, most, chosen, choose) {
  const counts = ORDER_OF_STATUSES.map((status) => [status, Math.max(number(map(run.counts)[status]) ?? 0, 0)]).filter(([, count]) => count > 0);
  const said = `${moment(run.started_at)}, ${line(run.playbook, 80)}: ${counts.map(([status, count]) => `${count} ${wordOf(status)}`).join(", ") || "no outcome"}`;
  const stack = element("span", { class: "stack" }, counts.map(([status, count]) => {
    const piece = element("span", { class: `piece tone-${own(STATUSES, status).tone}` }, count / most > 0.09 ? whole(count) : "");
    piece.style.height = `${(100 * count) / most}%`;
    return piece;
  }));
  return button("run", [stack, element("span", { class: "run-day" }, day(run.started_at)), element("span", { class: "run-time" }, clock(run.started_at))],
    choose, { "aria-pressed": String(chosen), "aria-label": said, title: said, tabindex: chosen ? "0" : "-1" });
}
