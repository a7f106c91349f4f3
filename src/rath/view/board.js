/* Jobs and evaluations side by side: their numbers, scores over time, and each run, which opens its session.

   The board is as src/rath/eval/page.py writes it; `Book` holds the sessions. */

const MAX_RUNS = 500; // lines until somebody asks for all

const score3 = (value) => (value === null || value === undefined ? "–" : value.toFixed(3));
const minute = (at) => (at === null || at === undefined ? "" : `${new Date(at).toISOString().slice(0, 16).replace("T", " ")} UTC`);

/** Return a table; a cell is a text, an element, or {text, class}. */
function gridOf(label, heads, rows) {
  const cell = (tag, content, attributes) => (content instanceof Node || typeof content !== "object" ? h(tag, attributes, content) : h(tag, { ...attributes, class: content.class, title: content.title }, content.text));
  return h("div", { class: "grid-box", tabindex: "0", role: "region", "aria-label": label },
    h("table", null, h("thead", null, h("tr", null, heads.map((head) => cell("th", head, { scope: "col" })))),
      h("tbody", null, rows.map(({ cells, isChosen }) => h("tr", { class: isChosen ? "chosen" : null }, cells.map((each) => cell("td", each)))))));
}

const right = (text) => ({ text, class: "number" });

class Board {
  /** @param onopen (session, other) a session to show, and one to compare it with or null */
  constructor(book, board, { onopen }) {
    Object.assign(this, { book, onopen }, board);
    this.isAll = false;
    book.labels = new Map(this.items.flatMap((item) => Object.entries(item.sessions).map(([name, id]) => [id, name])));
    const select = (id, label, first, values) => {
      const box = h("select", { id }, [["", first], ...values.map((value) => [value, value])].map(([value, text]) => h("option", { value }, text)));
      box.addEventListener("input", () => this.#drawItems());
      return [box, h("label", null, `${label} `, box)];
    };
    const [by, byLabel] = select("by", "Sort by", "worst first", [...this.scorers, "cost", "tokens", "time"]);
    const [tag, tagLabel] = select("tag", "Tag", "all", this.tags);
    const [state, stateLabel] = select("state", "State", "all", [...new Set(this.items.map((item) => item.state))]);
    this.find = h("input", { id: "find", type: "search", autocomplete: "off", spellcheck: "false" });
    this.find.addEventListener("input", () => this.#drawItems());
    Object.assign(this, { by, tag, state });
    this.told = h("p", { class: "facts", role: "status" });
    this.list = h("div", { id: "items" });
    this.pane = h("main", { class: "board", "aria-label": "Runs side by side" },
      h("section", { id: "numbers" }, h("h2", null, this.scorers.length ? "Evaluations" : "Jobs"), this.#runsTable()),
      this.#chart(),
      h("section", null, h("h2", null, "Runs"), h("p", { class: "filter" }, byLabel, this.tags.length ? tagLabel : null, stateLabel, h("label", null, "Search ", this.find), this.told), this.list));
    this.#drawItems();
  }

  #runsTable() {
    const states = (run) => Object.entries(run.counts).map(([state, n]) => `${n} ${state}`).join(", ");
    const summary = (score) => {
      if (!score) return "–";
      const interval = score.interval ? ` [${score3(score.interval[0])}, ${score3(score.interval[1])}]` : "";
      const last = score.pass_at.length > 1 ? `, pass@${score.pass_at.length} ${score3(score.pass_at.at(-1))}` : "";
      return `${score3(score.mean)}${interval}${last}${score.errors ? `, ${count(score.errors, "error")}` : ""}`;
    };
    const heads = ["name", "started", "runs", ...this.scorers.map(right), right("tokens"), right("cost"), right("time")];
    return gridOf("Numbers of each", heads, this.runs.map((run) => ({
      isChosen: run.name === this.name,
      cells: [run.name, minute(run.at), states(run), ...this.scorers.map((scorer) => right(summary(run.scores[scorer]))), right(run.tokens.toLocaleString("en")), right(run.usd === null ? "–" : money(run.usd)), right(duration(run.seconds * 1000))],
    })));
  }

  #chart() {
    const known = this.runs.filter((run) => run.at !== null);
    if (known.length < 2 || !this.scorers.length) return null;
    const [width, height, left] = [1000, 150, 34];
    const x = (at) => left + 10 + ((width - left - 40) * at) / (known.length - 1);
    const y = (value) => 10 + (height - 20) * (1 - value);
    const lines = [0, 0.5, 1].map((value) => [s("line", { class: "grid", x1: left, x2: width, y1: y(value), y2: y(value) }), s("text", { x: 4, y: y(value) + 4 }, value)]);
    const marks = this.scorers.map((scorer, lane) => {
      const points = known.map((run, at) => [x(at), run.scores[scorer]?.mean, run]).filter(([, mean]) => mean !== null && mean !== undefined);
      return s("g", { class: `lane-${lane % 6}` }, s("path", { d: points.map(([px, mean], at) => `${at ? "L" : "M"}${px} ${y(mean)}`).join("") }),
        points.map(([px, mean, run]) => s("circle", { cx: px, cy: y(mean), r: 4 }, s("title", null, `${scorer} ${score3(mean)} in ${run.name}`))));
    });
    const keys = this.scorers.map((scorer, lane) => h("span", { class: `key lane-${lane % 6}` }, h("b", { "aria-hidden": "true" }, "● "), scorer));
    return h("section", { id: "chart" }, h("h2", null, "Scores over time"), s("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Mean of each scorer by run" }, lines, marks), h("p", null, keys));
  }

