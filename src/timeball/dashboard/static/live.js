// Keeps a page fresh: one stream per browser names the topics that changed, and their parts are fetched again.
// The visible tab with the lock listens and relays; without a stream it polls.
import { all, ask, on, one, tell } from "./dom.js";
import { countNew, isScrolled, sayNew } from "./news.js";

const POLL = 10_000;
const PATIENCE = 25_000;
const { ping, stream } = document.documentElement.dataset;
const channel = new BroadcastChannel("timeball");
const dirty = new Set();
// By id: a fetched part is a new element.
const stale = new Set();
const uncounted = new Set();
const freshAt = new Map();
const countedAt = new Map();
let lastHeard = Date.now();
let failures = 0;
let leftAt = -1e9;
let offlineSince;
export let isFrozen = false;

function isStill() {
  const isTyping = document.activeElement?.matches("main :is(input:not([type=checkbox], [type=radio]), textarea, select)");
  return isFrozen || isTyping || one("dialog[open], .menu[open], [name=ids]:checked") || String(getSelection()).length > 1;
}

const concerns = (part) => dirty.has("*") || part.dataset.topics.split(" ").some((topic) => dirty.has(topic));

// A part that was fetched a moment ago waits.
function isEarly(doneAt, part, seconds) {
  const wait = (doneAt.get(part.id) || 0) + seconds * 1000 - Date.now();
  wait > 0 ? setTimeout(refresh, wait + 10) : doneAt.set(part.id, Date.now());
  return wait > 0;
}

function renew(part) {
  if (isEarly(freshAt, part, part.dataset.rest)) return;
  stale.delete(part.id);
  part.dispatchEvent(new Event("refresh"));
}

// A list that must not move counts its new rows; a scrolled one is fetched if no row would move.
function peek(part) {
  if (!part.matches("[data-list]") || !uncounted.has(part.id) || isEarly(countedAt, part, 2)) return;
  uncounted.delete(part.id);
  countNew(part).then((number) => { if (!number && !isStill()) renew(part); }, () => {});
}

// A response may come while the page must stand still.
function arrive(event) {
  const { sourceElement: part, sourceEvent, text } = event.detail.ctx;
  if (!part.dataset.topics || sourceEvent?.detail === "wanted" || !isStill() && !(isScrolled(part) && sayNew(part, text))) return;
  event.preventDefault();
  stale.add(part.id);
  uncounted.add(part.id);
  refresh();
}

function refresh() {
  if (document.hidden) return;
  const parts = all("[data-topics]");
  for (const part of parts) if (concerns(part)) { stale.add(part.id); uncounted.add(part.id); }
  dirty.clear();
  for (const part of parts) if (stale.has(part.id)) isStill() || isScrolled(part) ? peek(part) : renew(part);
  show();
}

function mark(topics = ["*"]) {
  topics.forEach((topic) => dirty.add(topic));
  setTimeout(refresh, 40 + Math.random() * 200);
}

function heard(message) {
  lastHeard = Date.now();
  offlineSince = null;
  mark(message.topics);
  tell("stream", message);
}

function relay(message) {
  heard(message);
  channel.postMessage(message);
}

function state() {
  if (offlineSince) return ["offline", `Offline since ${offlineSince.toLocaleTimeString("en-GB")}`];
  if (isFrozen) return ["frozen", "Frozen"];
  if (stale.size && isStill()) return ["frozen", "Paused while you select"];
  if (Date.now() - lastHeard > PATIENCE) return ["behind", "Catching up"];
  return ["live", "Live"];
}

function show() {
  const button = one("#live");
  const [dot, label] = button.children;
  const [kind, words] = state();
  dot.className = `dot ${kind}`;
  if (label.textContent !== words) label.textContent = words;
  button.ariaPressed = isFrozen;
}

function freeze() {
  isFrozen = !isFrozen;
  if (!isFrozen) mark();
  tell("frozen");
  show();
}

const nextTurn = (act) => on("visibilitychange", act, document, { once: true });

function listen() {
  return new Promise((done) => {
    const source = new EventSource(stream);
    const hear = (name, read) => on(name, (event) => relay(read(event.data)), source);
    hear("open", () => { failures = 0; return {}; });
    hear("topics", (data) => ({ topics: JSON.parse(data) }));
    hear("starts", (data) => ({ topics: [], starts: JSON.parse(data) }));
    hear("beat", () => ({ topics: [] }));
    hear("gap", () => ({}));
    source.onerror = () => { if (++failures > 1) { source.close(); setTimeout(done, Math.min(30_000, 1_000 * 2 ** failures)); } };
    nextTurn(() => { source.close(); done(); });
  });
}

// One tab listens: more than six streams would block all requests.
async function compete() {
  for (;;) await (document.hidden ? new Promise(nextTurn) : navigator.locks.request("timeball-stream", listen));
}

function lost() {
  offlineSince ??= new Date();
  show();
}

async function poll() {
  if (document.hidden) return;
  if (Date.now() - lastHeard < POLL - 500) return show();
  const { ok, status } = await ask(ping).catch(() => ({}));
  if (status === 401) return location.reload();
  ok ? heard({}) : lost();
}

function start() {
  on("click", freeze, one("#live"));
  on("message", (event) => heard(event.data), channel);
  on("visibilitychange timeball:zone", () => mark());
  on("focusout change close selectionchange toggle", () => setTimeout(refresh, 60), document, true);
  on("scrollend", refresh);
  on("htmx:before:swap", arrive);
  on("beforeunload", () => (leftAt = Date.now()), window);
  // While a form is being sent, no part may navigate.
  on("htmx:before:response", (event) => Date.now() - leftAt > POLL || event.preventDefault());
  on("online", () => mark(), window);
  on("offline", lost, window);
  // Insecure origins have no locks.
  if (navigator.locks) compete();
  setInterval(poll, POLL / 2);
  show();
}

// The login page has no stream.
if (one("#live")) start();
