// Opened as files, pages can't read one another: the search shows titles alone.
if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;

// On paper everything is light and unfolded, but for the hints.
let theme;
addEventListener("beforeprint", () => {
  theme = document.documentElement.dataset.theme;
  document.documentElement.dataset.theme = "light";
  document.querySelectorAll("details:not(.hint)").forEach(part => part.open = true);
});
addEventListener("afterprint", () => document.documentElement.dataset.theme = theme);
