// A list that must not move now: what is new in it is counted, and waits behind a button.
const REST = 2_000;
const countedAt = new Map();
const keys = (root) => [...root.querySelectorAll("tr[id], article[id]")].map((row) => row.id);

export const isScrolled = (part) => part.matches("[data-list]") && part.getBoundingClientRect().top < 0;

// How long until a list may be looked at again.
export const restOf = (part) => (countedAt.get(part.id) || 0) + REST - Date.now();

export async function countNew(part) {
  countedAt.set(part.id, Date.now());
  const answer = await fetch(part.getAttribute("hx-get"), { headers: { "HX-Request": "true", "HX-Request-Type": "partial" } });
  const known = new Set(keys(part));
  const number = answer.ok ? keys(new DOMParser().parseFromString(await answer.text(), "text/html")).filter((key) => !known.has(key)).length : 0;
  const button = part.querySelector("[data-new]");
  button.hidden = !number;
  button.textContent = `${number} new`;
  return number;
}

document.addEventListener("click", (event) => {
  const part = event.target.closest("[data-new]")?.closest("[data-list]");
  if (!part) return;
  scrollTo({ top: 0 });
  part.dispatchEvent(new CustomEvent("refresh"));
});
