/* The pane with what one line rests on. */

class Evidence {
  /** @param goto {row(index in the shown session), born(row number), session(id)}; oncopy ("Link" | "Markdown") of the row */
  constructor(book, { goto, onclose, oncopy }) {
    this.book = book;
    this.goto = goto;
    this.body = h("div", { class: "scroll", id: "evidence", tabindex: "-1" });
    this.pane = h("aside", { class: "pane evidence", "aria-label": "Evidence" }, this.body);
    this.onclose = onclose;
    this.oncopy = oncopy;
    this.clear();
  }

  clear() {
    show(this.body, h("p", { class: "empty" }, "Choose a line to see what it rests on."));
  }

  /** Show an item of the session's list. */
  set(item, session) {
    const close = h("button", { class: "close", type: "button", onclick: this.onclose, "aria-label": "Close the evidence", title: "Close (Esc)" }, "×");
    const [title, ...content] = this.#content(item, session);
    const copy = item.type === "row" ? ["Link", "Markdown"].map((what) => h("button", { class: "copy", type: "button", title: what === "Link" ? "Copy the address of this row (y)" : "Copy this row as Markdown (Y)", onclick: () => this.oncopy(what) }, what)) : null;
    show(this.body, h("header", null, h("h2", null, title), h("span", { class: "tools" }, copy, close)), content);
    this.body.scrollTop = 0;
  }

