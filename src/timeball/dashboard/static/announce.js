// For screen readers: what the page shows now, if turned on, at most every 30 seconds.
import { all, keep, on, one } from "./dom.js";

const KEY = "timeball.announce";
let saidAt = 0;
let last = "";

function announce() {
  if (localStorage[KEY] !== "on" || Date.now() - saidAt < 30_000) return;
  const words = all("main [data-said]").map((part) => part.dataset.said).join(". ");
  if (!words || words === last) return;
  [saidAt, last] = [Date.now(), words];
  one("#announcer").textContent = words;
}

keep(KEY, one("#announce-on"), announce);
on("htmx:after:swap", announce);
