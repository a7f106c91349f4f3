/* The page as a whole: what is shown, what is selected, and who is told when that changes. */

class Page {
  constructor(book, heads, { board, profile }) {
    this.book = book;
    book.isBoard = Boolean(board);
    this.board = board && new Board(book, board, { onopen: (session, other) => this.openRun(session, other) });
    this.flame = profile && new Flame(profile, { onopen: (id) => this.openRun(book.byId.get(id), null) });
    this.shown = book.byId.get(heads[0]);
    this.compared = null;
    this.before = null; // the session that was shown before this one
    this.side = "a";
    this.focus = "rows";
    this.lineage = new Lineage(book, {
      onselect: (session) => this.showSession(session),
      oncompare: (session) => this.compare(session === this.compared ? null : session),
      onmove: () => (this.focus = "graph"),
    });
    this.list = new List("Rows", {
      render: (item) => this.#parts(item),
      classOf: (item) => this.#classOf(item),
      onselect: (at, how) => this.#chosen(at, how),
    });
    this.map = new Minimap(this.list);
    this.evidence = new Evidence(book, {
      goto: { row: (index) => this.gotoRow(index), session: (id) => this.showSession(book.byId.get(id)), entry: (entry) => this.gotoEntry(entry) },
      onclose: () => this.closeEvidence(),
      oncopy: (what) => (what === "Link" ? this.share.link() : this.share.row()),
    });
    this.share = new Share(this);
    this.search = new Search({ onquery: () => this.#searched(), onstep: (by) => this.step(by) });
    this.help = helpDialog();
    this.#build();
    this.#listen();
    this.compare(book.byId.get(heads[1]) ?? null);
  }

  #build() {
    const button = (text, name, onclick) => h("button", { type: "button", title: name, "aria-label": name, onclick }, text);
    this.name = h("h1", null);
    this.status = h("span", { class: "status" });
    this.toProfile = this.flame ? h("button", { type: "button", title: "Where time, tokens and money went (f)", onclick: () => this.turn("profile") }, "Profile") : null;
    const tools = h("div", { class: "tools" }, this.toProfile, button("◐", "Light or dark (t)", () => this.theme()), button("?", "Keys (?)", () => this.help.showModal()));
    this.head = h("div", { class: "rows-head" });
    this.copies = [["Markdown", "Copy the session as Markdown (s)", () => this.share.session()], ["Print", "Print the session (p)", () => print()]].map(([text, title, onclick]) => h("button", { class: "copy", type: "button", title, onclick }, text));
    const rows = h("section", { class: "pane rows", "aria-label": "Rows" }, this.head, h("div", { class: "lines" }, this.list.view, this.map.strip));
    const tabs = h("nav", { class: "tabs", "aria-label": "Panes" }, [["lineage", "Lineage"], ["rows", "Rows"], ["evidence", "Evidence"]].map(([pane, name]) => h("button", { type: "button", "data-pane": pane, onclick: () => this.pane(pane) }, name)));
    const back = this.board ? h("button", { class: "back", type: "button", title: "All runs (r)", onclick: () => this.view("runs") }, "← Runs") : null;
    fill(document.body, [h("header", { class: "bar" }, back, this.name, this.status, this.search.box, tools), h("main", { class: "panes" }, this.lineage.pane, rows, this.evidence.pane), this.board?.pane, this.flame?.pane, tabs, this.help]);
    this.pane("rows");
  }

  #listen() {
    listenToKeys({
      isAtRows: () => this.isAt("session"),
      down: () => this.move(1), up: () => this.move(-1), step: (by) => this.step(by), theme: () => this.theme(), map: () => this.map.show(),
      copyLink: () => this.share.link(), copyRow: () => this.share.row(), copySession: () => this.share.session(), print: () => print(),
      open: () => this.open(), search: () => (this.isAt("runs") ? this.board.find : this.search.input).select(), runs: () => this.turn("runs"), profile: () => this.turn("profile"), graph: () => this.focusOn(this.focus === "graph" ? "rows" : "graph"),
      compare: () => this.toggleCompare(), side: (side) => this.takeSide(side), help: () => this.help.showModal(), escape: () => this.escape(),
      edge: (end) => (this.focus === "graph" ? this.lineage.move(end ? Infinity : -Infinity) : this.list.select(end ? this.list.items.length - 1 : 0)),
    });
    listenToPrinter(this.book, () => (this.isAt("session") ? this.shown : null));
    addEventListener("hashchange", () => this.gotoAddress());
    for (const [pane, element] of [["graph", this.lineage.box], ["rows", this.list.inner]]) element.addEventListener("focus", () => (this.focus = pane));
  }

