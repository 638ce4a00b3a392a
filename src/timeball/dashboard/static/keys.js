// Keyboard shortcuts; they can be turned off.
import { all, keep, on, one, tell } from "./dom.js";
import { openDialog, say, toggleTheme } from "./page.js";

const OFF = "timeball.keys-off";
const ACTIONS = "rcptwnez";
let awaitingPage = false;

const current = () => document.activeElement?.closest("tr[data-href]");

function move(step) {
  const rows = all("main tr[data-href]");
  const at = rows.indexOf(current());
  const next = rows[at < 0 ? 0 : at + step];
  next?.focus();
  next?.scrollIntoView({ block: "nearest" });
}

const select = (shiftKey) => current()?.querySelector("[name=ids]")?.dispatchEvent(new MouseEvent("click", { bubbles: true, shiftKey }));

function act(key) {
  const mark = `[data-key="${key}"]`;
  const target = one(mark, current() || one("main")) || one(`:is(main .head, #toasts) ${mark}`);
  if (target && !target.disabled) target.click();
  return Boolean(target);
}

function copyId() {
  const id = (current() || one("main [data-id]"))?.dataset.id;
  if (id) navigator.clipboard?.writeText(id).then(() => say(`Copied ${id}`));
}

const KEYS = {
  g: () => { awaitingPage = true; setTimeout(() => (awaitingPage = false), 1500); },
  "/": () => (one("main [type=search]") || one("#open-palette"))?.focus(),
  "?": () => openDialog("help"),
  j: () => move(1),
  k: () => move(-1),
  x: () => select(false),
  X: () => select(true),
  a: () => one("[data-all-matching]")?.click(),
  y: copyId,
  ".": () => one("#live")?.click(),
  T: toggleTheme,
};

function plain(event) {
  const { key, target } = event;
  if (awaitingPage) {
    awaitingPage = false;
    const link = all(".side a").find((one) => one.title === `g ${key}`);
    link?.click();
    return link;
  }
  if (key === "Enter") return target.matches("tr[data-href]") && (location.href = target.dataset.href);
  if (Object.hasOwn(KEYS, key)) { KEYS[key](); return true; }
  if ("[]+-0".includes(key)) { tell("key", key); return true; }
  return ACTIONS.includes(key) && act(key);
}

function pressed(event) {
  const { key, target } = event;
  const isCommand = event.metaKey || event.ctrlKey;
  if (isCommand && key.toLowerCase() === "k") { event.preventDefault(); openDialog("palette"); return; }
  if (isCommand && key === "Enter") { target.form?.requestSubmit(); return; }
  if (isCommand || event.altKey || localStorage[OFF] === "on") return;
  if (target.matches?.("input:not([type=checkbox]), textarea, select, [contenteditable]") || one("dialog[open]")) {
    if (key === "Escape" && target.matches?.("main input")) target.blur();
  } else if (plain(event)) event.preventDefault();
}

on("keydown", pressed);
keep(OFF, one("#keys-off"));
