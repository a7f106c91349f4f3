/* What leaves the page: addresses of rows, Markdown, and the paper of a printer. */

/** Return the address of a row, or of a session, within the page. */
function addressOf(session, index) {
  return `#${session.id}${index === undefined ? "" : `/${index}`}`;
}

/** Return what an address names, {id, index}; null for one that names nothing. An id may be shortened. */
function parseAddress(hash) {
  const found = /^#([0-9a-f][0-9a-f-]{3,35})(?:\/(\d{1,9}))?$/.exec(hash);
  return found && { id: found[1], index: found[2] === undefined ? undefined : Number(found[2]) };
}

/** Put a text on the clipboard; resolves to whether that went well. */
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Where the page may not: what is selected can still be copied.
    const box = h("textarea", { readonly: true, class: "away", "aria-hidden": "true" }, text);
    const { activeElement } = document;
    document.body.append(box);
    box.select();
    const isDone = document.execCommand("copy");
    box.remove();
    activeElement?.focus?.({ preventScroll: true });
    return isDone;
  }
}

/** Return a text with what the page leaves out of it said. */
function withGap(text) {
  if (text === undefined || text === null) return "";
  return typeof text === "string" ? text : `${text[0]}${leftOut(text[1])}${text[2]}`;
}

/** Return a text as a block of code whose fence is longer than any in it. */
function fenced(text, language = "") {
  const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map((run) => run.length));
  const fence = "`".repeat(longest + 1);
  return `${fence}${language}\n${text.replace(/\n$/, "")}\n${fence}`;
}

/** Return Markdown that somebody wrote as a quotation in which no HTML and no picture of another server is live. */
function quoted(text) {
  let fence = "";
  const lines = text.split("\n").map((each) => {
    const [, run] = /^ {0,3}(`{3,}|~{3,})/.exec(each) ?? [];
    if (fence) {
      if (run && run[0] === fence[0] && run.length >= fence.length && !each.trim().replaceAll(run[0], "")) fence = "";
      return each;
    }
    // A fence of backticks has none behind it, or it is code in a line.
    if (run && (run[0] === "~" || !each.trim().slice(run.length).includes("`"))) {
      fence = run;
      return each;
    }
    return each.replace(/<(?=[a-z/!?])/gi, "\\<").replace(/!(?=\[)/g, "\\!");
  });
  return lines.map((each) => `> ${each}`).join("\n");
}

/** Return a text on one line of Markdown in which no sign has a meaning. */
function plainLine(text) {
  return line(text, 200).replace(/[\\`*_[\]<>|!#~]/g, "\\$&");
}

/** Return a row as Markdown. */
function rowToMarkdown(book, { row, index, entry }, level = "###") {
  const { speaker, name } = headline(book, { row, entry });
  const { cost, time } = tookOf(entry);
  const text = withGap(row.t);
  const facts = [cost, time].filter(Boolean).join(" · ");
  return [
    `${level} ${index} ${plainLine(speaker)}${name ? ` (${plainLine(name)})` : ""}${facts ? ` · ${facts}` : ""}`,
    text && (["user", "assistant"].includes(row.k) ? quoted(text) : fenced(text)),
    ...(row.c ?? []).flatMap(([, tool, args]) => [`calls ${plainLine(tool)}`, fenced(withGap(args), "json")]),
    ...(row.im ?? []).map((image) => `(image, ${plainLine(image.m)}, ${size(image.n)})`),
    entry?.traceback && row.k === "tool_result" ? fenced(withGap(entry.traceback)) : "",
  ].filter(Boolean).join("\n\n");
}

/** Return a session as Markdown: its numbers, and all its rows with what happened between them. */
function sessionToMarkdown(book, session) {
  const { name, more } = nameOf(book, session);
  const head = [`## ${[name, more].filter(Boolean).map(plainLine).join(": ")}`, `Session \`${session.id}\` · ${WORDS[session.state] ?? session.state} · ${factsOf(session).join(" · ")}`];
  const items = book.timeline(session).map((item) => {
    if (item.type === "row") return rowToMarkdown(book, item);
    if (item.type !== "event") return "";
    const said = eventLine(book, item.entry);
    return `- ${said.mark} ${plainLine(said.name)}${said.text ? `: ${plainLine(said.text)}` : ""}`;
  });
  return [...head, ...items].filter(Boolean).join("\n\n") + "\n";
}

/** Return all rows of a session in full, for a printer: the list holds only what can be seen. */
function paperOf(book, session) {
  const { name, more } = nameOf(book, session);
  const items = book.timeline(session).map((item) => {
    if (item.type === "event") {
      const said = eventLine(book, item.entry);
      return h("p", { class: "event" }, said.mark, " ", h("b", null, said.name), " ", said.text);
    }
    if (item.type !== "row") return null;
    const { row, entry } = item;
    const { speaker, name: by, chips } = headline(book, item);
    const { cost, time } = tookOf(entry);
    return h("article", { class: row.k }, h("h3", null, `${item.index} `, h("b", { class: `speaker ${speaker}` }, speaker), by ? ` ${by}` : "", h("span", { class: "facts" }, [...chips.map((chip) => chip.text), cost, time].filter(Boolean).map((text) => ` · ${text}`))),
      withGap(row.t) ? h("pre", null, withGap(row.t)) : null,
      (row.c ?? []).map(([, tool, args]) => [h("p", { class: "facts" }, `calls ${tool}`), h("pre", { class: "code" }, withGap(args))]),
      entry?.traceback && row.k === "tool_result" ? h("pre", { class: "code" }, withGap(entry.traceback)) : null);
  });
  return h("section", { class: "paper" }, h("h1", null, [name, more].filter(Boolean).join(": ")), h("p", { class: "facts" }, `${session.id} · ${WORDS[session.state] ?? session.state} · ${factsOf(session).join(" · ")}`), items);
}

/** Put the shown session on paper while a printer asks for it; `shown` gives that session, null for the page as it is. */
function listenToPrinter(book, shown) {
  let paper = null;
  addEventListener("beforeprint", () => {
    paper?.remove();
    const session = shown();
    paper = session && paperOf(book, session);
    if (paper) document.body.append(paper);
  });
  addEventListener("afterprint", () => {
    paper?.remove();
    paper = null;
  });
}

/** Copies what is selected, and keeps the address of the page at it. */
class Share {
  /** @param page with `selectedRow`, `book` and `say` */
  constructor(page) {
    this.page = page;
  }

  #address() {
    const { item, session } = this.page.selectedRow;
    return addressOf(session, item?.index);
  }

  /** Keep the address of the page at the selected row. */
  remember() {
    clearTimeout(this.later);
    // Browsers refuse many changes in a short time, as of a key that is held down.
    this.later = setTimeout(() => this.page.isAt("session") && history.replaceState(null, "", this.#address()), 120);
  }

  async #copy(text, what) {
    this.page.say((await copyText(text)) ? `Copied: ${what}` : "The browser did not let the page copy.");
  }

  link() {
    const { item } = this.page.selectedRow;
    return this.#copy(location.href.split("#")[0] + this.#address(), item ? `the address of row ${item.index}` : "the address of the session");
  }

  row() {
    const { item } = this.page.selectedRow;
    return item ? this.#copy(`${rowToMarkdown(this.page.book, item)}\n`, `row ${item.index} as Markdown`) : this.session();
  }

  session() {
    const { session } = this.page.selectedRow;
    return this.#copy(sessionToMarkdown(this.page.book, session), `${count(session.nRows, "row")} as Markdown`);
  }
}
