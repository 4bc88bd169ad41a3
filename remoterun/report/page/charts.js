// Small charts over the steps of a training: lines of SVG, a cursor that pointer and arrow keys move.

const HEIGHT = 168;
const MARGIN = { top: 10, right: 14, bottom: 26, left: 58 };

const TIMES = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];

// The round number that at most so many ticks are apart by: for times, one of seconds, minutes, hours or days.
function stepOf(rough, asTime) {
  const power = 10 ** Math.floor(Math.log10(rough));
  const steps = asTime ? TIMES : [1, 2, 2.5, 5, 10].map((each) => each * power);
  return steps.find((each) => each >= rough * 0.999) ?? rough;
}

function ticksOf(low, high, step) {
  const ticks = [];
  for (let index = Math.ceil(low / step - 1e-9); index * step <= high + step * 1e-9; index += 1) ticks.push(index * step);
  return ticks;
}

// Counts from none to billions: none at the bottom, each further tick so many times more.
function logScale(high) {
  const top = Math.max(1, Math.ceil(Math.log10(high + 1)));
  const stride = Math.ceil(top / 3);
  const ticks = [0];
  for (let power = stride; power <= top; power += stride) ticks.push(10 ** power);
  return { place: (value) => Math.log10(value + 1) / Math.log10(10 ** top + 1), ticks };
}

function linearScale(values, fromZero, asTime) {
  let low = fromZero ? 0 : Math.min(...values);
  let high = Math.max(...values);
  if (low === high) [low, high] = fromZero || low === 0 ? [0, high || 1] : [low - Math.abs(low) * 0.05, high + Math.abs(high) * 0.05];
  const step = stepOf((high - low) / 3, asTime);
  low = Math.floor(low / step + 1e-9) * step;
  high = Math.ceil(high / step - 1e-9) * step;
  return { place: (value) => (value - low) / (high - low), ticks: ticksOf(low, high, step) };
}

const isDrawable = (value) => number(value) !== null && Math.abs(value) < 1e300;

// `lines` are [name, value of a point]; points have `x`, `label` and `each`, the checkpoint.
function chart({ title, note, points, lines, show, log, fromZero, asTime, xShow }) {
  const drawn = lines.map(([name, value]) => [name, points.map((point) => (isDrawable(value(point)) ? value(point) : null))]);
  const known = drawn.flatMap(([, values]) => values).filter((value) => value !== null);
  if (!known.length) return null;
  const scale = log ? logScale(Math.max(...known)) : linearScale(known, fromZero, asTime);
  const readout = element("span", { class: "readout", "aria-live": "polite" });
  const picture = shape("svg", { class: "chart-picture", role: "img", tabindex: "0", "aria-label": `${title}: ${known.length === 1 ? "one value" : `${whole(known.length)} values`}, the last ${show(known.at(-1))}` });
  const figure = element("figure", { class: "chart" },
    element("figcaption", null, element("span", { class: "chart-title" }, title), readout), picture,
    (lines.length > 1 || note) && element("p", { class: "keys" }, lines.length > 1 && lines.map(([name], index) => element("span", { class: `key key-${index}` }, name)), note && element("span", { class: "dim" }, note)));
  const at = { index: null, width: 0 };
  const tell = (index) => {
    const shown = index === null ? lastKnown(drawn, points.length) : index;
    const values = drawn.map(([name, each]) => (each[shown] === null ? null : `${lines.length > 1 ? `${name} ` : ""}${show(each[shown])}`)).filter(Boolean);
    readout.textContent = `${points[shown].label}: ${values.join(", ") || "not known"}`;
  };
  const move = (index) => {
    at.index = index;
    tell(index);
    cursor(picture, index === null ? null : xOf(points, at.width)(points[index].x));
  };
  picture.addEventListener("pointermove", (event) => move(nearest(points, at.width, event.clientX - picture.getBoundingClientRect().left)));
  picture.addEventListener("pointerleave", () => move(null));
  picture.addEventListener("blur", () => move(null));
  picture.addEventListener("click", () => { if (at.index !== null) openCheckpoint(points[at.index].each); });
  picture.addEventListener("keydown", (event) => {
    const last = points.length - 1;
    const next = { ArrowRight: Math.min((at.index ?? -1) + 1, last), ArrowLeft: Math.max((at.index ?? last + 1) - 1, 0), Home: 0, End: last }[event.key];
    if (next !== undefined) { event.preventDefault(); move(next); }
    if (event.key === "Enter" && at.index !== null) openCheckpoint(points[at.index].each);
  });
  tell(null);
  sized(figure, picture, (width) => { at.width = width; draw(picture, width, { points, drawn, scale, show, xShow }); });
  return figure;
}

