/* The pane with the lineage graph: lines in SVG, and beside them each session or fold with its numbers. */

const LINE_HEIGHTS = { fold: 46, session: 46, plain: 28 };

class Lineage {
  constructor(book, { onselect, oncompare, onmove }) {
    this.book = book;
    this.onselect = onselect;
    this.oncompare = oncompare;
    this.onmove = onmove;
    this.opened = new Set();
    this.lines = [];
    this.box = h("div", { class: "sessions", role: "tree", tabindex: "0", "aria-label": "Sessions", id: "sessions" });
    this.pane = h("nav", { class: "pane lineage", "aria-label": "Lineage" }, this.heading = h("h2", null), h("div", { class: "scroll" }, this.box));
    this.box.addEventListener("click", (event) => this.#clicked(event.target));
  }

  #clicked(target) {
    const session = this.book.byId.get(target.closest("[data-session]")?.dataset.session);
    const line = this.lines[Number(target.closest("[data-line]")?.dataset.line)];
    if (target.closest(".pick")) this.oncompare(session);
    else if (session) {
      this.onselect(session);
      // What was pressed is drawn anew; the keys go on from the graph.
      if (target.matches(".link")) this.box.focus({ preventScroll: true });
    } else if (line) this.turn(line);
  }

  /** Draw all sessions; the one that is shown and the one it is compared with stand out. */
  draw(shown, compared) {
    const { book } = this;
    const isOut = (session) => session === shown || session === compared;
    // Instructions have no history; each run that used them names them in its evidence.
    const sessions = book.related(shown, compared).filter((each) => isOut(each) || !book.isInstructions(each));
    const family = new Family(book, sessions);
    this.lines = linesOf(family, (at) => isOut(sessions[at]), this.opened);
    Object.assign(this, { family, shown, compared });
    this.cursor = Math.max(0, this.#find(this.cursorKey ?? shown.id, shown.id));
    const parents = parentsOf(family, this.lines);
    const layout = layOut(parents);
    const step = Math.max(5, Math.min(16, 110 / layout.width));
    const x = (lane) => 12 + lane * step;
    const heights = this.lines.map((line) => this.#height(line));
    const tops = [0];
    for (const height of heights) tops.push(tops.at(-1) + height);
    const y = (at) => tops[at] + heights[at] / 2;
    const left = 24 + (layout.width - 1) * step;
    const art = s("svg", { width: left, height: tops.at(-1), class: "art", "aria-hidden": "true" }, this.#edges(layout, x, y), this.lines.map((line, at) => this.#node(line, layout.lanes[at], x, y(at))));
    show(this.heading, "Lineage", h("span", { class: "count" }, count(sessions.length, "session")));
    show(this.box, art, this.lines.map((line, at) => this.#row(line, at, left, heights[at])));
    this.#point();
  }

  #find(key, other) {
    const at = this.lines.findIndex((line) => line.key === key);
    return at >= 0 ? at : this.lines.findIndex((line) => line.type === "session" && line.key === other);
  }

  #height({ type, sessions: [session] }) {
    return LINE_HEIGHTS[type === "session" && isPlain(session) ? "plain" : type];
  }

  #edges(layout, x, y) {
    const ancestors = this.book.ancestors(this.shown);
    const isOn = (line) => line.type === "session" && ancestors.has(line.key);
    return layout.edges.map((edge) => {
      const [from, to] = [this.lines[edge.from], this.lines[edge.to]];
      const full = { ...edge, fromLane: layout.lanes[edge.from], toLane: layout.lanes[edge.to] };
      return s("path", { d: pathOf(full, x, y), class: `edge lane-${edge.lane % 6}${edge.second ? " second" : ""}${isOn(from) && isOn(to) ? " on" : ""}`, "data-from": from.key, "data-to": to.key });
    });
  }

  #node(line, lane, x, y) {
    if (line.type === "fold") return line.isOpen ? null : s("rect", { x: x(lane) - 5, y: y - 5, width: 10, height: 10, rx: 2.5, class: `node many lane-${lane % 6}` });
    const [session] = line.sessions;
    return s("circle", { cx: x(lane), cy: y, r: session === this.shown ? 6 : isPlain(session) ? 3.5 : 4.5, class: `node ${session.state} lane-${lane % 6}${this.family.parents[line.at].length > 1 ? " merge" : ""}` });
  }

  // Where the keyboard is: on a session, which is shown then, or on a fold.

  /** Go some lines down or up; `Infinity` is the last one. */
  move(by) {
    const at = Math.max(0, Math.min(this.lines.length - 1, this.cursor + by));
    const line = this.lines[at];
    this.cursorKey = line.key;
    this.cursor = at;
    if (line.type === "session") this.onselect(line.sessions[0]);
    else {
      this.#point();
      this.onmove();
    }
    this.reveal();
  }

  /** Unfold a fold, or fold it again; with a line that is none nothing happens. */
  turn(line = this.lines[this.cursor], isOpen = !line?.isOpen) {
    if (line?.type !== "fold" || line.isOpen === isOpen) return false;
    if (isOpen) this.opened.add(line.key);
    else this.opened.delete(line.key);
    this.cursorKey = line.key;
    this.draw(this.shown, this.compared);
    this.reveal();
    return true;
  }

  /** Fold again what the line of the cursor stands in. */
  close() {
    const [here] = this.lines[this.cursor]?.sessions ?? [];
    const fold = this.lines.findLast((line) => line.isOpen && line.sessions.includes(here));
    return fold ? this.turn(fold, false) : false;
  }

  /** Put the cursor on a session. */
  pointTo(session) {
    this.cursorKey = session.id;
  }

  /** Bring the line of the cursor into view. */
  reveal() {
    document.getElementById(`line-of-${this.cursor}`)?.scrollIntoView({ block: "nearest" });
  }

  #point() {
    for (const element of this.box.querySelectorAll(".cursor")) element.classList.remove("cursor");
    document.getElementById(`line-of-${this.cursor}`)?.classList.add("cursor");
    this.box.setAttribute("aria-activedescendant", `line-of-${this.cursor}`);
  }

