/* What a model call rests on: what the model saw, who answered, what it took. */

/** Return a text as it is, with what this page leaves out of it said. */
function textBox(text, kind = "") {
  const parts = typeof text === "string" ? [text] : [text[0], h("span", { class: "gap" }, leftOut(text[1])), text[2]];
  return h("pre", { class: `text ${kind}`, tabindex: "0" }, parts);
}

/** Return a JSON object as its names and values, a text of several lines in a box of its own. */
function objectBox(text) {
  const said = parsed(text);
  if (!said) return textBox(text, "code");
  const isLong = (value) => typeof value === "string" && (value.includes("\n") || value.length > 200);
  const entries = Object.entries(said);
  const short = entries.filter(([, value]) => !isLong(value));
  const isDiff = (name, value) => name === "diff" && /^(---|diff|@@)/.test(value);
  return h("div", { class: "object" },
    facts(...short.map(([name, value]) => [name, h("code", null, typeof value === "string" ? value || "\u2013" : JSON.stringify(value, null, 1))])),
    entries.filter(([, value]) => isLong(value)).map(([name, value]) => [h("p", { class: "facts" }, name), isDiff(name, value) ? diffLines(value) : textBox(value, "code")]));
}

/** Return names and values in two columns; what has no value is left out. */
function facts(...pairs) {
  const known = pairs.filter(([, value]) => value !== undefined && value !== null && value !== "");
  if (!known.length) return null;
  return h("dl", null, known.map(([name, value]) => [h("dt", null, name), h("dd", null, value)]));
}

/** Return a part of the evidence under a heading; nothing when it has no content. */
function part(title, ...content) {
  const known = content.flat(Infinity).filter(Boolean);
  return known.length ? h("section", null, h("h3", null, title), known) : null;
}

/** Return something that can be unfolded. */
function folded(title, make, isOpen = false) {
  const box = h("details", { class: "folded", open: isOpen });
  box.append(h("summary", null, title));
  // Large parts are made when they are opened.
  const open = () => box.open && box.childElementCount === 1 && fill(box, [make()]);
  box.addEventListener("toggle", open);
  open();
  return box;
}

const digest = (text) => text && h("code", { title: text }, text.slice(0, 16));

function seenPart(book, entry, gotoRow) {
  const seen = entry.seen;
  if (!seen) return entry.unsent ? part("What the model saw", h("p", { class: "empty" }, "Nothing: the call was never sent.")) : null;
  const operation = book.entries[entry.op] ?? {};
  const head = book.shared[operation.head] ?? [];
  const tools = book.shared[operation.tools] ?? [];
  return part(
    "What the model saw",
    head.length ? folded(`Instructions, ${count(head.length, "row")}`, () => head.map(([, text]) => textBox(text)), head.length === 1 && whole(head[0][1]).length < 400) : null,
    h("p", { class: "range" }, seen.n ? ["Rows ", link("0", () => gotoRow(0)), " to ", link(String(seen.n - 1), () => gotoRow(seen.n - 1)), " of its session"] : "No rows"),
    (seen.notes ?? []).length ? folded(`${count(seen.notes.length, "recalled note")}, before row ${seen.contextAt ?? 0}`, () => [seen.notes.map(noteBox), folded("As it was sent", () => textBox(seen.context ?? ""))], true) : null,
    seen.question ? folded("Closing message", () => textBox(seen.question), true) : null,
    tools.length ? folded(`${count(tools.length, "tool")}: ${tools.map(([name]) => name).join(", ")}`, () => tools.map(toolBox)) : null,
    operation.output ? folded("Typed answer that was asked for", () => textBox(operation.output, "code")) : null,
    facts(["request", digest(seen.digest)], ["head", digest(seen.head)], ["tools", digest(seen.tools)], ["renderer", seen.renderer]),
  );
}

function noteBox([uri, text, score, left]) {
  const label = [uri, score === null || score === undefined ? "" : `score ${score}`, left ? `${count(left, "character")} not shown to the model` : ""].filter(Boolean);
  return h("div", { class: "note" }, h("p", { class: "facts" }, label.join(" · ")), textBox(text));
}

function toolBox([name, description, parameters]) {
  return folded(h("code", null, name), () => [description ? h("p", null, whole(description)) : null, parameters ? textBox(parameters, "code") : null]);
}

function providerPart(book, entry) {
  const who = book.asked(entry);
  const models = who.served && who.asked && who.served !== who.asked ? `${who.served} (asked for ${who.asked})` : who.served ?? who.asked;
  return part(
    "Who answered",
    facts(
      ["provider", who.kind], ["model", models], ["endpoint", who.endpoint && h("code", null, who.endpoint)], ["response", entry.id && h("code", null, entry.id)],
      ["tier", who.tier], ["fingerprint", who.fingerprint], ["key", who.credential], ["in place of", entry.fallback],
      ["finish", entry.raw && entry.raw !== entry.finish ? `${entry.finish} (${entry.raw})` : entry.finish],
    ),
    entry.error ? textBox(entry.error, "bad") : null,
    (entry.attempts ?? []).length ? table(["try", "came to", "took", "waited"], entry.attempts.map(([n, error, status, ms, wait]) => [n, [status ? `${status} ` : "", error ?? "done"].join(""), duration(ms ?? 0), wait ? `${wait.toFixed(1)} s` : ""])) : null,
    folded("Parameters, and where they came from", () => [
      who.parameters ? textBox(who.parameters, "code") : null,
      facts(...(who.origins ?? []).map(([name, where]) => [name, `from the ${where}`]), ["client", who.adapter], ["connection", who.sdk]),
    ]),
  );
}

function costPart(entry) {
  const [asked, answered, total] = entry.usage ?? [];
  const details = [entry.cached && `${short(entry.cached)} from the cache`, entry.written && `${short(entry.written)} into it`].filter(Boolean).join(", ");
  return part(
    "Cost and time",
    facts(
      ["tokens", total === undefined ? "not told by the endpoint" : `${total.toLocaleString("en")}: ${asked.toLocaleString("en")} in${details ? ` (${details})` : ""}, ${answered.toLocaleString("en")} out${entry.thought ? ` (${short(entry.thought)} reasoning)` : ""}`],
      ["cost", entry.usd === undefined ? "unpriced" : `${money(entry.usd)}  (${entry.price})`],
      ["began", moment(entry.began)],
      ["took", [duration(entry.ms ?? 0), entry.ttft !== undefined && `first token after ${duration(entry.ttft)}`, entry.queued && `${duration(entry.queued)} in a queue`].filter(Boolean).join(", ")],
    ),
  );
}

function table(heads, rows) {
  return h("table", null, h("thead", null, h("tr", null, heads.map((head) => h("th", { scope: "col" }, head)))), h("tbody", null, rows.map((cells) => h("tr", null, cells.map((cell) => h("td", null, cell))))));
}

/** Return all that is known of a model call. */
function callParts(book, entry, gotoRow) {
  return [
    entry.reasoning ? part("Reasoning", folded(`${count(whole(entry.reasoning).length, "character")}`, () => textBox(entry.reasoning))) : null,
    entry.answer ? part("Answer", textBox(entry.answer)) : null,
    entry.partial ? part("What had arrived", textBox(entry.partial)) : null,
    seenPart(book, entry, gotoRow),
    providerPart(book, entry),
    costPart(entry),
  ];
}
