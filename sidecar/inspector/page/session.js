// One session: conversation, timeline, files and events, at any moment; the slider chooses the moment.

import { arrive, conversation } from "/page/conversation.js";
import { detailOf } from "/page/event.js";
import { ago, amount, clock, cut, day, diffOf, entitle, get, h, money, plural, span, status, sync, tokensOf } from "/page/lib.js";
import { slider } from "/page/slider.js";
import { timeline } from "/page/timeline.js";
import { filesOf } from "/page/work.js";

const ROWS = 100; // of events, at first
const REST = 300; // ms
const LATE = 50; // ms

const TABS = ["conversation", "timeline", "files", "events"];

export async function session(name, tab = "conversation") {
  const path = `s/${encodeURIComponent(name)}`;
  const wanted = new URL(location.href).searchParams;
  const momentOf = (said) => (/^\d+$/.test(said.get("at") ?? "") ? Number(said.get("at")) : null);
  let at = momentOf(wanted);
  let selected = wanted.get("event"); // the event in the panel
  let target = selected; // the event to which the conversation goes next
  let head;
  let shown = TABS.includes(tab) ? tab : TABS[0];
  let drawing = 0;
  let resting = 0;
  let kin = ""; // what the sessions beside are drawn from
  const cache = {};
  let drawn = {}; // what the view that is shown drew and can use again

  const side = h("aside", { class: "side", "aria-label": "Sessions of this tree" });
  const top = h("div", { class: "head" });
  const tabs = h("div", { class: "tabs", role: "navigation", "aria-label": "Views" });
  const body = h("div", { class: "body" });
  const middle = h("div", {}, top, tabs, body);
  const panel = h("aside", { class: "detail", hidden: true, "aria-label": "The selected event" });
  const bar = slider({ move, head: () => head, at: () => at, isSince: () => shown === "files" });
  const element = h("div", { class: "session" }, side, middle, panel, bar.element);

  function drawSide() {
    const stamp = JSON.stringify([head.sessions, head.beside]);
    if (stamp === kin) return; // as after most steps
    kin = stamp;
    element.classList.toggle("alone", head.sessions.length + head.beside.length < 2);
    const about = { above: "Started by", origin: "Forked from", background: "In the background", fork: "Forks" };
    side.replaceChildren(
      h("h2", {}, plural(head.sessions.length, "session")),
      ...head.sessions.map((each, index) => leaf(each, index === 0)),
      ...Object.entries(about).flatMap(([kind, label]) => {
        const some = head.beside.filter((each) => each.kind === kind);
        return some.length ? [h("h2", {}, label), ...some.map((each) => [leaf(each, false), kind === "fork" || kind === "origin" ? h("a", { class: "link beside", href: `/compare/${encodeURIComponent(head.stream_id)}/${encodeURIComponent(each.id)}` }, "Compare") : null]).flat().filter(Boolean)] : [];
      }),
    );
  }

  function drawHead() {
    drawSide();
    const fact = (label, value, title) => h("span", { title }, `${label} `, h("b", {}, value));
    const error = head.marks.findLast(([number, kind]) => kind === "error" && number <= head.at);
    top.replaceChildren(
      h("h1", { dir: "auto" }, head.title || "(no title)"),
      h(
        "p",
        { class: "facts" },
        status(head.status),
        h("span", { title: head.directory }, head.place || "–"),
        fact("turns", `${head.turns}${head.sessions.length > 1 ? ` in ${head.sessions.length} sessions` : ""}`),
        fact(head.sessions.length > 1 ? "together" : "took", span(head.working_ms), "How long all turns took. The timeline counts only once what ran side by side, and waiting for a person apart"),
        head.waiting_ms ? fact("asks waited", span(head.waiting_ms), "How long all asks waited for a person. The timeline counts the time in which nobody worked meanwhile") : null,
        fact("tokens", amount(tokensOf(head.tokens) || null)),
        fact("cost", money(head.cost)),
        error ? h("button", { class: "link bad", title: "Show the last one", onclick: () => show(error[0]) }, plural(head.counts.error, "error")) : null,
        h("span", { class: "faint", title: `position ${head.position} ${head.hash}` }, plural(head.records, "event")),
        h("button", { class: "link copy", title: `Copy the id: ${name}`, onclick: () => navigator.clipboard.writeText(name) }, `…${name.slice(-6)}`),
        h("a", { class: "link", href: `/compare/${encodeURIComponent(head.stream_id)}${at === null ? "" : `/${encodeURIComponent(head.stream_id)}?at=${head.at}`}` }, at === null ? "Compare" : "Compare with now"),
      ),
      ...head.asks.map((ask) =>
        h("p", { class: "card waits" }, h("b", {}, "Waits for you: "), ask.text, h("span", { class: "quiet" }, ` · ${ago(ask.since_ms, Date.now())} · `), h("a", { class: "wait", href: "/work" }, "Answer")),
      ),
    );
    tabs.replaceChildren(
      ...TABS.map((each) => h("a", { href: address(each), "aria-current": each === shown && "page" }, each[0].toUpperCase() + each.slice(1))),
      ...(at === null ? [] : [h("span", { class: "past" }, `as of event ${head.at}`)]),
    );
    bar.draw();
  }

  function address(which) {
    const query = new URLSearchParams({ ...(at === null ? {} : { at }), ...(selected ? { event: selected } : {}) });
    return `/${path}/${which}${query.size ? `?${query}` : ""}`;
  }

  /** Note in the address which event is open. */
  function note(id) {
    if (id === selected) return;
    settle();
    selected = id;
    history.pushState(null, "", address(shown));
  }

  /** Show what the address says, after the way back or on. */
  function follow(which) {
    const said = new URL(location.href).searchParams;
    if (said.get("event") !== selected) target = said.get("event");
    selected = said.get("event");
    if (selected) select(selected);
    else hide();
    if (which !== shown) drawn = {};
    shown = which;
    move(momentOf(said));
  }

  /** A head with all marks; only those come with it that are not `known`. */
  const whole = (found, known) => ({ ...found, marks: [...known, ...found.marks] });
  const headAt = async (moment) => {
    const known = head?.marks ?? [];
    return whole(await get(`${path}/head`, { at: moment, marks: known.length }), known);
  };

  /** What a view shows at this moment; the head of the moment comes with it, and is drawn. */
  async function ask(view, values) {
    const known = head?.marks ?? [];
    const { head: found, ...rest } = await get(`${path}/${view}`, { at, marks: known.length, ...values });
    if ((at ?? found.records - 1) === found.at) {
      head = whole(found, known);
      drawHead();
    } // else the reader has moved on meanwhile
    return rest;
  }

  /** All turns in columns. They are asked for again only when one more began or ended, and not at each step. */
  async function map() {
    if (at === null) cache.status = head.status;
    const stamp = `${head.marks.filter(([, kind]) => kind === "turn").length} ${cache.status}`;
    if (cache.mapped !== stamp) {
      cache.mapped = stamp;
      cache.columns = get(`${path}/columns`).then((found) => found.columns);
    }
    const columns = await cache.columns;
    bar.strip(columns);
    return columns;
  }

  async function drawBody({ keep = false } = {}) {
    const mine = ++drawing;
    const isAtEnd = keep && shown === "conversation" && innerHeight + scrollY >= document.documentElement.scrollHeight - 80;
    if (!keep) drawn = {};
    const goal = shown === "conversation" ? target : null;
    const made = await VIEWS[shown]({ path, ask, at, head, known: () => head, select, history: history_, cache, drawn, since: bar.since(), goal, map });
    if (mine !== drawing) return;
    sync(body, [made]);
    map().catch(() => {}); // the slider is of use without it
    if (goal) {
      target = null;
      arrive(body, goal, drawn.goal);
      return;
    }
    if (isAtEnd) scrollTo(0, document.documentElement.scrollHeight);
  }

  /** Name the moment in the address once the reader rests: a browser takes as long for that as for a whole step. */
  function moved() {
    const here = location.href;
    clearTimeout(resting);
    resting = setTimeout(() => location.href === here && settle(), REST);
  }

  function settle() {
    const found = new URL(location.href).searchParams.get("q"); // the palette is open
    const to = new URL(address(shown), location.href);
    if (found !== null) to.searchParams.set("q", found);
    if (resting) history.replaceState(null, "", to);
    clearTimeout(resting);
    resting = 0;
  }

  async function move(to) {
    at = to === null || to >= head.records - 1 ? null : Math.max(to, 0);
    moved();
    // The answer draws the slider, too. Only one that is late, as of a session that is still being read, is drawn twice.
    const late = setTimeout(bar.draw, LATE);
    await drawBody({ keep: true }).finally(() => clearTimeout(late));
  }

  async function select(id) {
    note(id);
    const row = body.querySelector(`tr[data-event="${CSS.escape(id)}"], .talk [data-row][id="${CSS.escape(id)}"]`);
    for (const each of body.querySelectorAll("tr.at, .talk .at")) if (row || each.matches("tr")) each.classList.remove("at");
    row?.classList.add("at");
    row?.scrollIntoView({ block: "nearest" });
    try {
      const found = await get(`e/${encodeURIComponent(id)}`);
      if (id === selected) open(...detailOf(found, { move }));
    } catch (error) {
      if (id === selected) open(h("p", { class: "quiet" }, error.message));
    }
  }

  /** Select the event with a number, and go to it in the conversation: a child session there opens. */
  async function show(number) {
    const { rows } = await get(`${path}/events`, { at: number, first: number });
    if (!rows.length) return;
    select(rows[0].id);
    if (shown !== "conversation") return;
    target = rows[0].id;
    await drawBody();
  }

  /** Show who changed a file, in all sessions. */
  async function history_(file) {
    note(null);
    open(...historyOf(await get("file", { path: file })));
  }

  function open(...parts) {
    panel.hidden = false;
    element.classList.add("detailed");
    panel.replaceChildren(h("button", { class: "close", "aria-label": "Close", onclick: unselect }, "×"), ...parts);
  }

  function unselect() {
    note(null);
    hide();
  }

  function hide() {
    panel.hidden = true;
    element.classList.remove("detailed");
  }

  function pick(which) {
    settle();
    shown = which;
    history.pushState(null, "", address(which));
    drawHead();
    drawBody();
    scrollTo(0, 0);
  }

  tabs.addEventListener("click", (click) => {
    const chosen = TABS.find((each) => click.target.textContent?.toLowerCase() === each);
    if (!chosen || click.ctrlKey || click.metaKey) return;
    click.preventDefault();
    click.stopPropagation();
    pick(chosen);
  });

  if (shown !== TABS[0]) {
    head = await headAt(at); // the other views need it
    drawHead(); // the timeline asks for its width, which the sessions beside it change
  }
  await drawBody();
  if (selected) select(selected);
  return {
    element,
    title: head.title,
    shown: () => bar.draw(),
    leave: () => bar.leave(),
    stays: (args, make) => make === session && args[0] === name && (follow(TABS.includes(args[1]) ? args[1] : TABS[0]), true),
    key(key) {
      if (key === "Escape") return panel.hidden ? cache.timeline?.out() : unselect(), true;
      if (shown === "timeline" && cache.timeline?.key(key)) return true;
      if (TABS[Number(key) - 1]) return pick(TABS[Number(key) - 1]), true;
      return bar.key(key);
    },
    async news() {
      if (at !== null) {
        const { records, marks } = await headAt(null);
        head = { ...head, records, marks };
        bar.draw();
        return;
      }
      const found = await headAt(null);
      if (found.records === head.records && found.status === head.status) return;
      head = found;
      entitle(head.title);
      drawHead();
      await drawBody({ keep: true });
    },
  };
}

