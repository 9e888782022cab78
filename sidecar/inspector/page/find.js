// The palette: what a search finds, over the page that one is on. What was typed stands in the address, so the way back
// shows the same again.

import { ago, began, get, h, isTeam, place, plural, status, twins } from "/page/lib.js";

const WAIT = 120; // ms
const OPERATORS = [
  ["tool:", "what a tool did"],
  ["failed", "what failed"],
  ["project:", "in a project"],
  ["agent:", "of an agent"],
  ["model:", "of a model"],
  ...(isTeam ? [["machine:", "of a machine"]] : []),
  ["since:7d", "not before"],
];

const dialog = h("dialog", { class: "palette", "aria-label": "Search" });
const field = h("input", { id: "find", type: "search", role: "combobox", "aria-label": "Search everything", "aria-expanded": "true", "aria-controls": "found", "aria-autocomplete": "list", placeholder: "Words, “exact words”, tool:bash, failed, project:shop, since:7d", autocomplete: "off", spellcheck: "false", dir: "auto" });
const outcome = h("p", { class: "faint", role: "status" });
const list = h("div", { id: "found", role: "listbox", "aria-label": "What was found" });
const insert = (text) => {
  const has = field.value.split(/\s+/).some((each) => each.startsWith(text));
  if (!has) field.value = `${field.value.trimEnd()} ${text}`.trimStart() + (text.endsWith(":") ? "" : " ");
  field.focus();
  ask();
};
const chips = OPERATORS.map(([text, what]) => h("button", { class: "chip", type: "button", title: what, "aria-label": `${text} ${what}`, onclick: () => insert(text) }, text));
dialog.append(field, h("div", { class: "filters" }, chips), outcome, list);
document.body.append(dialog);

let asked = 0;
let waiting;
let opened = {}; // the hit that was opened last, which the way back marks again

export const isFinding = () => dialog.open;

/** Open the palette with a text, or with `null` close it. */
export function find(text) {
  if (text === null) return dialog.close();
  if (!dialog.open) {
    field.value = text;
    dialog.showModal();
    field.select();
    ask();
  }
}

/** Name what was typed in the address of the page below. */
function name(text) {
  const here = new URL(location.href);
  if (text === null) here.searchParams.delete("q");
  else here.searchParams.set("q", text);
  if (here.href !== location.href) history.replaceState(history.state, "", here);
}

async function ask() {
  const text = field.value.trim();
  const mine = ++asked;
  name(text);
  let found;
  try {
    found = await get("search", { q: text });
  } catch (error) {
    if (mine === asked) outcome.textContent = error.message;
    return;
  }
  if (mine !== asked) return;
  const count = found.groups.reduce((sum, group) => sum + group.count, 0);
  const isCut = found.total > found.groups.length;
  const events = count ? `, ${isCut ? "with " : ""}${plural(count, "event")}` : "";
  const older = found.is_all ? "" : "; older events were not looked at";
  const sums = `${isCut ? `${found.groups.length} of ` : ""}${plural(found.total, "session")}${text ? events + older : ", the newest first"}`;
  const none = text ? `No session and no event fits${older}.` : "Nothing was recorded yet.";
  outcome.replaceChildren(found.total ? sums : none, ...found.faults.map((each) => h("span", { class: "bad" }, ` ${each}`)));
  const same = twins(found.groups.map((group) => group.title));
  list.replaceChildren(...found.groups.map((group) => drawn(group, found.words, same.has(group.title))));
  mark(Math.max(options().findIndex((each) => text === opened.text && each.href === opened.href), 0));
}

const drawn = (group, words, isTwin) => {
  const head = h("a", { class: "in", role: "option", tabindex: -1, href: place(group.stream_id, group) }, status(group.status), h("b", { dir: "auto" }, marked(group.title || group.stream_id, words)), h("span", { class: "faint" }, [isTwin && began(group.first_ts), group.machine, group.place, ago(group.last_ts, Date.now())].filter(Boolean).join(" · ")));
  const hits = group.hits.map((hit) => h("a", { class: "hit", role: "option", tabindex: -1, href: place(group.stream_id, group, hit.event) }, h("span", { class: hit.failed ? "bad" : "faint" }, hit.label), h("span", { class: "snippet", dir: "auto" }, marked(hit.snippet, words)), h("span", { class: "faint" }, ago(hit.ts, Date.now()))));
  const more = group.count - hits.length;
  return h("div", { role: "group", "aria-label": group.title || group.stream_id }, head, hits, more > 0 ? h("p", { class: "faint", role: "presentation" }, `and ${plural(more, "more event")}`) : null);
};

/** A text in which each word that was looked for is marked; all of them as one where they stand together. */
function marked(text, words) {
  const low = text.toLowerCase();
  const wanted = [words.join(" "), ...words].map((each) => each.toLowerCase()).filter(Boolean);
  const parts = [];
  for (let from = 0; ; ) {
    const [at, size] = wanted.map((each) => [low.indexOf(each, from), each.length]).filter(([place]) => place >= 0).sort((one, other) => one[0] - other[0] || other[1] - one[1])[0] ?? [-1, 0];
    if (at < 0 || low.length !== text.length) return [...parts, text.slice(from)];
    parts.push(text.slice(from, at), h("mark", {}, text.slice(at, at + size)));
    from = at + size;
  }
}

const options = () => [...list.querySelectorAll("[role=option]")];

function mark(place) {
  const all = options();
  all.forEach((each, number) => {
    each.id = `found-${number}`;
    each.setAttribute("aria-selected", String(number === place));
  });
  all[place]?.scrollIntoView({ block: "nearest" });
  if (all[place]) field.setAttribute("aria-activedescendant", all[place].id);
  else field.removeAttribute("aria-activedescendant");
}

field.addEventListener("input", () => {
  clearTimeout(waiting);
  waiting = setTimeout(ask, WAIT);
});
field.addEventListener("keydown", (press) => {
  const by = { ArrowDown: 1, ArrowUp: -1 }[press.key];
  const all = options();
  const at = all.findIndex((each) => each.getAttribute("aria-selected") === "true");
  if (by) mark(Math.max(0, Math.min(all.length - 1, at + by)));
  else if (press.key === "Enter") all[at]?.click();
  else if (press.key === "Escape") dialog.close(); // and not only what was typed
  else return;
  press.preventDefault();
});
dialog.addEventListener("click", (click) => click.target === dialog && dialog.close());
list.addEventListener("click", (click) => (opened = { text: field.value.trim(), href: click.target.closest("a")?.href }));
dialog.addEventListener("keydown", (press) => press.stopPropagation()); // its keys are not those of the page below
dialog.addEventListener("close", () => {
  asked++;
  clearTimeout(waiting);
  name(null);
});
