// What sessions cost, by day, project, model, agent or session; the work that a session started counts in it.

import { amount, get, h, money, tokensOf } from "/page/lib.js";

const WAYS = ["day", "project", "model", "agent", "session"];

export async function costs() {
  const element = h("div", { class: "page" });
  let by = "day";

  async function draw() {
    const { sums, total } = await get("costs", { by });
    if (by === "day") sums.reverse();
    const titles = by === "session" ? new Map((await get("sessions")).sessions.map((row) => [row.stream_id, row.title])) : null;
    const most = Math.max(...sums.map((each) => each.cost || tokensOf(each.tokens) / 1e9), 1e-12);
    const chips = WAYS.map((way) => h("button", { class: "chip", "aria-pressed": String(way === by), onclick: () => ((by = way), draw()) }, `by ${way}`));
    const figures = (each) => [h("td", { class: "num" }, money(each.cost)), ...[tokensOf(each.tokens) || null, each.steps, each.sessions].map((count) => h("td", { class: "num quiet" }, amount(count)))];
    const rows = sums.map((each) =>
      h(
        "tr",
        {},
        h("td", {}, by === "session" ? h("a", { href: `/s/${encodeURIComponent(each.key)}`, "data-row": true }, titles.get(each.key) || each.key) : each.key || "–"),
        h("td", { class: "share", style: { width: "30%" } }, h("div", { class: "meter", style: { width: `${((each.cost || tokensOf(each.tokens) / 1e9) / most) * 100}%` } })),
        figures(each),
      ),
    );
    const together = h("tr", { class: "total" }, h("td", {}, "together"), h("td", { class: "share" }), figures(total));
    const heads = [by, "share", "cost", "tokens", "model calls", "sessions"].map((each, at) => h("th", { class: at > 1 ? "num" : at ? "share" : "" }, at === 1 ? h("span", { class: "unseen" }, each) : each));
    element.replaceChildren(
      h("h1", { class: "unseen" }, "Costs"),
      h("div", { class: "filters" }, chips),
      rows.length ? h("table", { class: "sums" }, h("thead", {}, h("tr", {}, heads)), h("tbody", {}, rows), rows.length > 1 ? h("tfoot", {}, together) : null) : h("p", { class: "empty" }, "No model call was recorded yet."),
    );
  }

  await draw();
  return { element, title: "Costs", news: draw };
}