const leaf = (each, isShown) =>
  h(
    "a",
    { class: "leaf", dir: "auto", "aria-current": isShown && "page", href: `/s/${encodeURIComponent(each.id)}`, style: { paddingLeft: `${8 + (each.depth ?? 0) * 14}px` }, title: each.title },
    each.title || each.agent || each.id.slice(-10),
    h("br"),
    h("small", {}, each.agent, " "),
    status(each.status),
  );

const REPLIES = { once: "Allowed once", always: "Always allowed", reject: "Rejected", withdrawn: "Withdrawn: rejected", answered: "Answered" };
const replied = (each) => `${REPLIES[each.reply] ?? "Not answered"}${each.by ? ` by ${each.by}` : ""}${each.with ? ` with ${each.with}` : ""}${each.waited_ms ? ` after ${span(each.waited_ms)}` : ""}`;

const historyOf = (found) => [
  h("h3", {}, found.file),
  h("p", { class: "quiet" }, `The newest ${plural(found.edits.length, "edit")} in all sessions`),
  h(
    "ol",
    { class: "chain" },
    found.edits.map((each) =>
      h("li", {}, h("a", { href: `/e/${each.event}` }, h("small", {}, `${day(each.ts)} ${clock(each.ts)} ${each.actor}`), h("b", {}, each.title || each.stream_id), each.added === null ? " rewritten" : ` +${each.added} −${each.removed}`)),
    ),
  ),
];

