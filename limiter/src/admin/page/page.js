// Fetches this view again every two seconds and replaces what changed. Without it the page reloads itself.
"use strict";
(() => {
  const EVERY_MS = 2000;
  const button = document.getElementById("live");
  let on = true;
  let timer = 0;
  let failed = 0;

  const isBusy = () => {
    const at = document.activeElement;
    const selected = getSelection();
    return document.hidden
      || (at !== null && at.matches("input, select"))
      || (selected !== null && !selected.isCollapsed);
  };

  // The same element after the replacement, so that a reader's place is kept.
  const pathOf = (root, element) => {
    const path = [];
    for (let at = element; at !== root; at = at.parentElement) {
      path.unshift(Array.prototype.indexOf.call(at.parentElement.children, at));
    }
    return path;
  };

  const isSame = (a, b) => a.tagName === b.tagName && a.getAttribute("href") === b.getAttribute("href");

  const replace = (old, fresh) => {
    if (old.innerHTML === fresh.innerHTML) return;
    const active = document.activeElement;
    const focused = old.contains(active) && active !== old ? pathOf(old, active) : null;
    const scrolled = Array.from(old.querySelectorAll(".scroll"), (part) => part.scrollLeft);
    old.replaceChildren(...fresh.childNodes);
    old.querySelectorAll(".scroll").forEach((part, at) => { part.scrollLeft = scrolled[at] || 0; });
    if (focused) {
      const there = focused.reduce((at, index) => at && at.children[index], old);
      // Something may have come or gone above it.
      const found = there && isSame(there, active) ? there
        : Array.from(old.querySelectorAll(active.tagName)).find((at) => isSame(at, active));
      if (found) found.focus({ preventScroll: true });
    }
  };

  const show = (state) => {
    button.textContent = state;
    button.setAttribute("aria-pressed", String(on));
    document.documentElement.dataset.state = state.toLowerCase();
  };

  const look = async () => {
    if (isBusy()) return;
    try {
      const response = await fetch(location.href, { cache: "no-store", redirect: "error" });
      if (response.status === 401) { location.reload(); return; }
      if (response.status === 503 || response.status === 429) throw new Error("busy");
      const page = new DOMParser().parseFromString(await response.text(), "text/html");
      for (const old of document.querySelectorAll("[data-live]")) {
        const fresh = page.querySelector(`[data-live="${old.dataset.live}"]`);
        if (fresh) replace(old, fresh);
      }
      failed = 0;
      if (on) show("Live");
    } catch {
      failed += 1;
      if (on && failed > 1) show("No answer");
    }
  };

  const turn = () => {
    clearTimeout(timer);
    if (on) timer = setTimeout(async () => { await look(); turn(); }, EVERY_MS);
  };

  button.hidden = false;
  button.addEventListener("click", () => {
    on = !on;
    show(on ? "Live" : "Paused");
    turn();
  });
  const domain = document.querySelector("form.domain select");
  if (domain) domain.addEventListener("change", () => domain.form.submit());
  show("Live");
  turn();
})();
