/* The keyboard. */

const HELP = [
  ["j  ↓", "next line, or next session in the graph"],
  ["k  ↑", "previous line"],
  ["Enter", "show what the line rests on, or the rows of a session; unfold branches"],
  ["/", "search; Enter for the next match, Shift Enter for the previous one"],
  ["n  N", "next match, previous match"],
  ["g", "go to the graph, and back to the rows"],
  ["r", "go to the runs of a job or an evaluation, and back"],
  ["f", "go to the profile, and back"],
  ["c", "compare with the session that was chosen before; end the comparison"],
  ["h  l  ←  →", "left and right side of a comparison; in the graph fold and unfold"],
  ["Home  End", "first line, last line"],
  ["y  Y", "copy the address of the row, or the row as Markdown"],
  ["s  p", "copy the session as Markdown, or print it"],
  ["m", "kinds, cost or time in the map beside the rows"],
  ["t", "light or dark"],
  ["Esc", "close what is open"],
  ["?", "this list"],
];

/** Keys that a board and a profile have; with all others they scroll, and their controls have their own. */
const WITHOUT_ROWS = ["/", "r", "f", "t", "p", "?"];

/** Return the window that tells the keys. */
function helpDialog() {
  const rows = HELP.map(([keys, what]) => h("tr", null, h("th", { scope: "row" }, keys.split(/ {2}/).map((key) => h("kbd", null, key))), h("td", null, what)));
  const close = () => dialog.close();
  const words = h("p", { class: "facts" }, "Search for words, or narrow it: ", h("code", null, "kind:assistant"), " ", h("code", null, "kind:failed"), " ", h("code", null, "tool:shell"), " ", h("code", null, "model:gpt"));
  const dialog = h("dialog", { class: "help", "aria-label": "Keys" }, h("header", null, h("h2", null, "Keys"), h("button", { class: "close", type: "button", "aria-label": "Close", onclick: close }, "×")), h("table", null, rows), words);
  dialog.addEventListener("click", (event) => event.target === dialog && close());
  return dialog;
}

/** Let `actions` have the keys: {down, up, open, search, step, graph, runs, profile, compare, side, edge, map, copyLink, copyRow, copySession, print, theme, help, escape, isAtRows}. */
function listenToKeys(actions) {
  const bound = {
    j: actions.down, ArrowDown: actions.down, k: actions.up, ArrowUp: actions.up, Enter: actions.open, "/": actions.search,
    n: () => actions.step(1), N: () => actions.step(-1), g: actions.graph, c: actions.compare, r: actions.runs, f: actions.profile, h: () => actions.side("a"), l: () => actions.side("b"),
    ArrowLeft: () => actions.side("a"), ArrowRight: () => actions.side("b"), Home: () => actions.edge(0), End: () => actions.edge(1), t: actions.theme, m: actions.map, y: actions.copyLink, Y: actions.copyRow, s: actions.copySession, p: actions.print, "?": actions.help,
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") {
      actions.escape();
      return;
    }
    if (document.querySelector("dialog[open]")) return;
    const { target } = event;
    if (target.matches("input, textarea, select")) return;
    // What has the focus keeps its own keys: a button is pressed, a long text scrolls.
    if (event.key === "Enter" && target.matches("button, summary, a")) return;
    if (event.key.length > 1 && target.matches("pre")) return;
    const action = bound[event.key];
    if (!action || (!actions.isAtRows() && !WITHOUT_ROWS.includes(event.key))) return;
    event.preventDefault();
    action();
  });
}
