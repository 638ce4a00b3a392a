// The keyboard: every page can be used without a mouse. Off for those who want it off.
import { freeze } from "./live.js";
import { toggleTheme, openPalette, openDialog, say } from "./page.js";

const PAGES = { l: "/", t: "/timeline", f: "/forecast", j: "/jobs", e: "/executions", d: "/dead", q: "/queues", w: "/workers" };
const ACTIONS = "rcptwnez";
let awaitingPage = false;

const isOff = () => localStorage.getItem("timeball.keys") === "off";
const rows = () => [...document.querySelectorAll("main tr[data-href]")];
const current = () => document.activeElement?.closest("tr[data-href]");

function move(step) {
  const all = rows();
  const at = all.indexOf(current());
  const next = all[Math.max(0, Math.min(all.length - 1, at < 0 ? 0 : at + step))];
  if (next) { next.focus(); next.scrollIntoView({ block: "nearest" }); }
}

function select(range) {
  const box = current()?.querySelector("[name=ids]");
  if (box) box.dispatchEvent(new MouseEvent("click", { bubbles: true, shiftKey: range }));
}

function act(key) {
  const place = current() || document.querySelector("main");
  const target = place.querySelector(`[data-key="${key}"]`) || document.querySelector(`:is(main .head, #toasts) [data-key="${key}"]`);
  if (target && !target.disabled) target.click();
  return Boolean(target);
}

function copyId() {
  const id = current()?.dataset.id || document.querySelector("main [data-id]")?.dataset.id;
  if (id) navigator.clipboard?.writeText(id).then(() => say(`Copied ${id}`));
}

function plain(event) {
  const key = event.key;
  if (awaitingPage) {
    awaitingPage = false;
    if (key in PAGES) location.href = document.documentElement.dataset.prefix + PAGES[key];
    return key in PAGES;
  }
  switch (key) {
    case "g": awaitingPage = true; setTimeout(() => (awaitingPage = false), 1500); return true;
    case "/": (document.querySelector("main [type=search]") || document.getElementById("open-palette"))?.focus(); return true;
    case "?": openDialog("help"); return true;
    case "j": move(1); return true;
    case "k": move(-1); return true;
    case "x": select(false); return true;
    case "X": select(true); return true;
    case "a": document.querySelector("[data-all-matching]")?.click(); return true;
    case "y": copyId(); return true;
    case ".": freeze(); return true;
    case "T": toggleTheme(); return true;
    case "Enter": { const row = current(); if (row && event.target === row) location.href = row.dataset.href; return event.target === row; }
    case "[": case "]": case "+": case "-": case "0":
      document.dispatchEvent(new CustomEvent("timeball:key", { detail: key })); return true;
  }
  return ACTIONS.includes(key) && act(key);
}

function pressed(event) {
  if ((event.metaKey || event.ctrlKey) && event.key.toLowerCase() === "k") { event.preventDefault(); openPalette(); return; }
  if ((event.metaKey || event.ctrlKey) && event.key === "Enter") { event.target.form?.requestSubmit(); return; }
  if (event.metaKey || event.ctrlKey || event.altKey || isOff()) return;
  if (event.target.matches?.("input:not([type=checkbox]), textarea, select, [contenteditable]") || document.querySelector("dialog[open]")) {
    if (event.key === "Escape" && event.target.matches?.("main input")) event.target.blur();
    return;
  }
  if (plain(event)) event.preventDefault();
}

export function startKeys() {
  document.addEventListener("keydown", pressed);
  const box = document.getElementById("keys-off");
  if (!box) return;
  box.checked = isOff();
  box.addEventListener("change", () => localStorage.setItem("timeball.keys", box.checked ? "off" : "on"));
}
