// What every page needs: elements, requests, and values as people write them.

// A single joiner between letters or signs that are not ASCII spells them.
const UNSEEN = /(?![\n\t]|(?<=[^\0-\x7f\u200c\u200d])[\u200c\u200d][^\0-\x7f\u200c\u200d])[\p{Cc}\p{Cf}\p{Co}\p{Cs}\p{Zl}\p{Zp}\u034f\u115f\u1160\u2800\u3164\ufe00-\ufe0e\uffa0\u{e0100}-\u{e01ef}]/gu;

/** A text whose hidden characters, and those that turn its direction, are shown as `<U+202E>`; as `visible` in `wording.py`. */
export const visible = (text) => text.replace(UNSEEN, (each) => `<U+${each.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}>`);

/** The beginning of a text; it says so if there is more. */
export const cut = (text, most) => (text.length > most ? `${text.slice(0, most)} …` : text);

/** An element with attributes, listeners (`onclick`) and children; texts are never parsed as HTML, and all of them is seen. */
export function h(tag, given = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(made.style, value);
    else made.setAttribute(name, value === true ? "" : name === "title" || name === "aria-label" ? visible(String(value)) : String(value));
  }
  const shown = children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
  made.append(...shown.map((child) => (child instanceof Node ? child : visible(String(child)))));
  return made;
}

/** An element of a drawing; its texts are as those of `h`. */
export function svg(tag, given = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(given)) made.setAttribute(name, name === "aria-label" ? visible(String(value)) : String(value));
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== false).map((child) => (child instanceof Node ? child : visible(String(child)))));
  return made;
}

/** An error that the server explained. */
export class Refused extends Error {
  constructor(code, text) {
    super(text);
    this.code = code;
  }
}

/** What the link brought. Only this address, with its port, can read it here, and no other server is sent it. */
export const secret = () => sessionStorage.getItem("secret") ?? "";

export async function ask(path, more = {}) {
  const given = secret();
  const response = await fetch(`/api/${path}`, { ...more, headers: { authorization: `Bearer ${given}`, ...more.headers } });
  if (response.status === 401 && given === secret()) {
    sessionStorage.removeItem("secret");
    dispatchEvent(new CustomEvent("refused", { detail: given }));
  }
  return response;
}

const SLOW = 3000; // ms

function warn(text) {
  const note = document.getElementById("damage");
  note.replaceChildren(...coded(text));
  note.hidden = !text;
}

async function answered(response) {
  if (response.status === 401) throw new Refused("no-login", await response.text());
  const [damage, behind] = ["log-damage", "log-behind"].map((name) => decodeURIComponent(response.headers.get(name) ?? ""));
  const found = await response.json().catch(() => ({ code: "unreadable", error: "The answer could not be read." }));
  if (found.code === "team-unavailable") warn(`Nothing new is shown until the team can be read again: ${found.error}`);
  else warn(damage ? `The log is damaged, so later records may be missing here: ${damage}` : behind && `Note: ${behind}.`);
  if (!response.ok) throw new Refused(found.code, found.error);
  return found;
}

/** Whether the page shows the homes of all machines; then it only reads. */
export const isTeam = document.documentElement.hasAttribute("data-team");

/** The machine that the address names: the page is about its sessions. */
export const machine = () => new URL(location.href).searchParams.get("machine");

/** The page of a session of a row; the same session may be on several machines. */
export function place(session, row = {}, event = null) {
  const query = new URLSearchParams(Object.entries({ machine: row.machine, event }).filter(([, value]) => value));
  return `/s/${encodeURIComponent(session)}${query.size ? `?${query}` : ""}`;
}

export async function get(path, values = {}) {
  const query = new URLSearchParams(machine() === null ? {} : { machine: machine() });
  for (const [name, value] of Object.entries(values)) if (value !== null && value !== undefined) query.set(name, value);
  let response;
  const slow = isTeam && setTimeout(() => warn("The team's Postgres has not answered for some seconds. The page waits for it."), SLOW);
  try {
    response = await ask(`${path}${query.size ? `?${query}` : ""}`);
  } catch {
    throw new Refused("offline", "`durable-stream inspect` has ended. Run it again, and open its link.");
  } finally {
    clearTimeout(slow);
  }
  return answered(response);
}

export const act = async (action, args) =>
  answered(
    await ask(`do/${action}`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(args),
    }),
  );

const UNKNOWN = "–";
const pad = (number) => String(number).padStart(2, "0");
const SANE_MS = 366 * 86_400_000;

/** Give the browser's tab a title. */
export const entitle = (title) => (document.title = title ? `${visible(title)} · Durable Stream` : "Durable Stream");

/** The words for a duration, the same as those of `lasted` in `wording.py`. */
export function span(ms) {
  if (typeof ms !== "number") return UNKNOWN;
  if (!(ms >= 0 && ms <= SANE_MS)) return "?";
  if (ms < 1000) return `${Math.floor(ms)}ms`;
  const tenths = Math.floor((ms + 50) / 100);
  if (tenths < 600) return `${Math.floor(tenths / 10)}.${tenths % 10}s`;
  const seconds = Math.max(Math.floor(ms / 1000), 60);
  if (seconds < 3600) return `${Math.floor(seconds / 60)}m ${pad(seconds % 60)}s`;
  const hours = Math.floor(seconds / 3600);
  return hours < 48 ? `${hours}h ${pad(Math.floor((seconds % 3600) / 60))}m` : `${Math.floor(hours / 24)}d ${pad(hours % 24)}h`;
}

/** US dollars, the same as those of `money` in `wording.py`, but for nothing. */
export function money(cost) {
  if (!cost) return UNKNOWN;
  if (!(cost > 0 && cost <= 1e9)) return "?";
  return cost >= 0.005 ? `$${(cost + 1e-9).toFixed(2)}` : "<$0.01";
}

