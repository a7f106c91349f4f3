/* The pane with the lineage graph: lines in SVG, and beside them each session with its numbers. */

const NODE_HEIGHT = 46;

class Lineage {
  constructor(book, { onselect, oncompare }) {
    this.book = book;
    this.onselect = onselect;
    this.oncompare = oncompare;
    this.box = h("div", { class: "sessions", role: "listbox", tabindex: "0", "aria-label": "Sessions", id: "sessions" });
    this.pane = h("nav", { class: "pane lineage", "aria-label": "Lineage" }, this.heading = h("h2", null), h("div", { class: "scroll" }, this.box));
    this.box.addEventListener("click", (event) => {
      const element = event.target.closest("[data-session]");
      if (!element) return;
      const session = this.book.byId.get(element.dataset.session);
      if (event.target.closest(".pick")) this.oncompare(session);
      else this.onselect(session);
    });
  }

  /** Draw all sessions; the one that is shown and the one it is compared with stand out. */
  draw(shown, compared) {
    const { book } = this;
    // Instructions have no history; each run that used them names them in its evidence.
    const sessions = book.sessions.filter((each) => each === shown || each === compared || !book.isInstructions(each));
    const places = new Map(sessions.map((session, at) => [session.id, at]));
    const parents = sessions.map((session) => session.parents.map((id) => places.get(id)).filter((at) => at !== undefined));
    const layout = layOut(parents);
    this.sessions = sessions;
    const step = Math.max(4, Math.min(16, 110 / layout.width));
    const x = (lane) => 12 + lane * step;
    const y = (at) => at * NODE_HEIGHT + NODE_HEIGHT / 2;
    const width = 24 + (layout.width - 1) * step;
    const ancestors = this.#ancestors(shown);
    const edges = layout.edges.map((edge) => {
      const full = { ...edge, fromLane: layout.lanes[edge.from], toLane: layout.lanes[edge.to] };
      const isOn = ancestors.has(sessions[edge.to].id) && ancestors.has(sessions[edge.from].id);
      return s("path", { d: pathOf(full, x, y), class: `edge lane-${edge.lane % 6}${edge.second ? " second" : ""}${isOn ? " on" : ""}`, "data-from": sessions[edge.from].id, "data-to": sessions[edge.to].id });
    });
    const nodes = sessions.map((session, at) => s("circle", { cx: x(layout.lanes[at]), cy: y(at), r: session === shown ? 6 : 4.5, class: `node ${session.state} lane-${layout.lanes[at] % 6}${parents[at].length > 1 ? " merge" : ""}` }));
    const art = s("svg", { width, height: sessions.length * NODE_HEIGHT, class: "art", "aria-hidden": "true" }, edges, nodes);
    const rows = sessions.map((session) => this.#row(session, shown, compared, width));
    show(this.heading, "Lineage", h("span", { class: "count" }, count(sessions.length, "session")));
    show(this.box, art, rows);
    this.box.setAttribute("aria-activedescendant", `session-${shown.at}`);
  }

  /** Return the session that stands some lines below another one in the graph. */
  beside(session, by) {
    return this.sessions[this.sessions.indexOf(session) + by];
  }

  /** Bring a session into view. */
  reveal(session) {
    document.getElementById(`session-${session.at}`)?.scrollIntoView({ block: "nearest" });
  }

  #row(session, shown, compared, left) {
    const isShown = session === shown;
    const isCompared = session === compared;
    const facts = [count(session.nRows, "row")];
    if (session.tokens) facts.push(`${short(session.tokens)} tok`);
    if (session.usd !== undefined) facts.push(`${money(session.usd)}${session.unpriced ? " +?" : ""}`);
    if (session.ms) facts.push(duration(session.ms));
    const isPlain = session.state === "completed";
    return h("div", {
      class: `session${isShown ? " selected" : ""}${isCompared ? " compared" : ""}`, id: `session-${session.at}`, role: "option",
      "aria-selected": String(isShown), "data-session": session.id, style: { paddingLeft: `${left}px`, height: `${NODE_HEIGHT}px` }, title: titleOf(session),
    },
    h("span", { class: "what" }, h("b", null, verb(session.operator)), h("span", { class: "title" }, session.path || session.title || shortId(session.id))),
    h("span", { class: "facts" }, isPlain ? null : h("span", { class: `state ${session.state}` }, WORDS[session.state] ?? session.state), facts.join(" · ")),
    isShown ? null : h("button", { class: "pick", type: "button", tabindex: "-1", title: "Compare with this session", "aria-label": `Compare with ${verb(session.operator)} ${shortId(session.id)}`, "aria-pressed": String(isCompared) }, "⇄"));
  }

  #ancestors(session) {
    const found = new Set();
    const stack = [session];
    while (stack.length) {
      const one = stack.pop();
      if (!one || found.has(one.id)) continue;
      found.add(one.id);
      stack.push(...one.parents.map((id) => this.book.byId.get(id)));
    }
    return found;
  }
}

function titleOf(session) {
  return [`${session.operator}  ${session.id}`, session.title, session.problem && whole(session.problem)].filter(Boolean).join("\n");
}
