// The list of sessions. What is chosen stands in the address.

import { ago, amount, began, day, get, h, isTeam, money, place, plural, status, tokensOf, twins } from "/page/lib.js";

const FILTERS = [
  ["all", "All", () => true],
  ["waiting", "Waiting for you", (row) => row.status === "waiting"],
  ["active", "Running", (row) => row.status === "active"],
  ["failed", "Failed", (row) => row.status === "failed"],
];
const FACETS = [["machine", "machine"], ["place", "project"], ["agent", "agent"], ["model", "model"]];
const DAYS = 30;
const FEW = 8; // how many sessions of a project are shown at first
const MANY = 200;

const NONE = { status: "all", machine: "", place: "", agent: "", model: "", day: "" };

export async function sessions() {
  const said = new URL(location.href).searchParams;
  const chosen = { open: new Map() };
  for (const name of Object.keys(NONE)) chosen[name] = said.get(name) ?? NONE[name];
  if (!FILTERS.some(([name]) => name === chosen.status)) chosen.status = NONE.status;
  const element = h("div", { class: "page" });
  let seen = new Set();
  let found;

  /** The rows that fit what is chosen, but for one facet, so that its other values can be counted. */
  const fitting = (but) =>
    found.sessions.filter(
      (row) =>
        FACETS.every(([name]) => name === but || !chosen[name] || row[name] === chosen[name]) &&
        (but === "day" || !chosen.day || day(row.last_ts) === chosen.day) &&
        (but === "status" || FILTERS.find(([name]) => name === chosen.status)[2](row)),
    );

  function choose(some) {
    Object.assign(chosen, some);
    chosen.open.clear();
    const here = new URL(location.href);
    for (const [name, none] of Object.entries(NONE)) {
      if (chosen[name] === none) here.searchParams.delete(name);
      else here.searchParams.set(name, chosen[name]);
    }
    history.replaceState(history.state, "", here);
    draw(false);
  }

  function draw(isNew) {
    const focused = element.contains(document.activeElement) && document.activeElement.getAttribute("data-key");
    const shown = fitting();
    const isChosen = chosen.status !== "all" || chosen.day || FACETS.some(([name]) => chosen[name]);
    const clear = () => choose(NONE);
    const list = grouped(shown).map(([name, rows, kind]) => group(name, rows, kind, isNew));
    const parts = [
      ...(found.sessions.length ? [activity(fitting("day")), facets(isChosen && clear)] : [nothing()]),
      ...(shown.length ? [heads(), ...list.flat()] : []),
      ...(found.sessions.length && !shown.length ? [h("p", { class: "empty" }, "No session fits. ", h("button", { class: "button", onclick: clear }, "Show all sessions"))] : []),
    ];
    element.replaceChildren(h("h1", { class: "unseen" }, "Sessions"), ...parts.filter(Boolean));
    seen = new Set(found.sessions.map((row) => row.stream_id));
    if (focused) element.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
  }

  /** How many sessions were active last on each of the last days, and what they cost. A day is a filter. */
  function activity(rows) {
    const days = new Map();
    const date = new Date(found.now);
    for (let back = DAYS - 1; back >= 0; back--) days.set(day(new Date(date.getFullYear(), date.getMonth(), date.getDate() - back).valueOf()), []);
    for (const row of rows) days.get(day(row.last_ts))?.push(row);
    const most = Math.max(1, ...[...days.values()].map((each) => each.length));
    const cost = (each) => each.reduce((sum, row) => sum + (row.cost || 0), 0);
    const note = h("span", { class: "faint", "aria-live": "polite" });
    const recent = [...days.values()].flat();
    if (!recent.length && !chosen.day) return null;
    const sums = (each) => [plural(each.length, "session"), cost(each) && money(cost(each))].filter(Boolean).join(", ");
    const whole = `last ${DAYS} days: ${sums(recent)}`;
    note.textContent = whole;
    const bars = [...days].map(([name, each]) => {
      const text = `${name}: ${sums(each)}`;
      return h(
        "button",
        {
          "data-key": name, "aria-label": text, "aria-pressed": String(chosen.day === name), disabled: !each.length && chosen.day !== name,
          onclick: () => choose({ day: chosen.day === name ? "" : name }),
          onpointerenter: () => (note.textContent = text), onfocus: () => (note.textContent = text), onpointerleave: () => (note.textContent = whole), onblur: () => (note.textContent = whole),
        },
        h("i", { style: { height: each.length ? `${Math.max((each.length / most) * 100, 6)}%` : "1px" } }),
      );
    });
    return h("div", { class: "activity" }, h("div", { class: "days", role: "group", "aria-label": `Sessions by day, the last ${DAYS} days` }, bars), note);
  }

  function facets(clear) {
    const rows = fitting("status");
    const chips = FILTERS.map(([name, label, test]) => {
      const count = rows.filter(test).length;
      if (!count && name !== "all" && name !== chosen.status) return null;
      return h("button", { class: `chip ${name}`, "data-key": name, "aria-pressed": String(chosen.status === name), onclick: () => choose({ status: name }) }, label, h("b", {}, count));
    });
    const selects = FACETS.map(([name, label]) => {
      const counts = new Map();
      for (const row of fitting(name)) counts.set(row[name], (counts.get(row[name]) ?? 0) + 1);
      if (counts.size < 2 && !chosen[name]) return null;
      const values = [...counts].sort((a, b) => b[1] - a[1]);
      if (chosen[name] && !counts.has(chosen[name])) values.push([chosen[name], 0]);
      return h(
        "select",
        { "aria-label": label, "data-key": label, onchange: (change) => choose({ [name]: change.target.value }) },
        h("option", { value: "" }, `Every ${label}`),
        values.filter(([value]) => value).map(([value, count]) => h("option", { value, selected: value === chosen[name] }, `${value} (${count})`)),
      );
    });
    const date = chosen.day && h("button", { class: "chip", "aria-pressed": "true", "aria-label": `Not only ${chosen.day}`, onclick: () => choose({ day: "" }) }, `${chosen.day} ×`);
    return h("div", { class: "filters" }, chips, selects, date, clear && h("button", { class: "link", onclick: clear }, "Clear"));
  }

  /** What waits for a person first, then each project, the one with the newest session first. */
  function grouped(rows) {
    const groups = new Map();
    const waiting = chosen.status === "waiting" ? [] : rows.filter((row) => row.status === "waiting");
    for (const row of rows) {
      if (waiting.includes(row)) continue;
      if (!groups.has(row.place)) groups.set(row.place, []);
      groups.get(row.place).push(row);
    }
    return [...(waiting.length ? [["Waiting for you", waiting, "wait"]] : []), ...[...groups].map(([name, each]) => [name || "(unknown directory)", each, ""])];
  }

  function group(name, rows, kind, isNew) {
    const most = chosen.open.get(name) ?? (kind || chosen.place ? MANY : FEW);
    const left = rows.length - most;
    const failed = rows.filter((row) => row.status === "failed").length;
    const head = h("h2", { class: "group" }, h("b", { class: kind, dir: "auto" }, name), h("span", {}, plural(rows.length, "session")), failed && chosen.status !== "failed" ? h("span", { class: "bad" }, `${failed} failed`) : null);
    const more = left > 0 && h("button", { class: "more", "data-row": true, onclick: () => (chosen.open.set(name, most + MANY), draw(false)) }, `Show ${Math.min(left, MANY)} more of ${name}`);
    return [head, ...rows.slice(0, most).map((row) => line(row, found.now, isNew && !seen.has(row.stream_id), kind)), more].filter(Boolean);
  }

  const load = async (isNew) => {
    found = await get("sessions");
    const same = twins(found.sessions.map((row) => row.title).filter(Boolean));
    for (const row of found.sessions) row.twin = same.has(row.title);
    draw(isNew);
  };
  await load(false);
  return { element, title: "Sessions", news: () => load(true) };
}

