// What every page runs.
import { showTimes, zoneWasKnown } from "./time.js";
import { startLive } from "./live.js";
import { startKeys } from "./keys.js";
import { startPage } from "./page.js";
import { startAnnouncing } from "./announce.js";

showTimes();
startPage();
startKeys();
startLive();
startAnnouncing();
if (!zoneWasKnown) document.dispatchEvent(new CustomEvent("timeball:zone"));
document.addEventListener("htmx:after:swap", () => showTimes());
