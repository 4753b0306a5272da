// Runs before the first paint, so that a page never flashes in the wrong colours.
(() => {
  const chosen = (() => { try { return localStorage.getItem("brigade-theme"); } catch { return null; } })();
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
