/* Lines of the lineage: a session each, or many that are alike folded into one.

   A line is
     {type: "session", key, at, sessions: [session], said}   what was said in it, merged as a message
     {type: "fold", kind, key, at, sessions, isOpen, branches?}   `at` is where it stands among all sessions
   where kind says what is folded: "forks" of one session, the turns of a "talk", or "merges" in a row. */

const FORKS_FROM = 4; // branches of one session; guesses, as the two below
const TURNS_FROM = 3;
const MERGES_FROM = 3;

/** What the lineage knows of its sessions, by their places in an order in which parents come first. */
class Family {
  constructor(book, sessions) {
    this.book = book;
    this.sessions = sessions;
    const places = new Map(sessions.map((session, at) => [session.id, at]));
    this.parents = sessions.map((session) => session.parents.map((id) => places.get(id)).filter((at) => at !== undefined));
    this.children = sessions.map(() => []);
    this.parents.forEach((list, at) => list.forEach((parent) => this.children[parent].push(at)));
    // A message that was only made to be merged is part of what it was merged into.
    this.messages = sessions.map(() => []);
    this.isMessage = sessions.map((session, at) => {
      const [child, ...more] = this.children[at];
      const isOne = !this.parents[at].length && child !== undefined && !more.length && this.parents[child][0] !== at && session.nRows > 0;
      if (isOne) this.messages[child].push(at);
      return isOne;
    });
  }

  /** Return what was said in the messages that were merged into a session. */
  said(at) {
    return this.messages[at].map((message) => this.sessions[message].title).filter(Boolean).join(" · ");
  }

  /** Return the parents that are no messages. */
  line(at) {
    return this.parents[at].filter((parent) => !this.isMessage[parent]);
  }

  /** Tell whether somebody says something in a session. */
  isInput(at) {
    return this.sessions[at].kind === "op_input" || this.messages[at].length > 0;
  }

  /** Return the branches of a session: each child of it alone, with all that comes from that child alone, in order. */
  branches(at) {
    const own = this.children[at].filter((child) => this.line(child).every((parent) => parent === at));
    if (own.length < FORKS_FROM) return [];
    const owner = new Map(own.map((child, nth) => [child, nth]));
    const found = own.map((child) => [child]);
    for (let each = own[0] + 1; each < this.sessions.length; each += 1) {
      const line = owner.has(each) || this.isMessage[each] ? [] : this.line(each);
      const nth = owner.get(line[0]);
      if (nth === undefined || line.some((parent) => owner.get(parent) !== nth)) continue;
      owner.set(each, nth);
      found[nth].push(each);
    }
    return found.map((branch) => branch.flatMap((each) => [...this.messages[each], each]).sort((a, b) => a - b));
  }

  /** Return the sessions in a row from `at` on, each the only child of the one before, that `isMore` lets in. */
  chain(at, isMore) {
    const found = [at];
    for (;;) {
      const [next, ...others] = this.children[found.at(-1)];
      if (next === undefined || others.length || this.line(next)[0] !== found.at(-1) || !isMore(next)) return found;
      found.push(next);
    }
  }
}

/**
 * Return the lines of a lineage.
 *
 * @param family the sessions
 * @param isApart (at) whether a session is to have a line of its own, since it is shown
 * @param opened keys of the folds that are unfolded
 */
