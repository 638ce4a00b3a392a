// The log of an execution: fetched page by page, followed while it runs, filtered by level and text.
import { all, ask, create, on, one } from "./dom.js";
import { showTimes } from "./time.js";

const LEVELS = ["debug", "info", "print", "warning", "error", "critical"];
const box = one("[data-log]");
const [list, find, level, follow] = ["ol", "[type=search]", "select", "[type=checkbox]"].map((selector) => one(selector, box));
let cursor = "";

const isOver = () => one("#execution-body").dataset.over === "yes";

function narrow(lines = all("li", list)) {
  const words = find.value.toLowerCase();
  for (const line of lines) {
    const span = line.lastElementChild;
    const text = span.textContent;
    const at = text.toLowerCase().indexOf(words);
    line.hidden = at < 0 || LEVELS.indexOf(line.dataset.level) < LEVELS.indexOf(level.value);
    const end = at + words.length;
    if (at < 0 || !words) span.textContent = text;
    else span.replaceChildren(text.slice(0, at), create("mark", { textContent: text.slice(at, end) }), text.slice(end));
  }
}

function add(html) {
  const lines = all("li", new DOMParser().parseFromString(`<ol>${html}</ol>`, "text/html"));
  list.append(...lines);
  narrow(lines);
  showTimes(list);
  one("[data-log-empty]", box).hidden = list.childElementCount > 0;
  if (follow.checked && lines.length) list.scrollTop = list.scrollHeight;
}

async function read() {
  try {
    for (let more = true; more;) {
      const answer = await ask(`${box.dataset.log}?cursor=${encodeURIComponent(cursor)}`);
      if (!answer.ok) return;
      add(await answer.text());
      cursor = answer.headers.get("X-Next-Cursor") || cursor;
      more = answer.headers.get("X-Has-More") === "yes";
    }
  } catch {
    // The next round tries again.
  }
}

function save() {
  const lines = all("li", list).map((line) => [one("time", line).dateTime, line.dataset.level, line.lastElementChild.textContent].join("\t"));
  const href = URL.createObjectURL(new Blob([lines.join("\n")], { type: "text/plain" }));
  create("a", { href, download: `${one("main [data-id]").dataset.id}.log` }).click();
  URL.revokeObjectURL(href);
}

on("change", () => narrow(), level);
on("input", () => narrow(), find);
on("click", save, one("button", box));
on("wheel", () => { if (list.scrollTop + list.clientHeight < list.scrollHeight - 40) follow.checked = false; }, list);
await read();
// The last lines may arrive after the execution has ended.
for (let { wait } = box.dataset; wait < 20_000;) {
  await new Promise((done) => setTimeout(done, wait));
  if (document.hidden) continue;
  await read();
  if (isOver()) wait *= 2;
}
