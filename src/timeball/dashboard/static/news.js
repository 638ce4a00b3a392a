// A list that must not move now: what is new in it is counted, and waits behind a button.
import { all, on, one } from "./dom.js";

const keys = (root) => all("tr[id], article[id]", root).map((row) => row.id);

export const isScrolled = (part) => part.matches("[data-list]") && part.getBoundingClientRect().top < 0;

export async function countNew(part) {
  const answer = await fetch(part.getAttribute("hx-get"), { headers: { "HX-Request": "true", "HX-Request-Type": "partial" } });
  const known = new Set(keys(part));
  const found = answer.ok ? keys(new DOMParser().parseFromString(await answer.text(), "text/html")) : [];
  const number = found.filter((key) => !known.has(key)).length;
  Object.assign(one("[data-new]", part), { hidden: !number, textContent: `${number} new` });
  return number;
}

on("click", (event) => {
  const part = event.target.closest("[data-new]")?.closest("[data-list]");
  if (!part) return;
  scrollTo({ top: 0 });
  part.dispatchEvent(new Event("refresh"));
});
