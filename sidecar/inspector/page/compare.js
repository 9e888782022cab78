// Two sessions beside each other, or one at two moments: figures, timelines, turns side by side, files, events.

import { ago, amount, began, clock, cut, diffOf, get, h, money, plural, span, twins } from "/page/lib.js";

const MOST = 100; // sessions to choose from
const SIDES = ["left", "right"];

export async function compare(a, b) {
  if (!b) return choose(a);
  const said = new URL(location.href).searchParams;
  const [at, to] = ["at", "to"].map((name) => (/^\d+$/.test(said.get(name) ?? "") ? Number(said.get(name)) : null));
  const found = await get("compare", { a, b, at, to });
  const moments = [at, to];
  const [left, right] = found.sides;
  const isOne = left.stream_id === right.stream_id; // its newest title tells which session it is, at every moment
  const isTwin = !isOne && left.title === right.title;
  const place = (side) => `/s/${encodeURIComponent(found.sides[side].stream_id)}`;
  const name = (side) =>
    h("a", { class: "link", dir: "auto", href: `${place(side)}${moments[side] === null ? "" : `?at=${moments[side]}`}` }, cut((isOne ? right : found.sides[side]).title || found.sides[side].stream_id, 120), moments[side] === null ? "" : h("small", { class: "quiet" }, ` as of event ${found.ats[side]}`), isTwin && found.began[side] ? h("small", { class: "quiet" }, ` ${began(found.began[side])}`) : "");
  const figures = [
    ["turns", ...[left, right].map((side) => amount(side.turns))],
    ["tools", tools(left), tools(right)],
    ["failed", ...[left, right].map((side) => (side.failed ? h("span", { class: "bad" }, amount(side.failed)) : "–"))],
    ["tokens", ...[left, right].map((side) => amount(side.tokens || null))],
    ["cost", ...[left, right].map((side) => money(side.cost))],
    ["took", ...[left, right].map((side) => span(side.working_ms))],
    ["events", ...[left, right].map((side) => amount(side.records))],
  ];
  const text = (value) => (value instanceof Node ? value.textContent : value);
  const heads = (first) => h("thead", {}, h("tr", {}, h("th", {}, first), h("th", {}, name(0)), h("th", {}, name(1))));
  const lanes = SIDES.map(() => h("div", { class: "picture" }));
  const element = h(
    "div",
    { class: "page compare" },
    h("h1", {}, "Compare"),
    isOne ? choosing(a, found.ats) : null,
    h("table", { class: "sums beside" }, heads(""), h("tbody", {}, figures.map(([label, one, other]) => h("tr", { class: text(one) === text(other) ? "" : "differs" }, h("td", { class: "faint" }, label), h("td", {}, one), h("td", {}, other))))),
    h("h2", {}, "Where the time went"),
    lanes.map((lane, side) => [h("p", { class: "of" }, name(side)), lane]),
    ...turns(found, heads, place),
    ...files(found, name),
    ...events(found),
  );
  return { element, title: "Compare", shown: () => lanes.forEach((lane, side) => draw(lane, found.sides[side].stream_id, moments[side])) };
}

async function draw(lane, stream, at) {
  const { svg } = await get(`s/${encodeURIComponent(stream)}/timeline`, { at, width: lane.clientWidth });
  lane.innerHTML = svg || ""; // made by the server, which escapes every text
  if (!svg) lane.replaceChildren(h("p", { class: "faint" }, "Nothing ran until then."));
  for (const bar of lane.querySelectorAll("a")) bar.setAttribute("href", `/e/${bar.getAttribute("href").slice(1)}`);
}

/** The turns whose prompts match stand side by side. */
function turns(found, heads, place) {
  const cell = (turn, side) =>
    turn === null
      ? h("td", { class: "faint" }, "–")
      : h(
          "td",
          {},
          h("p", {}, h("a", { class: "link", "data-row": true, href: `${place(side)}?event=${turn.event}` }, `turn ${turn.number}`), h("span", { class: "faint" }, [turn.ms === null ? "" : span(turn.ms), plural(turn.calls, "call"), turn.cost ? money(turn.cost) : ""].filter(Boolean).map((each) => ` · ${each}`)), turn.outcome === "failed" ? h("span", { class: "bad" }, " · failed") : null),
          h("p", { dir: "auto" }, h("b", {}, cut(turn.asked || "(no prompt)", 200))),
          turn.answer ? h("p", { class: "quiet", dir: "auto" }, cut(turn.answer, 320)) : null,
        );
  const rows = found.turns.map((row) => h("tr", { class: row.same ? "" : "differs" }, h("td", { class: "faint" }, row.same ? "same" : row.left && row.right ? "differs" : row.left ? "only left" : "only right"), cell(row.left, 0), cell(row.right, 1)));
  const parts = [found.earlier ? `${plural(found.earlier, "earlier turn")} with the same prompts` : "", found.later ? plural(found.later, "later turn") : ""].filter(Boolean);
  if (!rows.length) return [];
  return [h("h2", {}, "Turns"), h("table", { class: "sums beside" }, heads(""), h("tbody", {}, rows)), parts.length ? h("p", { class: "faint" }, `Left out: ${parts.join(", ")}.`) : null].filter(Boolean);
}

