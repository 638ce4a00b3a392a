// Theme, palette, confirmation dialogs, selection, copying, toasts.
import { all, create, on, one } from "./dom.js";

export function toggleTheme() {
  const { dataset } = document.documentElement;
  const isDark = dataset.theme ? dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  localStorage["timeball.theme"] = dataset.theme = isDark ? "light" : "dark";
}

export function openDialog(id) {
  const dialog = one(`#${id}`);
  if (!dialog.open) dialog.showModal();
  one("[type=search]", dialog)?.select();
}

export function say(textContent) {
  const toast = create("div", { className: "toast", textContent });
  one("#toasts").append(toast);
  fade(toast);
}

function fade(toast) {
  let left = 10;
  const timer = setInterval(() => {
    if (toast.matches(":hover, :focus-within") || --left > 0) return;
    clearInterval(timer);
    toast.remove();
  }, 1000);
}

function walkPalette(event) {
  const links = all("#palette li a");
  const at = links.findIndex((link) => link.matches(".at"));
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!links.length || !(step || event.key === "Enter")) return;
  event.preventDefault();
  if (!step) return links[Math.max(at, 0)].click();
  links[at]?.classList.remove("at");
  const next = links[(at + step + links.length) % links.length];
  next.classList.add("at");
  next.scrollIntoView({ block: "nearest" });
}

// A form that would lose something asks first.
function ask(event) {
  const form = event.target;
  const asking = [event.submitter, form].find((element) => element?.dataset.confirm);
  // The server asks about all that match.
  if (!asking || form.dataset.confirmed || form.elements.matching?.value) return;
  event.preventDefault();
  const { confirm, confirmOne = confirm, detail = "", verb = "Go on", typed = "", until, reason, danger } = asking.dataset;
  const count = all("[name=ids]:checked").length;
  const dialog = one("#confirm");
  const [title, more, end, why, name, code, go] = ["h2", "p", "[name=until]", "[name=why]", "[name=typed]", "code", ".primary"].map((selector) => one(selector, dialog));
  title.textContent = count === 1 ? confirmOne : confirm.replace("{n}", count);
  more.textContent = detail;
  end.parentElement.hidden = !until;
  why.parentElement.hidden = reason === undefined;
  name.parentElement.hidden = !typed;
  code.textContent = typed;
  end.value = why.value = name.value = dialog.returnValue = "";
  go.textContent = verb;
  go.classList.toggle("danger", danger !== undefined);
  name.oninput = () => (go.disabled = name.value !== typed);
  name.oninput();
  dialog.onclose = () => {
    if (dialog.returnValue !== "yes") return;
    hidden(form, "reason", why.value);
    hidden(form, "typed", name.value);
    if (until) hidden(form, until, end.value);
    form.dataset.confirmed = "yes";
    form.requestSubmit(event.submitter || undefined);
    delete form.dataset.confirmed;
  };
  dialog.showModal();
}

function hidden(form, name, value) {
  const field = one(`input[type=hidden][name=${name}]`, form) || form.appendChild(create("input", { type: "hidden", name }));
  field.value = value;
}

const boxes = () => all("[name=ids]");
let lastBox;

function pick(event) {
  const box = event.target.closest("[name=ids]");
  if (!box) return;
  if (event.shiftKey && lastBox) {
    const [from, to] = [lastBox, box].map((end) => boxes().indexOf(end)).sort((low, high) => low - high);
    boxes().slice(from, to + 1).forEach((other) => (other.checked = box.checked));
  }
  lastBox = box;
  tally();
}

function tally() {
  const bulk = one(".bulk");
  if (!bulk) return;
  const chosen = boxes().filter((box) => box.checked).length;
  const isAll = chosen === boxes().length;
  const matching = one("[name=matching]", bulk);
  if (!chosen) matching.value = "";
  bulk.hidden = !chosen;
  one("output", bulk).textContent = matching.value ? "All that match are selected" : `${chosen} selected`;
  const every = one("[data-pick-all]");
  if (every) Object.assign(every, { checked: chosen && isAll, indeterminate: chosen && !isAll });
}

function choose(checked, matching = "") {
  boxes().forEach((box) => (box.checked = checked));
  one(".bulk [name=matching]").value = matching;
  tally();
}

// What a click on an element with such an attribute does.
const CLICKS = {
  copy: (marked) => navigator.clipboard?.writeText(marked.dataset.copy).then(() => say("Copied")),
  open: (marked) => openDialog(marked.dataset.open),
  close: (marked) => { marked.closest("dialog")?.close(); marked.closest(".toast")?.remove(); },
  "theme-toggle": toggleTheme,
  side: () => one(".side").classList.toggle("open"),
  "pick-all": (marked) => choose(marked.checked),
  "all-matching": () => choose(true, "yes"),
  "pick-none": () => choose(false),
};

function clicked(event) {
  const { target } = event;
  for (const [mark, act] of Object.entries(CLICKS)) {
    const marked = target.closest(`[data-${mark}]`);
    if (marked) act(marked);
  }
  if (target.matches("dialog")) target.close();
  for (const menu of all(".menu[open]")) if (!menu.contains(target)) menu.open = false;
  pick(event);
}

// Shows the fields that belong to a choice.
function reveal() {
  for (const part of all("[data-when]")) {
    const [name, values] = part.dataset.when.split("=");
    part.hidden = !values.split("|").includes(part.closest("form").elements[name]?.value ?? "");
    all("input, select, textarea", part).forEach((inner) => (inner.disabled = part.hidden));
  }
}

function changed({ target }) {
  reveal();
  if (target.matches("select[data-go]")) target.form.requestSubmit();
  if (target.dataset.into) target.files[0].text().then((text) => (one(target.dataset.into).value = text));
}

function escaped(event) {
  if (event.key === "Escape") for (const menu of all(".menu[open]")) { menu.open = false; one("summary", menu).focus(); }
}

on("click", clicked);
on("submit", ask);
on("keydown", escaped);
on("change", changed);
on("htmx:after:swap", () => { reveal(); tally(); });
on("keydown", walkPalette, one("#palette"));
all(".toast").forEach(fade);
reveal();
tally();
