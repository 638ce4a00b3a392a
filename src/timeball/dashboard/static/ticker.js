// The ticker of starts, the latest on top; it stands still under the pointer.
import { all, on, one } from "./dom.js";
import { isFrozen } from "./live.js";
import { written } from "./time.js";

const MOST = 18;
const LATE_MS = 100;
const list = one("#ticker");
const button = one("#freeze");
let held = [];

function late(ms) {
  if (ms == null) return "retry";
  if (ms < 1000) return `+${ms.toFixed(ms < 10 ? 1 : 0)} ms`;
  return ms < 60000 ? `+${(ms / 1000).toFixed(1)} s` : `+${Math.round(ms / 60000)} min`;
}

function row({ at, subject, name, handler, data }) {
  const item = one("#start").content.firstElementChild.cloneNode(true);
  const [time, mark, link, by] = item.children;
  const isLate = data.lateness_ms > LATE_MS;
  item.dataset.id = subject;
  time.dateTime = at;
  time.textContent = written(at, "log");
  mark.classList.toggle("late-mark", isLate);
  link.href += subject;
  link.textContent = name || handler;
  by.classList.toggle("late", isLate);
  by.textContent = late(data.lateness_ms);
  return item;
}

function add(starts) {
  one(".none", list)?.remove();
  const shown = all("li", list).map((row) => row.dataset.id);
  for (const start of starts) if (!shown.includes(start.subject)) list.prepend(row(start));
  all("li", list).slice(MOST).forEach((old) => old.remove());
}

function flush() {
  one("span", button).textContent = !isFrozen ? "Freeze" : held.length ? `${held.length} new, go on` : "Go on";
  if (isFrozen || list.matches(":hover, :focus-within")) return;
  add(held.slice(-MOST));
  held = [];
}

on("timeball:stream", (event) => {
  held = held.concat(event.detail.starts || []).slice(-256);
  flush();
});
on("pointerleave focusout", () => setTimeout(flush, 50), list);
on("timeball:frozen", flush);
on("click", () => one("#live").click(), button);
