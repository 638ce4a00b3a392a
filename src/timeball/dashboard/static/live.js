// Keeps a page fresh: one stream for the whole browser says what changed, and the parts that show it are fetched anew.
// The visible tab that holds the lock listens, and tells the others. Where there is no stream, everything is fetched every ten seconds.
import { countNew, isScrolled, restOf } from "./news.js";

const POLL = 10_000;
const PATIENCE = 25_000;
const root = document.documentElement;
const channel = "BroadcastChannel" in window ? new BroadcastChannel("timeball") : null;
const dirty = new Set();
let frozenByHand = false;
let lastHeard = Date.now();
let source = null;
let failures = 0;
let offlineSince = null;

const parts = () => [...document.querySelectorAll("[data-topics]")];

function typing() {
  const at = document.activeElement;
  return at && at.closest("main") && at.matches("input:not([type=checkbox]):not([type=radio]), textarea, select");
}

function busyHands() {
  return Boolean(typing() || document.querySelector("dialog[open], .menu[open], [name=ids]:checked") || String(getSelection()).length > 1);
}

function concerns(part) {
  const topics = part.dataset.topics.split(" ");
  return dirty.has("*") || topics.some((topic) => dirty.has(topic));
}

// By id: a part that is fetched anew is another element.
const stale = new Set();
const uncounted = new Set();
const freshAt = new Map();

function renew(part) {
  const wait = (freshAt.get(part.id) || 0) + Number(part.dataset.rest || 1) * 1000 - Date.now();
  if (wait > 0) return setTimeout(refresh, wait + 10);
  stale.delete(part.id);
  freshAt.set(part.id, Date.now());
  part.dispatchEvent(new CustomEvent("refresh"));
}

// A list that must stay as it is says how much is new; if it is only scrolled, and nothing would move, it is renewed.
function peek(part, isStill) {
  if (!part.matches("[data-list]") || !uncounted.has(part.id)) return;
  const wait = restOf(part);
  if (wait > 0) return setTimeout(refresh, wait + 10);
  uncounted.delete(part.id);
  countNew(part).then((number) => { if (!number && !isStill) renew(part); }, () => {});
}

function refresh() {
  if (document.visibilityState !== "visible") return;
  const all = parts();
  const isStill = frozenByHand || busyHands();
  for (const part of all) if (concerns(part)) { stale.add(part.id); uncounted.add(part.id); }
  dirty.clear();
  for (const part of all) if (stale.has(part.id)) isStill || isScrolled(part) ? peek(part, isStill) : renew(part);
  show();
}

function mark(topics) {
  topics.forEach((topic) => dirty.add(topic));
  setTimeout(refresh, 40 + Math.random() * 200);
}

function heard(message) {
  lastHeard = Date.now();
  offlineSince = null;
  if (message.topics?.length) mark(message.topics);
  document.dispatchEvent(new CustomEvent("timeball:stream", { detail: message }));
  show();
}

function state() {
  if (offlineSince) return ["offline", `Offline since ${new Date(offlineSince).toLocaleTimeString("en-GB")}`];
  if (frozenByHand) return ["frozen", "Frozen"];
  if (stale.size && busyHands()) return ["frozen", "Waiting for you"];
  if (Date.now() - lastHeard > PATIENCE) return ["behind", "Catching up"];
  return ["live", "Live"];
}

function show() {
  const button = document.getElementById("live");
  if (!button) return;
  const [kind, words] = state();
  button.querySelector(".dot").className = `dot ${kind}`;
  const label = button.querySelector("span:last-child");
  if (label.textContent !== words) label.textContent = words;
  button.setAttribute("aria-pressed", String(frozenByHand));
}

export const isFrozen = () => frozenByHand;

export function freeze() {
  frozenByHand = !frozenByHand;
  if (!frozenByHand) mark(["*"]);
  document.dispatchEvent(new CustomEvent("timeball:frozen"));
  show();
}

function relay(message) {
  heard(message);
  channel?.postMessage(message);
}

function listen(address) {
  return new Promise((done) => {
    source = new EventSource(address);
    source.onopen = () => { failures = 0; relay({ topics: ["*"] }); };
    source.addEventListener("topics", (event) => relay({ topics: JSON.parse(event.data) }));
    source.addEventListener("drop", (event) => relay({ drop: JSON.parse(event.data) }));
    source.addEventListener("beat", () => relay({}));
    source.addEventListener("gap", () => relay({ topics: ["*"] }));
    source.onerror = () => { if (++failures > 1) { source.close(); setTimeout(done, Math.min(30_000, 1_000 * 2 ** failures)); } };
    const leave = () => { if (document.visibilityState !== "visible") { source.close(); document.removeEventListener("visibilitychange", leave); done(); } };
    document.addEventListener("visibilitychange", leave);
  });
}

// Only one tab of a browser listens: more than six streams would block every further request.
async function compete(address) {
  for (;;) {
    if (document.visibilityState === "visible") await navigator.locks.request("timeball-stream", () => listen(address));
    else await new Promise((done) => document.addEventListener("visibilitychange", done, { once: true }));
  }
}

async function poll() {
  if (document.visibilityState !== "visible") return;
  const quiet = Date.now() - lastHeard > POLL - 500;
  if (!quiet) return show();
  try {
    const answer = await fetch(root.dataset.ping, { headers: { "HX-Request": "true" }, cache: "no-store" });
    if (answer.status === 401) return location.reload();
    if (!answer.ok) throw new Error(answer.status);
    heard({ topics: ["*"] });
  } catch {
    offlineSince ??= Date.now();
    show();
  }
}

export function startLive() {
  // Whoever has to log in first hears nothing yet.
  if (!document.getElementById("live")) return;
  document.getElementById("live")?.addEventListener("click", freeze);
  channel?.addEventListener("message", (event) => heard(event.data));
  document.addEventListener("visibilitychange", () => { if (document.visibilityState === "visible") mark(["*"]); });
  for (const name of ["focusout", "change", "close", "selectionchange", "toggle"]) document.addEventListener(name, () => setTimeout(refresh, 60), true);
  document.addEventListener("scrollend", () => refresh());
  document.addEventListener("timeball:zone", () => mark(["*"]));
  window.addEventListener("online", () => mark(["*"]));
  window.addEventListener("offline", () => { offlineSince = Date.now(); show(); });
  if (root.dataset.stream && navigator.locks && "EventSource" in window) compete(root.dataset.stream);
  setInterval(poll, POLL / 2);
  show();
}
