// The flame view: a click on a box shows its time alone, and what is known of it.

const ROW = 22;
const AXIS = 26;
const TICKS = 6;
const { boxes, table } = JSON.parse(document.getElementById("data").textContent);
const flame = document.getElementById("flame");
const about = document.getElementById("about");
const whole = document.getElementById("whole");
const length = Math.max(0.001, ...boxes.map((box) => box.start + box.ms));
const all = { start: 0, ms: length };
let chosen = null;

function element(name, text = "", attributes = {}) {
  const made = document.createElement(name);
  made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function time(ms) {
  if (ms >= 1000) return `${(ms / 1000).toFixed(2)} s`;
  return ms >= 1 ? `${ms.toFixed(1)} ms` : `${(ms * 1000).toFixed(0)} µs`;
}

function axis(view) {
  const made = element("div", "", { class: "axis", "aria-hidden": "true" });
  for (let tick = 0; tick < TICKS; tick += 1) {
    const mark = element("span", time(view.start + (view.ms * tick) / TICKS));
    mark.style.left = `${(100 * tick) / TICKS}%`;
    made.append(mark);
  }
  return made;
}

function draw(view) {
  const room = element("div", "", { class: "room" });
  const width = flame.clientWidth || 1;
  const end = view.start + view.ms;
  for (const [at, box] of boxes.entries()) {
    const from = Math.max(box.start, view.start);
    const until = Math.min(box.start + box.ms, end);
    // What nobody could see is not drawn, so that a long run stays quick.
    if (until < from || (((until - from) / view.ms) * width < 0.3 && at !== chosen)) continue;
    const label = `${box.name} ${time(box.ms)}`;
    const made = element("button", label, { class: "box", type: "button", title: `${box.path}: ${label}` });
    made.dataset.kind = box.kind;
    made.dataset.at = String(at);
    made.classList.toggle("failed", Boolean(box.facts.error));
    made.classList.toggle("chosen", at === chosen);
    made.style.left = `${(100 * (from - view.start)) / view.ms}%`;
    made.style.width = `max(2px, ${(100 * (until - from)) / view.ms}%)`;
    made.style.top = `${box.row * ROW + 4}px`;
    room.append(made);
  }
  const rows = Math.max(0, ...boxes.map((box) => box.row)) + 1;
  room.style.height = `${rows * ROW + 8}px`;
  flame.replaceChildren(axis(view), room);
  flame.style.height = `${Math.min(rows * ROW + AXIS + 12, window.innerHeight * 0.6)}px`;
}

function show() {
  const box = chosen === null ? null : boxes[chosen];
  const view = box && box.ms > 0 ? box : all;
  draw(view);
  whole.hidden = box === null;
  about.hidden = box === null;
  const facts = box === null ? {} : { name: box.name, kind: box.kind, time: time(box.ms), ...box.facts };
  about.firstElementChild.replaceChildren(
    ...Object.entries(facts)
      .filter(([, value]) => value !== null)
      .flatMap(([key, value]) => [element("dt", key.replaceAll("_", " ")), element("dd", String(value))]),
  );
}

function choose(at) {
  chosen = at;
  show();
  if (at !== null) flame.querySelector(`[data-at="${at}"]`)?.focus();
}

flame.addEventListener("click", (event) => {
  const box = event.target.closest(".box");
  if (box) choose(Number(box.dataset.at));
});
whole.addEventListener("click", () => choose(null));
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") choose(null);
});
window.addEventListener("resize", show);

document.getElementById("told").textContent = boxes.length
  ? `${boxes.length} boxes, ${time(length)}; click one to see its time alone, Esc for all`
  : "nothing has run";
const [head, ...rows] = table;
const line = (cells, name) => {
  const row = document.createElement("tr");
  row.append(...cells.map((cell) => element(name, cell)));
  return row;
};
const body = document.createElement("tbody");
body.append(...rows.map((row) => line(row, "td")));
const header = document.createElement("thead");
header.append(line(head, "th"));
document.querySelector("#sums table").replaceChildren(header, body);
show();
document.documentElement.dataset.ready = "";
