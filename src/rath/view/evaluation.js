// The page of an evaluation: a click on an answer shows the rows of its session.

const { name, scorers, runs, tags, items } = JSON.parse(document.getElementById("data").textContent);
const about = document.getElementById("about");
const by = document.getElementById("by");
const tag = document.getElementById("tag");
const search = document.getElementById("search");
const answers = document.querySelector("#items table");
const LANES = 6;
let chosen = null;

function element(kind, text = "", attributes = {}) {
  const made = document.createElement(kind);
  made.textContent = text ?? "";
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function drawn(kind, attributes = {}, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", kind);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text) made.textContent = text;
  return made;
}

function plain(text) {
  return Array.isArray(text) ? `${text[0]} … ${text[2]}` : text ?? "";
}

function box(text) {
  const made = element("pre");
  if (!Array.isArray(text)) made.textContent = text ?? "";
  else made.append(text[0], element("span", ` … ${text[1]} characters left out … `, { class: "left-out" }), text[2]);
  return made;
}

const number = (value) => (value === null || value === undefined ? "–" : value.toFixed(3));
const moment = (at) => (at === null ? "" : `${new Date(at).toISOString().slice(0, 16).replace("T", " ")} UTC`);

function table(target, head, rows) {
  const line = (cells, kind) => {
    const row = element("tr");
    for (const cell of cells) {
      const made = cell instanceof Node ? element(kind) : element(kind, cell?.text ?? cell, cell?.class ? { class: cell.class } : {});
      if (cell instanceof Node) made.append(cell);
      row.append(made);
    }
    return row;
  };
  const header = element("thead");
  header.append(line(head, "th"));
  const body = element("tbody");
  body.append(...rows.map((cells) => line(cells, "td")));
  target.replaceChildren(header, body);
  return [...body.rows];
}

const right = (text) => ({ text, class: "number" });

function showRuns() {
  const states = (run) => Object.entries(run.counts).map(([state, n]) => `${n} ${state}`).join(", ");
  const head = ["run", "started", "answers", ...scorers.map(right), right("tokens"), right("US dollars"), right("seconds")];
  const rows = runs.map((run) => [
    run.name, moment(run.at), states(run),
    ...scorers.map((scorer) => right(summary(run.scores[scorer]))),
    right(run.tokens.toLocaleString("en")), right(run.usd), right(run.seconds.toFixed(1)),
  ]);
  const made = table(document.querySelector("#runs table"), head, rows);
  made[runs.findIndex((run) => run.name === name)].classList.add("chosen");
}

function summary(score) {
  if (!score) return "–";
  const interval = score.interval ? ` [${number(score.interval[0])}, ${number(score.interval[1])}]` : "";
  const last = score.pass_at.length > 1 ? `, pass@${score.pass_at.length} ${number(score.pass_at.at(-1))}` : "";
  return `${number(score.mean)}${interval}${last}${score.errors ? `, ${score.errors} errors` : ""}`;
}

function showChart() {
  const known = runs.filter((run) => run.at !== null);
  if (known.length < 2) return;
  const section = document.getElementById("chart");
  const [width, height, left, top] = [1000, 190, 34, 10];
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Mean of each scorer by run" });
  const x = (at) => left + 10 + ((width - left - 40) * at) / (known.length - 1);
  const y = (value) => top + (height - 40) * (1 - value);
  for (const value of [0, 0.5, 1]) {
    svg.append(drawn("line", { class: "grid", x1: left, x2: width, y1: y(value), y2: y(value) }));
    svg.append(drawn("text", { x: 4, y: y(value) + 4 }, String(value)));
  }
  known.forEach((run, at) => {
    const anchor = at === 0 ? "start" : at === known.length - 1 ? "end" : "middle";
    svg.append(drawn("text", { x: x(at), y: height - 8, "text-anchor": anchor }, moment(run.at).slice(0, 16)));
  });
  const keys = element("p");
  scorers.forEach((scorer, lane) => {
    const points = known.map((run, at) => [x(at), run.scores[scorer]?.mean, run]).filter(([, mean]) => mean !== null && mean !== undefined);
    const colour = `var(--lane-${lane % LANES})`;
    const path = drawn("path", { d: points.map(([px, mean], at) => `${at ? "L" : "M"}${px} ${y(mean)}`).join("") });
    path.style.stroke = colour;
    svg.append(path);
    for (const [px, mean, run] of points) {
      const dot = drawn("circle", { cx: px, cy: y(mean), r: 4 });
      dot.style.fill = colour;
      dot.append(drawn("title", {}, `${scorer} ${number(mean)} in ${run.name}`));
      svg.append(dot);
    }
    const key = element("span", `● ${scorer}`, { class: "key" });
    key.style.color = colour;
    keys.append(key);
  });
  section.append(svg, keys);
  section.hidden = false;
}

function mark(score) {
  if (!score) return right("–");
  if (score.error) return { text: "error", class: "number warn" };
  return { text: number(score.value), class: `number ${score.passed ? "good" : "bad"}` };
}

function matching() {
  const wanted = search.value.trim().toLowerCase();
  const found = items.filter(
    (item) => (!tag.value || item.tags.includes(tag.value)) && (!wanted || `${item.key} ${plain(item.question)}`.toLowerCase().includes(wanted)),
  );
  if (!by.value) return found;
  const value = (item) => (item.scores[by.value]?.error ? -1 : item.scores[by.value]?.value ?? -2);
  return found.toSorted((one, other) => value(one) - value(other));
}

function change(item, scorer) {
  const before = runs.filter((run) => run.name !== name && item.runs[run.name]?.[scorer] !== undefined).at(-1);
  const now = item.runs[name]?.[scorer];
  if (!before || now === undefined) return "";
  const difference = now - item.runs[before.name][scorer];
  return difference ? ` (${difference > 0 ? "+" : ""}${difference.toFixed(2)})` : "";
}

function showItems() {
  const shown = matching();
  const rows = shown.map((item) => {
    const label = `${item.key}${items.some((each) => each.epoch) ? `, epoch ${item.epoch}` : ""}`;
    const open = element("button", label, { class: "link", type: "button" });
    open.addEventListener("click", () => choose(item));
    const question = element("span", plain(item.question), { class: "text" });
    const labels = element("span");
    labels.append(...item.tags.map((each) => element("span", each, { class: "tag" })));
    const scores = scorers.map((scorer) => {
      const made = mark(item.scores[scorer]);
      return { ...made, text: made.text + change(item, scorer) };
    });
    return [open, question, labels, item.state, ...scores, right(item.usd ?? "–"), right(item.seconds.toFixed(1))];
  });
  const head = ["row", "input", "tags", "state", ...scorers.map(right), right("US dollars"), right("seconds")];
  table(answers, head, rows).forEach((row, at) => row.classList.toggle("chosen", shown[at] === chosen));
}

function choose(item) {
  chosen = item;
  showItems();
  about.hidden = item === null;
  if (item === null) return;
  const header = element("header");
  const close = element("button", "×", { class: "close", type: "button", "aria-label": "Close" });
  close.addEventListener("click", () => choose(null));
  header.append(element("h2", `Answer to ${item.key}`), close);
  const facts = [["session", item.session ?? "none"], ["target", plain(item.target)], ["error", plain(item.error)]].filter(([, value]) => value);
  const told = element("p", facts.map(([key, value]) => `${key}: ${value}`).join(" · "), { class: "facts" });
  about.replaceChildren(header, told, ...scoresOf(item), ...rowsOf(item));
  about.scrollIntoView({ block: "nearest" });
}

function scoresOf(item) {
  const scores = element("table");
  const history = item.history ?? Object.values(item.scores);
  const rows = history.map((score) => [
    score.name, mark(score), moment(score.at), plain(score.judge), box(score.error ?? score.report), score.sessions.join(" "),
  ]);
  table(scores, ["score", right("value"), "given", "judge", "reasons", "judged in"], rows);
  return [element("h3", "Scores, in the order in which they were given"), scores];
}

function rowsOf(item) {
  if (!item.rows) return [element("p", item.session ? `rath view ${item.session} shows its rows` : "it has no session", { class: "facts" })];
  const rows = element("div", "", { class: "rows" });
  for (const row of item.rows) {
    const made = element("div", "", { class: `row ${row.kind}` });
    made.append(element("span", row.name ? `${row.kind} ${row.name}` : row.kind, { class: "kind" }));
    if (plain(row.text)) made.append(box(row.text));
    for (const call of row.calls ?? []) made.append(element("p", `calls ${call.name}`, { class: "kind" }), box(call.args));
    rows.append(made);
  }
  return [element("h3", "Session"), rows];
}

function options(target, first, values) {
  target.append(...[["", first], ...values.map((value) => [value, value])].map(([value, text]) => element("option", text, { value })));
}

options(by, "worst first", scorers);
options(tag, "all", tags);
for (const each of [by, tag, search]) each.addEventListener("input", showItems);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") choose(null);
});
document.getElementById("told").textContent = `${items.length} answers, the worst first; click one for its session`;
showRuns();
showChart();
showItems();
document.documentElement.dataset.ready = "";
