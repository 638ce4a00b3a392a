// Before the first paint: the chosen theme, or the system's.
const chosen = localStorage.getItem("timeball.theme");
if (chosen) document.documentElement.dataset.theme = chosen;
