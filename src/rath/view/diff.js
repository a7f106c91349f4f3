/* The change of one file, as a unified diff in colours. */

const DIFF_KINDS = { "+": "add", "-": "del", "@": "hunk" };

/** Return the element that shows the change of a file. */
function changeBox(file) {
  const what = file.old ? `${file.old} → ${file.path}` : file.path;
  const sizes = [file.before, file.after].map((n) => (n === undefined ? "nothing" : size(n))).join(" → ");
  const note = { window: "happened while this call ran", ambiguous: "happened while several calls ran" }[file.by];
  const facts = [file.modes ? `mode ${file.modes.map((mode) => mode ?? "none").join(" → ")}` : "", sizes, note].filter(Boolean);
  return h("details", { class: "change", open: true },
    h("summary", null, h("b", { class: `did ${file.kind}` }, file.kind), h("code", null, what), h("span", { class: "facts" }, facts.join(" · "))),
    file.diff ? diffLines(file.diff) : h("p", { class: "empty" }, "The content is the same."));
}

function diffLines(diff) {
  const lines = [];
  let isInside = false; // a removed line "-- x" looks like a header, so headers count only before the first hunk
  for (const part of typeof diff === "string" ? [diff] : diff) {
    if (typeof part === "number") {
      lines.push(h("span", { class: "gap" }, leftOut(part)));
      continue;
    }
    for (const text of part.replace(/\n$/, "").split("\n")) {
      isInside ||= text.startsWith("@@");
      if (isInside) lines.push(h("span", { class: text.startsWith("\\") ? "meta" : DIFF_KINDS[text[0]] ?? "same" }, text, "\n"));
      else if (!/^(diff --git |--- |\+\+\+ )/.test(text)) lines.push(h("span", { class: "meta" }, text, "\n"));
    }
  }
  return h("pre", { class: "diff", tabindex: "0" }, lines);
}

function leftOut(n) {
  return `\n… ${count(n, "character")} left out of this page …\n`;
}