  // What is shown.

  /** Tell which view is shown: "session", "runs" or "profile". */
  isAt(name) {
    return document.body.dataset.view === name;
  }

  /** Show the runs of a board, the profile, or a session, which is shown where the page has no such view. */
  view(name) {
    document.body.dataset.view = { runs: this.board, profile: this.flame }[name] ? name : "session";
    this.toProfile?.setAttribute("aria-pressed", String(name === "profile"));
    if (this.isAt("runs")) {
      show(this.name, this.board.name);
      this.opener?.focus();
    } else if (this.isAt("session")) {
      if (this.isReady) this.redraw();
      return;
    } else this.flame.draw();
    if (this.isReady) history.replaceState(null, "", `#${name}`);
  }

  /** Show a view, or from that view the session. */
  turn(name) {
    if (!this.isAt(name)) this.view(name);
    else {
      this.view("session");
      this.share.remember();
    }
  }

  /** Show the session of a run, beside another one or alone. */
  openRun(session, other) {
    this.opener = document.activeElement;
    this.shown = session;
    this.before = other;
    this.lineage.pointTo(session);
    this.view("session");
    this.compare(other);
    this.focusOn("rows");
  }

  showSession(session) {
    if (!session || (session === this.shown && !this.compared)) return;
    if (session !== this.shown) this.before = this.shown;
    this.shown = session;
    this.lineage.pointTo(session);
    this.compared = null;
    this.list.selected = -1;
    this.redraw();
    this.list.view.scrollTop = 0;
    this.lineage.reveal();
    this.list.select(this.#firstOwn());
  }

  /** Show a session beside the one that is shown; null ends the comparison. */
  compare(session) {
    this.compared = session === this.shown ? null : session;
    this.isUnfolded = false;
    this.side = "a";
    this.list.selected = -1;
    this.redraw();
    this.list.view.scrollTop = 0;
    this.list.select(this.#firstRow());
    if (this.compared) this.focusOn("rows");
  }

  toggleCompare() {
    if (this.compared) this.compare(null);
    else if (this.before && this.before !== this.shown) this.compare(this.before);
    else this.say("Choose another session first, then press c, or press ⇄ beside one.");
  }

  /** Draw all again, after what is shown has changed; the selected item stays selected. */
  redraw() {
    const { book, shown, compared } = this;
    const key = this.list.items[this.list.selected]?.key;
    const made = compared ? pairsOf(book, shown, compared, this.isUnfolded) : { items: book.timeline(shown) };
    document.body.classList.toggle("comparing", Boolean(compared));
    show(this.name, shown.title || book.related(shown).find((session) => session.title)?.title || book.question(shown) || `Session ${shortId(shown.id)}`);
    show(this.head, compared ? compareHead(book, shown, compared, made.common, () => this.compare(null)) : sessionHead(book, shown, [this.map.modes, this.copies], this.board?.about(shown)));
    this.lineage.draw(shown, compared);
    this.list.selected = key === undefined ? -1 : made.items.findIndex((item) => item.key === key);
    warm(made.items);
    this.list.set(made.items);
    this.#findHits();
  }

  /** Take in what is new; whoever reads the last lines is taken along. */
  grow(part) {
    const wasAtEnd = this.list.isAtEnd;
    this.book.add(part);
    this.#keepSessions();
    this.redraw();
    if (wasAtEnd) this.list.toEnd();
  }

  now(lines) {
    const wasAtEnd = this.list.isAtEnd;
    this.book.now.set(this.live, lines.map(([kind, text], at) => ({ type: "now", kind, text, key: `n${at}` })));
    this.redraw();
    if (wasAtEnd) this.list.toEnd();
  }

  #keepSessions() {
    for (const name of ["shown", "compared", "before"]) this[name] = this[name] && this.book.byId.get(this[name].id);
  }

  // What is selected.

  #firstOwn() {
    const at = this.list.items.findIndex((item) => item.type === "row" && this.book.birth(item.row) === this.shown.id);
    return at < 0 ? this.#firstRow() : at;
  }

