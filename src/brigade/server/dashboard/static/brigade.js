// Keeps a page live over one event stream, asks before what can't be undone, and listens to the keyboard.
(() => {
  const body = document.body;
  const byId = (id) => document.getElementById(id);

  // --- The stream -------------------------------------------------------------------------------------------------

  const sign = byId("live");
  let stream = null, last = "", retry = 0, timer = null, refreshing = false, current = null;

  const show = (state, text) => {
    if (!sign) return;
    sign.className = `live ${state}`;
    sign.querySelector("span").textContent = text;
  };

  const swap = async (target, html) => {
    await htmx.swap({ target, text: html, swap: "outerMorph", sourceElement: target });
    current?.classList.add("at");
  };

  const refreshMain = async () => {
    if (refreshing) return;
    refreshing = true;
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const main = page.getElementById("main");
      if (answer.ok && main) await swap(byId("main"), main.outerHTML);
    } finally {
      refreshing = false;
    }
  };

  const take = async (event) => {
    last = event.lastEventId;
    const news = JSON.parse(event.data);
    let missing = false;
    for (const [id, html] of Object.entries(news.parts ?? {})) {
      const target = byId(id);
      if (target) await swap(target, html); else missing = true;
    }
    if (news.series && window.brigadeCharts) window.brigadeCharts.add(news.series);
    if (news.reload || missing) await refreshMain();
    if (news.every) show("on", news.every > 2 ? `live, every ${Math.round(news.every)} s` : "live");
  };

  const connect = () => {
    clearTimeout(timer);
    const query = new URLSearchParams({ view: body.dataset.view, queue: body.dataset.queue });
    const sort = new URLSearchParams(location.search).get("sort");
    if (sort) query.set("sort", sort);
    if (last) query.set("last", last);
    stream = new EventSource(`/live?${query}`);
    stream.addEventListener("open", () => { retry = 0; show("on", "live"); });
    stream.addEventListener("tick", take);
    stream.addEventListener("bye", () => again());
    stream.addEventListener("error", () => {
      show("off", "reconnecting");
      if (stream.readyState === EventSource.CLOSED) again();
    });
  };

  const again = () => {
    stream?.close();
    show("off", "reconnecting");
    clearTimeout(timer);
    timer = setTimeout(connect, Math.min(1000 * 2 ** retry++, 15000));
  };

  // Nobody looks at a hidden tab: it costs nothing.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      clearTimeout(timer);
      stream?.close();
      show("", "asleep");
    } else {
      connect();
    }
  });
  addEventListener("pagehide", () => stream?.close());
  if (sign && !document.hidden) connect();

  // --- Asking -----------------------------------------------------------------------------------------------------

  const dialog = byId("dialog");
  document.addEventListener("submit", async (event) => {
    const form = event.target;
    if (!(form instanceof HTMLFormElement) || !form.hasAttribute("data-ask") || !dialog) return;
    event.preventDefault();
    const submitter = event.submitter;
    const answer = await fetch(submitter?.getAttribute("formaction") ?? form.getAttribute("action"), {
      method: "POST",
      headers: { "HX-Request": "true", "Content-Type": "application/x-www-form-urlencoded" },
      body: new URLSearchParams(new FormData(form, submitter)),
    });
    if (answer.redirected) { location.assign(answer.url); return; }
    await htmx.swap({ target: dialog, text: await answer.text(), swap: "innerHTML", sourceElement: dialog });
    dialog.showModal();
  });
  document.addEventListener("click", (event) => {
    const target = event.target instanceof Element ? event.target : null;
    if (target?.closest("[data-close]") && dialog?.open) { event.preventDefault(); dialog.close(); }
    if (target?.closest("[data-theme-switch]")) switchTheme();
    if (target?.closest("[data-help]")) byId("help")?.showModal();
  });

  // --- Tables -----------------------------------------------------------------------------------------------------

  // A filter is a rule of style: rows that come or change with the news keep to it.
  const filter = new CSSStyleSheet();
  document.adoptedStyleSheets.push(filter);
  document.addEventListener("input", (event) => {
    if (!event.target.matches("[data-filter]")) return;
    const wanted = event.target.value.trim().toLowerCase();
    filter.replaceSync(wanted && `${event.target.dataset.filter} tr:not([data-name*="${CSS.escape(wanted)}"]) { display: none }`);
  });
  document.addEventListener("change", (event) => {
    if (!event.target.matches("[data-tick-all]")) return;
    for (const box of event.target.form.querySelectorAll('input[name="id"]')) box.checked = event.target.checked;
  });
  // A filter that runs by itself leaves empty fields out of the address.
  document.addEventListener("submit", (event) => {
    if (event.target.matches("form.filters")) for (const one of event.target.elements) if (one.name && !one.value) one.disabled = true;
  });
  addEventListener("pageshow", () => { for (const one of document.querySelectorAll("form.filters :disabled")) one.disabled = false; });

  // --- Keys -------------------------------------------------------------------------------------------------------

  const switchTheme = () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("brigade-theme", root.dataset.theme); } catch { /* kept for this page only */ }
    window.brigadeCharts?.redraw();
  };

  const PAGES = { q: "/", d: "/failures", w: "/workers", h: "/history", s: "/system" };
  let leading = false;

  const rowsShown = () => [...document.querySelectorAll("tr[data-row]")].filter((row) => row.offsetParent !== null);
  const move = (by) => {
    const rows = rowsShown();
    if (!rows.length) return;
    const at = rows.indexOf(current);
    current?.classList.remove("at");
    current = rows[Math.max(0, Math.min(rows.length - 1, at < 0 ? 0 : at + by))];
    current.classList.add("at");
    current.querySelector("a")?.focus({ preventScroll: true });
    current.scrollIntoView({ block: "nearest" });
  };

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.matches("input:not([type=checkbox]), textarea, select") || document.querySelector("dialog[open]")) return;
    const key = event.key;
    if (leading) {
      leading = false;
      if (PAGES[key]) { event.preventDefault(); location.assign(PAGES[key]); }
      return;
    }
    if (key === "g") leading = true;
    else if (key === "?") byId("help")?.showModal();
    else if (key === "t") switchTheme();
    else if (key === "j") move(1);
    else if (key === "k") move(-1);
    else if (key === "x") { const box = document.querySelector("tr.at input[type=checkbox]"); if (box) box.checked = !box.checked; }
    else if (key === "/") {
      const field = document.querySelector("[data-filter], [data-slash]");
      if (field) { event.preventDefault(); field.focus(); }
    }
  });
})();
