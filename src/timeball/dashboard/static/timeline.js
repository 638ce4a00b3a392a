// The timeline: a click opens a run, a drag moves the view, keys move through time.
import { on, one } from "./dom.js";

const part = () => one("#timeline");
let dragged = false;

function open(event) {
  const mark = event.target.closest("[data-go]");
  if (!mark || dragged) return;
  const address = part().dataset.site + mark.dataset.go;
  if (event.ctrlKey || event.metaKey || event.button === 1) window.open(address, "_blank", "noopener");
  else location.href = address;
}

function moved(share) {
  const { span, start } = part().dataset;
  const target = new URL(location.href);
  target.searchParams.set("from", new Date(Date.parse(start) - share * span * 1000).toISOString());
  location.href = target.href;
}

function drag(event) {
  const canvas = event.target.closest(".canvas");
  if (!canvas || event.button !== 0 || event.pointerType === "touch") return;
  on("pointerup", (end) => {
    const pixels = end.clientX - event.clientX;
    dragged = Math.abs(pixels) > 12;
    if (dragged) moved(pixels / canvas.clientWidth);
  }, document, { once: true });
}

on("pointerdown", drag);
on("click auxclick", open);
on("timeball:key", (event) => one(`[data-nav="${event.detail}"]`, part())?.click());
