// The list of sessions, and what a search finds.

import { go } from "/page/app.js";
import { ago, amount, get, h, money, plural, status } from "/page/lib.js";

const FILTERS = [
  ["all", "All", () => true],
  ["waiting", "Waiting for you", (row) => row.status === "waiting"],
  ["active", "Running", (row) => row.status === "active"],
  ["failed", "Failed", (row) => row.status === "failed"],
];

/** What was chosen stays chosen while the page is open. */
const chosen = { filter: "all", project: "" };

export async function sessions() {
  const element = h("div", { class: "page" });
  let seen = new Set();

  function draw(found, isNew) {
    const rows = found.sessions;
    const projects = [...new Set(rows.map((row) => row.place))].sort();
    const inside = rows.filter((row) => !chosen.project || row.place === chosen.project);
    const fits = FILTERS.find(([name]) => name === chosen.filter)[2];
    const shown = inside.filter(fits);
    const chips = FILTERS.map(([name, label, test]) => {
      const count = inside.filter(test).length;
      if (!count && name !== "all" && name !== chosen.filter) return null;
      const pick = () => ((chosen.filter = name), draw(found, false));
      return h("button", { class: "chip", "aria-pressed": String(chosen.filter === name), onclick: pick }, label, h("b", {}, count));
    });
    const select = h(
      "select",
      { "aria-label": "Project", onchange: (change) => ((chosen.project = change.target.value), draw(found, false)) },
      h("option", { value: "" }, "All projects"),
      projects.map((each) => h("option", { value: each, selected: each === chosen.project }, each || "(unknown)")),
    );
    const heads = h("div", { class: "row heads" }, ["status", "session", "last", "turns", "tokens", "cost"].map((each, at) => h("span", { class: at > 1 && "num" }, each)));
    const list = [];
    let place = null;
    // Grouped by project, the project with the newest session first; inside a project the newest session first.
    const order = new Map();
    for (const row of shown) if (!order.has(row.place)) order.set(row.place, order.size);
    const grouped = [...shown].sort((a, b) => order.get(a.place) - order.get(b.place));
    for (const row of grouped) {
      if (row.place !== place && !chosen.project) {
        place = row.place;
        const count = grouped.filter((each) => each.place === place).length;
        list.push(h("div", { class: "group" }, h("b", {}, place || "(unknown directory)"), plural(count, "session")));
      }
      list.push(line(row, found.now, isNew && !seen.has(row.stream_id)));
    }
    seen = new Set(rows.map((row) => row.stream_id));
    element.replaceChildren(
      ...(found.fault ? [h("p", { class: "note" }, found.fault)] : []),
      h("div", { class: "filters" }, chips, projects.length > 1 && select),
      ...(rows.length ? [heads, ...list] : [nothing()]),
      ...(rows.length && !shown.length ? [h("p", { class: "empty" }, "No session fits. Choose “All”.")] : []),
    );
  }

  draw(await get("sessions"), false);
  return { element, title: "Sessions", news: async () => draw(await get("sessions"), true) };
}

function line(row, now, isNew) {
  const tokens = row.tokens.total || Object.values(row.tokens).reduce((sum, each) => sum + each, 0);
  const more = [
    row.background ? `${row.background} in the background` : "",
    row.sessions > 1 ? `${row.sessions - 1} ${row.sessions > 2 ? "children" : "child"}` : "",
    row.gaps ? plural(row.gaps, "gap") : "",
  ];
  const title = row.title || (row.forgotten ? "(forgotten)" : "(no title)");
  return h(
    "a",
    { class: `row${isNew ? " new" : ""}`, href: `/s/${encodeURIComponent(row.stream_id)}`, "data-row": true },
    status(row.status),
    h("span", { class: "title", title }, title, h("small", {}, more.filter(Boolean).join(" · "))),
    h("span", { class: "num quiet" }, ago(row.last_ts, now)),
    h("span", { class: "num quiet" }, row.turns || "–"),
    h("span", { class: "num quiet" }, tokens ? amount(tokens) : "–"),
    h("span", { class: "num" }, money(row.cost)),
  );
}

const nothing = () =>
  h(
    "p",
    { class: "empty" },
    "Nothing was recorded yet. Run ",
    h("code", {}, "durable-stream install"),
    ", restart OpenCode, and work as usual: each session appears here while it runs.",
  );

export async function found(text) {
  const answer = await get("search", { q: text });
  const list = answer.hits.map((hit) =>
    h(
      "a",
      { class: "hit", href: `/e/${hit.event}`, "data-row": true },
      h("span", { class: "faint" }, `${ago(hit.ts, Date.now())} · ${hit.label}`),
      h("span", {}, hit.title || hit.stream_id),
      h("span"),
      h("span", { class: "snippet quiet" }, marked(hit.snippet, text)),
    ),
  );
  const element = h(
    "div",
    { class: "page" },
    answer.fault && h("p", { class: "note" }, answer.fault),
    h("h2", {}, list.length ? `The newest ${plural(list.length, "event")} with “${text}”` : ""),
    list.length ? list : h("p", { class: "empty" }, `No event has “${text}”.`),
  );
  return { element, title: text, key: (key) => key === "Escape" && (go("/"), true) };
}

function marked(text, wanted) {
  const parts = [];
  const low = text.toLowerCase();
  const small = wanted.toLowerCase();
  let from = 0;
  for (let at = low.indexOf(small); at >= 0 && small; at = low.indexOf(small, from)) {
    parts.push(text.slice(from, at), h("mark", {}, text.slice(at, at + small.length)));
    from = at + small.length;
  }
  return [...parts, text.slice(from)];
}
