// Instants come from the server in UTC. Here they become relative, or those of the zone the visitor chose.
const KEY = "timeball.zone";
const own = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
const relative = new Intl.RelativeTimeFormat("en", { numeric: "always", style: "narrow" });
const UNITS = [["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];

export const zone = () => (localStorage.getItem(KEY) === "utc" ? "UTC" : own);

function written(date, options) {
  return new Intl.DateTimeFormat("en-GB", { timeZone: zone(), timeZoneName: "short", hourCycle: "h23", ...options }).format(date);
}

const clock = { hour: "2-digit", minute: "2-digit", second: "2-digit" };
const day = { weekday: "short", day: "numeric", month: "short", year: "numeric" };

export function ago(date, now = Date.now()) {
  const seconds = (date - now) / 1000;
  const [unit, size] = UNITS.find(([, size]) => Math.abs(seconds) >= size) || UNITS[3];
  return relative.format(Math.trunc(seconds / size), unit);
}

function show(element) {
  const date = new Date(element.dateTime);
  if (isNaN(date)) return;
  const full = written(date, { ...day, ...clock });
  if (element.title !== full) element.title = full;
  if (element.dataset.mode === "exact") return;
  const isToday = written(date, day).slice(0, 15) === written(new Date(), day).slice(0, 15);
  const mode = element.dataset.mode;
  const text = mode === "log" ? written(date, { ...clock, fractionalSecondDigits: 3, timeZoneName: undefined }) : mode === "relative" ? ago(date) : mode === "clock" && isToday ? written(date, clock) : full;
  if (element.textContent !== text) element.textContent = text;
}

export function showTimes(root = document) {
  for (const element of root.querySelectorAll("time[datetime]")) show(element);
  for (const element of root.querySelectorAll("[data-zone]")) element.textContent = zone().split("/").pop().replaceAll("_", " ");
}

// Pages that draw hours and days are made on the server, which cannot know the zone by itself.
function tellZone() {
  const known = document.cookie.includes(`timeball_zone=${encodeURIComponent(zone())}`);
  const path = document.documentElement.dataset.prefix || "/";
  document.cookie = `timeball_zone=${encodeURIComponent(zone())}; path=${path}; max-age=31536000; samesite=lax`;
  return known;
}

export function startZone(select) {
  select.options[0].textContent = own.split("/").pop().replaceAll("_", " ");
  select.value = localStorage.getItem(KEY) || "own";
  select.addEventListener("change", () => {
    localStorage.setItem(KEY, select.value);
    tellZone();
    showTimes();
    document.dispatchEvent(new CustomEvent("timeball:zone"));
  });
}

const select = document.getElementById("zone");
if (select) startZone(select);
export const zoneWasKnown = tellZone();
setInterval(() => {
  if (document.visibilityState === "visible") for (const element of document.querySelectorAll("time[data-mode=relative]")) show(element);
}, 1000);
