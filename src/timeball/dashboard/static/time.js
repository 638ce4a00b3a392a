// Instants come in UTC; here they become relative, or local to the chosen zone.
import { all, on, one, tell } from "./dom.js";

const KEY = "timeball.zone";
const own = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
const relative = new Intl.RelativeTimeFormat("en", { numeric: "always", style: "narrow" });
const UNITS = [["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];
const clock = { hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short" };
const day = { weekday: "short", day: "numeric", month: "short", year: "numeric" };
const LOOKS = { day, clock, full: { ...day, ...clock }, log: { ...clock, timeZoneName: undefined, fractionalSecondDigits: 3 } };

const zone = () => (localStorage[KEY] === "utc" ? "UTC" : own);
const city = (name) => name.split("/").pop().replaceAll("_", " ");

export function written(instant, look) {
  return new Intl.DateTimeFormat("en-GB", { timeZone: zone(), hourCycle: "h23", ...LOOKS[look] }).format(new Date(instant));
}

function ago(instant) {
  const seconds = (Date.parse(instant) - Date.now()) / 1000;
  const [unit, size] = UNITS.find(([, size]) => Math.abs(seconds) >= size) || UNITS[3];
  return relative.format(Math.trunc(seconds / size), unit);
}

function show(element) {
  const { dateTime, dataset: { mode } } = element;
  const isOtherDay = mode === "clock" && written(dateTime, "day") !== written(Date.now(), "day");
  const text = mode === "relative" ? ago(dateTime) : written(dateTime, isOtherDay ? "full" : mode);
  if (element.textContent !== text) element.textContent = text;
}

export function showTimes(root = document) {
  for (const element of all("time[datetime]", root)) {
    show(element);
    element.title = written(element.dateTime, "full");
  }
  for (const element of all("[data-zone]", root)) element.textContent = city(zone());
}

// The server draws hours and days in this zone.
function tellZone() {
  const cookie = `timeball_zone=${encodeURIComponent(zone())}`;
  const isKnown = document.cookie.includes(cookie);
  document.cookie = `${cookie}; path=${document.documentElement.dataset.prefix || "/"}; max-age=31536000; samesite=lax`;
  return isKnown;
}

const select = one("#zone");
if (select) {
  select.options[0].textContent = city(own);
  select.value = localStorage[KEY] || "own";
  on("change", () => {
    localStorage[KEY] = select.value;
    tellZone();
    showTimes();
    tell("zone");
  }, select);
}
showTimes();
on("htmx:after:swap", () => showTimes());
export const zoneWasKnown = tellZone();
setInterval(() => { if (!document.hidden) all("time[data-mode=relative]").forEach(show); }, 1000);