  #content(item, session) {
    switch (item.type) {
      case "row": return this.#row(item, session);
      case "band": return this.#birth(item);
      case "event": return this.#event(item.entry);
      case "now": return [item.kind, textBox(item.text)];
      default: return [item.text];
    }
  }

  #row({ row, index, entry }, session) {
    const { speaker } = headline(this.book, { row, entry });
    const birth = this.book.birth(row);
    const isOwn = birth === session.id;
    const origin = facts(
      ["row", `${index} of ${session.nRows}`],
      ["born in", h("span", null, this.#sessionLink(birth), isOwn ? " (here)" : `, as row ${row.i}`)],
      ["at", entry?.at && moment(entry.at)],
    );
    const images = (row.im ?? []).map(imageBox);
    const calls = (row.c ?? []).map(([id, name, args]) => h("div", { class: "call" }, h("p", { class: "facts" }, h("b", null, name), ` ${id}`), objectBox(args)));
    const text = row.t === undefined || row.t === "" ? null : row.k === "tool_result" ? resultBox(row.t) : textBox(row.t);
    return [
      [h("b", { class: `speaker ${speaker}` }, speaker), row.tool ? ` ${row.tool}` : ""], origin,
      images.length ? part(count(images.length, "image"), images) : null,
      row.k === "tool_result" ? null : text, calls.length ? part(calls.length === 1 ? "Tool call" : "Tool calls", calls) : null,
      this.#made(entry, text, row),
    ];
  }

  /** Return what made a row. */
  #made(entry, text, row) {
    if (entry?.k === "model") return callParts(this.book, entry, this.goto.row);
    if (entry?.k === "tool") return this.#toolParts(entry, text);
    if (entry?.k === "summary") return this.#summary(entry);
    const said = row.k === "tool_result" ? [part("What the model read", text)] : [];
    const why = new Map([["user", "Somebody wrote this row; no model call made it."], ["assistant", "The page has no record of the call that made this row."], ["tool_result", "The page has no record of the tool run that made this row."]]);
    return [...said, h("p", { class: "empty" }, why.get(row.k) ?? "Nothing is recorded about this row.")];
  }

  #toolParts(entry, text) {
    const place = this.book.shared[entry.where];
    const state = h("span", { class: entry.status === "done" && !entry.exit ? "good" : "bad" }, entry.status);
    const effects = (entry.effects ?? "").replace("_", " ");
    const files = entry.files ?? [];
    return [
      part("Tool run",
        facts(["status", [state, entry.error ? ` (${entry.error})` : ""]], ["exit code", entry.exit], ["signal", entry.signal], ["took", entry.ms === undefined ? null : duration(entry.ms)], ["tool", h("code", null, entry.tool)], ["origin", entry.origin], ["declared", effects], ["call", h("code", null, entry.call)], ["schema", digest(entry.schema)], ["allowed by", entry.decision === undefined ? null : this.#entryLink(entry.decision)]),
        entry.args ? [h("p", { class: "facts" }, "arguments"), objectBox(entry.args)] : null),
      entry.traceback ? part("Where it raised", h("p", { class: "facts" }, h("code", null, entry.raised)), textBox(entry.traceback, "code")) : null,
      part("Where it ran", place ? facts(["backend", place.backend], ["sandbox", place.sandbox_id && h("code", null, place.sandbox_id)], ["isolation", place.isolation], ["root", place.root && h("code", null, place.root)], ["directory", place.cwd && h("code", null, place.cwd)], ["layer", place.layer]) : h("p", { class: "empty" }, "In this program, and in no sandbox.")),
      files.length ? part(`What changed: ${count(files.length, "file")}`, files.map(changeBox)) : null,
      (entry.gaps ?? []).length ? part("What may be missing", h("ul", null, entry.gaps.map((gap) => h("li", null, gap)))) : null,
      text ? part("What the model read", text) : null,
      entry.full ? part("The whole result", facts(["size", size(entry.full.n)], ["sha256", digest(entry.full.digest)]), entry.full.text ? folded("Show it", () => textBox(entry.full.text, "code")) : h("p", { class: "empty" }, "Its bytes were not kept.")) : null,
    ];
  }

  #kept(content) {
    return content.text ? textBox(content.text, "code") : facts(["size", size(content.n)], ["sha256", digest(content.digest)]);
  }

  #summary(entry) {
    const rows = (entry.replaced ?? []).map((number) => this.book.rows[number]);
    return part("In place of", h("p", null, count(entry.n, "row"), rows.length < entry.n ? `, ${rows.length} of them in this page` : ""), facts(["digest", digest(entry.digest)]),
      rows.length ? folded("The rows that it replaced", () => rows.map((row) => h("div", { class: "note" }, h("p", { class: "facts" }, speakerOf(row)), textBox(row.t ?? "")))) : null);
  }

  #event(entry) {
    const said = eventLine(this.book, entry);
    const title = [h("span", { class: `mark ${said.kind}` }, said.mark), ` ${said.name}`];
    const common = facts(["at", moment(entry.at)], ["inside", entry.in ? "a tool call of this session" : null]);
    switch (entry.k) {
      case "model": return [title, common, callParts(this.book, entry, this.goto.row)];
      case "tool": return [title, common, this.#toolParts(entry, null)];
      case "summary": return [title, common, this.#summary(entry)];
      case "verdict": return [title, common, part("Verdict", facts(["judged by", h("code", null, whole(entry.judge))], ["score", entry.score], ["workspace", digest(entry.workspace)])), entry.report ? part("Report", textBox(entry.report, "code")) : null];
      case "job": return [title, common, part("Job", facts(["workflow", h("code", null, whole(entry.workflow))], ["engine", entry.engine], ["items", entry.n]))];
      case "item": return [title, common, part("Item", facts(["key", h("code", null, whole(entry.key))], ["attempt", entry.attempt], ["session", entry.session])), entry.error ? part("Error", textBox(entry.error)) : null];
      case "interrupt": return [title, common, part("Waits for", facts(["reason", entry.reason], ["calls", (entry.calls ?? []).join(", ")], ["session", entry.child]), entry.question ? textBox(entry.question) : null)];
      case "decision": return [title, common, part("Decision", facts(["choice", whole(entry.choice)], ["by", entry.by], ["tool", entry.tool], ["call", entry.call]), entry.args ? objectBox(entry.args) : null, entry.edited ? objectBox(entry.edited) : null, entry.text ? textBox(entry.text) : null)];
      case "change": return [title, common, part("Changed by a hook", facts(["hook", h("code", null, entry.hook)], ["call", entry.call])), part("Before", this.#kept(entry.before)), part("After", this.#kept(entry.after))];
      default: return [title, common, this.#operation(entry)];
    }
  }

  #operation(entry) {
    const head = this.book.shared[entry.head] ?? [];
    return part("Operation",
      facts(["kind", entry.kind], ["made", this.#sessionLink(this.book.ids[entry.session])], ["place", entry.path ? `${entry.path} #${entry.ordinal}` : null], ["workspace", entry.workspace], ["undid", entry.undone === undefined ? null : this.#entryLink(entry.undone)]),
      head.length ? folded(`Instructions, ${count(head.length, "row")}`, () => head.map(([, text]) => textBox(text)), true) : null,
      entry.tools === undefined ? null : folded(count(this.book.shared[entry.tools].length, "tool"), () => this.book.shared[entry.tools].map(toolBox)));
  }

  #birth({ row, entry }) {
    const id = this.book.birth(row);
    const session = this.book.byId.get(id);
    const state = session && h("span", { class: `state ${session.state}` }, WORDS[session.state]);
    return [
      `Rows of ${session ? nameOf(this.book, session).name : "a session"}`,
      facts(["session", this.#sessionLink(id)], ["made by", session?.operator], ["state", state], ["why", session?.problem && whole(session.problem)], ["began", session?.began && moment(session.began)], ["took", session?.ms && duration(session.ms)],
        ["model calls", session?.calls || null], ["tool runs", session?.tools || null], ["models", (session?.models ?? []).join(", ")], ["placed on", (session?.backends ?? []).join(", ")], ...(session?.extras ?? []).map(([name, value]) => [name, line(value)])),
      entry ? this.#operation(entry) : null,
    ];
  }

  #sessionLink(id) {
    const name = h("code", null, shortId(id));
    const session = this.book.byId.get(id);
    return session ? h("button", { class: "link", type: "button", title: id, onclick: () => this.goto.session(id) }, nameOf(this.book, session).name, " ", name) : h("span", { title: id }, name);
  }

  #entryLink(number) {
    const entry = this.book.entries[number];
    return link(eventLine(this.book, entry).name, () => this.goto.entry(entry));
  }
}

/** Return what a tool gave back for a person, and folded away as the model read it. */
function resultBox(text) {
  return parsed(text) ? [objectBox(text), folded("As the model read it", () => textBox(text, "code"))] : textBox(text, "code");
}

function imageBox(image) {
  const caption = `${image.m}, ${size(image.n)}${image.why ? `: ${image.why}` : ""}`;
  // A data address of a picture cannot run anything, also not one that says it is SVG.
  const picture = image.b && /^image\/(png|jpeg|gif|webp)$/.test(image.m) ? h("img", { src: `data:${image.m};base64,${image.b}`, alt: caption }) : null;
  return h("figure", null, picture, h("figcaption", null, caption));
}
