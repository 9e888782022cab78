// Where the time went: a lane for each session, with its turns, model calls, tools and waits. Idle time is folded.

import { clock, h, span as lasted } from "/page/lib.js";

const ROW = 18;
const LABEL = 170;
const FOLD = 26; // the width of a folded gap

const NS = "http://www.w3.org/2000/svg";
function s(tag, given = {}, ...children) {
  const made = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(given)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value);
  }
  made.append(...children.flat().filter(Boolean));
  return made;
}

/** A scale from time to pixels in which stretches without any work take `FOLD` pixels. */
function scaleOf(spans, now, width) {
  const busy = spans
    .filter((each) => each.kind !== "session")
    .map((each) => [each.start, Math.max(each.end ?? now, each.start)])
    .sort((a, b) => a[0] - b[0]);
  const parts = [];
  for (const [start, end] of busy) {
    const last = parts.at(-1);
    if (last && start <= last[1]) last[1] = Math.max(last[1], end);
    else parts.push([start, end]);
  }
  const whole = parts.reduce((sum, [start, end]) => sum + (end - start), 0) || 1;
  // A gap that is short beside the work stays as long as it was.
  const joined = [];
  for (const part of parts) {
    const last = joined.at(-1);
    if (last && part[0] - last[1] < whole / 50) last[1] = part[1];
    else joined.push([...part]);
  }
  const length = joined.reduce((sum, [start, end]) => sum + (end - start), 0) || 1;
  const room = Math.max(width - FOLD * (joined.length - 1), width / 3);
  let x = 0;
  const pieces = joined.map(([start, end]) => {
    const piece = { start, end, x, width: ((end - start) / length) * room };
    x += piece.width + FOLD;
    return piece;
  });
  const at = (time) => {
    const piece = pieces.findLast((each) => each.start <= time) ?? pieces[0];
    if (!piece) return 0;
    const share = piece.end > piece.start ? (Math.min(time, piece.end) - piece.start) / (piece.end - piece.start) : 0;
    return piece.x + Math.max(share, 0) * piece.width;
  };
  return { at, pieces, width: x - FOLD };
}

export function timeline({ spans, now, left_out: left }, select) {
  if (!spans.some((each) => each.kind !== "session")) return h("p", { class: "empty" }, "Nothing ran until then.");
  const width = Math.max(Math.min(document.getElementById("main").clientWidth - 320, 1400), 320);
  const { at, pieces } = scaleOf(spans, now, width - LABEL - 16);
  const lanes = spans.filter((each) => each.kind === "session");
  const marks = [];
  let y = 8;
  for (const lane of lanes) {
    const mine = spans.filter((each) => each.session === lane.session && each.kind !== "session");
    const turns = mine.filter((each) => each.kind === "turn");
    const rest = mine.filter((each) => each.kind !== "turn").sort((a, b) => a.start - b.start);
    const rows = [];
    const placed = rest.map((each) => {
      const from = at(each.start);
      const to = Math.max(at(each.end ?? now), from + 3);
      let row = rows.findIndex((end) => end <= from + 0.5);
      if (row < 0) row = rows.push(0) - 1;
      rows[row] = to;
      return { each, from, to, row };
    });
    const height = Math.max(rows.length, 1) * ROW + 6;
    for (const turn of turns) {
      const from = at(turn.start);
      marks.push(bar(turn, from, y, Math.max(at(turn.end ?? now) - from, 3), height, "turn", select, now));
    }
    for (const { each, from, to, row } of placed) {
      const kind = each.state === "error" ? "error" : each.kind === "wait" ? "wait-bar" : each.kind;
      marks.push(bar(each, from, y + 3 + row * ROW, to - from, ROW - 4, kind, select, now));
      if (to - from > 46) marks.push(s("text", { class: "bar-text", x: LABEL + from + 4, y: y + 14 + row * ROW }, cut(each.name, (to - from) / 6.4)));
    }
    marks.push(s("text", { x: 0, y: y + 14 }, cut(lane.name || lane.session.slice(-10), 26), s("title", {}, lane.name)));
    y += height + 8;
    marks.push(s("line", { class: "lane", x1: 0, x2: width, y1: y - 4, y2: y - 4 }));
  }
  const gaps = pieces.slice(1).map((piece, index) => {
    const before = pieces[index];
    const x = LABEL + piece.x - FOLD / 2;
    return [
      s("line", { class: "gap", x1: x, x2: x, y1: 0, y2: y }),
      s("text", { x, y: y + 12, "text-anchor": "middle" }, lasted(piece.start - before.end), s("title", {}, `nothing ran for ${lasted(piece.start - before.end)}`)),
    ];
  });
  const ends = pieces.length
    ? [
        s("text", { x: LABEL, y: y + 26 }, clock(pieces[0].start)),
        s("text", { x: width - 8, y: y + 26, "text-anchor": "end" }, clock(pieces.at(-1).end)),
      ]
    : [];
  const hatch = s(
    "defs",
    {},
    s("pattern", { id: "hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, s("rect", { width: 2.5, height: 6, fill: "var(--wait-bar)" })),
  );
  const picture = s("svg", { class: "lanes", viewBox: `0 0 ${width} ${y + 34}`, preserveAspectRatio: "xMinYMin", height: y + 34, width, role: "img", "aria-label": "Timeline" }, hatch, gaps, marks, ends);
  const names = [["turn", "turn"], ["model", "model call"], ["tool", "tool"], ["wait-bar", "waits for a person"], ["error", "failed"]];
  return h("div", {}, left ? h("p", { class: "faint" }, `${left} earlier spans are left out; the slider shows them.`) : null, h("div", { class: "legend" }, names.map(([kind, label]) => h("span", {}, h("i", { class: kind }), label))), picture);
}

function bar(each, x, y, width, height, kind, select, now) {
  const took = lasted((each.end ?? now) - each.start);
  const title = [each.name, each.facts?.title, took, each.state === "running" ? "running" : "", each.facts?.reply].filter(Boolean).join(" · ");
  return s(
    "rect",
    { class: `span ${kind}`, x: LABEL + x, y, width, height, rx: 2, onclick: () => each.event && select(each.event) },
    s("title", {}, title),
  );
}

const cut = (text, most) => (text.length > most ? `${text.slice(0, Math.max(Math.floor(most) - 1, 1))}…` : text);
