// Background work: what waits for a person, what runs, what ended; answers and cancellations.

import { act, ago, amount, clock, coded, cut, day, decide, diffOf, get, h, isTeam, money, place, plural, runs, span, status, visible } from "/page/lib.js";

const ENDED = new Set(["completed", "failed", "cancelled", "refused"]);

/** OpenCode's own agents are open only while they run: they may get more work later. */
const isOpen = (each) => (each.host ? each.state === "running" : !ENDED.has(each.state));

export async function work() {
  const element = h("div", { class: "page" });
  const said = h("p", { class: "note", role: "alert", hidden: true });
  const sent = new Map(); // the answers that are on their way, by the id of what asked
  let isAway = false; // whether no OpenCode is open

  /** Do something, and say what came of it. */
  async function tell(doing) {
    let text;
    try {
      text = await doing;
      await draw();
      said.className = "note done";
    } catch (error) {
      text = error.message;
      said.className = "note";
    }
    said.replaceChildren(...coded(visible(text ?? "")));
    said.hidden = !text;
  }

  const press = {
    answer: (each, texts) => tell(answer(each, texts)),
    cancel: (each) => decide("Cancel this work?", [h("p", {}, each.title || each.id), h("p", { class: "quiet" }, "It stops, with everything that it started.")], "Cancel the work", () => tell(act("cancel", { intent: each.id }).then(() => `${each.title || each.id}: is being cancelled.`))),
    apply: (each) => tell(showChanges(each, () => tell(act("apply", { intent: each.id }).then((done) => `${done.count ? "Applied" : "Had been applied before"}: ${plural(done.changes.count, "file")} in ${done.directory}: ${names(done.changes)}`)))),
    undo: (each) => decide("Take these changes back?", [h("p", {}, `${names(each.changes)} in ${each.directory}`), h("p", { class: "quiet" }, "What you changed there since then stays; if both changed the same lines, nothing is taken back.")], `Take back ${plural(each.changes.count, "changed file")}`, () => tell(act("apply", { intent: each.id, undo: true }).then((done) => `${done.count ? "Took back" : "Nothing had to be taken back"}: ${plural(done.count, "file")} in ${done.directory}`))),
  };

  /** Send an answer. OpenCode may take long to get it, so the card says at once what becomes of it. */
  async function answer(each, texts) {
    const redraw = () => document.getElementById(each.id)?.replaceWith(ask(onItsWay(each), Date.now(), press, isAway));
    sent.set(each.id, texts);
    redraw();
    if (HOSTS.has(each.kind)) look().then(() => sent.has(each.id) && redraw());
    try {
      await act("answer", { checkpoint: each.id, answer: texts });
    } catch (error) {
      sent.delete(each.id);
      redraw();
      await draw();
      // The answer is recorded, and the card says what it waits for.
      if (error.code === "not-delivered" && document.getElementById(each.id)?.matches(".sent")) return "";
      throw error;
    }
    sent.delete(each.id);
    return `Answered: ${texts.join(", ")}`;
  }

  const onItsWay = (each) => (sent.has(each.id) ? { ...each, state: "answering", answer: sent.get(each.id) } : each);

  async function look() {
    const { links } = await get("health").catch(() => ({}));
    isAway = links?.length === 0;
  }

  async function draw() {
    // A half-typed answer must survive news.
    if (element.contains(document.activeElement) && document.activeElement.tagName === "INPUT") return;
    const found = await get("work");
    found.checkpoints = found.checkpoints.map(onItsWay);
    if (found.checkpoints.some((each) => each.state === "answering" && HOSTS.has(each.kind))) await look();
    const jobs = [...found.intents, ...found.hosts];
    const running = jobs.filter(isOpen);
    const ended = jobs.filter((each) => !isOpen(each));
    const nothing = !found.checkpoints.length && !jobs.length;
    element.replaceChildren(
      h("h1", { class: "unseen" }, "Work"),
      said,
      found.refused ? h("p", { class: "note", id: "refused" }, coded(found.refused)) : "",
      ...section("Waiting for you", found.checkpoints.map((each) => ask(each, found.now, press, isAway))),
      ...section("Running", nested(running).map(([each, depth]) => job(each, found.now, press, depth))),
      ...section("Ended", nested(ended).map(([each, depth]) => job(each, found.now, press, depth))),
      ...section("Messages", found.notices.slice(0, 40).map((each) => message(each, found.now))),
      ...(nothing ? [h("p", { class: "empty" }, "No background work yet, and nothing waits for you. An agent starts some with the tool agent_spawn; you do with ", h("code", {}, "durable-stream spawn"), ".")] : []),
    );
    if (found.refused) for (const each of element.querySelectorAll(".buttons > *")) each.disabled = true;
  }

  await draw();
  return { element, title: "Work", news: draw };
}