function lastKnown(drawn, count) {
  for (let index = count - 1; index >= 0; index -= 1) if (drawn.some(([, values]) => values[index] !== null)) return index;
  return count - 1;
}

// Draw again whenever there is another width to fill.
function sized(figure, picture, drawAt) {
  let before = 0;
  new ResizeObserver(() => {
    const width = Math.round(picture.clientWidth || 320);
    if (width !== before) drawAt(width);
    before = width;
  }).observe(figure);
}

function xOf(points, width) {
  const [low, high] = [points[0].x, points.at(-1).x];
  const room = width - MARGIN.left - MARGIN.right;
  return (x) => MARGIN.left + (high > low ? (x - low) / (high - low) : 0.5) * room;
}

function nearest(points, width, left) {
  const x = xOf(points, width);
  let best = 0;
  for (let index = 1; index < points.length; index += 1) {
    if (Math.abs(x(points[index].x) - left) <= Math.abs(x(points[best].x) - left)) best = index;
  }
  return best;
}

function cursor(picture, left) {
  picture.querySelector(".cursor")?.remove();
  if (left !== null) picture.append(shape("line", { class: "cursor", x1: left, x2: left, y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom }));
}

function draw(picture, width, { points, drawn, scale, show, xShow }) {
  const x = xOf(points, width);
  const y = (value) => HEIGHT - MARGIN.bottom - scale.place(value) * (HEIGHT - MARGIN.top - MARGIN.bottom);
  picture.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  picture.replaceChildren(...scale.ticks.map((tick) => shape("g", { class: "tick" },
    shape("line", { x1: MARGIN.left, x2: width - MARGIN.right, y1: y(tick), y2: y(tick) }),
    shape("text", { x: MARGIN.left - 8, y: y(tick), dy: "0.32em", "text-anchor": "end" }, show(tick)))));
  const ends = points.length > 1 ? [[points[0], "start", MARGIN.left], [points.at(-1), "end", width - MARGIN.right]] : [[points[0], "middle", x(points[0].x)]];
  for (const [point, anchor, left] of ends) {
    picture.append(shape("text", { class: "tick", x: left, y: HEIGHT - 7, "text-anchor": anchor }, xShow(point)));
  }
  drawn.forEach(([, values], index) => {
    picture.append(shape("path", { class: `line key-${index}`, d: pathOf(points, values, x, y) }));
    values.forEach((value, place) => {
      if (value !== null) picture.append(pointOf(points[place], values, place, x(points[place].x), y(value), index));
    });
  });
}

function pathOf(points, values, x, y) {
  let path = "";
  values.forEach((value, index) => {
    if (value !== null) path += `${index && values[index - 1] !== null ? "L" : "M"}${x(points[index].x).toFixed(1)} ${y(value).toFixed(1)}`;
  });
  return path;
}

// A cross for bad checkpoints, a triangle for suspect ones; a dot for others, where there is room or no line.
function pointOf(point, values, place, left, top, index) {
  const { tone } = own(VERDICTS, point.each.verdict);
  const alone = (values[place - 1] ?? null) === null && (values[place + 1] ?? null) === null;
  if (tone === "bad") return shape("path", { class: "point tone-bad", d: `M${left - 4} ${top - 4}l8 8m0 -8l-8 8` });
  if (tone === "warn") return shape("path", { class: "point tone-warn", d: `M${left} ${top - 5}l5 8.5h-10z` });
  if (values.length > 40 && !alone) return "";
  return shape("circle", { class: `point key-${index}`, cx: left, cy: top, r: 2.5 });
}
