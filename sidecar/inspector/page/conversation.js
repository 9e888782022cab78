// What was said: the last turns, or those around an event; more of them before and after.

import { coded, get, h, runs, sync } from "/page/lib.js";

/** A step with an event of its own; it may be below the call that started its session. */
const STEP = ".prompt[id], .said[id], .call[id], .ask[id], .end[id]";

const headingOf = (row) => row.matches("p") ? row : row.querySelector(":scope > header, :scope > p:first-child:not([dir]), :scope > .open");

const button = (element, given) => {
  for (const [name, value] of Object.entries({ role: "button", tabindex: 0, ...given })) element.setAttribute(name, value);
};

/** Make the steps of a turn rows, which lead to their events, and what is left out of them buttons, which show it. */
function lead(turn, whole) {
  for (const row of turn.querySelectorAll(STEP)) {
    row.dataset.row = "";
    if (row.matches(".said")) row.prepend(h("span", { class: "open", "aria-label": "Open the event of this answer" }));
    const heading = headingOf(row);
    if (heading) button(heading, { "data-open": row.id });
  }
  for (const rest of turn.querySelectorAll(".call[id] > pre .rest")) {
    const box = rest.closest("pre");
    if (whole.has(nameOf(box))) box.innerHTML = whole.get(nameOf(box));
    else button(rest, {});
  }
}

const boxesOf = (call) => [...call.querySelectorAll(":scope > pre:is(.output, .bad, .diff)")];

/** The place of a box among those of its call. */
const nameOf = (box) => `${box.parentElement.id} ${boxesOf(box.parentElement).indexOf(box)}`;

/** Show the whole output or diff of which a box has the beginning and the end. */
async function unfold(rest, whole) {
  const box = rest.closest("pre");
  const call = h("div");
  call.innerHTML = (await get(`call/${encodeURIComponent(box.parentElement.id)}`)).html; // made by the same renderer
  const found = boxesOf(call.firstElementChild ?? call)[boxesOf(box.parentElement).indexOf(box)];
  if (!found) return;
  whole.set(nameOf(box), found.innerHTML);
  box.innerHTML = found.innerHTML;
  box.tabIndex = -1;
  box.focus({ preventScroll: true }); // the button is gone
}

export async function conversation({ path, ask, at, drawn, known: head, goal, select }) {
  // The event of an address may be gone.
  const found = await ask("conversation", { event: goal }).catch((error) => (goal && error.code === "not-found" ? ask("conversation") : Promise.reject(error)));
  if (!found.count) return h("p", { class: "empty" }, "Nothing was said yet.");
  const known = drawn.turns ?? new Map();
  const made = (turn) => {
    const same = known.get(turn.number);
    if (same?.html === turn.html) return same;
    const element = h("div", { class: "turn-html", id: `turn-${turn.number}` });
    element.innerHTML = turn.html; // made by the renderer of the exports, which escapes every text
    lead(element, drawn.whole);
    return { html: turn.html, element };
  };
  const follow = (act) => {
    const own = act.target.closest("[role=button]");
    const isKey = act.type === "keydown";
    if (isKey ? !own || act.key !== "Enter" && act.key !== " " : !own && act.detail) return; // a click without a mouse is that of the row with the mark
    if (!isKey && own && !getSelection().isCollapsed && own.contains(getSelection().anchorNode)) return; // who copies a word
    const event = own ? own.dataset.open : act.target.id;
    if (isKey) {
      act.preventDefault();
      act.stopPropagation();
    }
    if (event) select(event);
    else if (own) unfold(own, drawn.whole).catch((error) => own.replaceChildren(...coded(error.message)));
  };
  drawn.whole ??= new Map(); // what was unfolded stays so when a turn is drawn anew
  drawn.talk ??= h("div", { class: "talk", onclick: follow, onkeydown: follow });
  drawn.more ??= h("button", { class: "more" }, "Show earlier turns");
  drawn.later ??= h("button", { class: "more" }, "Show later turns");
  drawn.runs ??= h("div");
  drawn.view ??= h("div", {}, drawn.more, drawn.talk, drawn.later, drawn.runs);
  drawn.runs.replaceChildren(...runs(head().running, head().sessions[0]?.id, at === null ? undefined : head().ts));
  const last = () => Math.max(...drawn.turns.keys());
  const first = () => Math.min(...drawn.turns.keys());
  const isNews = drawn.at === at && known.size > 0 && !goal && (!drawn.later.hidden || found.turns[0].number <= last() + 1);
  if (!isNews) {
    drawn.turns = new Map(found.turns.map((turn) => [turn.number, made(turn)]));
    drawn.cut = found.left_out > 0; // the first turn lacks its beginning
  } else if (drawn.later.hidden) {
    // What the reader has on the screen stays. The first of the new turns may lack its beginning.
    const isCut = (turn, place) => place === 0 && found.left_out > 0 && known.has(turn.number) && turn.number > first();
    for (const [place, turn] of found.turns.entries()) if (!isCut(turn, place)) drawn.turns.set(turn.number, made(turn));
  }
  Object.assign(drawn, { at, count: found.count, goal: found.turn });
  const draw = () => {
    const shown = [...drawn.turns].sort(([one], [other]) => one - other);
    sync(drawn.talk, shown.map(([, each]) => each.element));
    drawn.more.hidden = first() === 0 && !drawn.cut;
    drawn.later.hidden = last() >= drawn.count - 1;
  };
  const take = async (from, upto) => {
    const { turns } = await get(`${path}/conversation`, { at, first: from });
    for (const turn of turns) if (turn.number < upto) drawn.turns.set(turn.number, made(turn));
    draw();
  };
  drawn.more.onclick = async () => {
    const height = document.documentElement.scrollHeight;
    const cut = drawn.cut;
    drawn.cut = false;
    await take(cut ? first() : Math.max(first() - 40, 0), first() + cut);
    scrollBy(0, document.documentElement.scrollHeight - height);
  };
  drawn.later.onclick = () => take(last() + 1, Infinity);
  draw();
  return drawn.view;
}

/** Show an event in the conversation, or else its turn. */
export function arrive(body, event, turn) {
  const found = body.querySelector(`#${CSS.escape(event)}`) ?? body.querySelector(`#turn-${turn}`);
  for (let each = found?.closest("details"); each; each = each.parentElement.closest("details")) each.open = true;
  for (const row of body.querySelectorAll("[data-row].at")) row.classList.remove("at");
  (found?.closest("[data-row]") ?? found?.querySelector("[data-row]"))?.classList.add("at");
  found?.scrollIntoView({ block: found.id === event ? "center" : "start" });
}