const heads = () => h("div", { class: "row heads", "aria-hidden": "true" }, ["status", "session", "last", "turns", "tokens", "cost", ...(isTeam ? ["machine"] : [])].map((each, at) => h("span", { class: at > 1 && at < 6 && "num" }, each)));

function line(row, now, isNew, kind) {
  const tokens = tokensOf(row.tokens);
  const more = [
    kind ? row.place : "",
    row.twin ? began(row.first_ts) : "",
    row.pinned ? "pinned" : "",
    row.background ? `${row.background} in the background` : "",
    row.sessions > 1 ? `${row.sessions - 1} ${row.sessions > 2 ? "children" : "child"}` : "",
    row.fork ? "fork" : "",
    row.gaps ? plural(row.gaps, "gap") : "",
  ];
  const title = row.title || (row.forgotten ? "(forgotten)" : "(no title)");
  const asks = row.asks[0]?.text;
  const made = h(
    "a",
    { class: `row${isNew ? " new" : ""}`, href: place(row.stream_id, row), "data-row": true },
    status(row.status),
    h("span", { class: "title", title, dir: "auto" }, title, asks && h("small", { class: "wait" }, asks), h("small", {}, more.filter(Boolean).join(" · "))),
    h("span", { class: "num quiet" }, ago(row.last_ts, now)),
    h("span", { class: "num quiet" }, row.turns || "–"),
    h("span", { class: "num quiet" }, tokens ? amount(tokens) : "–"),
    h("span", { class: "num" }, money(row.cost)),
    isTeam && h("span", { class: "machine quiet", title: row.machine, dir: "auto" }, row.machine),
  );
  if (!row.fork) return made;
  const beside = `/compare/${encodeURIComponent(row.fork)}/${encodeURIComponent(row.stream_id)}${isTeam ? `?machine=${encodeURIComponent(row.machine)}` : ""}`;
  return h("div", { class: "forked" }, made, h("a", { class: "link", href: beside, title: "Compare with the session that it was forked from" }, "Compare"));
}

const nothing = () =>
  h(
    "p",
    { class: "empty" },
    "Nothing was recorded yet. Run ",
    h("code", {}, "durable-stream install"),
    ", restart OpenCode, and work as usual: each session appears here while it runs.",
  );
