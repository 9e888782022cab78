// What sessions cost: a picture of the days by model, sums by day, project, model, agent or session, and the dearest
// turns. The work that a session started counts in it. The range and the way stand in the address.

import { ago, amount, cut, day, get, h, isTeam, money, place as session, plural, svg, tokensOf, visible } from "/page/lib.js";

const WAYS = ["day", "project", "model", "agent", "session", ...(isTeam ? ["machine"] : [])];
const RANGES = [[7, "7 days"], [30, "30 days"], [90, "90 days"], [0, "all"]];
const DEFAULT = { by: "day", days: 30 };
const HEIGHT = 160;

export async function costs() {
  const element = h("div", { class: "page" });
  const said = new URL(location.href).searchParams;
  const chosen = {
    by: WAYS.find((way) => way === said.get("by")) ?? DEFAULT.by,
    days: RANGES.map(([days]) => days).find((days) => String(days) === said.get("days")) ?? DEFAULT.days,
  };
  let drawn = "";

  function choose(some) {
    Object.assign(chosen, some);
    const here = new URL(location.href);
    for (const [name, none] of Object.entries(DEFAULT)) {
      if (chosen[name] === none) here.searchParams.delete(name);
      else here.searchParams.set(name, chosen[name]);
    }
    history.replaceState(history.state, "", here);
    draw();
  }

  async function draw() {
    const found = await get("costs", chosen);
    const text = JSON.stringify(found);
    if (text === drawn) return;
    drawn = text;
    const focused = element.contains(document.activeElement) && document.activeElement.getAttribute("data-key");
    const chip = (label, isOn, some) => h("button", { class: "chip", "data-key": label, "aria-pressed": String(isOn), onclick: () => choose(some) }, label);
    const nothing = chosen.days ? "No model call was recorded in these days." : "No model call was recorded yet.";
    element.replaceChildren(
      h("h1", { class: "unseen" }, "Costs"),
      h("div", { class: "filters", role: "group", "aria-label": "Range" }, RANGES.map(([days, label]) => chip(label, days === chosen.days, { days })), week(found.weeks)),
      ...(found.sums.length
        ? [picture(found), h("div", { class: "filters", role: "group", "aria-label": "Added up" }, WAYS.map((by) => chip(`by ${by}`, by === chosen.by, { by }))), table(found), ...dearest(found.turns)]
        : [h("p", { class: "empty" }, nothing)]),
      ...(found.is_partial ? [h("p", { class: "faint" }, "Without the model calls with which OpenCode 2 makes titles and compactions.")] : []),
    );
    if (focused) element.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
  }

  await draw();
  return { element, title: "Costs", news: draw };
}

/** The last seven days against the seven before. */
function week([now, before]) {
  if (!now && !before) return null;
  const more = before ? Math.round((now / before - 1) * 100) : null;
  const change = more === null ? "" : more ? `, ${amount(Math.abs(more))} % ${more > 0 ? "more" : "less"}` : ", the same";
  return h("span", { class: "quiet week" }, "last 7 days ", h("b", {}, money(now)), ` · the 7 before ${money(before)}${change}`);
}

