/* What is new in a session whose run goes on, told by the server that this page came from. */

class Live {
  /** @param onpart (part) new rows and entries; onnow (lines) what the run is just doing */
  constructor(address, { onpart, onnow }) {
    this.badge = h("span", { class: "live", role: "status" }, "live");
    this.source = new EventSource(address);
    const on = (name, take) => this.source.addEventListener(name, (event) => take(JSON.parse(event.data)));
    on("part", (part) => {
      this.#say("live", "live");
      onpart(part);
    });
    on("now", onnow);
    on("again", () => location.reload());
    on("end", ({ state }) => {
      onnow([]);
      this.source.close();
      this.#say(`ended: ${WORDS[state] ?? state}`, "ended");
    });
    this.source.addEventListener("open", () => this.#say("live", "live"));
    this.source.addEventListener("error", () => {
      const isOver = this.source.readyState === EventSource.CLOSED;
      this.#say(isOver ? "no longer live" : "connecting again …", "lost");
    });
  }

  #say(text, kind) {
    this.badge.textContent = text;
    this.badge.className = `live ${kind}`;
  }
}
