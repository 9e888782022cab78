// The slider along the bottom: which moment is shown, and the ways to another one.

import { clock, day, h } from "/page/lib.js";

const KINDS = ["turn", "edit", "ask", "error"]; // those painted later are on top
const HEIGHT = 18;
const COLOURS = { turn: "--strong", ask: "--wait-bar", error: "--bad", edit: "--accent" };

/** `move(n)` shows the session as of event n, and with `null` as it is now. `head()` and `at()` return the last event and
 * the shown one, counted from 0. `isSince()` returns whether the view can show the changes since an event. */
export function slider({ move, head, at, isSince }) {
  const canvas = h("canvas", { "aria-hidden": true });
  const range = h("input", { type: "range", min: 0, step: 1, "aria-label": "Moment: event", title: "[ and ] step" });
  const output = h("output");
  const legend = h("div", { class: "legend" });
  const play = h("button", { title: "Play", "aria-label": "Play", onclick: toggle }, "▶");
  const speed = h("button", { class: "jump", title: "Speed", onclick: faster }, "1×");
  const jump = (label, text, by) => h("button", { title: label, "aria-label": label, class: Math.abs(by) > 1 ? "jump" : "", onclick: () => (Math.abs(by) > 1 ? toMark(by) : shift(by)) }, text);
  const mark = h("button", { class: "jump", title: "Show what changed since this event (m)", hidden: true, onclick: setMark });
  const element = h(
    "div",
    { class: "slider", role: "group", "aria-label": "Time" },
    play,
    speed,
    jump("Previous turn, ask, error or edit", "«", -2),
    jump("One event back", "‹", -1),
    h("div", { class: "track" }, canvas, range, legend),
    jump("One event on", "›", 1),
    jump("Next turn, ask, error or edit", "»", 2),
    h("button", { title: "Back to now (0)", onclick: reset }, "now"),
    mark,
    output,
  );
  let playing = null;
  let times = 1;
  let pending = null;
  let from = null;
  let painted = "";
  let columns = [];

  const last = () => Math.max(head().records - 1, 0);
  const now = () => at() ?? last();
  const shift = (by) => move(Math.max(now() + by, 0));

  function toMark(by) {
    const numbers = head().marks.map(([number]) => number);
    const next = by > 0 ? numbers.find((number) => number > now()) : numbers.findLast((number) => number < now());
    move(next ?? (by > 0 ? null : 0));
  }

  /** The second handle: the view shows what changed after it. */
  function setMark() {
    from = from === null ? now() : null;
    move(at());
  }

  function reset() {
    from = null;
    move(null);
  }

  function faster() {
    times = times >= 64 ? 1 : times * 4;
    speed.textContent = `${times}×`;
  }

  function toggle() {
    if (playing !== null) return stop();
    play.textContent = "⏸";
    const from = at() === null ? 0 : now();
    playing = 0;
    next(from);
  }

  // Plays in recorded time, but waits at most a second for the next event.
  async function next(number) {
    if (playing === null) return;
    await move(number);
    if (number >= last()) return stop();
    playing = setTimeout(() => next(number + Math.max(1, Math.floor(times / 4))), Math.max(40, 600 / times));
  }

  function stop() {
    clearTimeout(playing);
    playing = null;
    play.textContent = "▶";
  }

  range.addEventListener("input", () => {
    stop();
    const to = Number(range.value);
    if (pending !== null) {
      pending = to;
      return;
    }
    pending = to;
    requestAnimationFrame(async () => {
      for (let wanted = pending; ; wanted = pending) {
        await move(wanted);
        if (pending === wanted) break;
      }
      pending = null;
    });
  });

  function draw() {
    if (!head()) return;
    if (!isSince()) from = null;
    mark.hidden = !isSince();
    mark.textContent = from === null ? "from here" : `from ${from}`;
    mark.setAttribute("aria-pressed", String(from !== null));
    const { records, marks, ts } = head();
    range.max = last();
    if (pending === null) range.value = now();
    range.setAttribute("aria-valuetext", `event ${now()}, the last is ${last()}`);
    output.replaceChildren("event ", h("b", {}, now()), " ", h("span", { class: "when" }, ts ? `· ${day(ts)} ${clock(ts)}` : ""));
    // A step leaves the marks as they are, and there may be thousands of them. To ask for a width or a colour before that
    // is known would lay out the page once more.
    const wanted = [records, marks.length, columns.length, columns.at(-1)?.[3], from !== null && now(), devicePixelRatio].join();
    if (wanted === painted) return;
    const width = canvas.clientWidth;
    if (!width) return;
    painted = wanted;
    const scale = devicePixelRatio;
    const style = getComputedStyle(document.documentElement);
    const kinds = KINDS.filter((kind) => marks.some(([, each]) => each === kind));
    legend.replaceChildren(...kinds.map((kind) => h("span", { class: kind }, kind)));
    canvas.width = width * scale;
    canvas.height = HEIGHT * scale;
    const paint = canvas.getContext("2d");
    paint.scale(scale, scale);
    const place = (number) => (number / Math.max(last(), 1)) * (width - 2);
    if (from !== null) {
      paint.fillStyle = style.getPropertyValue("--accent-soft");
      paint.fillRect(place(from), 0, place(now()) - place(from), HEIGHT);
    }
    paintTurns(paint, style, place);
    for (const kind of kinds) {
      paint.fillStyle = style.getPropertyValue(COLOURS[kind]);
      const places = new Set(marks.filter(([, mark]) => mark === kind).map(([number]) => Math.round(place(number))));
      for (const x of places) paint.fillRect(x, kind === "turn" ? HEIGHT - 6 : HEIGHT - 14, 2, kind === "turn" ? 6 : 14);
    }
  }

  /** The map of the timeline, here by the numbers of events: as high as the turn was long. */
  function paintTurns(paint, style, place) {
    const most = Math.sqrt(Math.max(...columns.map(([, , start, end]) => end - start), 1));
    paint.globalAlpha = 0.6;
    columns.forEach(([, , start, end, model, tool, wait, , number], at) => {
      const x = place(number);
      const wide = Math.max(place(columns[at + 1]?.[8] ?? last()) - x - 1, 1);
      let top = HEIGHT;
      const high = Math.max(2, (Math.sqrt(Math.max(end - start, 0)) / most) * HEIGHT) / Math.max(model + tool + wait, 1);
      for (const [ms, colour] of [[model, "--accent-bar"], [tool, "--strong"], [wait, "--wait-bar"]]) {
        top -= ms * high;
        paint.fillStyle = style.getPropertyValue(colour);
        paint.fillRect(x, top, wide, ms * high);
      }
    });
    paint.globalAlpha = 1;
  }

  function drawAgain() {
    painted = "";
    draw();
  }
  const observer = new ResizeObserver(drawAgain);
  observer.observe(canvas);
  const theme = matchMedia("(prefers-color-scheme: dark)");
  theme.addEventListener("change", drawAgain);
  addEventListener("theme", drawAgain);
  return {
    element,
    draw,
    strip(given) {
      if (given === columns) return;
      columns = given;
      draw();
    },
    since: () => (from === null ? null : Math.min(from, now())),
    leave() {
      stop();
      observer.disconnect();
      theme.removeEventListener("change", drawAgain);
      removeEventListener("theme", drawAgain);
    },
    key(key) {
      if (key === "[") shift(-1);
      else if (key === "]") shift(1);
      else if (key === "{") toMark(-2);
      else if (key === "}") toMark(2);
      else if (key === "0") reset();
      else if (key === " ") toggle();
      else if (key === "m" && isSince()) setMark();
      else return false;
      return true;
    },
  };
}
