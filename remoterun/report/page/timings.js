// Where the time of a run went: a bar for each target, the slowest first.

const PHASES = ["queued", "connect", "enter", "upload", "run"];
const SLOWEST = 12;

function timings(model) {
  const timed = model.rows.map((row) => ({ row, parts: PHASES.map((name) => Math.max(number(map(row.outcome.timings_s)[name]) ?? 0, 0)) }))
    .map((each) => ({ ...each, total: each.parts.reduce((sum, part) => sum + part, 0) }))
    .filter((each) => each.total > 0)
    .sort((one, other) => other.total - one.total);
  if (!timed.length) return "";
  const used = PHASES.map((name, index) => [name, index]).filter(([, index]) => timed.some((each) => each.parts[index] > 0));
  const bars = element("div", { class: "bars" });
  const draw = (most) => {
    bars.replaceChildren(...timed.slice(0, most).map((each) => timingBar(each, timed[0].total)));
    if (timed.length > most) bars.append(button("quiet more", `Show all ${whole(timed.length)}`, () => draw(Infinity)));
  };
  draw(SLOWEST);
  return section("timings", "Where the time went",
    element("p", { class: "legend" }, used.map(([name, index]) => element("span", { class: "legend-item" }, element("span", { class: `swatch phase-${index}`, "aria-hidden": "true" }), name)),
      timed.length > 1 && element("span", { class: "dim" }, "slowest target first")),
    bars);
}

function timingBar({ row, parts, total }, longest) {
  const told = parts.map((part, index) => (part > 0 ? `${PHASES[index]} ${seconds(part)}` : "")).filter(Boolean).join(", ");
  const bar = element("div", { class: "bar", role: "img", "aria-label": told, title: told }, parts.map((part, index) => {
    if (part <= 0) return "";
    const piece = element("span", { class: `phase-${index}` });
    piece.style.flexGrow = String(part / longest);
    return piece;
  }));
  const rest = element("span", { class: "rest" });
  rest.style.flexGrow = String(Math.max(1 - total / longest, 0));
  bar.append(rest);
  return element("div", { class: "bar-row" }, button("link", [row.target, row.step].filter(Boolean).join(" \u00b7 "), () => openRow(row)), bar, element("span", { class: "right" }, seconds(total)));
}
