/* What one line of a session's list shows. */

/** By how a tool run ended: its mark and its kind; every other way is a failure. */
const ENDS = { done: ["·", "quiet"], suspended: ["‖", "warn"] };

const HEIGHTS = { row: 54, event: 30, band: 30, now: 34, fold: 34 };

/** Return how high the line of an item is, in pixels. */
function heightOf(item) {
  if (item.type !== "pair") return HEIGHTS[item.type];
  return Math.max(...[item.a, item.b].map((each) => (each ? HEIGHTS[each.type] : 0)));
}

/** Return who speaks in a row; a kind may be any text. */
function speakerOf(row) {
  return row.k === "tool_result" ? "tool" : row.k;
}

/** Return who speaks in a row, the text, and what stands at its right end. */
function headline(book, item) {
  const { row, entry } = item;
  const speaker = speakerOf(row);
  const images = (row.im ?? []).map((image) => ({ text: image.m, kind: "image" }));
  if (row.k === "tool_result") return { speaker, name: row.tool, text: gist(row.t), chips: [...images, ...chipsOfRun(entry)] };
  const calls = (row.c ?? []).map(([, name, args]) => ({ text: name, tip: gist(args), kind: "call" }));
  const name = entry?.k === "model" ? book.model(entry) : entry?.k === "summary" ? "summary" : "";
  const said = line(row.t);
  const text = said || (row.c ?? []).map(([, tool, args]) => `${tool}  ${gist(args)}`).join("   ");
  return { speaker, name, text, chips: [...calls, ...images], isCode: !said };
}

