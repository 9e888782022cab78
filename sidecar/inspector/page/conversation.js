// What was said: the last turns, or those around an event; more of them before and after.

import { get, h, runs, sync } from "/page/lib.js";

export async function conversation({ path, ask, at, drawn, known: head, goal }) {
  // The event of an address may be gone.
  const found = await ask("conversation", { event: goal }).catch((error) => (goal && error.code === "not-found" ? ask("conversation") : Promise.reject(error)));
  if (!found.count) return h("p", { class: "empty" }, "Nothing was said yet.");
  const known = drawn.turns ?? new Map();
  const made = (turn) => {
    const same = known.get(turn.number);
    if (same?.html === turn.html) return same;
    const element = h("div", { class: "turn-html", "data-row": true, id: `turn-${turn.number}` });
    element.innerHTML = turn.html; // made by the renderer of the exports, which escapes every text
    return { html: turn.html, element };
  };
  drawn.talk ??= h("div", { class: "talk" });
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
  found?.closest(".turn-html")?.classList.add("at");
  found?.scrollIntoView({ block: found.id === event ? "center" : "start" });
}