export function amount(count) {
  if (typeof count !== "number") return UNKNOWN;
  if (count < 0 || count > 1e15) return "?";
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) if (count >= size) return `${(count / size).toFixed(1)}${unit}`;
  return String(count);
}

export const tokensOf = (tokens = {}) => tokens.total || Object.values(tokens).reduce((sum, each) => sum + each, 0);

export function clock(ts) {
  const when = new Date(ts);
  return Number.isNaN(when.valueOf()) ? "?" : `${pad(when.getHours())}:${pad(when.getMinutes())}:${pad(when.getSeconds())}`;
}

export function day(ts) {
  const when = new Date(ts);
  return Number.isNaN(when.valueOf()) ? "?" : `${when.getFullYear()}-${pad(when.getMonth() + 1)}-${pad(when.getDate())}`;
}

export function ago(ts, now) {
  const seconds = Math.floor((now - ts) / 1000);
  if (!ts) return UNKNOWN;
  if (seconds < 0) return "?";
  if (seconds < 60) return "just now";
  if (seconds < 3600) return `${Math.floor(seconds / 60)}m ago`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)}h ago`;
  return seconds < 30 * 86_400 ? `${Math.floor(seconds / 86_400)}d ago` : day(ts);
}

/** The titles that stand on several rows. */
export function twins(titles) {
  const seen = new Set();
  return new Set(titles.filter((each) => seen.has(each) || !seen.add(each)));
}

/** What tells sessions with the same title apart. */
export const began = (ts) => `began ${day(ts)} ${clock(ts)}`;

export const plural = (count, word) => `${count < 10_000 ? count : amount(count)} ${word}${count === 1 ? "" : "s"}`;

export function status(state) {
  return h("span", { class: `status ${state}` }, state === "active" ? "running" : state);
}

/** What runs: each call, and for how long; without `now` it goes on counting. */
export function runs(calls, own, now) {
  const lasted = (call) => (now === undefined ? h("span", { class: "faint", "data-since": call.since_ms }, passed(call.since_ms)) : h("span", { class: "faint" }, span(now - call.since_ms)));
  return calls.map((call) => h("p", { class: "runs" }, status("running"), " ", call.session === own ? "" : h("a", { class: "link", href: `/s/${encodeURIComponent(call.session)}` }, call.title || call.session), h("code", {}, cut(call.text, 160)), " ", lasted(call)));
}

const passed = (since) => span(Math.floor(Math.max(Date.now() - since, 0) / 1000) * 1000).replace(".0s", "s");
setInterval(() => {
  for (const each of document.querySelectorAll("[data-since]")) each.textContent = passed(Number(each.dataset.since));
}, 1000);

/** A text in which what stands between backticks is code. */
export const coded = (text) => text.split("`").map((part, at) => (at % 2 ? h("code", {}, part) : part));
/** Make the children of an element those wanted, and touch only what differs: drawing is what takes time. */
export function sync(parent, wanted) {
  const stays = new Set(wanted);
  for (const child of [...parent.children]) if (!stays.has(child)) child.remove();
  wanted.forEach((child, place) => {
    if (parent.children[place] !== child) parent.insertBefore(child, parent.children[place] ?? null);
  });
}

/** Move the mark among rows with j and k; Enter opens the marked one. */
export function step(rows, by) {
  const list = [...rows].filter((row) => row.checkVisibility());
  const at = list.findIndex((row) => row.classList.contains("at"));
  const next = list[Math.max(0, Math.min(list.length - 1, at < 0 ? (by > 0 ? 0 : list.length - 1) : at + by))];
  if (!next) return null;
  list[at]?.classList.remove("at");
  next.classList.add("at");
  next.scrollIntoView({ block: next.offsetHeight > innerHeight / 2 ? "start" : "nearest" });
  return next;
}

export function diffOf(patch) {
  const kinds = { "+": "add", "-": "del", "@": "hunk" };
  let left = [0, 0]; // lines of the hunk before and after: in it, a removed `-- x` looks like a line of a head
  const lines = patch.replace(/\n$/, "").split("\n").filter((line) => {
    if (line.startsWith("@")) {
      const sizes = /^@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@/.exec(line);
      left = sizes ? [Number(sizes[1] ?? 1), Number(sizes[2] ?? 1)] : [Infinity, Infinity];
      return true;
    }
    if (/^(diff --git |Index: )/.test(line)) left = [0, 0];
    const isHead = left[0] <= 0 && left[1] <= 0;
    left = [left[0] - !/^[+\\]/.test(line), left[1] - !/^[-\\]/.test(line)];
    return !isHead || !/^(Index: |index |=+$|--- |\+\+\+ )/.test(line);
  });
  return h("pre", { class: "diff" }, lines.map((line) => h("span", { class: line.startsWith("diff --git ") ? "of" : kinds[line[0]] ?? "same" }, line || " ")));
}

/** A window in which a person decides: `parts` show what `button` will do. Closing it does nothing. */
export function decide(title, parts, button, act) {
  const close = () => dialog.close();
  const main = h("button", { class: "button main", onclick: () => (close(), act()) }, button);
  const dialog = h("dialog", { class: "decide", "aria-label": title }, h("h2", {}, title), parts, h("div", { class: "buttons" }, main, h("button", { class: "button", autofocus: true, onclick: close }, "Do nothing")));
  document.body.append(dialog);
  dialog.addEventListener("close", () => dialog.remove());
  dialog.addEventListener("keydown", (press) => press.stopPropagation()); // Escape closes only the dialog
  dialog.showModal();
}
