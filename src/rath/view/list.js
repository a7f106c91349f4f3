/* A long list of which only what can be seen is in the document. */

const OVERSCAN = 400; // pixels above and below what is seen

class List {
  /** @param render (item, at, isSelected) -> children of its line; classOf(item) -> its class */
  constructor(label, { render, classOf, onselect }) {
    this.render = render;
    this.classOf = classOf;
    this.onselect = onselect;
    this.items = [];
    this.tops = [0];
    this.selected = -1;
    this.lines = new Map();
    this.inner = h("div", { class: "inner", role: "listbox", tabindex: "0", "aria-label": label, id: "rows" });
    this.view = h("div", { class: "viewport" }, this.inner);
    this.view.addEventListener("scroll", () => this.#later(), { passive: true });
    this.inner.addEventListener("click", (event) => {
      const element = event.target.closest("[data-at]");
      if (element) this.onselect(Number(element.dataset.at), { side: event.target.closest("[data-side]")?.dataset.side, isPointed: true });
    });
    new ResizeObserver(() => this.#later()).observe(this.view);
  }

  /** Show other items; the place in the list stays unless `at` says another. */
  set(items, at) {
    this.items = items;
    this.tops = new Array(items.length + 1);
    let top = 0;
    items.forEach((item, n) => {
      this.tops[n] = top;
      item.place = n;
      top += heightOf(item);
    });
    this.tops[items.length] = top;
    this.inner.style.height = `${top}px`;
    this.refresh();
    if (at !== undefined) this.select(at, { isQuiet: true });
  }

  /** Draw again what is seen. */
  refresh() {
    for (const element of this.lines.values()) element.remove();
    this.lines.clear();
    this.#draw();
  }

  select(at, { isQuiet = false } = {}) {
    this.selected = Math.max(-1, Math.min(at, this.items.length - 1));
    if (this.selected >= 0) this.reveal(this.selected);
    this.refresh();
    this.inner.setAttribute("aria-activedescendant", this.selected < 0 ? "" : `line-${this.selected}`);
    if (!isQuiet && this.selected >= 0) this.onselect(this.selected);
  }

  reveal(at) {
    const [top, bottom] = [this.tops[at], this.tops[at + 1]];
    const { scrollTop, clientHeight } = this.view;
    const margin = Math.min(80, clientHeight / 4);
    if (top - margin < scrollTop) this.view.scrollTop = top - margin;
    else if (bottom + margin > scrollTop + clientHeight) this.view.scrollTop = bottom + margin - clientHeight;
  }

  get isAtEnd() {
    return this.view.scrollTop + this.view.clientHeight >= this.tops.at(-1) - 4;
  }

  toEnd() {
    this.view.scrollTop = this.tops.at(-1);
  }

  #later() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = undefined;
      this.#draw();
    });
  }

  /** Return the index of the item at a height, by bisection. */
  #itemAt(height) {
    let [low, high] = [0, this.items.length - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.tops[middle] <= height) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  #draw() {
    if (!this.items.length) return;
    const first = this.#itemAt(this.view.scrollTop - OVERSCAN);
    const last = this.#itemAt(this.view.scrollTop + this.view.clientHeight + OVERSCAN);
    for (const [at, element] of this.lines) {
      if (at < first || at > last) {
        element.remove();
        this.lines.delete(at);
      }
    }
    for (let at = first; at <= last; at += 1) if (!this.lines.has(at)) this.#put(at);
  }

  #put(at) {
    const item = this.items[at];
    const isSelected = at === this.selected;
    const element = h("div", {
      class: `line ${item.type} ${this.classOf(item)}${isSelected ? " selected" : ""}`,
      id: `line-${at}`, role: "option", "data-at": at, "aria-selected": String(isSelected),
      "aria-setsize": this.items.length, "aria-posinset": at + 1,
      style: { transform: `translateY(${this.tops[at]}px)`, height: `${heightOf(item)}px` },
    }, this.render(item, at, isSelected));
    this.lines.set(at, element);
    this.inner.append(element);
  }
}
