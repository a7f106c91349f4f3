/* Numbers, times and texts as a person reads them. */

const WORDS = {
  completed: "completed", round_limit: "round limit", budget_exceeded: "budget exceeded",
  deadline_exceeded: "deadline exceeded", cancelled: "cancelled", needs_approval: "needs approval",
  needs_input: "needs input", needs_decision: "needs a decision", failed: "failed",
  cut_off: "cut off", running: "running", absent: "not in this page",
};

const SHORT_OPERATORS = new Map([["run_session_loop", "loop"], ["run_session_compress", "compress"], ["implicit", "message"]]);

/** Return a count with a short unit: 1234 is "1.2k". */
function short(number) {
  if (number < 1000) return String(number);
  if (number < 100_000) return `${(number / 1000).toFixed(1).replace(/\.0$/, "")}k`;
  if (number < 1_000_000) return `${Math.round(number / 1000)}k`;
  return `${(number / 1_000_000).toFixed(1)}M`;
}

/** Return a count with its noun: 1 row, 2 rows. */
function count(number, noun, plural = `${noun}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? noun : plural}`;
}

/** Return milliseconds in the unit that fits. */
function duration(ms) {
  if (ms < 1) return "<1 ms";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(ms < 10_000 ? 1 : 0)} s`;
  if (ms < 3_600_000) return `${Math.floor(ms / 60_000)} min ${Math.round((ms % 60_000) / 1000)} s`;
  return `${Math.floor(ms / 3_600_000)} h ${Math.round((ms % 3_600_000) / 60_000)} min`;
}

/** Return US dollars from their decimal text, with three digits that say something. */
function money(usd) {
  const value = Number(usd);
  if (value === 0) return "$0";
  if (value >= 0.1) return `$${value.toFixed(2)}`;
  return `$${value.toFixed(Math.min(8, 2 - Math.floor(Math.log10(value))))}`;
}

function size(bytes) {
  if (bytes < 1000) return `${bytes} B`;
  if (bytes < 1_000_000) return `${(bytes / 1000).toFixed(1)} kB`;
  return `${(bytes / 1_000_000).toFixed(1)} MB`;
}

/** Return a moment in UTC, to the second. */
function moment(ms) {
  return `${new Date(ms).toISOString().slice(0, 19).replace("T", " ")} UTC`;
}

function clock(ms) {
  return new Date(ms).toISOString().slice(11, 19);
}

/** Return all of a text that the page has; a long one is [head, number left out, tail]. */
function whole(text) {
  if (text === undefined || text === null) return "";
  return typeof text === "string" ? text : `${text[0]}${text[2]}`;
}

/** Return the beginning of a text on one line. */
function line(text, length = 300) {
  return whole(text).slice(0, length * 2).replace(/\s+/g, " ").trim().slice(0, length);
}

function shortId(id) {
  return id.slice(0, 8);
}

/** Return an operator without its class: "Session.fork" is "fork". */
function verb(operator) {
  const last = operator.split(".").at(-1);
  return SHORT_OPERATORS.get(last) ?? last;
}

/** Return what a person calls a session: where in the program it was made or what was said, never its id. */
function nameOf(book, session) {
  const did = verb(session.operator);
  if (session.path) return { name: session.path, more: book.question(session) };
  if (session.title) return { name: did, more: session.title };
  return { name: did, more: session.calls || session.kind === "op_session_loop" || !session.parents.length ? book.question(session) : session.parents.length > 1 ? `of ${session.parents.length}` : "" };
}
