// Before the first paint: the theme somebody chose; without a choice, the system's.
const chosen = localStorage.getItem("timeball.theme");
if (chosen) document.documentElement.dataset.theme = chosen;
