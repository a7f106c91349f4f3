/* The page of a profile alone. */

const flame = new Flame(JSON.parse(document.getElementById("profile").textContent));
document.body.append(h("header", { class: "bar" }, h("h1", null, document.title)), flame.pane);
document.addEventListener("keydown", (event) => event.key === "Escape" && flame.choose(null));
flame.draw();
document.documentElement.dataset.ready = "";
