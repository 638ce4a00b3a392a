// What every page runs.
import { showTimes } from "./time.js";
import { startLive } from "./live.js";
import { startKeys } from "./keys.js";
import { startPage } from "./page.js";

showTimes();
startPage();
startKeys();
startLive();
document.addEventListener("htmx:after:swap", () => showTimes());
