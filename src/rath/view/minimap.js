/* The whole list in a narrow strip beside it: kinds, cost or time by colour; it scrolls and jumps. */

const MODES = [["kinds", "Kinds"], ["cost", "Cost"], ["time", "Time"]];

/** Each kind has a column in the strip, so that they are told apart without their colours and in any number. */
const COLUMNS = { system: 0.08, user: 0.08, assistant: 0.34, tool: 0.6 };
const COLUMN = 0.22; // of the width of the strip, as all numbers here
const LEFT = 0.08;

const LONG = 3; // windows that a list fills before it has a map; a guess
const WIDTH = 0.74;

/** Give each item its share of the most that one costs and takes, both in [0, 1]. */
function warm(items) {
  const each = items.flatMap((item) => (item.type === "pair" ? [item.a, item.b] : [item])).filter((item) => item && (item.type === "row" || item.type === "event"));
  const isPriced = each.some(({ entry }) => Number(entry?.usd) > 0);
  const measures = { cost: (entry) => Number((isPriced ? entry.usd : entry.usage?.[2]) ?? 0), time: (entry) => entry.ms ?? 0 };
  for (const item of each) item.heat = { cost: 0, time: 0 };
  for (const [name, measure] of Object.entries(measures)) {
    const most = each.reduce((max, { entry }) => Math.max(max, entry ? measure(entry) : 0), 0);
    // The root shows what is small beside what is much larger.
    if (most > 0) for (const item of each) if (item.entry) item.heat[name] = Math.sqrt(measure(item.entry) / most);
  }
}

/** Return what a call took, each number over a bar as long as its share of the most. */
function warmed(item) {
  const { cost, time } = tookOf(item.entry);
  return [[cost, "cost"], [time, "time"]].filter(([text]) => text).map(([text, name]) => h("span", { class: "warmth", "data-heat": name, style: { backgroundSize: `${Math.round((item.heat?.[name] ?? 0) * 100)}% 2px` } }, text));
}

class Minimap {
  /** @param list the list that it shows */
  constructor(list) {
    this.list = list;
    this.mode = "kinds";
    this.hits = [];
    this.canvas = h("canvas", { "aria-hidden": "true" });
    this.frame = h("div", { class: "frame" });
    this.here = h("div", { class: "here" });
    this.strip = h("div", { class: "minimap", role: "scrollbar", tabindex: "0", "aria-label": "Map of the rows", "aria-controls": "rows", "aria-orientation": "vertical", "aria-valuemin": "0", "aria-valuemax": "100", "aria-valuenow": "0" }, this.canvas, this.here, this.frame);
    this.modes = h("span", { class: "modes", role: "group", "aria-label": "Colours of the map" }, MODES.map(([mode, name]) => h("button", { type: "button", "data-mode": mode, title: "What the map beside the rows shows (m)", onclick: () => this.show(mode) }, name)));
    this.#listen();
    this.show("kinds");
  }

  #listen() {
    const { strip, list } = this;
    const jump = (event) => {
      if (!(event.buttons & 1)) return;
      const { top, height } = strip.getBoundingClientRect();
      list.view.scrollTop = ((event.clientY - top) / height) * list.tops.at(-1) - list.view.clientHeight / 2;
    };
    strip.addEventListener("pointerdown", (event) => {
      strip.setPointerCapture(event.pointerId);
      jump(event);
    });
    strip.addEventListener("pointermove", jump);
    strip.addEventListener("keydown", (event) => {
      const page = list.view.clientHeight * 0.9;
      const by = { ArrowDown: page / 8, ArrowUp: -page / 8, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity }[event.key];
      if (by === undefined) return;
      event.preventDefault();
      event.stopPropagation();
      list.view.scrollTop = Math.max(0, Math.min(list.tops.at(-1), list.view.scrollTop + by));
    });
    list.view.addEventListener("scroll", () => this.place(), { passive: true });
    new ResizeObserver(() => this.draw()).observe(list.view);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  /** Show kinds, cost or time; without a name the one after this one. */
  show(mode = MODES[(MODES.findIndex(([each]) => each === this.mode) + 1) % MODES.length][0]) {
    this.mode = mode;
    this.strip.dataset.mode = mode;
    for (const button of this.modes.children) button.setAttribute("aria-pressed", String(button.dataset.mode === mode));
    this.draw();
  }

  /** Draw the strip anew, once for all that has changed: items, matches, colours or size. */
  draw() {
    this.wait ??= requestAnimationFrame(() => {
      this.wait = undefined;
      this.#paint();
    });
  }

  #paint() {
    const { list, canvas, strip } = this;
    const isLong = list.tops.at(-1) > list.view.clientHeight * LONG;
    strip.hidden = this.modes.hidden = !isLong || list.view.clientHeight === 0;
    if (strip.hidden) return;
    const scale = devicePixelRatio || 1;
    canvas.width = Math.round(strip.clientWidth * scale);
    canvas.height = Math.round(strip.clientHeight * scale);
    const pen = canvas.getContext("2d");
    const style = getComputedStyle(strip);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim() || style.color;
    const part = canvas.height / list.tops.at(-1);
    const box = (at, left, width) => pen.fillRect(left * canvas.width, list.tops[at] * part, width * canvas.width, Math.max(scale, (list.tops[at + 1] - list.tops[at]) * part - (part > 0.1 ? scale / 2 : 0)));
    const failed = [];
    const colours = Object.fromEntries(["user", "assistant", "tool", "system", "heat", "bad", "warn"].map((name) => [name, colour(name)]));
    list.items.forEach((item, at) => {
      if (this.mode === "kinds") {
        const speaker = item.type === "row" ? speakerOf(item.row) : "";
        if (isFailure(item)) failed.push(at);
        if (!Object.hasOwn(COLUMNS, speaker)) return;
        pen.fillStyle = colours[speaker];
        box(at, COLUMNS[speaker], COLUMN);
      } else if (item.heat?.[this.mode] > 0) {
        pen.globalAlpha = 0.4 + 0.6 * item.heat[this.mode];
        pen.fillStyle = colours.heat;
        box(at, LEFT, WIDTH * item.heat[this.mode]);
        pen.globalAlpha = 1;
      }
    });
    pen.fillStyle = colours.bad;
    for (const at of failed) box(at, LEFT, WIDTH);
    pen.fillStyle = colours.warn;
    for (const at of this.hits) box(at, 0.86, 0.14);
    this.place();
  }

  /** Mark the lines that were found. */
  mark(hits) {
    this.hits = hits;
    this.draw();
  }

  /** Put the frame where the list is, and the mark where the selected line is. */
  place() {
    const { view, tops, selected } = this.list;
    const all = tops.at(-1) || 1;
    Object.assign(this.frame.style, { top: `${(view.scrollTop / all) * 100}%`, height: `${(view.clientHeight / all) * 100}%` });
    this.here.hidden = selected < 0;
    if (selected >= 0) this.here.style.top = `${(tops[selected] / all) * 100}%`;
    this.strip.setAttribute("aria-valuenow", String(Math.round((view.scrollTop / Math.max(1, all - view.clientHeight)) * 100)));
  }
}

/** Tell whether an item tells of a failure. */
function isFailure({ entry, type }) {
  if (!entry || type === "band") return false;
  if (entry.k === "verdict") return !entry.passed;
  return (entry.k === "tool" && (Boolean(entry.exit) || !["done", "suspended"].includes(entry.status))) || (entry.k === "model" && entry.status !== "done");
}
