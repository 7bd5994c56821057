// Opened from disk, a page may not read others: the search then shows its hits without an excerpt of each.
if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;

// What is wider than the page scrolls within itself, and the keyboard must be able to reach it: when the page is set, and when something unfolds.
function letTheKeyboardScroll() {
  document.querySelectorAll("article pre, mjx-container[display], .pst-scrollable-table-container").forEach((box) => {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
  });
}
addEventListener("load", () => {
  letTheKeyboardScroll();
  window.MathJax?.startup?.promise.then(letTheKeyboardScroll);
});
addEventListener("resize", letTheKeyboardScroll);
addEventListener("click", () => setTimeout(letTheKeyboardScroll, 100));
