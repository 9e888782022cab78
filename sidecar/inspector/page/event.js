// One event: its content, why it happened, and what came of it.

import { forkButton } from "/page/fork.js";
import { clock, day, diffOf, get, h } from "/page/lib.js";

export async function event(name) {
  const found = await get(`e/${encodeURIComponent(name)}`);
  const element = h("div", { class: "page" }, detailOf(found, { whole: true }));
  return { element, title: found.row.label };
}

const line = (row, isThis) =>
  h(
    "li",
    { class: isThis ? "this" : "" },
    h("a", { href: `/e/${row.id}`, "data-row": true }, h("small", {}, `${clock(row.ts)} ${row.actor}`), h("b", { class: row.tone === "bad" ? "bad" : "" }, row.label), row.text ? `  ${row.text}` : ""),
  );

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
  const known = [found.causes.length && "Why it happened", found.effects.length && "What came of it"].filter(Boolean);
  const led = known.join(". ") || "No cause is known, and nothing came of it yet";
  const copy = h("button", { class: "button", onclick: () => navigator.clipboard.writeText(JSON.stringify(record, null, 2)) }, "Copy as JSON");
  const isPlaced = found.number !== null;
  const place = `/s/${encodeURIComponent(found.root)}`;
  const back = isPlaced
    ? move
      ? h("button", { class: "button", onclick: () => move(found.number) }, `Show the session at event ${found.number}`)
      : h("a", { class: "button", href: `${place}?at=${found.number}&event=${shown.id}` }, `Show the session at event ${found.number}`)
    : null;
  return [
    whole ? h("h1", {}, row.label) : h("h3", {}, row.label),
    found.parts.map((part) => (part.kind === "diff" ? diffOf(part.text) : h("pre", { class: part.kind === "bad" ? "bad" : "" }, part.kind === "command" ? `$ ${part.text}` : part.text))),
    h("dl", { class: "grid" }, facts.filter(([, value]) => value).map(([label, value]) => [h("dt", {}, label), h("dd", {}, String(value))])),
    h("div", { class: "buttons" }, back, isPlaced ? forkButton(found.root, shown.id) : null, copy, whole ? null : h("a", { class: "button", href: `/e/${shown.id}` }, "Why?")),
    h("h2", {}, led),
    h("ol", { class: "chain" }, found.causes.map((each) => line(each, false)), line(row, true), found.effects.map((each) => line(each, false))),
  ].flat(2);
}
