// One event: its content, why it happened, and what came of it.

import { forkButton } from "/page/fork.js";
import { clock, cut, day, diffOf, get, h, svg } from "/page/lib.js";

export async function event(name) {
  const found = await get(`e/${encodeURIComponent(name)}`);
  const element = h("div", { class: "page" }, detailOf(found, { whole: true }));
  return { element, title: found.row.label };
}

const LANE = 14; // px
const ROW = 18; // px from the top of a row to the middle of its first line

/** Why an event happened, and what came of it: a row for each event, and beside the rows a line from each cause to what
 * it led to. What is in one session is in one lane. */
function graph({ row: own, causes, effects, calls, more, sessions }) {
  const rows = [...causes, own, ...effects];
  const lanes = [...new Set(rows.map((row) => row.session))];
  const left = Math.min(lanes.length, 8) * LANE + 12;
  const at = (row) => Math.min(lanes.indexOf(row.session), 7) * LANE + LANE;
  let before = null;
  const link = (row) => h("a", { href: `/e/${row.id}`, "data-row": true }, h("small", {}, `${clock(row.ts)} ${row.actor}`), h("b", { class: row.tone === "bad" ? "bad" : "" }, row.label), row.text ? `  ${cut(row.text, 240)}` : "");
  const line = (row) => {
    const isOther = before !== null && row.session !== before;
    before = row.session;
    const name = row.session ? sessions[row.session] || row.session : "background work";
    const of = h("a", { class: "of", dir: "auto", href: row.session ? `/s/${encodeURIComponent(row.session)}?event=${row.id}` : "/work" }, cut(name, 80));
    return h("li", { class: row === own ? "this" : "", style: { paddingLeft: `${left}px` } }, link(row), isOther ? of : null);
  };
  const list = (some) => h("ol", {}, some.map(line));
  const beside = (tag, text) => h(tag, { class: tag === "p" && "faint", style: { marginLeft: `${left}px` } }, text);
  const element = h(
    "div",
    { class: "chain" },
    beside("h2", "Why it happened"),
    causes.length ? list(causes) : beside("p", own.type === "human.input" ? "A person began it." : "No cause is known."),
    list([own]),
    beside("h2", "What came of it"),
    effects.length ? list(effects) : beside("p", "No event names it as its cause."),
  );
  const draw = () => {
    const top = element.getBoundingClientRect().top;
    const places = new Map([...element.querySelectorAll("li")].map((each, number) => [rows[number].id, [at(rows[number]), each.getBoundingClientRect().top - top + ROW]]));
    const edges = rows.filter((row) => places.has(row.above)).map((row) => {
      const [[x, y], [toX, toY]] = [places.get(row.above), places.get(row.id)];
      return svg("path", { d: x === toX ? `M${x} ${y}V${toY}` : `M${x} ${y}V${toY - LANE}Q${x} ${toY} ${toX} ${toY}` });
    });
    const dots = rows.map((row) => svg("circle", { cx: places.get(row.id)[0], cy: places.get(row.id)[1], r: 4, class: row === own ? "this" : row.tone === "bad" ? "bad" : "" }));
    element.querySelector("svg")?.remove();
    element.append(svg("svg", { width: left, height: element.offsetHeight, "aria-hidden": "true" }, edges, dots));
  };
  new ResizeObserver(draw).observe(element);
  if (!calls.length) return element;
  const all = h("a", { class: "link", href: `/s/${encodeURIComponent(own.session)}?event=${own.id}` }, more ? `and ${more} more, in the conversation` : "All of it, in the conversation");
  const next = own.type.endsWith(".input") || own.type === "turn.started" ? "What its turn did" : "What its turn did next";
  return [element, h("div", { class: "chain after", style: { marginLeft: `${left}px` } }, h("h2", {}, next), h("ol", {}, calls.map((row) => h("li", { style: { paddingLeft: 0 } }, link(row)))), h("p", {}, all))];
}

/** The parts of an event's page; `move` shows its session as of the event. */
export function detailOf(found, { move, whole = false } = {}) {
  const { record, row } = found;
  const shown = record.event;
  const facts = [
    ["time", `${day(shown.ts)} ${clock(shown.ts)}`],
    ["actor", row.actor],
    ["type", shown.type],
    ...found.facts,
    ["hash", (record.hash || "").slice(0, 16)],
    ["event", shown.id],
    ["position", `${record.position}, offset ${record.offset} of ${shown.stream_id}`],
  ];
  const copy = h("button", { class: "button", onclick: () => navigator.clipboard.writeText(JSON.stringify(record, null, 2)) }, "Copy as JSON");
  const isPlaced = found.number !== null;
  const place = `/s/${encodeURIComponent(found.root)}`;
  const back = isPlaced
    ? move
      ? h("button", { class: "button", onclick: () => move(found.number) }, `Show the session at event ${found.number}`)
      : h("a", { class: "button", href: `${place}?at=${found.number}&event=${shown.id}` }, `Show the session at event ${found.number}`)
    : null;
  const of = found.sessions[row.session] || row.session;
  const up = isPlaced ? [h("a", { class: "link", dir: "auto", href: place }, found.title || found.root), row.session !== found.root && of ? [" › ", h("a", { class: "link", dir: "auto", href: `/s/${encodeURIComponent(row.session)}` }, of)] : ""] : h("a", { class: "link", href: "/work" }, "Background work");
  return [
    whole ? [h("p", { class: "up" }, up), h("h1", {}, row.label)] : h("h3", {}, row.label),
    found.parts.map((part) => (part.kind === "diff" ? diffOf(part.text) : h("pre", { class: part.kind === "bad" ? "bad" : "" }, part.kind === "command" ? `$ ${part.text}` : part.text))),
    h("dl", { class: "grid" }, facts.filter(([, value]) => value).map(([label, value]) => [h("dt", {}, label), h("dd", {}, String(value))])),
    h("div", { class: "buttons" }, back, isPlaced ? forkButton(found.root, shown.id) : null, copy, whole ? null : h("a", { class: "button", href: `/e/${shown.id}` }, "Why?")),
    graph(found),
  ].flat(3);
}