const VIEWS = {
  conversation,

  timeline,

  async files({ ask, at, since, head, history, select, drawn }) {
    const found = await ask("files", { since });
    const upto = at ?? head.records - 1;
    const stamp = JSON.stringify([found, since !== null && upto]);
    if (drawn.stamp === stamp) return drawn.view;
    drawn.stamp = stamp;
    const between = since === null ? "" : ` between events ${since} and ${upto}`;
    if (!found.turns.length && !found.work.length) return (drawn.view = h("p", { class: "empty" }, `No agent changed a file with a tool${between || " until then"}. What commands changed is not known.`));
    const counted = found.totals;
    const counts = ({ added, removed }) => (added === null ? h("span", { class: "faint" }, "rewritten") : [h("span", { class: "good" }, `+${added}`), " ", h("span", { class: "bad" }, `−${removed}`)]);
    const asked = (each, event) => h("p", { class: "asked" }, h("button", { class: "link", onclick: () => select(event) }, replied(each)), h("span", {}, ` ${each.asked}`));
    return (drawn.view = h(
      "div",
      { class: "files" },
      h("p", { class: "quiet" }, `${plural(counted.files, "file")}, +${counted.added} −${counted.removed}${between}. What commands changed is not known.`),
      found.left_out ? h("p", { class: "faint" }, `${plural(found.left_out, "earlier turn")} with changes are left out; the slider shows them.`) : null,
      found.turns.map((turn) => [
        h("h2", {}, turn.undone ? "(undone) " : "", cut(turn.prompt || "(no prompt)", 200)),
        turn.files.map((file) => [
          h("p", { class: "file" }, h("code", {}, file.file), counts(file), h("button", { class: "link", "data-row": true, onclick: () => history(file.file) }, "History")),
          file.edits.map((edit) => [
            edit.approvals.map((each) => asked(each, each.answer_event ?? each.asked_event)),
            edit.diff ? diffOf(edit.diff) : h("p", { class: "faint" }, "The whole file was written; what was there before is not known."),
          ]),
        ]),
        turn.decisions.map((each) => asked(each, each.event)),
      ]),
      found.work.map((each) => [
        h("h2", {}, "In the background: ", h("a", { class: "link", dir: "auto", href: `/s/${encodeURIComponent(each.session)}` }, cut(each.title || each.session, 200))),
        h("p", { class: each.applied ? "good" : "quiet" }, `${plural(each.count, "file")} ${each.applied ? `in your files since ${day(each.applied)} ${clock(each.applied)}` : "in a private copy; not applied"}`),
        each.diff ? filesOf(each.diff, each.files) : each.files.map((file) => h("p", { class: "file" }, h("code", {}, file.file))),
        each.is_cut ? h("p", { class: "faint" }, "The rest of the diff is left out.") : null,
      ]),
    ));
  },

  async events({ path, ask, at, select, head, drawn }) {
    const known = drawn.rows ?? new Map();
    const made = (row) => {
      if (known.has(`${row.number} ${row.id}`)) return known.get(`${row.number} ${row.id}`);
      const mark = row.tone === "bad" || /error/.test(row.type) ? "bad" : "";
      return h(
        "tr",
        { "data-row": true, "data-event": row.id, tabindex: 0, onclick: () => select(row.id), onkeydown: (press) => press.key === "Enter" && select(row.id) },
        h("td", { class: "num faint" }, row.number),
        h("td", { class: "faint mono", title: day(row.ts) }, clock(row.ts)),
        h("td", { class: "quiet" }, row.actor),
        h("td", { class: "type" }, row.type),
        h("td", { class: `what ${mark}`, title: row.text }, h("b", {}, row.label), row.text ? `  ${row.text}` : ""),
      );
    };
    // The newest rows matter most, so a long session starts with its last ones.
    let first = Math.max((at ?? head.records - 1) - ROWS + 1, 0);
    const { rows } = await ask("events", { first });
    drawn.table ??= h("tbody");
    drawn.more ??= h("button", { class: "more" }, "Show earlier events");
    drawn.view ??= h("div", {}, drawn.more, h("table", { class: "events" }, drawn.table));
    drawn.rows = new Map(rows.map((row) => [`${row.number} ${row.id}`, made(row)]));
    sync(drawn.table, [...drawn.rows.values()]);
    drawn.more.hidden = first === 0;
    drawn.more.onclick = async () => {
      const from = Math.max(first - 5 * ROWS, 0);
      const earlier = (await get(`${path}/events`, { at: first - 1, first: from })).rows;
      drawn.table.prepend(...earlier.map(made));
      first = from;
      drawn.more.hidden = first === 0;
    };
    return drawn.view;
  },
};
