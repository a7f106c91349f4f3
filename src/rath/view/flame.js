/* The flame view of a profile: boxes over time, what is known of the chosen one, and the sums by module.

   The data is as src/rath/session/view/flame.py writes it. */

const BOX_ROW = 22;
const AXIS = 26;
const TICKS = 6;

/** Return milliseconds with a digit behind the point, also where they are few. */
function preciseTime(ms) {
  if (ms >= 1000) return `${(ms / 1000).toFixed(2)} s`;
  return ms >= 1 ? `${ms.toFixed(1)} ms` : `${(ms * 1000).toFixed(0)} µs`;
}

class Flame {
  /** @param onopen (session) shows a session, by its id; null where there is none to show */
  constructor({ boxes, table }, { onopen = null } = {}) {
    Object.assign(this, { boxes, onopen });
    this.chosen = null;
    this.all = { start: 0, ms: Math.max(0.001, ...boxes.map((box) => box.start + box.ms)) };
    const told = boxes.length ? `${count(boxes.length, "box", "boxes")}, ${preciseTime(this.all.ms)}; click one to see its time alone, Esc for all` : "nothing has run";
    this.whole = h("button", { type: "button", hidden: true, onclick: () => this.choose(null) }, "Whole time");
    this.chart = h("section", { class: "chart", "aria-label": "Flame view", onclick: (event) => this.#clicked(event.target.closest(".box")) });
    this.about = h("section", { class: "about", "aria-label": "The chosen box", hidden: true });
    const [head, ...rows] = table;
    const sums = h("table", null, h("thead", null, h("tr", null, head.map((cell) => h("th", { scope: "col" }, cell)))), h("tbody", null, rows.map((row) => h("tr", null, row.map((cell) => h("td", null, cell))))));
    this.pane = h("main", { class: "flame", "aria-label": "Profile" },
      h("p", { class: "facts", role: "status" }, told, this.whole), this.chart, this.about,
      h("section", { class: "sums", tabindex: "0", role: "region", "aria-label": "Sums by module" }, sums));
    addEventListener("resize", () => this.draw());
  }

  /** Show one box alone, or all with null. */
  choose(at) {
    this.chosen = at;
    this.draw();
    if (at !== null) this.chart.querySelector(`[data-at="${at}"]`)?.focus();
  }

  /** Draw anew, in the width that the view has now. */
  draw() {
    const box = this.boxes[this.chosen];
    this.#drawBoxes(box?.ms > 0 ? box : this.all);
    this.whole.hidden = this.about.hidden = !box;
    show(this.about, box && this.#aboutBox(box));
  }

  #clicked(box) {
    if (box) this.choose(Number(box.dataset.at));
  }

  #drawBoxes(view) {
    const width = this.chart.clientWidth || 1;
    const end = view.start + view.ms;
    const share = (ms) => `${(100 * ms) / view.ms}%`;
    const drawn = this.boxes.map((box, at) => {
      const from = Math.max(box.start, view.start);
      const until = Math.min(box.start + box.ms, end);
      // What nobody could see is not drawn, so that a long run stays quick.
      if (until < from || (((until - from) / view.ms) * width < 0.3 && at !== this.chosen)) return null;
      const label = `${box.name} ${preciseTime(box.ms)}`;
      const classes = ["box", box.facts.error ? "failed" : "", at === this.chosen ? "chosen" : ""].filter(Boolean).join(" ");
      const style = { left: share(from - view.start), width: `max(2px, ${share(until - from)})`, top: `${box.row * BOX_ROW + 4}px` };
      return h("button", { class: classes, type: "button", title: `${box.path}: ${label}`, "data-kind": box.kind, "data-at": at, style }, label);
    });
    const ticks = Array.from({ length: TICKS }, (_, tick) => h("span", { style: { left: `${(100 * tick) / TICKS}%` } }, preciseTime(view.start + (view.ms * tick) / TICKS)));
    const height = (Math.max(0, ...this.boxes.map((box) => box.row)) + 1) * BOX_ROW;
    show(this.chart, h("div", { class: "axis", "aria-hidden": "true" }, ticks), h("div", { class: "room", style: { height: `${height + 8}px` } }, drawn));
    this.chart.style.height = `${Math.min(height + AXIS + 12, innerHeight * 0.6)}px`;
  }

  #aboutBox(box) {
    const facts = { name: box.name, kind: box.kind, time: preciseTime(box.ms), ...box.facts };
    const open = this.onopen && box.facts.session ? h("p", null, link("Show its session", () => this.onopen(box.facts.session))) : null;
    return [h("dl", null, Object.entries(facts).filter(([, value]) => value !== null).map(([key, value]) => [h("dt", null, key.replaceAll("_", " ")), h("dd", null, String(value))])), open];
  }
}
