// The drop ticker: each start the moment the stream tells it, the latest on top; still while the hand is on it.
import { zone } from "./time.js";
import { freeze, isFrozen } from "./live.js";

const MOST = 14;
const LATE_MS = 100;
const list = document.getElementById("ticker");
const button = document.getElementById("freeze");
let held = [];

function spoken(milliseconds) {
  if (milliseconds === null || milliseconds === undefined) return "try again";
  if (milliseconds < 10) return `+${milliseconds.toFixed(1)} ms`;
  if (milliseconds < 1000) return `+${Math.round(milliseconds)} ms`;
  return milliseconds < 60000 ? `+${(milliseconds / 1000).toFixed(1)} s` : `+${Math.round(milliseconds / 60000)} min`;
}

export function exact(date) {
  const clock = new Intl.DateTimeFormat("en-GB", { timeZone: zone(), hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
  return `${clock.format(date)}.${String(date.getUTCMilliseconds()).padStart(3, "0")}`;
}

function element(name, props, ...inside) {
  const made = Object.assign(document.createElement(name), props);
  made.append(...inside);
  return made;
}

function row(drop) {
  const late = (drop.data.lateness_ms ?? 0) > LATE_MS;
  const time = element("time", { dateTime: drop.at }, exact(new Date(drop.at)));
  time.dataset.mode = "exact";
  const mark = element("i", { className: late ? "late-mark" : "" });
  mark.setAttribute("aria-hidden", "true");
  const link = element("a", { href: list.dataset.executions + drop.subject }, drop.name || drop.handler);
  const made = element("li", { className: "new" }, time, mark, link, element("span", { className: late ? "by late" : "by" }, spoken(drop.data.lateness_ms)));
  made.dataset.id = drop.subject;
  return made;
}

function add(drops) {
  list.querySelector(".none")?.remove();
  const known = new Set([...list.children].map((one) => one.dataset.id));
  for (const drop of drops.slice(-MOST)) if (!known.has(drop.subject)) list.prepend(row(drop));
  while (list.children.length > MOST) list.lastElementChild.remove();
}

function flush() {
  const still = isFrozen() || list.matches(":hover, :focus-within");
  button.querySelector("span").textContent = isFrozen() ? (held.length ? `${held.length} new, go on` : "Go on") : "Freeze";
  if (still) return;
  add(held);
  held = [];
}

document.addEventListener("timeball:stream", (event) => {
  const drops = event.detail.drop;
  if (!drops) return;
  held = [...held, ...(Array.isArray(drops) ? drops : [drops])].slice(-256);
  flush();
});
for (const name of ["pointerleave", "focusout"]) list.addEventListener(name, () => setTimeout(flush, 50));
document.addEventListener("timeball:frozen", flush);
button.addEventListener("click", freeze);
for (const time of list.querySelectorAll("time")) time.textContent = exact(new Date(time.dateTime));