const names = ({ files, count }) => files.map((each) => each.file).join(", ") + (count > files.length ? ` and ${count - files.length} more` : "");

/** What "Apply" will do, file by file: the whole diff. */
async function showChanges(each, apply) {
  const { diff } = await get(`diff/${encodeURIComponent(each.id)}`);
  const about = h("p", { class: "quiet" }, `This changes ${plural(each.changes.count, "file")} in ${each.directory}. What you changed there since then stays; if both changed the same lines, nothing is applied.`);
  decide("Apply these changes to your files?", [about, filesOf(diff, each.changes.files)], `Apply ${plural(each.changes.count, "changed file")}`, apply);
}

/** The files of a diff, each of which can be folded. */
export const filesOf = (diff, files) => diff.replace(/\n$/, "").split(/\n(?=diff --git )/).map((part) => fileOf(part, files));

function fileOf(part, files) {
  const [head] = part.split("\n", 1);
  const file = files.find((each) => head === `diff --git a/${each.file} b/${each.file}`) ?? { file: head.replace("diff --git ", "") };
  const counts = file.kind ? ` ${file.kind}` : file.added === undefined ? "" : file.added === null ? " binary" : [h("span", { class: "good" }, ` +${file.added}`), h("span", { class: "bad" }, ` −${file.removed}`)];
  return h("details", { class: "of", open: true }, h("summary", {}, h("code", {}, file.file), counts), diffOf(part.slice(head.length + 1)));
}

const section = (title, rows) => (rows.length ? [h("h2", {}, title), ...rows] : []);

/** Jobs as a tree: each job with its depth, below the one whose session started it. */
function nested(jobs) {
  const bySession = new Map(jobs.filter((each) => each.session).map((each) => [each.session, each]));
  const below = (above, depth) =>
    jobs.filter((each) => bySession.get(each.parent) === above).flatMap((each) => [[each, depth], ...below(each, depth + 1)]);
  return below(undefined, 0);
}

const linesOf = (lines) => (lines?.length ? h("pre", {}, lines.map((row) => cut(`${row.label}: ${row.text}`, 160)).join("\n")) : null);

/** What OpenCode asks, and gets an answer to only while it is open. */
const HOSTS = new Set(["permission", "question"]);

const DONE = { once: "Allowed once", always: "Always allowed", reject: "Rejected" };

/** What became of an answer that was given and has not arrived. */
function answering(each, isAway) {
  const did = (each.kind === "permission" && DONE[each.answer[0]]) || `Answered: ${each.answer.join(", ")}`;
  if (!HOSTS.has(each.kind)) return `${did}; this is being recorded.`;
  return `${did}; ${isAway ? "waits for OpenCode, which is not open." : "on its way to OpenCode."}`;
}

