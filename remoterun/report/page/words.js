// Values of documents, which may be anything, as what they ought to be; and numbers as people read them.

const list = (value) => (Array.isArray(value) ? value : []);
const isMap = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const map = (value) => (isMap(value) ? value : {});
const number = (value) => (typeof value === "number" && Number.isFinite(value) ? value : null);

// What would be invisible, or would move or reorder its surroundings, is shown as a box.
const UNSEEN = /[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

function text(value, most = 2000) {
  if (value === null || value === undefined) return "";
  const whole = typeof value === "string" ? value : JSON.stringify(value);
  const seen = whole.slice(0, most).replace(UNSEEN, "\ufffd");
  return whole.length > most ? `${seen}\u2026` : seen;
}

const line = (value, most) => text(value, most).replace(/\n/g, " ");

const grouped = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const whole = (value) => grouped.format(value);
const plural = (count, noun, many = `${noun}s`) => `${whole(count)} ${count === 1 ? noun : many}`;

function scaled(value, units, digits = 1) {
  let [unit, size] = units[0];
  for (const [name, least] of units) if (Math.abs(value) >= least * 0.99995) [unit, size] = [name, least];
  const shown = value / size;
  return `${size === 1 ? String(Math.round(shown * 100) / 100) : shown.toFixed(digits)}${unit}`;
}

const BYTES = [[" B", 1], [" kB", 1e3], [" MB", 1e6], [" GB", 1e9], [" TB", 1e12], [" PB", 1e15]];
const COUNTS = [["", 1], ["k", 1e4], ["M", 1e6]];
const SHORT = [["", 1], ["k", 1e3], ["M", 1e6], ["G", 1e9], ["T", 1e12]];

// A zero that was counted in a part alone is none that can be relied on.
const partly = (record) => number(record.bytes_checked) !== null && record.bytes_checked < number(record.bytes);
const countText = (record, name) => (number(record[name]) === null ? null : whole(record[name]) + (record[name] === 0 && partly(record) ? "?" : ""));
const bytes = (value) => (number(value) === null ? "" : scaled(value, BYTES));
const parameters = (value) => (number(value) === null ? "" : scaled(value, COUNTS));

function measure(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e15 || size < 1e-3) return value.toExponential(2);
  return size >= 1e4 ? scaled(value, SHORT) : String(Number(value.toPrecision(4)));
}

function seconds(value) {
  if (number(value) === null) return "";
  if (value < 0.995) return `${value.toFixed(2)} s`;
  if (value < 99.95) return `${value.toFixed(1)} s`;
  const minutes = Math.round(value / 60);
  if (minutes < 60) return `${Math.floor(value / 60)}m ${String(Math.floor(value % 60)).padStart(2, "0")}s`;
  if (minutes < 48 * 60) return `${Math.floor(minutes / 60)}h ${String(minutes % 60).padStart(2, "0")}m`;
  return `${(minutes / 1440).toFixed(1)} d`;
}

// 34 min, 2 h 5 min: for times of which seconds don't matter.
function span(value) {
  if (value < 120) return `${Math.round(value)} s`;
  const minutes = Math.round(value / 60);
  const [days, hours] = [Math.floor(minutes / 1440), Math.floor((minutes % 1440) / 60)];
  const parts = days ? [[days, "d"], [hours, "h"]] : [[hours, "h"], [minutes % 60, "min"]];
  return parts.filter(([count]) => count).map(([count, unit]) => `${count} ${unit}`).join(" ");
}

const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

function instant(value) {
  const time = typeof value === "string" ? Date.parse(value) : NaN;
  return Number.isFinite(time) ? time : null;
}

// 30 Nov 2026, 02:41 UTC
function moment(value) {
  const time = instant(value);
  return time === null ? line(value, 40) : `${day(value)} ${new Date(time).getUTCFullYear()}, ${clock(value)} UTC`;
}

function day(value) {
  const time = instant(value);
  return time === null ? line(value, 12) : `${new Date(time).getUTCDate()} ${MONTHS[new Date(time).getUTCMonth()]}`;
}

function clock(value) {
  const time = instant(value);
  return time === null ? "" : new Date(time).toISOString().slice(11, 16);
}

// Words of outcomes and of checkpoints: how grave, and the sign that stands beside the colour.
const STATUSES = {
  ok: { tone: "good", sign: "\u2713" },
  findings: { tone: "warn", sign: "!" },
  failed: { tone: "bad", sign: "F" },
  timeout: { tone: "bad", sign: "T" },
  unreachable: { tone: "odd", sign: "U" },
  lost: { tone: "odd", sign: "L" },
  cancelled: { tone: "idle", sign: "C" },
  not_started: { tone: "idle", sign: "\u2013" },
  running: { tone: "busy", sign: "r" },
};
const RUN_STATUSES = {
  ok: STATUSES.ok,
  findings: STATUSES.findings,
  incomplete: { tone: "bad", sign: "\u2013" },
  interrupted: { tone: "idle", sign: "C" },
  terminated: { tone: "idle", sign: "C" },
  detached: STATUSES.running,
};
const VERDICTS = {
  ok: { tone: "good", sign: "", rank: 0 },
  unchecked: { tone: "none", sign: "\u2013", rank: 1 },
  in_progress: { tone: "busy", sign: "\u2026", rank: 2 },
  unsupported: { tone: "odd", sign: "u", rank: 3 },
  suspect: { tone: "warn", sign: "?", rank: 4 },
  bad: { tone: "bad", sign: "\u00d7", rank: 5 },
};
const SEVERITIES = { info: { tone: "idle", sign: "i" }, suspect: VERDICTS.suspect, bad: VERDICTS.bad };
const OTHER = { tone: "odd", sign: "o", rank: 3 };

const own = (table, word) => (Object.hasOwn(table, word) ? table[word] : OTHER);
const wordOf = (word) => line(word, 24).replace(/_/g, " ");

// A coloured sign and the word it stands for.
function badge(table, word, more) {
  const { tone, sign } = own(table, word);
  return element("span", { class: `badge tone-${tone}` },
    element("span", { class: "sign", "aria-hidden": "true" }, sign || "\u2713"), `${wordOf(word)}${more || ""}`);
}
