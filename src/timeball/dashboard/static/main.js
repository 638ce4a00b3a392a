// What every page runs.
import { tell } from "./dom.js";
import { zoneWasKnown } from "./time.js";
import "./page.js";
import "./keys.js";
import "./live.js";
import "./announce.js";

if (!zoneWasKnown) tell("zone");
