// The time line under the hand: a click opens a run, a drag moves the view, keys walk through time.
const part = () => document.getElementById("timeline");

let dragged = false;

function open(event) {
  const mark = event.target.closest?.("[data-go]");
  if (!mark || dragged) return;
  const address = part().dataset.executions + mark.dataset.go;
  if (event.ctrlKey || event.metaKey || event.button === 1) window.open(address, "_blank", "noopener");
  else location.href = address;
}

function moved(pixels, width) {
  const { span, start } = part().dataset;
  const shift = (-pixels / width) * span * 1000;
  const target = new URL(location.href);
  target.searchParams.set("from", new Date(Date.parse(start) + shift).toISOString());
  location.href = target.href;
}

function drag(event) {
  const canvas = event.target.closest?.(".timeline .canvas");
  if (!canvas || event.button !== 0 || event.pointerType === "touch") return;
  const from = event.clientX;
  document.addEventListener("pointerup", (end) => {
    const pixels = end.clientX - from;
    dragged = Math.abs(pixels) > 12;
    if (dragged) moved(pixels, canvas.clientWidth);
  }, { once: true });
}

document.addEventListener("pointerdown", drag);
document.addEventListener("click", open);
document.addEventListener("auxclick", open);
document.addEventListener("timeball:key", (event) => part()?.querySelector(`[data-nav="${event.detail}"]`)?.click());