function files(found, name) {
  if (!found.files.length) return [];
  const counts = (side) => (side === null ? h("span", { class: "faint" }, "not changed") : side.added === null ? h("span", { class: "faint" }, "rewritten") : [h("span", { class: "good" }, `+${side.added}`), " ", h("span", { class: "bad" }, `−${side.removed}`)]);
  const half = (file, side) => h("div", {}, h("p", {}, name(side), " ", counts(file[SIDES[side]])), (file[SIDES[side]]?.diffs ?? []).map(diffOf));
  const made = (file) =>
    h("details", { class: "of", open: !file.same }, h("summary", { "data-row": true }, h("code", {}, file.file), " ", file.same ? h("span", { class: "faint" }, "the same in both") : [counts(file.left), " · ", counts(file.right)]), file.same ? half(file, 0) : h("div", { class: "halves" }, half(file, 0), half(file, 1)));
  return [h("h2", {}, "Files that agents changed"), ...found.files.map(made)];
}

/** The events from the first difference on. */
function events(found) {
  const cell = (row) => (row ? h("a", { href: `/e/${row.id}` }, h("small", { class: "faint" }, `${clock(row.ts)} ${row.actor} `), h("b", { class: row.tone === "bad" ? "bad" : "" }, row.label), ` ${cut(row.text, 200)}`) : h("span", { class: "faint" }, "ends here"));
  const ends = [false, false];
  const once = (row, side) => {
    const isNew = row || !ends[side];
    ends[side] ||= !row;
    return isNew ? cell(row) : "";
  };
  const sameness = found.same === null ? "They are the same" : `${plural(found.same, "event")} at the beginning ${found.same === 1 ? "is" : "are"} the same in kind and content; then they part`;
  if (!found.rows.length) return [h("h2", {}, sameness)];
  return [h("details", {}, h("summary", { "data-row": true }, h("h2", {}, sameness)), h("table", { class: "sums beside" }, h("tbody", {}, found.rows.map(([one, other]) => h("tr", {}, h("td", {}, once(one, 0)), h("td", {}, once(other, 1)))))))];
}

/** Two moments of one session. */
function choosing(a, [one, other]) {
  const fields = [one, other].map((value, side) => h("input", { type: "number", min: 0, value, "aria-label": `${side ? "Later" : "Earlier"} event`, name: side ? "to" : "at" }));
  return h("form", { class: "filters", action: `/compare/${encodeURIComponent(a)}/${encodeURIComponent(a)}`, "data-go": true }, "One session at event ", fields[0], " and at event ", fields[1], h("button", { class: "button" }, "Compare"));
}

/** The sessions beside which one can be put: its forks and its origin first, then those of its project. */
async function choose(a) {
  const [{ sessions, now }, own] = await Promise.all([get("sessions"), get(`s/${encodeURIComponent(a)}/head`)]);
  const near = (row) => (row.fork === a || row.stream_id === own.fork ? 0 : row.place === own.place ? 1 : 2);
  const others = sessions.filter((row) => row.stream_id !== own.stream_id).sort((one, other) => near(one) - near(other)).slice(0, MOST);
  const same = twins(others.map((row) => row.title));
  const rows = others.map((row) => {
    const link = h("a", { class: "link", "data-row": true, href: `/compare/${encodeURIComponent(a)}/${encodeURIComponent(row.stream_id)}` }, row.title || row.stream_id);
    return h("tr", {}, h("td", {}, link, h("small", { class: "faint" }, row.fork === a ? " its fork" : row.stream_id === own.fork ? " its origin" : "")), h("td", { class: "quiet" }, row.place, same.has(row.title) ? h("small", {}, ` · ${began(row.first_ts)}`) : null), h("td", { class: "num quiet" }, ago(row.last_ts, now)));
  });
  const list = rows.length ? h("table", { class: "sums" }, h("tbody", {}, rows)) : h("p", { class: "empty" }, "No other session is known yet.");
  const isOne = own.stream_id === a;
  return { element: h("div", { class: "page" }, h("h1", {}, "Compare"), isOne ? choosing(a, [Math.max(Math.floor(own.records / 2), 0), Math.max(own.records - 1, 0)]) : null, h("p", { class: "quiet" }, `Choose the session to put beside “${own.title || a}”.`), list), title: "Compare" };
}

const tools = (side) => Object.entries(side.tools).map(([tool, count]) => `${tool} ${count}`).join(", ") || "–";
