// A run's document as the page needs it: one row for each outcome, its checkpoints, and their findings.

const SEVERITY_RANKS = { info: 0, suspect: 1, bad: 2 };
const severityRank = (finding) => SEVERITY_RANKS[finding.severity] ?? 0;

function modelOf(run, difference) {
  const outcomes = list(run.outcomes).filter(isMap);
  const steps = new Set(outcomes.map((outcome) => outcome.step)).size;
  const changes = changesOf(difference);
  const rows = outcomes.map((outcome, index) => rowOf(outcome, index, steps > 1, changes));
  return { run, rows, difference, changes, checkpoints: rows.flatMap((row) => row.checkpoints), findings: rows.flatMap((row) => row.findings) };
}

function rowOf(outcome, index, withStep, changes) {
  const payload = line(map(outcome.payload).name, 100);
  const target = line(outcome.target, 300);
  const row = {
    index, outcome, target, payload,
    id: text(outcome.target, Infinity),
    name: line(outcome.name, 300),
    step: withStep ? `step ${number(outcome.step) ?? "?"}${payload ? `: ${payload}` : ""}` : "",
    status: line(outcome.status, 24),
    told: outcome.status === "ok" || outcome.status === "findings",
    summary: {}, others: [], checkpoints: [], findings: [],
  };
  for (const record of list(outcome.records).filter(isMap)) {
    if (record.kind === "checkpoint") row.checkpoints.push(checkpointOf(record, row, row.checkpoints.length));
    else if (record.kind === "summary") row.summary = record;
    else if (record.kind !== "series") row.others.push(record);
  }
  row.resumes = resumesOf(row.summary);
  attach(row, list(outcome.findings).filter(isMap), changes);
  row.words = `${row.target} ${row.name} ${row.step} ${row.status} ${errorText(outcome)}`.toLowerCase();
  return row;
}

function checkpointOf(record, row, index) {
  const verdict = line(record.verdict, 24) || "no verdict";
  return {
    record, row, index, verdict,
    name: line(record.name, 300) || line(record.path, 300) || "?",
    path: typeof record.path === "string" ? record.path : "",
    step: number(record.step),
    rank: own(VERDICTS, verdict).rank,
    findings: [],
  };
}

// Nobody knows where to resume when no values were checked.
const resumeUnknown = (summary) => !text(summary.resume_from) && number(map(summary.verdicts).unchecked) > 0;

// Where to resume: of each training where there are several, else of all together.
function resumesOf(summary) {
  if (!Object.hasOwn(summary, "resume_from") || resumeUnknown(summary)) return [];
  const trainings = list(summary.trainings).filter(isMap);
  const each = trainings.length > 1 ? trainings : [summary];
  return each.map((one) => ({ name: line(one.resume_from, 300), folder: each === trainings ? line(one.folder, 300) : "" }));
}

// What stands in front of a message is the target or its host, which a row has already.
function messageOf(outcome) {
  const target = text(outcome.target);
  const places = [`${target}: `, `${target.split("/")[0]}: `];
  return places.reduce((said, place) => (said.startsWith(place) ? said.slice(place.length) : said), text(map(outcome.error).message));
}

function errorText(outcome) {
  return [line(map(outcome.error).code, 60), line(messageOf(outcome))].filter(Boolean).join(": ");
}

// Give each checkpoint the findings about it, by the file they name, else by its name.
function attach(row, findings, changes) {
  const byPath = new Map(row.checkpoints.map((each) => [each.path, each]));
  const byName = new Map();
  for (const each of row.checkpoints) if (!byName.has(each.name)) byName.set(each.name, each);
  for (const data of findings) {
    const file = map(data.data).file;
    const checkpoint = (typeof file === "string" && upwards(byPath, file)) || byName.get(line(data.subject, 300)) || null;
    const finding = {
      data, row, checkpoint,
      rule: line(data.rule, 60),
      severity: line(data.severity, 24),
      subject: line(data.subject, 300),
      message: line(data.message),
      rank: severityRank(data),
      since: changes.known ? changes.since(identity(row, data)) : null,
    };
    row.findings.push(finding);
    if (checkpoint) checkpoint.findings.push(finding);
  }
}

function upwards(byPath, file) {
  for (let path = file; path; path = path.slice(0, Math.max(path.lastIndexOf("/"), 0))) {
    if (byPath.has(path)) return byPath.get(path);
  }
  return null;
}

// --- what is different from the run before ---

const key = (parts) => JSON.stringify(parts.map((part) => (typeof part === "string" ? part : "")));
const partOf = (data) => (typeof data.tensor === "string" && data.tensor) || data.record;
const identity = (row, finding) =>
  key([row.outcome.target, map(row.outcome.payload).name, finding.rule, finding.subject, map(finding.data).file, partOf(map(finding.data))]);
const identityOf = (each) => key([each.target, each.payload, each.rule, each.subject, each.path, each.tensor]);

function changesOf(difference) {
  const known = isMap(difference);
  const changes = list(map(difference).changes).filter(isMap);
  const since = new Map();
  for (const each of list(map(difference).persisting).filter(isMap)) {
    since.set(identityOf(each), { at: map(each.since).started_at, fresh: false });
  }
  for (const each of changes) {
    if (each.kind === "finding_new") since.set(identityOf(each), { at: map(each.since).started_at, fresh: true });
  }
  const gone = changes.filter((each) => each.kind === "finding_gone");
  return { known, changes, gone, since: (name) => since.get(name) || null };
}

// --- what it comes to ---

function tally(items, word) {
  const counts = new Map();
  for (const each of items) counts.set(each[word], (counts.get(each[word]) || 0) + 1);
  return counts;
}

// One sentence for who reads no further.
function verdictOf({ rows }) {
  const things = rows.some((row) => row.step) ? "outcome" : "target";
  const found = rows.filter((row) => row.status === "findings").length;
  const untold = rows.filter((row) => !row.told).length;
  const unheard = rows.filter((row) => row.status === "unreachable").length;
  if (!rows.length) return "There is no outcome.";
  if (rows.length === 1) return `The ${things} ${found ? "has findings" : unheard ? "could not be reached" : untold ? "gave no result" : "is ok"}.`;
  const all = plural(rows.length, things);
  if (untold === rows.length) return `None of the ${all} ${unheard === untold ? "could be reached" : "gave a result"}.`;
  if (!found && !untold) return `All ${all} are ok.`;
  const parts = [found && `${found === 1 ? "has" : "have"} findings`, untold && "gave no result"];
  const counts = [found, untold].filter(Boolean);
  const [first, second] = parts.filter(Boolean);
  return `${whole(counts[0])} of ${all} ${first}${second ? `, ${whole(counts[1])} ${second}` : ""}.`;
}