  // The lines.

  #row(line, at, left, height) {
    const style = { paddingLeft: `${left}px`, height: `${height}px` };
    const common = { id: `line-of-${at}`, role: "treeitem", "data-line": at, style };
    return line.type === "fold" ? this.#fold(line, common) : this.#session(line.sessions[0], line.said, common);
  }

  #session(session, said, common) {
    const isShown = session === this.shown;
    const isCompared = session === this.compared;
    const { name, more } = nameOf(this.book, session);
    const facts = isPlain(session) ? [] : factsOf(session);
    return h("div", {
      ...common, class: `session${isPlain(session) ? " plain" : ""}${isShown ? " selected" : ""}${isCompared ? " compared" : ""}`,
      "aria-selected": String(isShown), "data-session": session.id, title: titleOf(session),
    },
    h("span", { class: "what" }, h("b", null, name), h("span", { class: "title" }, said || more)),
    facts.length || session.state !== "completed" ? h("span", { class: "facts" }, session.state === "completed" ? null : h("span", { class: `state ${session.state}` }, WORDS[session.state] ?? session.state), facts.join(" · ")) : null,
    isShown ? null : h("button", { class: "pick", type: "button", tabindex: "-1", title: "Compare with this session", "aria-label": `Compare with ${name} ${shortId(session.id)}`, "aria-pressed": String(isCompared) }, "⇄"));
  }

  #fold(line, common) {
    const { book } = this;
    const number = (name) => line.sessions.reduce((all, session) => all + Number(session[name] ?? 0), 0);
    const ends = line.kind === "forks" ? extremes(line.branches.map((branch) => outcomeOf(book, branch.map((at) => this.family.sessions[at])))) : [];
    const words = {
      forks: () => [count(line.branches.length, "branch", "branches"), line.branches.length > line.others.length ? `${line.branches.length - line.others.length} below` : ""],
      talk: () => [`Conversation, ${count(line.sessions.filter((session) => session.calls).length, "turn")}`, line.sessions.map((session) => session.title).find(Boolean) ?? ""],
      merges: () => [count(line.sessions.length, "merge"), ""],
    }[line.kind]();
    const facts = [number("tokens") && `${short(number("tokens"))} tok`, number("usd") && money(number("usd")), number("ms") && duration(number("ms"))].filter(Boolean);
    return h("div", { ...common, class: `session group ${line.kind}`, "aria-expanded": String(line.isOpen), "aria-selected": "false", title: `${count(line.sessions.length, "session")}: ${line.isOpen ? "fold" : "unfold"}` },
      h("span", { class: "what" }, h("span", { class: "sign" }, line.isOpen ? "▾" : "▸"), h("b", null, words[0]), h("span", { class: "title" }, words[1])),
      h("span", { class: "facts" }, ends.length ? ends.map(([text, session]) => h("button", { class: "link", type: "button", "data-session": session.id, title: nameOf(book, session).more }, text)) : facts.join(" · ")));
  }
}

/** Tell whether a session is a step without a model: a fork, a merge, a message. */
function isPlain(session) {
  return !session.calls && !session.tools && session.state === "completed";
}

/** Return the numbers of a session in a few words. */
function factsOf(session) {
  const facts = [count(session.nRows, "row")];
  if (session.tokens) facts.push(`${short(session.tokens)} tok`);
  if (session.usd !== undefined) facts.push(`${money(session.usd)}${session.unpriced ? " + unpriced" : ""}`);
  if (session.ms) facts.push(duration(session.ms));
  return facts;
}

function titleOf(session) {
  return [`${session.operator}  ${session.id}`, session.title, session.problem && whole(session.problem)].filter(Boolean).join("\n");
}
