// Before the first paint: the theme somebody chose, or the system's.
const chosen = localStorage.getItem("timeball.theme");
if (chosen) document.documentElement.dataset.theme = chosen;
