// A list that must not move: new rows are counted and wait behind a button.
import { all, ask, on, one } from "./dom.js";

const keys = (root) => all("tr[id], article[id]", root).map((row) => row.id);

export const isScrolled = (part) => part.matches("[data-list]") && part.getBoundingClientRect().top < 0;

export function sayNew(part, html) {
  const known = keys(part);
  const { length } = keys(new DOMParser().parseFromString(html, "text/html")).filter((key) => !known.includes(key));
  Object.assign(one("[data-new]", part), { hidden: !length, textContent: `${length} new` });
  return length;
}

export async function countNew(part) {
  const answer = await ask(part.getAttribute("hx-get"), "partial");
  return sayNew(part, answer.ok ? await answer.text() : "");
}

on("click", (event) => {
  const part = event.target.closest("[data-new]")?.closest("[data-list]");
  if (!part) return;
  scrollTo({ top: 0 });
  part.dispatchEvent(new CustomEvent("refresh", { detail: "wanted" }));
});