  /** Return the runs that are asked for, in the order that is asked for. */
  #matching() {
    const wanted = this.find.value.trim().toLowerCase();
    const found = this.items.filter((item) => (!this.tag.value || item.tags.includes(this.tag.value)) && (!this.state.value || item.state === this.state.value) && (!wanted || `${item.key} ${whole(item.question)}`.toLowerCase().includes(wanted)));
    const { value } = this.by;
    if (!value) return found;
    const most = { cost: (item) => -Number(item.usd ?? 0), tokens: (item) => -(item.tokens ?? 0), time: (item) => -item.seconds };
    const key = this.scorers.includes(value) ? (item) => (item.scores[value]?.error ? -1 : item.scores[value]?.value ?? -2) : most[value];
    return found.toSorted((one, other) => key(one) - key(other));
  }

  #drawItems() {
    const found = this.#matching();
    const shown = this.isAll ? found : found.slice(0, MAX_RUNS);
    const hasEpochs = this.items.some((item) => item.epoch);
    const rows = shown.map((item) => {
      const session = this.book.byId.get(item.session);
      const other = this.#before(item);
      const label = `${item.key}${hasEpochs ? `, epoch ${item.epoch}` : ""}`;
      const open = session ? link(label, () => this.onopen(session, null), "Show its session") : h("span", { title: item.session ? `rath view ${item.session}` : "It has no session." }, label);
      const versus = session && other ? h("button", { class: "copy", type: "button", title: "Show it beside the same one of the run before", "aria-label": `Compare ${label} with the run before`, onclick: () => this.onopen(session, other) }, "⇄") : "";
      const tags = h("span", null, item.tags.map((each) => h("span", { class: "tag" }, each)));
      return {
        cells: [open, versus, { text: whole(item.question), class: "text" }, ...(this.tags.length ? [tags] : []), { text: item.state, class: item.state === "done" ? "good" : item.state === "waiting" ? "warn" : "bad", title: whole(item.error) },
          ...this.scorers.map((scorer) => this.#mark(item, scorer)), right(item.tokens === null ? "–" : short(item.tokens)), right(item.usd === null ? "–" : money(item.usd)), right(duration(item.seconds * 1000))],
      };
    });
    const heads = ["run", h("span", { class: "away" }, "compare"), "input", ...(this.tags.length ? ["tags"] : []), "state", ...this.scorers.map(right), right("tokens"), right("cost"), right("time")];
    this.told.textContent = `${count(found.length, "run")}${shown.length < found.length ? `, ${shown.length} shown` : ""}`;
    const more = shown.length < found.length ? h("button", { type: "button", class: "more", onclick: () => this.#all() }, `Show all ${found.length.toLocaleString("en")}`) : null;
    show(this.list, gridOf("Each run", heads, rows), more);
  }

  #all() {
    this.isAll = true;
    this.#drawItems();
  }

  /** Return a score of a run, and how it differs from that of the run before. */
  #mark(item, scorer) {
    const score = item.scores[scorer];
    if (!score) return right("–");
    if (score.error) return { text: "error", class: "number warn", title: whole(score.error) };
    return { text: score3(score.value) + this.#change(item, scorer), class: `number ${score.passed ? "good" : "bad"}`, title: whole(score.report) };
  }

  #change(item, scorer) {
    const before = this.runs.filter((run) => run.name !== this.name && item.runs[run.name]?.[scorer] !== undefined).at(-1);
    const now = item.runs[this.name]?.[scorer];
    if (!before || now === undefined) return "";
    const difference = now - item.runs[before.name][scorer];
    return difference ? ` (${difference > 0 ? "+" : ""}${difference.toFixed(2)})` : "";
  }

  /** Return the session of the same row in the run before, if it is in the page. */
  #before(item) {
    const names = this.runs.map((run) => run.name).filter((name) => name !== this.name);
    return names.map((name) => this.book.byId.get(item.sessions[name])).findLast(Boolean) ?? null;
  }

  /** Return what the board knows of a session as one line, null where it knows nothing. */
  about(session) {
    const item = this.items.find((each) => each.session === session.id);
    if (!item) return null;
    const scores = this.scorers.map((scorer) => [scorer, this.#mark(item, scorer)]).filter(([, mark]) => mark.text !== "–");
    return h("p", { class: "about" }, h("b", null, item.key), scores.map(([scorer, mark]) => [" · ", `${scorer} `, h("span", { class: mark.class.replace("number ", ""), title: mark.title }, mark.text), item.scores[scorer]?.error ? ` ${line(item.scores[scorer].error)}` : ""]),
      item.target === null ? null : ` · expected ${line(item.target, 120)}`, item.error === null ? null : h("span", { class: "bad" }, ` · ${line(item.error, 200)}`));
  }
}
