// For those who hear a page: what it shows now, in a sentence, if they asked for it; politely, and at most every 30 seconds.
const KEY = "timeball.announce";
const REST = 30_000;
let saidAt = 0;
let last = "";

export function announce(now = Date.now()) {
  if (localStorage.getItem(KEY) !== "on" || now - saidAt < REST) return;
  const words = [...document.querySelectorAll("main [data-said]")].map((part) => part.dataset.said).join(". ");
  if (!words || words === last) return;
  [saidAt, last] = [now, words];
  document.getElementById("announcer").textContent = words;
}

export function startAnnouncing() {
  const box = document.getElementById("announce-on");
  if (!box) return;
  box.checked = localStorage.getItem(KEY) === "on";
  box.addEventListener("change", () => { localStorage.setItem(KEY, box.checked ? "on" : "off"); announce(); });
  document.addEventListener("htmx:after:swap", () => announce());
}
