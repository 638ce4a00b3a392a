// Helpers of all modules.
export const one = (selector, root = document) => root.querySelector(selector);
export const all = (selector, root = document) => [...root.querySelectorAll(selector)];
export const create = (name, props) => Object.assign(document.createElement(name), props);
export const on = (names, act, target = document, capture = false) => names.split(" ").forEach((name) => target.addEventListener(name, act, capture));
export const ask = (address, kind) => fetch(address, { headers: { "HX-Request": "true", "HX-Request-Type": kind } });
export const tell = (name, detail) => document.dispatchEvent(new CustomEvent(`timeball:${name}`, { detail }));

// A checkbox kept in local storage.
export function keep(key, box, chosen) {
  if (!box) return;
  box.checked = localStorage[key] === "on";
  on("change", () => { localStorage[key] = box.checked ? "on" : "off"; chosen?.(); }, box);
}