/** Return JSON as an object, null for any other text and for one that is not here as a whole. */
function parsed(text) {
  if (typeof text !== "string" || !text.startsWith("{")) return null;
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/** Return on one line what an object says: its texts without the names around them. */
function gist(text) {
  const said = parsed(text);
  if (!said) return line(text);
  if (said.error_kind) return line(`${said.error_kind}: ${said.message ?? ""}`);
  const known = Object.entries(said).filter(([name, value]) => value !== "" && value !== null && name !== "elapsed_ms");
  const texts = known.filter(([, value]) => typeof value === "string");
  if (texts.length === 1 && (known.length === 1 || said.exit_code === 0)) return line(texts[0][1]);
  return known.map(([name, value]) => `${name}: ${line(typeof value === "string" ? value : JSON.stringify(value), 120)}`).join("  ");
}

function chipsOfRun(entry) {
  if (entry?.k !== "tool") return [];
  const chips = [];
  if (entry.status !== "done") chips.push({ text: entry.status, kind: "bad" });
  if (entry.exit) chips.push({ text: `exit ${entry.exit}`, kind: "bad" });
  for (const file of (entry.files ?? []).slice(0, 3)) {
    chips.push({ text: `${{ created: "+", deleted: "−", renamed: "→" }[file.kind] ?? "±"} ${file.path}`, kind: "file" });
  }
  if ((entry.files ?? []).length > 3) chips.push({ text: `${entry.files.length - 3} more files`, kind: "file" });
  return chips;
}

/** Return what a call took, in a few words: {cost, time}. */
function tookOf(entry) {
  const parts = [];
  if (entry?.k === "model") {
    if (entry.usage) parts.push(`${short(entry.usage[2])} tok`);
    if (entry.usd !== undefined) parts.push(money(entry.usd));
  }
  return { cost: parts.join(" · "), time: entry?.ms === undefined ? "" : duration(entry.ms) };
}

/** Return an entry that made no row as a mark, a name and a text. */
function eventLine(book, entry) {
  switch (entry.k) {
    case "model": {
      const good = entry.status === "done";
      const text = line(entry.answer ?? entry.error ?? entry.partial ?? "");
      return { mark: good ? "·" : "×", kind: good ? "quiet" : "bad", name: `${entry.purpose} ${good ? "by" : entry.status + ":"} ${book.model(entry)}`, text };
    }
    case "tool": {
      const [mark, kind] = ENDS[entry.status] ?? ["×", "bad"];
      return { mark, kind, name: [entry.origin === "Session.check" ? "command of a check" : entry.tool, entry.status === "done" ? "" : entry.status].join(" ").trim(), text: gist(entry.args) };
    }
    case "verdict":
      return { mark: entry.passed ? "✓" : "✗", kind: entry.passed ? "good" : "bad", name: `${entry.name} ${entry.passed ? "passed" : "failed"}`, text: line(entry.judge) };
    case "interrupt":
      return { mark: "‖", kind: "warn", name: `waits for ${entry.reason}`, text: line(entry.question ?? (entry.calls ?? []).join(", ")) };
    case "decision":
      return { mark: "▸", kind: "warn", name: `${entry.by} decided`, text: line(entry.choice) };
    case "change":
      return { mark: "✎", kind: "warn", name: `hook changed the ${entry.what}`, text: [entry.hook, entry.call].filter(Boolean).join(" ") };
    case "job":
      return { mark: "▶", kind: "quiet", name: `job ${entry.name}`, text: `${count(entry.n, "item")} on ${entry.engine}` };
    case "item": {
      const [mark, kind] = { done: ["✓", "good"], waiting: ["‖", "warn"] }[entry.status] ?? ["✗", "bad"];
      return { mark, kind, name: `item ${entry.epoch ? `epoch ${entry.epoch} ` : ""}${entry.status}`, text: line(entry.error ? `${entry.key}: ${entry.error}` : entry.key) };
    }
    case "summary":
      return { mark: "≡", kind: "quiet", name: "summary", text: `in place of ${count(entry.n, "row")}` };
    default:
      return { mark: "○", kind: "quiet", name: [entry.kind, entry.workspace && entry.workspace !== "share" ? `workspace ${entry.workspace}` : ""].filter(Boolean).join(" · "), text: entry.path ?? "" };
  }
}

/** Return the text with what was searched for marked in it. */
function marked(text, term) {
  if (!term) return [text];
  const parts = [];
  const low = text.toLowerCase();
  let from = 0;
  for (let at = low.indexOf(term); at >= 0 && parts.length < 40; at = low.indexOf(term, from)) {
    parts.push(text.slice(from, at), h("mark", null, text.slice(at, at + term.length)));
    from = at + term.length;
  }
  return [...parts, text.slice(from)];
}

/** Return the end of a text around what was searched for, so that the line shows it. */
function around(text, full, term) {
  if (!term || text.slice(0, 60).toLowerCase().includes(term)) return text;
  const at = full.toLowerCase().indexOf(term);
  return at < 0 ? text : `… ${line(full.slice(Math.max(0, at - 30)))}`;
}

/** Return the inside of a line; `term` is what is searched for. */
function itemParts(book, item, term) {
  if (item.type === "band") return bandParts(book, item);
  if (item.type === "now") return [h("span", { class: "mark warn" }, "…"), h("span", { class: "name" }, item.kind), h("span", { class: "text" }, item.text.slice(-300))];
  if (item.type === "fold") return [h("span", { class: "text" }, item.text)];
  if (item.type === "event") {
    const said = eventLine(book, item.entry);
    return [
      h("span", { class: `mark ${said.kind}` }, said.mark), item.entry.in ? h("span", { class: "inside", title: "inside a tool call" }, "↳") : null,
      h("span", { class: "name" }, said.name), h("span", { class: "text" }, marked(said.text, term)), h("span", { class: "took" }, warmed(item)),
    ];
  }
  const { speaker, name, text, chips, isCode } = headline(book, item);
  const shownText = around(text, whole(item.row.t), term);
  return [
    h("span", { class: "index" }, item.index),
    h("span", { class: "head" }, h("b", { class: `speaker ${speaker}` }, speaker), name ? h("span", { class: "name" }, name) : null, chips.map((chip) => h("span", { class: `chip ${chip.kind}`, title: chip.tip }, chip.text))),
    h("span", { class: "took" }, warmed(item)),
    h("span", { class: isCode ? "text code" : "text" }, shownText ? marked(shownText, term) : h("i", null, "no text")),
  ];
}

function bandParts(book, item) {
  const id = book.birth(item.row);
  const session = book.byId.get(id);
  if (!session) return [h("span", { class: "name" }, item.entry?.path || item.entry?.kind || "rows"), h("span", { class: "text" }, "of a session that is not in this page"), h("span", { class: "id" }, shortId(id))];
  const { name } = nameOf(book, session);
  const did = verb(session.operator);
  return [h("span", { class: "name" }, name), name === did ? null : h("span", { class: "did-it" }, did), h("span", { class: "text" }), h("span", { class: "id", title: id }, shortId(id))];
}