function linesOf(family, isApart, opened) {
  const { sessions } = family;
  const folds = []; // each {at, kind, members, ...}; a closed one hides its members
  const holder = sessions.map(() => null);
  const add = (kind, members, at, more = {}) => {
    const key = `${kind}-${sessions[members[0]].id}`;
    const fold = { type: "fold", kind, key, at, sessions: members.map((member) => sessions[member]), isOpen: opened.has(key), ...more };
    folds.push(fold);
    if (!fold.isOpen) for (const member of members) holder[member] = fold;
  };
  const seen = new Set();
  sessions.forEach((_, at) => {
    if (holder[at]) return;
    const branches = family.branches(at);
    const others = branches.filter((branch) => !branch.some(isApart));
    if (others.length >= FORKS_FROM - 1) add("forks", others.flat(), Math.min(...branches.map(([first]) => first)), { branches, others });
  });
  sessions.forEach((_, at) => {
    if (holder[at] || seen.has(at) || family.isMessage[at]) return;
    const group = (each) => [...new Set(family.line(each).slice(1).map((parent) => holder[parent]))];
    const [source] = group(at);
    const merges = source ? family.chain(at, (next) => !isApart(next) && group(next).length === 1 && group(next)[0] === source).filter((each) => !isApart(each)) : [];
    const talk = family.chain(at, (next) => !seen.has(next) && !holder[next] && family.line(next).length === 1);
    for (const each of [...merges, ...talk]) seen.add(each);
    if (merges.length >= MERGES_FROM) add("merges", merges, at);
    else if (talk.filter((each) => family.isInput(each)).length >= TURNS_FROM) {
      const members = talk.flatMap((each) => [...(each === at ? [] : family.messages[each]), each]);
      const folded = members.filter((each) => !isApart(each));
      add("talk", folded, folded[0]);
    }
  });
  const lines = folds.map((fold) => fold);
  sessions.forEach((session, at) => {
    if (holder[at] || (family.isMessage[at] && !isApart(at))) return;
    lines.push({ type: "session", key: session.id, at, sessions: [session], said: family.said(at) });
  });
  // The heading of a fold stands before its first session.
  return lines.sort((a, b) => a.at - b.at || (a.type === "fold" ? -1 : 1));
}

/** Return for each line the places of the lines that it comes from; the heading of an open fold has none. */
function parentsOf(family, lines) {
  const places = new Map();
  lines.forEach((line, nth) => {
    if (line.type === "session" || !line.isOpen) for (const session of line.sessions) places.set(session.id, nth);
  });
  return lines.map((line, nth) => {
    if (line.isOpen) return [];
    const found = line.sessions.flatMap((session) => session.parents.map((id) => places.get(id)));
    return [...new Set(found)].filter((at) => at !== undefined && at !== nth);
  });
}

/** Return what a branch came to: its last session, and how good it is. */
function outcomeOf(book, branch) {
  const last = branch.findLast((session) => session.calls) ?? branch.at(-1);
  const marks = new Map(branch.flatMap((session) => book.ownEntries(session)).filter((entry) => entry.k === "verdict").map((entry) => [entry.name, entry.score ?? entry.passed]));
  const sum = (name) => branch.reduce((all, session) => all + Number(session[name] ?? 0), 0);
  return {
    last, isGood: branch.every((session) => ["completed", "absent"].includes(session.state)),
    mark: marks.size ? [...marks.values()].reduce((all, mark) => all + mark, 0) / marks.size : undefined,
    usd: branch.some((session) => session.usd !== undefined) ? sum("usd") : undefined, tokens: sum("tokens"),
  };
}

/** Return how branches compare, as [what it is called, the session] of the best one and the worst one. */
function extremes(outcomes) {
  const by = (name, known = outcomes.filter((each) => each[name] !== undefined)) => known.sort((a, b) => b[name] - a[name]);
  const judged = by("mark");
  const pair = (words, [first, ...rest], text) => (rest.length ? [[`${words[0]} ${text(first)}`, first.last], [`${words[1]} ${text(rest.at(-1))}`, rest.at(-1).last]] : []);
  if (judged.length > 1) return pair(["best", "worst"], judged, (each) => each.mark.toFixed(2));
  const failed = outcomes.filter((each) => !each.isGood);
  if (failed.length) return [[`${failed.length} of ${outcomes.length} not completed`, failed[0].last]];
  const paid = by("usd");
  if (paid.length > 1 && paid[0].usd > 0) return pair(["cheapest", "dearest"], paid.reverse(), (each) => money(each.usd));
  return pair(["shortest", "longest"], by("tokens").reverse(), (each) => `${short(each.tokens)} tok`);
}
