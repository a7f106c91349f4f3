/* The head of a session, and two sessions side by side, from where they part. */

/** Return what stands above the rows of a session: its name, numbers and buttons, and what a board knows of it. */
function sessionHead(book, session, buttons, about) {
  const { name } = nameOf(book, session);
  const did = verb(session.operator);
  const numbers = [count(session.nRows, "row"), session.calls && count(session.calls, "model call"), session.tools && count(session.tools, "tool run"), session.tokens && `${short(session.tokens)} tok`, session.usd !== undefined && `${money(session.usd)}${session.unpriced ? ` + ${session.unpriced} unpriced` : ""}`, session.ms && duration(session.ms)];
  return [
    about,
    h("div", { class: "top" }, h("span", { class: "who" }, h("b", null, name), name === did ? null : ` ${did}`, " ", h("code", { title: session.id }, shortId(session.id)), h("span", { class: `state ${session.state}` }, WORDS[session.state])), h("span", { class: "copies" }, buttons)),
    h("p", { class: "facts" }, numbers.filter(Boolean).join(" · ")), session.problem ? h("p", { class: "problem" }, line(session.problem)) : null,
  ];
}

/** Return the lines of a comparison: the common beginning folded away, then pairs. */
function pairsOf(book, a, b, isUnfolded) {
  const common = book.commonRows(a, b);
  const [mine, theirs] = [a, b].map((session) => afterRow(book.timeline(session), common));
  const items = [];
  if (common) {
    items.push({ type: "fold", key: "fold", text: `${count(common, "row")} in common${isUnfolded ? "" : " · show"}` });
    if (isUnfolded) items.push(...book.timeline(a).slice(0, mine.from).filter((item) => item.type !== "now"));
  }
  const [left, right] = [mine, theirs].map((side) => steps(side.items));
  for (let n = 0; n < Math.max(left.length, right.length); n += 1) {
    const [one, other] = [left[n] ?? [[], null], right[n] ?? [[], null]];
    for (let at = 0; at < Math.max(one[0].length, other[0].length); at += 1) {
      items.push({ type: "pair", key: `p${n}.${at}`, a: one[0][at], b: other[0][at] });
    }
    if (one[1] || other[1]) items.push({ type: "pair", key: `p${n}`, a: one[1], b: other[1] });
  }
  return { items, common };
}

/** Return lines as steps, [what happened before the row, the row], so that rows stand beside rows. */
function steps(items) {
  const made = [];
  let before = [];
  for (const item of items) {
    if (item.type === "row") {
      made.push([before, item]);
      before = [];
    } else before.push(item);
  }
  return before.length ? [...made, [before, null]] : made;
}

/** Return what a session has after its first `n` rows, and where that begins. */
function afterRow(items, n) {
  let last = -1;
  items.forEach((item, at) => {
    if (item.type === "row" && item.index < n) last = at;
  });
  // Bands say where rows were born; both sides say that in their heading.
  return { from: last + 1, items: items.slice(last + 1).filter((item) => item.type !== "band") };
}

/** Return one side of a pair as a cell. */
function pairCell(book, item, side, isSelected, term) {
  if (!item) return h("div", { class: "cell none", "data-side": side });
  const kind = item.type === "row" ? `row ${item.row.k}` : item.type;
  return h("div", { class: `cell ${kind}${isSelected ? " selected" : ""}`, "data-side": side }, itemParts(book, item, term));
}

/** Return what both sides came to, as a small table. */
function compareHead(book, a, b, common, onend) {
  const cells = (session, name) => [
    h("b", null, name), book.labels.has(session.id) ? ` ${book.labels.get(session.id)} ·` : "", ` ${nameOf(book, session).name} `, h("span", { class: "title" }, nameOf(book, session).more), " ", h("code", { title: session.id }, shortId(session.id)),
    h("p", { class: "facts" }, [`${count(session.nRows - common, "row")} of its own`, session.tokens ? `${short(session.tokens)} tok` : "", session.usd === undefined ? "" : money(session.usd), session.ms ? duration(session.ms) : "", session.state === "completed" ? "" : WORDS[session.state]].filter(Boolean).join(" · ")),
  ];
  return h("div", { class: "versus" }, h("div", null, cells(a, "A")), h("div", null, cells(b, "B"), h("button", { class: "close", type: "button", title: "End the comparison (c)", "aria-label": "End the comparison", onclick: onend }, "×")));
}
