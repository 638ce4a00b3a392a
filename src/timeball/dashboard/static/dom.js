// Short words for what every module does to a page.
export const one = (selector, root = document) => root.querySelector(selector);
export const all = (selector, root = document) => [...root.querySelectorAll(selector)];
export const create = (name, props) => Object.assign(document.createElement(name), props);
export const on = (names, act, target = document, capture = false) => names.split(" ").forEach((name) => target.addEventListener(name, act, capture));
export const ask = (address, kind) => fetch(address, { headers: { "HX-Request": "true", "HX-Request-Type": kind } });
export const tell = (name, detail) => document.dispatchEvent(new CustomEvent(`timeball:${name}`, { detail }));

// A choice of the visitor, kept by the browser.
export function keep(key, box, chosen) {
  if (!box) return;
  box.checked = localStorage[key] === "on";
  on("change", () => { localStorage[key] = box.checked ? "on" : "off"; chosen?.(); }, box);
}
