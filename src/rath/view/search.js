/* Search in the shown lines: words of the text, and kind:, tool: and model: to narrow it. */

/** Return what a query asks for: {term, kind, tool, model}. */
function parseQuery(text) {
  const query = { term: "" };
  const words = [];
  for (const word of text.trim().toLowerCase().split(/\s+/)) {
    const found = /^(kind|tool|model):(.+)$/.exec(word);
    if (found) query[found[1]] = found[2];
    else words.push(word);
  }
  query.term = words.join(" ");
  query.isEmpty = !query.term && !query.kind && !query.tool && !query.model;
  return query;
}

/** Return all text of an item in small letters; worked out once. */
function haystack(book, item) {
  if (item.haystack !== undefined) return item.haystack;
  const { row, entry } = item;
  const said = [];
  if (row && item.type === "row") said.push(whole(row.t), ...(row.c ?? []).map(([, name, args]) => `${name} ${whole(args)}`), row.tool);
  if (entry) said.push(entry.tool, whole(entry.args), whole(entry.error), whole(entry.traceback), whole(entry.report), whole(entry.answer), entry.name, whole(entry.judge), ...(entry.files ?? []).map((file) => file.path));
  return (item.haystack = said.filter(Boolean).join("\n").toLowerCase());
}

/** Tell whether an item is what a query asks for. */
function matches(book, item, query) {
  if (item.type !== "row" && item.type !== "event") return false;
  const { row, entry } = item;
  if (query.kind && !kindsOf(item).some((kind) => kind.startsWith(query.kind))) return false;
  if (query.tool) {
    const names = [row?.tool, item.type === "event" || row?.k === "tool_result" ? entry?.tool : "", ...(row?.c ?? []).map(([, name]) => name)];
    if (!names.some((name) => name?.toLowerCase().includes(query.tool))) return false;
  }
  if (query.model && !(entry?.k === "model" && book.model(entry).toLowerCase().includes(query.model))) return false;
  return !query.term || haystack(book, item).includes(query.term);
}

function kindsOf({ type, row, entry }) {
  if (type === "event") return [entry.k, entry.kind ?? "", entry.status ?? ""];
  return [speakerOf(row), entry?.status ?? "", entry?.k === "summary" ? "summary" : ""];
}

class Search {
  /** @param onquery (query) when it changes; onstep (+1 | -1) to the next or previous match */
  constructor({ onquery, onstep }) {
    this.query = parseQuery("");
    this.input = h("input", { type: "search", placeholder: "Search   /", "aria-label": "Search in the rows", spellcheck: "false", autocomplete: "off", id: "search", title: "Words, and kind: tool: model: to narrow the search" });
    this.told = h("output", { class: "told", for: "search" });
    const step = (by, sign, name) => h("button", { type: "button", title: name, "aria-label": name, onclick: () => onstep(by) }, sign);
    this.box = h("div", { class: "search", role: "search" }, this.input, this.told, step(-1, "↑", "Previous match (N)"), step(1, "↓", "Next match (n)"));
    this.input.addEventListener("input", () => {
      clearTimeout(this.wait);
      this.wait = setTimeout(() => this.#changed(onquery), 80);
    });
    this.input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      clearTimeout(this.wait);
      if (this.#changed(onquery)) return;
      onstep(event.shiftKey ? -1 : 1);
    });
  }

  clear() {
    this.input.value = "";
    this.input.dispatchEvent(new Event("input"));
  }

  /** Say how many matches there are, and which one is shown. */
  tell(nth, n) {
    this.told.textContent = this.query.isEmpty ? "" : n ? `${nth ? `${nth} of ` : ""}${n.toLocaleString("en")}` : "none";
    this.box.classList.toggle("none", !this.query.isEmpty && !n);
  }

  #changed(onquery) {
    if (this.text === this.input.value) return false;
    this.text = this.input.value;
    this.query = parseQuery(this.text);
    onquery(this.query);
    return true;
  }
}
