/* The sessions of the page, as src/rath/session/view/encode.py writes them.

   An item is one line of a session's list:
     {type: "band", row, entry?}   from here on the rows were born in another session
     {type: "row", row, entry?}    a row, and the entry that made it
     {type: "event", entry}        an entry that made no row
     {type: "now", text, kind}     what a run is just doing; only while it goes on               */

class Book {
  constructor() {
    this.ids = [];
    this.shared = [];
    this.rows = [];
    this.entries = [];
    this.sessions = [];
    this.made = []; // row -> entry that made it
    this.now = new Map(); // id of a session -> what it is just doing
    this.labels = new Map(); // id of a session -> name of the job or evaluation that it is a run of
  }

  /** Take in the first data, or what is new since then. */
  add(part) {
    // One by one: a call with more than some 100,000 arguments is refused.
    for (const id of part.ids) this.ids.push(id);
    for (const value of part.shared) this.shared.push(value);
    for (const row of part.rows) this.rows.push({ ...row, at: this.rows.length });
    for (const raw of part.entries) {
      const entry = { ...raw, number: this.entries.length };
      this.entries.push(entry);
      for (const row of entry.rows ?? []) {
        if (["model", "tool", "summary"].includes(entry.k)) this.made[row] ??= entry;
      }
    }
    this.sessions = part.sessions.map((session, at) => this.#session(session, at));
    this.byId = new Map(this.sessions.map((session) => [session.id, session]));
    for (const session of this.sessions) {
      session.parents = (session.parents ?? []).map((id) => this.ids[id]);
    }
  }

  #session(raw, at) {
    const nRows = (raw.rows ?? []).reduce((sum, [, n]) => sum + n, 0);
    const session = { ...raw, number: raw.id, id: this.ids[raw.id], at, began: raw.at, nRows };
    session.rowNumbers = () => expand(raw.rows);
    session.entryNumbers = () => expand(raw.entries);
    return session;
  }

  /** Return the name of the session in which a row was born. */
  birth(row) {
    return row.s === undefined ? "" : this.ids[row.s];
  }

  /** Return the lines of a session's list; worked out once. */
  timeline(session) {
    session.items ??= this.#timeline(session);
    const now = this.now.get(session.id);
    return now ? [...session.items, ...now] : session.items;
  }

  #timeline(session) {
    const rows = session.rowNumbers();
    const position = new Map(rows.map((row, at) => [row, at]));
    const births = new Set(rows.map((row) => this.rows[row].s));
    const begins = new Map();
    const after = new Map();
    let at = -1;
    for (const number of session.entryNumbers()) {
      const entry = this.entries[number];
      // A check or a selection is told by what came of it, a run by the rows that follow.
      const isTold = entry.k === "operation" && (["check", "select"].includes(entry.kind) || births.has(entry.session));
      if (isTold) {
        if (!begins.has(entry.session)) begins.set(entry.session, entry);
        continue;
      }
      const own = this.#ownRow(entry, position);
      if (own >= 0) at = Math.max(at, own);
      else if (after.has(at)) after.get(at).push(entry);
      else after.set(at, [entry]);
    }
    const items = (after.get(-1) ?? []).map((entry) => ({ type: "event", entry }));
    let birth;
    rows.forEach((number, index) => {
      const row = this.rows[number];
      // What a user says in a conversation is plain from the row.
      if (row.s !== birth && this.byId.get(this.ids[row.s])?.kind !== "op_input") items.push({ type: "band", row, entry: begins.get(row.s) });
      birth = row.s;
      items.push({ type: "row", row, index, entry: this.made[number] });
      for (const entry of after.get(index) ?? []) items.push({ type: "event", entry });
    });
    items.forEach((item) => (item.key = keyOf(item)));
    return items;
  }

  /** Return where the row stands that an entry made, -1 for an entry that is a line of its own. */
  #ownRow(entry, position) {
    const made = (entry.rows ?? []).filter((row) => this.made[row] === entry);
    return made.length ? Math.max(...made.map((row) => position.get(row) ?? -1)) : -1;
  }

  /** Tell whether a session is nothing but what an agent was told. */
  isInstructions(session) {
    return !session.parents.length && session.nRows > 0 && session.rowNumbers().every((row) => this.rows[row].k === "system");
  }

  /** Return what a session was asked: the words of the user that stand before its own rows; found once. */
  question(session) {
    session.question ??= this.#question(session);
    return session.question;
  }

  #question(session) {
    const rows = session.rowNumbers();
    const own = rows.findIndex((row) => this.rows[row].s === session.number);
    const asked = rows.slice(0, own < 0 ? rows.length : own).findLast((row) => this.rows[row].k === "user");
    return asked === undefined ? session.title ?? "" : line(this.rows[asked].t, 120);
  }

  /** Return the entries of a session itself: from its own operation on. */
  ownEntries(session) {
    const entries = session.entryNumbers().map((number) => this.entries[number]);
    const at = entries.findIndex((entry) => entry.k === "operation" && entry.session === session.number);
    return at >= 0 ? entries.slice(at) : session.parents.length ? [] : entries;
  }

  /** Return a session and all that it came from, by their ids. */
  ancestors(session) {
    const found = new Set();
    const stack = [session];
    while (stack.length) {
      const one = stack.pop();
      if (!one || found.has(one.id)) continue;
      found.add(one.id);
      stack.push(...one.parents.map((id) => this.byId.get(id)));
    }
    return found;
  }

  /** Return the sessions that have to do with one or two sessions, in order: all but those of other runs of a board. */
  related(...shown) {
    if (!this.isBoard) return this.sessions;
    const children = new Map();
    for (const session of this.sessions) for (const id of session.parents) children.set(id, [...(children.get(id) ?? []), session]);
    const found = new Set();
    const stack = shown.filter(Boolean);
    while (stack.length) {
      const one = stack.pop();
      // Instructions belong to many runs and join none of them.
      if (!one || found.has(one) || this.isInstructions(one)) continue;
      found.add(one);
      stack.push(...one.parents.map((id) => this.byId.get(id)), ...(children.get(one.id) ?? []));
    }
    for (const each of shown) found.add(each);
    return this.sessions.filter((session) => found.has(session));
  }

  /** Return how many rows two sessions have in common at their beginning. */
  commonRows(a, b) {
    const [mine, theirs] = [a.rowNumbers(), b.rowNumbers()];
    let n = 0;
    while (n < mine.length && n < theirs.length && mine[n] === theirs[n]) n += 1;
    return n;
  }

  /** Return who was asked in a model call. */
  asked(entry) {
    return this.shared[entry.who];
  }

  model(entry) {
    const who = this.asked(entry);
    return who.served ?? who.asked ?? who.kind;
  }
}

function expand(ranges) {
  const numbers = [];
  for (const [first, n] of ranges ?? []) {
    for (let number = first; number < first + n; number += 1) numbers.push(number);
  }
  return numbers;
}

function keyOf(item) {
  if (item.type === "event") return `e${item.entry.number}`;
  return `${item.type[0]}${item.row?.at ?? ""}`;
}