/** A bar for each day, with a part for each model. */
function picture({ days, models }) {
  const isCost = days.some((each) => each.used.some(([cost]) => cost > 0));
  const value = ([cost, tokens]) => (isCost ? cost : tokens);
  const name = (count) => (isCost ? money(count) : `${amount(count)} tokens`);
  const sums = days.map((each) => each.used.reduce((sum, part) => sum + value(part), 0));
  const most = Math.max(...sums, 1e-12);
  const label = (model) => (model === null ? "other models" : model || "(unknown model)");
  const wide = 100 / days.length;
  const bars = days.map(({ day: date, used }, place) => {
    let top = HEIGHT;
    const parts = used.map((part, number) => {
      const high = (value(part) / most) * HEIGHT;
      top -= high;
      return high > 0 && svg("rect", { class: `m${models[number] === null ? "x" : number}`, x: `${place * wide + wide * 0.1}%`, width: `${wide * 0.8}%`, y: top, height: high });
    });
    const lines = [`${date}: ${sums[place] ? name(sums[place]) : "nothing"}`, ...used.map((part, number) => value(part) > 0 && `${label(models[number])} ${name(value(part))}`)];
    return svg("g", {}, svg("title", {}, lines.filter(Boolean).join("\n")), svg("rect", { class: "day", x: `${place * wide}%`, width: `${wide}%`, y: 0, height: HEIGHT }), parts);
  });
  const each = Math.ceil(days.length / (innerWidth < 600 ? 4 : 10));
  const dates = days.map(({ day: date }, place) => (days.length - 1 - place) % each === 0 && svg("text", place === days.length - 1 ? { class: "last", x: "100%", y: HEIGHT + 16 } : { x: `${(place + 0.5) * wide}%`, y: HEIGHT + 16 }, date.slice(5)));
  const total = sums.reduce((sum, one) => sum + one, 0);
  const about = `${isCost ? "Costs" : "Tokens"} by day: together ${name(total)} in ${plural(days.length, "day")}, at most ${name(most)} on one`;
  return h(
    "figure",
    { class: "spent" },
    svg("svg", { role: "img", "aria-label": about, width: "100%", height: HEIGHT + 20 }, svg("line", { x1: 0, x2: "100%", y1: 0.5, y2: 0.5 }), svg("line", { x1: 0, x2: "100%", y1: HEIGHT / 2, y2: HEIGHT / 2 }), svg("line", { x1: 0, x2: "100%", y1: HEIGHT, y2: HEIGHT }), bars, svg("text", { class: "most", x: 0, y: 12 }, name(most)), dates),
    h("figcaption", {}, models.map((model, number) => h("span", {}, svg("svg", { width: 8, height: 8, "aria-hidden": "true" }, svg("rect", { class: `m${model === null ? "x" : number}`, width: 8, height: 8 })), " ", h("span", { dir: "auto" }, label(model)), " ", h("b", {}, name(days.reduce((sum, { used }) => sum + value(used[number]), 0)))))),
  );
}

function table({ by, sums, total }) {
  const rows = by === "day" ? [...sums].reverse() : sums;
  const size = (each) => each.cost || tokensOf(each.tokens) / 1e9;
  const most = Math.max(...rows.map(size), 1e-12);
  const figures = (each) => [h("td", { class: "num" }, money(each.cost)), ...[tokensOf(each.tokens) || null, each.steps, each.sessions].map((count) => h("td", { class: "num quiet" }, amount(count)))];
  const key = (each) => (by === "session" ? h("a", { class: "link", href: session(each.key, each), "data-row": true, dir: "auto" }, cut(each.title || each.key, 120)) : each.key || "(unknown)");
  const line = (each) => h("tr", {}, h("td", { dir: "auto" }, key(each)), h("td", { class: "share" }, h("div", { class: "meter", style: { width: `${(size(each) / most) * 100}%` } })), figures(each));
  const heads = [by, "share", "cost", "tokens", "model calls", "sessions"].map((each, at) => h("th", { class: at > 1 ? "num" : at ? "share" : "" }, at === 1 ? h("span", { class: "unseen" }, each) : each));
  const together = h("tr", { class: "total" }, h("td", {}, "together"), h("td", { class: "share" }), figures(total));
  return h("table", { class: "sums money" }, h("thead", {}, h("tr", {}, heads)), h("tbody", {}, rows.map(line)), rows.length > 1 ? h("tfoot", {}, together) : null);
}

function dearest(turns) {
  if (!turns.length) return [];
  const rows = turns.map((turn) => {
    const asked = h("a", { class: "link", "data-row": true, dir: "auto", href: session(turn.stream_id, turn, turn.event) }, cut(turn.asked || "(no prompt)", 140));
    return h("tr", {}, h("td", {}, asked, h("br"), h("small", { class: "faint", dir: "auto" }, [turn.machine, turn.title || turn.stream_id].filter(Boolean).join(" · "))), h("td", { class: "num quiet", title: visible(day(turn.ts)) }, ago(turn.ts, Date.now())), h("td", { class: "num" }, money(turn.cost)));
  });
  return [h("h2", {}, "The dearest turns"), h("table", { class: "sums" }, h("tbody", {}, rows))];
}
