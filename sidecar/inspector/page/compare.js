// Two sessions beside each other: where they part, then turns, tools, files, tokens, cost and time.

import { ago, amount, clock, cut, get, h, money, plural, span } from "/page/lib.js";

const MOST = 100; // sessions to choose from

export async function compare(a, b) {
  if (!b) return choose(a);
  const found = await get("compare", { a, b });
  const name = (side) => h("a", { href: `/s/${encodeURIComponent(side.stream_id)}` }, side.title || side.stream_id);
  const [left, right] = found.sides;
  const rows = [
    ["turns", amount(left.turns), amount(right.turns)],
    ["tools", tools(left), tools(right)],
    ["failed", ...[left, right].map((side) => (side.failed ? h("span", { class: "bad" }, amount(side.failed)) : "–"))],
    ["files", left.files.join(", ") || "–", right.files.join(", ") || "–"],
    ["tokens", amount(left.tokens || null), amount(right.tokens || null)],
    ["cost", money(left.cost), money(right.cost)],
    ["turns took", span(left.working_ms), span(right.working_ms)],
    ["events", amount(left.records), amount(right.records)],
  ];
  const cell = (row) => (row ? h("a", { href: `/e/${row.id}` }, h("small", { class: "faint" }, `${clock(row.ts)} ${row.actor} `), h("b", { class: row.tone === "bad" ? "bad" : "" }, row.label), ` ${cut(row.text, 200)}`) : h("span", { class: "faint" }, "ends here"));
  const ends = [false, false];
  const once = (row, side) => {
    const isNew = row || !ends[side];
    ends[side] ||= !row;
    return isNew ? cell(row) : "";
  };
  const element = h(
    "div",
    { class: "page" },
    h("h1", {}, "Compare"),
    h(
      "table",
      { class: "sums" },
      h("thead", {}, h("tr", {}, h("th", {}, ""), h("th", {}, name(left)), h("th", {}, name(right)))),
      h("tbody", {}, rows.map(([label, one, other]) => h("tr", {}, h("td", { class: "faint" }, label), h("td", {}, one), h("td", {}, other)))),
    ),
    h("h2", {}, found.same === null ? "They are the same" : `${plural(found.same, "event")} at the beginning ${found.same === 1 ? "is" : "are"} the same in kind and content; then they part`),
    h("table", { class: "sums" }, h("tbody", {}, found.rows.map(([one, other]) => h("tr", {}, h("td", { style: { width: "50%" } }, once(one, 0)), h("td", {}, once(other, 1)))))),
  );
  return { element, title: "Compare" };
}

/** The sessions beside which one can be put: its forks and its origin first, then those of its project. */
async function choose(a) {
  const [{ sessions, now }, own] = await Promise.all([get("sessions"), get(`s/${encodeURIComponent(a)}/head`)]);
  const near = (row) => (row.fork === a || row.stream_id === own.fork ? 0 : row.place === own.place ? 1 : 2);
  const others = sessions.filter((row) => row.stream_id !== own.stream_id).sort((one, other) => near(one) - near(other)).slice(0, MOST);
  const rows = others.map((row) => {
    const link = h("a", { class: "link", "data-row": true, href: `/compare/${encodeURIComponent(a)}/${encodeURIComponent(row.stream_id)}` }, row.title || row.stream_id);
    return h("tr", {}, h("td", {}, link, h("small", { class: "faint" }, row.fork === a ? " its fork" : row.stream_id === own.fork ? " its origin" : "")), h("td", { class: "quiet" }, row.place), h("td", { class: "num quiet" }, ago(row.last_ts, now)));
  });
  const list = rows.length ? h("table", { class: "sums" }, h("tbody", {}, rows)) : h("p", { class: "empty" }, "There is no other session yet.");
  return { element: h("div", { class: "page" }, h("h1", {}, "Compare"), h("p", { class: "quiet" }, `Choose the session to put beside “${own.title || a}”.`), list), title: "Compare" };
}

const tools = (side) => Object.entries(side.tools).map(([tool, count]) => `${tool} ${count}`).join(", ") || "–";
