// The log of one execution: fetched in pieces behind a cursor, followed while it runs, narrowed by level and words.
import { showTimes } from "./time.js";

const LEVELS = ["debug", "info", "warning", "error", "critical"];
const box = document.querySelector("[data-log]");
const list = box.querySelector("ol");
const find = box.querySelector("[data-log-find]");
const level = box.querySelector("[data-log-level]");
const follow = box.querySelector("[data-log-follow]");
let cursor = "";
let isReading = false;

const isOver = () => document.getElementById("execution-body")?.dataset.over === "yes";

function narrow(lines = list.children) {
  const least = LEVELS.indexOf(level.value);
  const words = find.value.toLowerCase();
  for (const line of lines) {
    const text = line.lastElementChild.textContent;
    line.hidden = LEVELS.indexOf(line.dataset.level) < least || (words && !text.toLowerCase().includes(words));
    mark(line.lastElementChild, text, words);
  }
}

function mark(span, text, words) {
  const at = words ? text.toLowerCase().indexOf(words) : -1;
  if (at < 0) { if (span.childElementCount) span.textContent = text; return; }
  const found = Object.assign(document.createElement("mark"), { textContent: text.slice(at, at + words.length) });
  span.replaceChildren(text.slice(0, at), found, text.slice(at + words.length));
}

function add(html) {
  const before = list.childElementCount;
  const page = new DOMParser().parseFromString(`<ol>${html}</ol>`, "text/html");
  list.append(...page.querySelectorAll("li"));
  narrow([...list.children].slice(before));
  showTimes(list);
  box.querySelector("[data-log-empty]").hidden = list.childElementCount > 0;
  if (follow.checked && list.childElementCount > before) list.scrollTop = list.scrollHeight;
}

async function read() {
  if (isReading) return;
  isReading = true;
  try {
    for (let more = true; more;) {
      const answer = await fetch(`${box.dataset.log}?cursor=${encodeURIComponent(cursor)}`, { headers: { "HX-Request": "true" } });
      if (!answer.ok) return;
      add(await answer.text());
      cursor = answer.headers.get("X-Next-Cursor") || cursor;
      more = answer.headers.get("X-Has-More") === "yes";
    }
  } catch {
    // The indicator says that the server is away; the next round tries again.
  } finally {
    isReading = false;
  }
}

function save() {
  const text = [...list.children].map((line) => [line.querySelector("time").dateTime, line.dataset.level, line.lastElementChild.textContent].join("\t")).join("\n");
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(new Blob([text], { type: "text/plain" })), download: `${document.querySelector("[data-id]").dataset.id}.log` });
  link.click();
  URL.revokeObjectURL(link.href);
}

level.addEventListener("change", () => narrow());
find.addEventListener("input", () => narrow());
box.querySelector("[data-log-save]").addEventListener("click", save);
list.addEventListener("wheel", () => { if (list.scrollTop + list.clientHeight < list.scrollHeight - 40) follow.checked = false; });
await read();
// Once more after it is over: the last lines may come a moment later.
for (let rounds = isOver() ? 0 : 2; rounds > 0;) {
  await new Promise((done) => setTimeout(done, 1500));
  if (document.visibilityState !== "visible") continue;
  await read();
  if (isOver()) rounds--;
}
