/* Elements of the page. Text only ever becomes text nodes: nothing here parses HTML. */

const SVG = "http://www.w3.org/2000/svg";

/** Set attributes; "on..." is a listener, false and null leave an attribute out. */
function dress(element, attributes) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(element.style, value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
}

/** Add children: elements, text, or lists of both; what is empty is left out. */
function fill(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false || child === "") continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

/** Make an HTML element: h("b", {class: "x"}, "text"). */
function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  dress(element, attributes);
  return fill(element, children);
}

/** Make an SVG element. */
function s(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  dress(element, attributes);
  return fill(element, children);
}

/** Replace what is in an element. */
function show(element, ...children) {
  element.replaceChildren();
  return fill(element, children);
}

/** Return a button that looks like a word. */
function link(text, onclick, title) {
  return h("button", { class: "link", type: "button", onclick, title }, text);
}