function ask(each, now, press, isAway) {
  const isSent = each.state === "answering";
  const answer = (...texts) => press.answer(each, texts);
  const field = h("input", { placeholder: "Your answer", "aria-label": "Your answer" });
  const isPermission = each.kind === "permission";
  const options = isPermission ? [] : each.options;
  return h(
    "article",
    { class: isSent ? "card waits sent" : "card waits", "data-row": true, id: each.id },
    h("header", {}, h("span", { class: "title", dir: "auto" }, each.heading), each.session ? h("a", { class: "link", dir: "auto", href: place(each.session, each) }, cut(each.title || each.session, 80)) : h("span", { class: "faint" }, each.id), h("span", { class: "wait" }, ago(each.opened, now))),
    linesOf(each.lines),
    h("p", {}, h("b", {}, each.text)),
    each.left_out ? h("p", { class: "bad" }, `${each.left_out} characters are left out: read all of it with durable-stream checkpoints ${each.id}`) : null,
    isSent ? h("p", { class: "wait", role: "status" }, answering(each, isAway)) : null,
    isTeam ? h("p", { class: "faint", dir: "auto" }, `on ${each.machine}`) : h(
      "fieldset",
      { class: "buttons", disabled: isSent },
      isPermission
        ? [
            each.left_out ? null : h("button", { class: "button main", onclick: () => answer("once") }, "Allow once"),
            each.always?.length && !each.left_out ? h("button", { class: "button", onclick: () => answer("always"), title: each.always.join(", ") }, `Always allow ${each.always.join(", ")}`) : null,
            h("button", { class: "button", onclick: () => answer("reject") }, "Reject"),
          ]
        : each.left_out
          ? []
          : [
              options.map((text) => h("button", { class: "button", onclick: () => answer(text) }, text)),
              ...(each.kind === "effect" ? [] : [field, h("button", { class: "button main", onclick: () => field.value && answer(field.value) }, "Send")]),
            ],
    ),
  );
}

function job(each, now, press, depth) {
  const ran = each.host ? each.ran : each.ran_ms + (isOpen(each) && each.since ? Math.max(now - each.since, 0) : 0);
  const spent = [ran ? span(ran) : "", each.wall_ms ? `of ${span(each.wall_ms)}` : ""].filter(Boolean).join(" ");
  const facts = [
    each.host ? "OpenCode's own" : "",
    each.model || each.agent,
    each.tokens ? `${amount(each.tokens)} tokens` : "",
    each.cost ? money(each.cost) : "",
    spent,
    each.asks > 0 ? "waiting for you" : each.shown === each.state ? "" : each.shown,
  ].filter(Boolean);
  const changes = each.changes?.count;
  return h(
    "article",
    { class: "card", style: { marginLeft: `${Math.min(depth, 6) * 24}px` } },
    h(
      "header",
      {},
      status(each.state),
      h("a", { class: "title", dir: "auto", href: each.session ? place(each.session, each) : undefined, "data-row": true }, each.title || cut(each.prompt ?? "", 120) || each.id),
      h("span", { class: "quiet" }, facts.join(" · ")),
      h("span", { class: "faint" }, ago(each.ended || each.started || each.created, now)),
    ),
    each.reason || each.fault ? h("p", { class: each.state === "failed" ? "bad" : "quiet" }, each.fault || each.reason) : null,
    linesOf(each.lines),
    runs(each.running ?? [], each.session),
    each.result ? h("p", { class: "quiet" }, cut(each.result, 400)) : null,
    isTeam ? h("p", { class: "faint", dir: "auto" }, `on ${each.machine}`) : h(
      "div",
      { class: "buttons" },
      isOpen(each) && !each.host ? h("button", { class: "button", onclick: () => press.cancel(each) }, "Cancel …") : null,
      !isOpen(each) && changes && !each.applied ? h("button", { class: "button", onclick: () => press.apply(each) }, `Apply ${plural(changes, "changed file")} …`) : null,
      each.applied ? [h("span", { class: "good" }, `Applied ${day(each.applied) === day(now) ? "" : `${day(each.applied)} `}${clock(each.applied).slice(0, 5)}`), h("button", { class: "button", onclick: () => press.undo(each) }, "Undo …")] : null,
    ),
  );
}

const message = (each, now) =>
  h(
    "div",
    { class: "hit" },
    h("span", { class: "faint" }, `${each.kind === "wake" ? "to a session" : "to you"} · ${each.state}`),
    h("span", { class: "snippet", title: each.text }, cut(each.text.split(/\n[^\n]*:\n> diff --git /)[0], 300)),
    h("span", { class: "faint" }, ago(each.queued, now)),
    h("span", { class: "faint" }, each.channels.map((one) => `${one.channel}: ${one.state}`).join(", ")),
  );
