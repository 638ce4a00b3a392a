// What pages do by themselves: theme, palette, dialogs that ask before something is lost, selection, copying, toasts.
const root = document.documentElement;
const byId = (id) => document.getElementById(id);

export function toggleTheme() {
  const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  localStorage.setItem("timeball.theme", root.dataset.theme);
}

export function openDialog(id) {
  byId(id)?.showModal();
}

export function openPalette() {
  const dialog = byId("palette");
  if (!dialog.open) dialog.showModal();
  dialog.querySelector("input").select();
}

export function say(text) {
  const toast = document.createElement("div");
  toast.className = "toast";
  toast.append(text);
  byId("toasts").append(toast);
  fade(toast);
}

function fade(toast) {
  let left = 10;
  const timer = setInterval(() => {
    if (toast.matches(":hover, :focus-within")) return;
    if (--left <= 0) { clearInterval(timer); toast.remove(); }
  }, 1000);
}

function walkPalette(event) {
  const links = [...byId("palette").querySelectorAll("li a")];
  const at = links.findIndex((link) => link.classList.contains("at"));
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (step && links.length) {
    event.preventDefault();
    links[at]?.classList.remove("at");
    const next = links[(at + step + links.length) % links.length];
    next.classList.add("at");
    next.scrollIntoView({ block: "nearest" });
  } else if (event.key === "Enter" && links.length) {
    event.preventDefault();
    links[Math.max(at, 0)].click();
  }
}

// A form that would lose something asks first: what it does, a reason, and for the gravest a typed name.
function ask(event) {
  const form = event.target;
  const asking = (event.submitter?.dataset.confirm && event.submitter) || (form.dataset.confirm && form);
  // All that match are counted by the server, which asks by itself.
  if (!asking || form.dataset.confirmed || form.elements.matching?.value === "yes") return;
  event.preventDefault();
  const dialog = byId("confirm");
  const { confirm, confirmOne = confirm, detail = "", verb = "Go on", typed = "", reason } = asking.dataset;
  const count = document.querySelectorAll("[name=ids]:checked").length;
  dialog.querySelector("h2").textContent = count === 1 ? confirmOne : confirm.replace("{n}", count);
  dialog.querySelector("p").textContent = detail;
  dialog.querySelector("[data-reason]").hidden = reason === undefined;
  const name = dialog.querySelector("[data-typed]");
  name.hidden = !typed;
  name.querySelector("code").textContent = typed;
  const [why, box] = [dialog.querySelector("[name=why]"), dialog.querySelector("[name=typed]")];
  why.value = box.value = "";
  const go = dialog.querySelector(".primary");
  go.textContent = verb;
  go.classList.toggle("danger", asking.dataset.danger !== undefined);
  const check = () => (go.disabled = Boolean(typed) && box.value !== typed);
  box.oninput = check;
  check();
  dialog.onclose = () => {
    if (dialog.returnValue !== "yes") return;
    hidden(form, "reason", why.value);
    hidden(form, "typed", box.value);
    form.dataset.confirmed = "yes";
    form.requestSubmit(event.submitter || undefined);
    delete form.dataset.confirmed;
  };
  dialog.returnValue = "";
  dialog.showModal();
}

function hidden(form, name, value) {
  const field = form.querySelector(`input[type=hidden][name=${name}]`) || form.appendChild(Object.assign(document.createElement("input"), { type: "hidden", name }));
  field.value = value;
}

let lastBox = null;

function pick(event) {
  const box = event.target.closest("[name=ids]");
  if (!box) return;
  const all = [...document.querySelectorAll("[name=ids]")];
  if (event.shiftKey && lastBox) {
    const [from, to] = [all.indexOf(lastBox), all.indexOf(box)].sort((one, other) => one - other);
    all.slice(from, to + 1).forEach((one) => (one.checked = box.checked));
  }
  lastBox = box;
  tally();
}

function tally() {
  const bulk = document.querySelector(".bulk");
  if (!bulk) return;
  const boxes = [...document.querySelectorAll("[name=ids]")];
  const chosen = boxes.filter((box) => box.checked).length;
  const matching = bulk.querySelector("[name=matching]");
  if (!chosen) matching.value = "";
  bulk.hidden = !chosen;
  const isAll = matching.value === "yes";
  bulk.querySelector("output").textContent = isAll ? "All that match are selected" : `${chosen} selected`;
  const every = document.querySelector("[data-pick-all]");
  if (every) { every.checked = chosen > 0 && chosen === boxes.length; every.indeterminate = chosen > 0 && chosen < boxes.length; }
}

function setAll(checked) {
  document.querySelectorAll("[name=ids]").forEach((box) => (box.checked = checked));
  tally();
}

function clicked(event) {
  const target = event.target;
  const copy = target.closest("[data-copy]");
  if (copy) navigator.clipboard?.writeText(copy.dataset.copy).then(() => say("Copied"));
  const opener = target.closest("[data-open]");
  if (opener) { event.preventDefault(); opener.dataset.open === "palette" ? openPalette() : openDialog(opener.dataset.open); }
  if (target.closest("[data-close]")) target.closest("dialog, .toast")[target.closest("dialog") ? "close" : "remove"]();
  if (target.closest("[data-theme-toggle]")) toggleTheme();
  if (target.closest("[data-side]")) document.querySelector(".side").classList.toggle("open");
  if (target.matches("[data-pick-all]")) setAll(target.checked);
  if (target.closest("[data-all-matching]")) { setAll(true); document.querySelector(".bulk [name=matching]").value = "yes"; tally(); }
  if (target.closest("[data-pick-none]")) { document.querySelector(".bulk [name=matching]").value = ""; setAll(false); }
  if (target.matches("dialog")) target.close();
  for (const menu of document.querySelectorAll(".menu[open]")) if (!menu.contains(target)) menu.open = false;
  pick(event);
}

// A choice that shows other fields.
function reveal(root = document) {
  for (const part of root.querySelectorAll("[data-when]")) {
    const [name, values] = part.dataset.when.split("=");
    const field = part.closest("form").elements[name];
    part.hidden = !values.split("|").includes(field?.value ?? "");
    part.querySelectorAll("input, select, textarea").forEach((inner) => (inner.disabled = part.hidden));
  }
}

function escaped(event) {
  if (event.key === "Escape") for (const menu of document.querySelectorAll(".menu[open]")) { menu.open = false; menu.querySelector("summary").focus(); }
}

export function startPage() {
  document.addEventListener("click", clicked);
  document.addEventListener("submit", ask);
  document.addEventListener("keydown", escaped);
  document.addEventListener("change", (event) => { if (event.target.form) reveal(event.target.form); if (event.target.matches("select[data-go]")) event.target.form.requestSubmit(); });
  document.addEventListener("htmx:after:swap", () => { reveal(); tally(); });
  byId("palette")?.addEventListener("keydown", walkPalette);
  document.querySelectorAll(".toast").forEach(fade);
  reveal();
  tally();
}
