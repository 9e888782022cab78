// Where the time went: the drawing that the server makes, what it amounts to, and the ways into it.

import { h, span as lasted, visible } from "/page/lib.js";

/** The view, made once for a page; `cache` remembers it. */
export async function timeline({ ask, select, cache, known, map, at }) {
  cache.timeline ??= view(ask, select, map);
  await cache.timeline.draw();
  cache.timeline.until(at === null ? Infinity : known().ts);
  return cache.timeline.element;
}

const STEP = 1.6; // how much more or less time one step of the wheel or a key shows
const LEAST = 20; // ms
const SOON = 60; // ms

function view(ask, select, columns) {
  const facts = h("p", { class: "facts" });
  const chain = h("p", { class: "quiet chain-of" });
  const readout = h("p", { class: "told faint", "aria-live": "polite" });
  const picture = h("div", { class: "picture" });
  const pick = h("select", { "aria-label": "Turn", onchange: () => zoom(JSON.parse(pick.value)) });
  const out = h("button", { class: "button", onclick: () => zoom(null) }, "Show all");
  const empty = h("p", { class: "empty" }, "Loading …");
  const map = h("div", { class: "map", role: "group", "aria-label": "All turns", hidden: true });
  const whole = h("div", { hidden: true }, map, h("div", { class: "filters" }, pick, out), facts, chain, readout, picture);
  const element = h("div", { class: "timeline" }, empty, whole);
  const hint = matchMedia("(pointer: coarse), (max-width: 560px)").matches ? "Drag over a stretch, or choose a turn, to see what it amounts to." : "Drag over a stretch, or press z on a bar, to see what it amounts to; + and − zoom, as the wheel does over the map.";
  let found = null;
  let range = null;
  let asked = 0;
  let offered = "";
  let bounds = null; // of the whole session
  let mapped = null;
  let upto = Infinity; // ms: what began later is pale
  let later;

  async function draw() {
    const width = element.clientWidth;
    if (!width) return;
    const mine = ++asked;
    const [answer, all] = await Promise.all([ask("timeline", { width, from: range?.[0], to: range?.[1] }), columns()]);
    if (mine !== asked) return;
    found = answer;
    drawMap(all);
    empty.textContent = "Nothing ran until then.";
    empty.hidden = Boolean(found.svg);
    whole.hidden = !found.svg;
    if (!found.svg) return;
    const tone = (label) => (label === "failed" ? "bad" : label.includes("waiting") ? "wait" : "");
    facts.replaceChildren(...found.facts.map(([label, value]) => h("span", { class: tone(label) }, `${label} `, h("b", {}, value))));
    chain.hidden = !found.chain;
    chain.textContent = `Where the time went: ${found.chain}`;
    const chosen = JSON.stringify(range);
    const turns = found.turns.map(([start, end, state, number]) => [JSON.stringify([start, end]), `turn ${number} · ${lasted(end - start)}${state === "error" ? " · failed" : ""}`]);
    const options = [["null", found.earlier ? "The newest turns" : "All turns"], ...turns];
    if (!options.some(([value]) => value === chosen)) options.push([chosen, "the chosen stretch"]);
    if (JSON.stringify([options, chosen]) !== offered) pick.replaceChildren(...options.map(([value, label]) => h("option", { value, selected: value === chosen }, label)));
    offered = JSON.stringify([options, chosen]);
    out.hidden = !range;
    mark();
    const focused = picture.contains(document.activeElement) && document.activeElement.getAttribute("href");
    picture.innerHTML = found.svg.replaceAll("<a ", '<a tabindex="-1" '); // made by the server, which escapes every text
    const bars = [...picture.querySelectorAll("a")];
    const first = bars.find((bar) => bar.getAttribute("href") === focused) ?? bars[0];
    first?.setAttribute("tabindex", "0");
    if (focused) first?.focus();
    readout.textContent = hint;
  }

  function zoom(wanted) {
    range = wanted;
    draw();
  }

  /** Show `by` times as much time, in which the moment `around` stays at its place, and go on by a share of it. */
  function scale(by, around, share = 0) {
    if (!found?.pieces.length) return;
    const [first, last] = bounds ?? [found.pieces[0].start, found.pieces.at(-1).end];
    const [begin, end] = range ?? [found.pieces[0].start, found.pieces.at(-1).end];
    const size = Math.max((end - begin) * by, LEAST);
    const from = Math.max(first, Math.min(around - ((around - begin) / Math.max(end - begin, 1)) * size + share * size, last - size));
    range = size >= (last - first) * 0.98 ? null : [Math.round(from), Math.round(from + size)];
    clearTimeout(later);
    later = setTimeout(draw, SOON);
  }

  const middle = () => {
    const bar = picture.contains(document.activeElement) && document.activeElement.closest("a");
    const [begin, end] = bar ? [Number(bar.dataset.from), Number(bar.dataset.to)] : (range ?? [found.pieces[0].start, found.pieces.at(-1).end]);
    return (begin + end) / 2;
  };
  const KEYS = { "+": () => scale(1 / STEP, middle()), "=": () => scale(1 / STEP, middle()), "-": () => scale(STEP, middle()), "<": () => scale(1, middle(), -0.5), ">": () => scale(1, middle(), 0.5) };

  /** The whole session: a column for each turn, or for some; its height is how long, its parts are what took the time. */
  function drawMap(columns) {
    if (columns === mapped) return;
    mapped = columns;
    bounds = columns.length ? [columns[0][2], Math.max(...columns.map((each) => each[3]))] : null;
    const most = Math.sqrt(Math.max(...columns.map(([, , start, end]) => end - start), 1));
    const part = (kind, ms) => ms > 0 && h("i", { class: kind, style: { flexGrow: ms } });
    const made = columns.map(([first, last, start, end, model, tool, wait, failed], place) => {
      const name = `${first === last ? `turn ${first}` : `turns ${first} to ${last}`} · ${lasted(end - start)}${failed ? ` · ${failed} failed` : ""}`;
      const parts = [failed > 0 && h("i", { class: "failed" }), part("wait", wait), part("tool", tool), part("model", model)];
      const column = h("span", { style: { height: `${Math.max(8, (Math.sqrt(Math.max(end - start, 0)) / most) * 100)}%` } }, parts);
      const number = place % Math.ceil(columns.length / 8) === 0 && h("small", { "aria-hidden": true }, first);
      const chosen = JSON.stringify([start, end]);
      return h("button", { "aria-label": name, title: name, "aria-pressed": "false", tabindex: place ? -1 : 0, "data-from": start, "data-to": end, onclick: () => zoom(JSON.stringify(range) === chosen ? null : [start, end]) }, column, number);
    });
    map.replaceChildren(...made);
    map.hidden = columns.length < 2;
    mark();
    fade();
  }

  const fade = () => [...map.children].forEach((each) => (each.disabled = Number(each.dataset.from) > upto));

  /** Mark the columns that the stretch touches. */
  function mark() {
    for (const each of map.children) each.setAttribute("aria-pressed", String(range !== null && Number(each.dataset.from) < range[1] && Number(each.dataset.to) > range[0]));
  }

  map.addEventListener("keydown", (press) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[press.key];
    const next = by && (by > 0 ? press.target.nextElementSibling : press.target.previousElementSibling);
    if (!by) return;
    press.preventDefault();
    press.stopPropagation();
    if (!next) return;
    press.target.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });

  // The wheel over the map, and over the lanes with Ctrl, as a pinch is.
  map.addEventListener("wheel", (wheel) => {
    const column = wheel.target.closest("button");
    if (!column) return;
    wheel.preventDefault();
    scale(wheel.deltaY > 0 ? STEP : 1 / STEP, (Number(column.dataset.from) + Number(column.dataset.to)) / 2);
  }, { passive: false });
  picture.addEventListener("wheel", (wheel) => {
    if (!wheel.ctrlKey && !wheel.metaKey) return;
    wheel.preventDefault();
    scale(wheel.deltaY > 0 ? STEP : 1 / STEP, timeAt(place(wheel)));
  }, { passive: false });

  function focus(bar) {
    picture.querySelector('a[tabindex="0"]')?.setAttribute("tabindex", "-1");
    bar.setAttribute("tabindex", "0");
    bar.focus();
  }

  const title = (target) => target.closest?.("a, g")?.querySelector("title")?.textContent;
  const tell = (event) => (readout.textContent = title(event.target) ?? hint);
  picture.addEventListener("pointerover", tell);
  picture.addEventListener("focusin", tell);

  picture.addEventListener("keydown", (press) => {
    const bar = press.target.closest("a");
    const bars = [...picture.querySelectorAll("a")];
    const next = { ArrowRight: 1, ArrowLeft: -1 }[press.key];
    if (bar && next) focus(bars[Math.max(0, Math.min(bars.length - 1, bars.indexOf(bar) + next))]);
    else if (bar && (press.key === "ArrowDown" || press.key === "ArrowUp")) focus(beside(bar, bars, press.key === "ArrowDown" ? 1 : -1));
    else if (bar && press.key === "z") zoom([Number(bar.dataset.from), Number(bar.dataset.to)]);
    else return;
    press.preventDefault();
    press.stopPropagation();
  });

  // A click selects a bar; a drag selects a stretch.
  let begun = null;
  let cover = null;
  const place = (event) => event.clientX - picture.firstElementChild.getBoundingClientRect().left;
  picture.addEventListener("pointerdown", (event) => {
    if (event.button === 0 && picture.firstElementChild) begun = place(event);
  });
  picture.addEventListener("dragstart", (event) => event.preventDefault());
  picture.addEventListener("pointermove", (event) => {
    if (begun === null) return;
    const here = place(event);
    if (!cover && Math.abs(here - begun) < 6) return;
    if (!cover) {
      cover = picture.appendChild(h("div", { class: "chosen" }));
      picture.setPointerCapture(event.pointerId);
    }
    Object.assign(cover.style, { left: `${Math.min(begun, here)}px`, width: `${Math.abs(here - begun)}px` });
    readout.textContent = `${lasted(Math.abs(timeAt(here) - timeAt(begun)))} chosen`;
  });
  const end = (event) => {
    const from = begun;
    begun = null;
    if (!cover) return;
    cover.remove();
    cover = null;
    if (event.type === "pointerup") zoom([timeAt(from), timeAt(place(event))].sort((a, b) => a - b));
  };
  picture.addEventListener("pointerup", end);
  picture.addEventListener("pointercancel", end);
  picture.addEventListener("click", (click) => {
    const bar = click.target.closest?.("a");
    if (!bar) return;
    click.preventDefault();
    click.stopPropagation();
    focus(bar);
    select(bar.getAttribute("href").slice(1));
  });

  function timeAt(x) {
    const piece = found.pieces.findLast((each) => each.x <= x) ?? found.pieces[0];
    const share = piece.width ? Math.max(0, Math.min((x - piece.x) / piece.width, 1)) : 0;
    return Math.round(piece.start + share * (piece.end - piece.start));
  }

  // Drawn once it is in the page, and again at another width, for example when the detail opens.
  let wide = 0;
  new ResizeObserver(() => {
    if (element.clientWidth === wide) return;
    wide = element.clientWidth;
    draw().catch((error) => (empty.textContent = visible(error.message)));
  }).observe(element);
  return {
    element,
    out: () => range && zoom(null),
    /** With j and k the keyboard comes to the bars. */
    key(key) {
      if (KEYS[key] && found?.pieces.length) return KEYS[key](), true;
      const bars = [...picture.querySelectorAll("a")];
      const at = bars.findIndex((bar) => bar.tabIndex === 0);
      if ((key !== "j" && key !== "k") || at < 0) return false;
      const isThere = picture.contains(document.activeElement);
      focus(bars[Math.max(0, Math.min(bars.length - 1, isThere ? at + (key === "j" ? 1 : -1) : at))]);
      return true;
    },
    draw,
    until: (ts) => ((upto = ts), fade()),
  };
}

/** The nearest bar in the next row above or below. */
function beside(bar, bars, way) {
  const middle = (each) => {
    const box = each.getBoundingClientRect();
    return [(box.left + box.right) / 2, (box.top + box.bottom) / 2];
  };
  const [x, y] = middle(bar);
  let best = bar;
  let least = Infinity;
  for (const each of bars) {
    const [left, top] = middle(each);
    const down = (top - y) * way;
    const far = down * 4 + Math.abs(left - x);
    if (down > 4 && far < least) [best, least] = [each, far];
  }
  return best;
}
