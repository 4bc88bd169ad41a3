// The checkpoints of one target over its steps: what is wrong in them, how far weights move, when and how large they are.

function series(model) {
  const rows = model.rows.filter((row) => row.checkpoints.length > 1);
  if (!rows.length) return "";
  const place = element("div", { class: "charts" });
  const first = [...rows].sort(ORDERS.worst[1])[0];
  const draw = (row) => place.replaceChildren(...chartsOf(row));
  draw(first);
  const label = (row) => [row.target, row.name, row.step].filter(Boolean).join(" \u00b7 ");
  return section("series", "Over the steps",
    element("div", { class: "tools" }, element("label", { class: "select" }, "Target ",
      element("select", { change: (event) => draw(model.rows[Number(event.target.value)]) },
        rows.map((row) => element("option", { value: row.index, selected: row === first }, label(row)))))),
    place);
}

function showSeries(row) {
  const select = document.querySelector("#series select");
  select.value = String(row.index);
  select.dispatchEvent(new Event("change"));
  document.getElementById("series").scrollIntoView();
  select.focus({ preventScroll: true });
}

function chartsOf(row) {
  const points = pointsOf(row.checkpoints);
  const bySteps = points.every((point) => point.each.step !== null);
  const common = { points, xShow: (point) => (bySteps ? `step ${whole(point.each.step)}` : point.each.name.slice(0, 24)) };
  const record = (name) => (point) => number(point.each.record[name]);
  const withNorm = points.some((point) => number(point.each.record.update_norm) !== null);
  return [
    chart({ ...common, title: "NaN and infinite numbers", log: true, show: (value) => (value >= 1e6 ? measure(value) : whole(value)),
      lines: [["weights", (point) => sum(point, "nan_weights", "inf_weights")], ["optimizer", (point) => sum(point, "nan_optimizer", "inf_optimizer")]] }),
    chart({ ...common, title: "Norm of the weights", show: measure, lines: [["norm", record("weight_norm")]] }),
    chart({ ...common, title: "Size of the update", show: measure, fromZero: true, note: withNorm ? "" : "at least: by how much the norm changed",
      lines: [["update", withNorm ? record("update_norm") : (point) => apart(point, "weight_norm")]] }),
    chart({ ...common, title: "Time since the checkpoint before", show: span, fromZero: true, asTime: true, lines: [["interval", (point) => point.interval]] }),
    chart({ ...common, title: "Size of the checkpoint", show: bytes, fromZero: true, lines: [["size", record("bytes")]] }),
  ].filter(Boolean);
}

function sum(point, ...names) {
  const values = names.map((name) => number(point.each.record[name]));
  const total = values.reduce((all, value) => all + Math.max(value ?? 0, 0), 0);
  return values.every((value) => value === null) || (total === 0 && partly(point.each.record)) ? null : total;
}

function apart({ each, before }, name) {
  const [here, there] = [number(each.record[name]), before ? number(before.each.record[name]) : null];
  return here === null || there === null ? null : Math.abs(here - there);
}

// The oldest first; by their steps where all have one, else in the order in which they came.
function pointsOf(checkpoints) {
  const bySteps = checkpoints.every((each) => each.step !== null);
  const sorted = bySteps ? [...checkpoints].reverse().sort((one, other) => one.step - other.step) : [...checkpoints].reverse();
  const points = sorted.map((each, index) => ({ each, x: bySteps ? each.step : index, label: each.name }));
  points.forEach((point, index) => {
    point.before = points[index - 1] || null;
    const [now, then] = [instant(point.each.record.mtime), point.before ? instant(point.before.each.record.mtime) : null];
    point.interval = now !== null && then !== null && now >= then ? (now - then) / 1000 : null;
  });
  return points;
}
