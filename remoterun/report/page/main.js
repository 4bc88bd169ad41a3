// Unpack what is shown first, draw it, and leave the other runs packed until somebody wants them.

// What a browser of 2025 does by itself, in a tenth of the time.
function bytesOf(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
  const bits = atob(base64);
  const made = new Uint8Array(bits.length);
  for (let at = 0; at < bits.length; at += 1) made[at] = bits.charCodeAt(at);
  return made;
}

async function unpacked(id) {
  const stream = new Blob([bytesOf(document.getElementById(id).textContent)]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

const place = document.getElementById("page");
const themes = { "": "System", light: "Light", dark: "Dark" };

async function start() {
  const index = await unpacked("index");
  const runs = list(index.runs);
  if (!runs.length) throw new Error("this page holds no run");
  const models = new Map();
  const show = async (chosen) => {
    if (!models.has(chosen)) {
      const difference = list(index.differences).find((each) => map(map(each).after).run_id === runs[chosen].run_id);
      models.set(chosen, modelOf(await unpacked(`run-${chosen}`), difference));
    }
    drawPage(models.get(chosen), runs, chosen, show);
  };
  await show(runs.length - 1);
  document.getElementById("plain").remove();
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
}

function drawPage(model, runs, chosen, show) {
  const parts = [timeline(runs, chosen, show), fleet(model), series(model), tables(model), timings(model)].filter(Boolean);
  const held = document.activeElement?.closest?.(".run");
  place.replaceChildren(
    head(model.run), contents(parts), element("main", null, summary(model), parts), foot(model.run), panel);
  if (held) place.querySelector('.run[aria-pressed="true"]')?.focus();
}

function head(run) {
  const playbook = line(map(run.playbook).name, 200) || "a program";
  const took = (instant(run.finished_at) - instant(run.started_at)) / 1000;
  return element("header", { class: "head" },
    element("div", null,
      element("h1", null, playbook, " ", badge(RUN_STATUSES, line(run.status, 24))),
      element("p", { class: "dim" }, `${moment(run.started_at)}${took > 0 ? `, took ${seconds(took)}` : ""} \u00b7 run `, element("code", null, line(run.run_id, 80)))),
    element("div", { class: "head-actions" },
      choices("Colours", Object.entries(themes), document.documentElement.dataset.theme || "", (theme) => {
        if (theme) document.documentElement.dataset.theme = theme;
        else delete document.documentElement.dataset.theme;
      }),
      button("quiet", "Print", () => print()),
      button("quiet", "Save JSON", () => save(run))));
}

function contents(parts) {
  return element("nav", { class: "contents", "aria-label": "On this page" },
    parts.map((part) => element("a", { href: `#${part.id}` }, part.querySelector("h2").textContent)));
}

function save(run) {
  const address = URL.createObjectURL(new Blob([`${JSON.stringify(run, null, 2)}\n`], { type: "application/json" }));
  element("a", { href: address, download: `remoterun-${line(run.run_id, 80).replace(/[^\w-]/g, "_")}.json` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60000);
}

function summary(model) {
  const statuses = tally(model.rows, "status");
  const verdicts = tally(model.checkpoints, "verdict");
  const severities = tally(model.findings, "severity");
  // What is of severity info is never counted with what may be wrong.
  const fresh = model.findings.filter((finding) => finding.since?.fresh && finding.severity !== "info").length;
  const gone = model.changes.gone.filter((each) => each.severity !== "info").length;
  const before = map(map(model.difference).before).started_at;
  return element("section", { class: "summary", "aria-label": "Summary" },
    element("p", { class: "headline" }, verdictOf(model)),
    model.changes.known && before && element("p", { class: "dim" }, `Since ${moment(before)}: ${plural(fresh, "new finding")}, ${whole(gone)} gone.`),
    element("div", { class: "tiles" },
      tile("Targets", model.rows.length, STATUSES, statuses),
      model.checkpoints.length > 0 && tile("Checkpoints", model.checkpoints.length, VERDICTS, verdicts),
      tile("Findings", model.findings.length, SEVERITIES, severities),
      silence(model.rows.filter((row) => !row.told), model.rows.length)));
}

// Why targets gave no result, by code; where none gave any, what to do about the most frequent cause.
function silence(rows, all) {
  if (!rows.length) return "";
  const codes = new Map();
  for (const row of rows) {
    const code = line(map(row.outcome.error).code, 60) || wordOf(row.status);
    codes.set(code, [...(codes.get(code) || []), row]);
  }
  const sorted = [...codes].sort(([, one], [, other]) => other.length - one.length);
  const hint = rows.length === all && map(sorted[0][1][0].outcome.error).hint;
  return element("div", { class: "tile" }, element("p", { class: "tile-title" }, "Without result"), element("p", { class: "tile-count" }, whole(rows.length)),
    element("p", { class: "tile-parts" }, sorted.map(([code, each]) => element("span", null, element("code", null, code), ` ${whole(each.length)}`))),
    hint && element("p", { class: "tile-hint" }, text(hint)));
}

function tile(title, count, table, counts) {
  const order = Object.keys(table);
  const parts = [...counts].sort(([one], [other]) => order.indexOf(one) - order.indexOf(other));
  return element("div", { class: "tile" }, element("p", { class: "tile-title" }, title), element("p", { class: "tile-count" }, whole(count)),
    element("p", { class: "tile-parts" }, parts.map(([word, each]) => element("span", null, badge(table, word, ` ${whole(each)}`)))));
}

function foot(run) {
  return element("footer", { class: "foot dim" }, `Written by remoterun ${line(run.remoterun, 40)}. Everything shown is in this file: it asks nobody for anything.`);
}

// A wide strip of runs is seen from its newest end.
function settle() {
  const chosen = place.querySelector('.run[aria-pressed="true"]');
  const strip = chosen?.closest(".scroll");
  if (strip) strip.scrollLeft = strip.scrollWidth;
}

function fail(error) {
  document.getElementById("trouble").textContent = typeof DecompressionStream === "undefined"
    ? "This browser is too old to draw this page (it has no DecompressionStream). Any browser since 2023 can. What can be said here:"
    : `This page could not be drawn (${error.message}). What can be said all the same:`;
  document.documentElement.dataset.ready = "failed";
}

start().then(settle, fail);