  #firstRow() {
    return Math.max(0, this.list.items.findIndex((item) => item.type === "row" || item.type === "pair"));
  }

  #chosen(at, { side, isPointed = false } = {}) {
    const item = this.list.items[at];
    if (item.type === "fold") {
      this.isUnfolded = !this.isUnfolded;
      this.list.selected = at;
      this.redraw();
      return;
    }
    if (side) this.side = side;
    this.list.selected = at;
    this.list.refresh();
    this.map.place();
    this.list.inner.setAttribute("aria-activedescendant", `line-${at}`);
    this.#tellEvidence();
    if (isPointed) this.openEvidence();
    this.#tellSearch();
    if (this.isReady) this.share.remember();
  }

  /** Return the selected item; of a pair the one on the chosen side. */
  get selected() {
    const item = this.list.items[this.list.selected];
    return item?.type === "pair" ? item[this.#sideOf(item)] : item;
  }

  /** Return the chosen side of a pair, or the other one where nothing stands there. */
  #sideOf(pair) {
    const other = this.side === "a" ? "b" : "a";
    return pair[this.side] ? this.side : other;
  }

  #tellEvidence() {
    const item = this.selected;
    if (!item || item.type === "fold") this.evidence.clear();
    else {
      const pair = this.list.items[this.list.selected];
      this.evidence.set(item, pair.type === "pair" && this.#sideOf(pair) === "b" ? this.compared : this.shown);
    }
  }

  move(by) {
    if (this.focus === "graph") {
      this.lineage.move(by);
      return;
    }
    const { items, selected } = this.list;
    let at = selected + by;
    while (items[at]?.type === "fold" || items[at]?.type === "band") at += by;
    if (items[at]) this.list.select(at);
  }

  takeSide(side) {
    if (this.focus === "graph") {
      if (side === "b") this.lineage.turn(undefined, true);
      else if (!this.lineage.turn(undefined, false)) this.lineage.close();
      return;
    }
    if (!this.compared) return;
    this.side = side;
    this.list.refresh();
    this.#tellEvidence();
  }

  open() {
    if (this.focus === "graph") {
      if (!this.lineage.turn()) this.focusOn("rows");
    } else this.openEvidence();
  }

  openEvidence() {
    document.body.classList.add("has-evidence");
    this.pane("evidence");
  }

  closeEvidence() {
    document.body.classList.remove("has-evidence");
    this.pane("rows");
    this.focusOn("rows");
  }

  gotoRow(index) {
    const at = this.list.items.findIndex((item) => item.type === "row" && item.index === index);
    if (at >= 0) this.list.select(at);
  }

  gotoEntry(entry) {
    const at = this.list.items.findIndex((item) => item.entry === entry);
    if (at >= 0) this.list.select(at);
  }

  /** Show what the address of the page names; without one nothing changes. */
  gotoAddress() {
    if (["#runs", "#profile"].includes(location.hash)) this.view(location.hash.slice(1));
    const named = parseAddress(location.hash);
    if (!named) return;
    const session = this.book.sessions.find((each) => each.id.startsWith(named.id));
    if (!session) {
      this.say(`Session ${named.id} is not in this page.`);
      return;
    }
    if (!this.isAt("session")) this.view("session");
    if (session !== this.shown || this.compared) this.showSession(session);
    if (named.index !== undefined) this.gotoRow(named.index);
    this.focusOn("rows");
  }

  /** Return the session and the row that are selected: of a comparison those of the chosen side. */
  get selectedRow() {
    const item = this.selected;
    const pair = this.list.items[this.list.selected];
    return { item: item?.type === "row" ? item : null, session: pair?.type === "pair" && this.#sideOf(pair) === "b" ? this.compared : this.shown };
  }

  // Search.

  #searched() {
    this.#findHits();
    this.list.refresh();
    if (this.hits.length && !this.hitSet.has(this.list.selected)) this.step(1);
  }

  #findHits() {
    const { query } = this.search;
    const isHit = (item) => (item.type === "pair" ? [item.a, item.b].some((each) => each && matches(this.book, each, query)) : matches(this.book, item, query));
    this.hits = query.isEmpty ? [] : this.list.items.flatMap((item, at) => (isHit(item) ? [at] : []));
    this.hitSet = new Set(this.hits);
    this.map.mark(this.hits);
    this.#tellSearch();
  }

  #tellSearch() {
    this.search.tell(this.hits.indexOf(this.list.selected) + 1, this.hits.length);
  }

  step(by) {
    const { hits, list } = this;
    if (!hits.length) return;
    const next = by > 0 ? hits.find((at) => at > list.selected) ?? hits[0] : hits.findLast((at) => at < list.selected) ?? hits.at(-1);
    const item = list.items[next];
    if (item.type === "pair") this.side = item[this.side] && matches(this.book, item[this.side], this.search.query) ? this.side : this.side === "a" ? "b" : "a";
    list.select(next);
  }

  // The page.

  #parts(item) {
    const { term } = this.search.query;
    if (item.type !== "pair") return itemParts(this.book, item, term);
    const isSelected = this.list.items[this.list.selected] === item;
    return ["a", "b"].map((side) => pairCell(this.book, item[side], side, isSelected && side === this.#sideOf(item), term));
  }

  #classOf(item) {
    const at = item.place;
    return [item.type === "row" ? item.row.k : "", this.hitSet?.has(at) ? "hit" : "", item.entry?.in ? "inner" : ""].join(" ");
  }

  focusOn(pane) {
    this.focus = pane;
    this.pane(pane === "graph" ? "lineage" : "rows");
    (pane === "graph" ? this.lineage.box : this.list.inner).focus({ preventScroll: true });
  }

  /** Say which pane a narrow window shows. */
  pane(name) {
    document.body.dataset.pane = name;
    for (const tab of document.querySelectorAll(".tabs button")) tab.setAttribute("aria-pressed", String(tab.dataset.pane === name));
  }

  escape() {
    if (this.help.open) return;
    if (this.isAt("profile")) {
      if (this.flame.chosen === null) this.turn("profile");
      else this.flame.choose(null);
      return;
    }
    if (document.activeElement === this.search.input || !this.search.query.isEmpty) {
      this.search.clear();
      this.focusOn("rows");
    } else if (document.body.classList.contains("has-evidence")) this.closeEvidence();
    else if (this.compared && !this.board) this.compare(null);
    else if (this.board && !this.isAt("runs")) this.view("runs");
    else if (!this.isAt("runs")) this.focusOn("rows");
  }

  theme() {
    const root = document.documentElement;
    const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = isDark ? "light" : "dark";
    this.map.draw();
  }

  say(text) {
    show(this.status, text);
    clearTimeout(this.quiet);
    this.quiet = setTimeout(() => show(this.status), 4000);
  }
}

const book = new Book();
book.add(JSON.parse(document.getElementById("data").textContent));
const [board, profile] = ["board", "profile"].map((id) => JSON.parse(document.getElementById(id).textContent));
const page = new Page(book, document.body.dataset.head.split(" "), { board, profile });
if (document.body.dataset.events) {
  page.live = document.body.dataset.head.split(" ")[0];
  const live = new Live(document.body.dataset.events, { onpart: (part) => page.grow(part), onnow: (lines) => page.now(lines) });
  page.status.before(live.badge);
  page.list.toEnd();
}
page.focusOn("rows");
page.view(page.board ? "runs" : "session");
page.gotoAddress();
page.isReady = true;
document.documentElement.dataset.ready = String(Math.round(performance.now()));
