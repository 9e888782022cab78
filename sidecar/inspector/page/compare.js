// Two sessions beside each other: where they part, then turns, tools, files, tokens, cost and time.

import { amount, clock, get, h, money, plural, span } from "/page/lib.js";

export async function compare(a, b) {
  const found = await get("compare", { a, b });
  const name = (side) => h("a", { href: `/s/${encodeURIComponent(side.stream_id)}` }, side.title || side.stream_id);
  const [left, right] = found.sides;
  const rows = [
    ["turns", amount(left.turns), amount(right.turns)],
    ["tools", tools(left), tools(right)],
    ["files", left.files.join(", ") || "–", right.files.join(", ") || "–"],
    ["tokens", amount(left.tokens || null), amount(right.tokens || null)],
    ["cost", money(left.cost), money(right.cost)],
    ["worked", span(left.working_ms), span(right.working_ms)],
    ["events", amount(left.records), amount(right.records)],
  ];
  const cell = (row) => (row ? h("a", { href: `/e/${row.id}` }, h("small", { class: "faint" }, `${clock(row.ts)} ${row.actor} `), h("b", {}, row.label), ` ${row.text.slice(0, 200)}`) : h("span", { class: "faint" }, "ends here"));
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
    h("table", { class: "sums" }, h("tbody", {}, found.rows.map(([one, other]) => h("tr", {}, h("td", { style: { width: "50%" } }, cell(one)), h("td", {}, cell(other)))))),
  );
  return { element, title: "Compare" };
}

const tools = (side) => Object.entries(side.tools).map(([tool, count]) => `${tool} ${count}`).join(", ") || "–";
