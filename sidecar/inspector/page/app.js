// The frame of the page: which view belongs to an address, keys, and what is live.

import { compare } from "/page/compare.js";
import { costs } from "/page/costs.js";
import { event } from "/page/event.js";
import { find, isFinding } from "/page/find.js";
import { health } from "/page/health.js";
import { ask, coded, entitle, get, h, machine, secret, step } from "/page/lib.js";
import { session } from "/page/session.js";
import { sessions } from "/page/sessions.js";
import { work } from "/page/work.js";

const main = document.getElementById("main");
const live = document.getElementById("live");
const keys = document.getElementById("keys");

/** The codes of errors with which the server says nothing at all. */
const AWAY = ["offline", "no-login"];

/** The view that is shown: `element`, and what it does with `key`, `news` and `leave`. */
let view = { element: h("div") };
let turn = 0;
let standing; // the row on which the keys are; it may be drawn anew

const nameOf = (row) => row?.getAttribute("href") || row?.dataset.event || row?.id;

const ROUTES = [
  [/^\/$/, "sessions", sessions],
  [/^\/s\/([^/]+)(?:\/(\w+))?$/, "sessions", session],
  [/^\/e\/([^/]+)$/, "sessions", event],
  [/^\/work$/, "work", work],
  [/^\/compare\/([^/]+)(?:\/([^/]+))?$/, "sessions", compare],
  [/^\/costs$/, "costs", costs],
  [/^\/health$/, "health", health],
];

const nothing = () => ({
  element: h("div", { class: "page" }, h("h1", {}, "There is no such page"), h("p", {}, h("a", { class: "link", href: "/" }, "To all sessions"))),
  title: "No such page",
});

async function show() {
  const mine = ++turn;
  const address = new URL(location.href);
  const [rule, page, make] = ROUTES.find(([each]) => each.test(address.pathname)) ?? [/^/, "", nothing];
  find(address.searchParams.get("q"));
  const args = (rule.exec(address.pathname) ?? []).slice(1).map((each) => each && decodeURIComponent(each));
  let made;
  try {
    if (view.stays?.(args, make)) return;
    made = await make(...args);
  } catch (error) {
    // What can still be read stays; the line at the top says what to do.
    if (AWAY.includes(error.code) && view.element.isConnected && !view.isFault) return;
    made = { element: h("p", { class: "empty" }, coded(error.message)), isFault: true, news: show };
  }
  if (mine !== turn) return;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.page === page) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  view.leave?.();
  view = made;
  standing = null;
  main.replaceChildren(made.element);
  made.shown?.();
  entitle(made.title);
}

export function go(path, { replace = false } = {}) {
  const to = new URL(path, location.href);
  // What belongs to a session of a machine is on that machine.
  if (machine() !== null && /^\/(s|e|compare)\//.test(to.pathname) && !to.searchParams.has("machine")) to.searchParams.set("machine", machine());
  history[replace ? "replaceState" : "pushState"](null, "", to);
  show();
}

addEventListener("popstate", show);
addEventListener("submit", (submit) => {
  if (!submit.target.matches("[data-go]")) return;
  submit.preventDefault();
  go(`${new URL(submit.target.action).pathname}?${new URLSearchParams(new FormData(submit.target))}`);
});
addEventListener("click", (click) => {
  const link = click.target.closest?.("a[href]");
  if (!link || click.ctrlKey || click.metaKey || click.shiftKey || click.button || link.target) return;
  const to = new URL(link.href);
  if (to.origin !== location.origin || link.getAttribute("href").startsWith("#")) return;
  click.preventDefault();
  go(to.pathname + to.search);
});

document.getElementById("search").addEventListener("click", () => find(""));

addEventListener("keydown", (press) => {
  if (keys.open || isFinding()) return; // they close by themselves
  if (press.key === "k" && (press.ctrlKey || press.metaKey)) {
    press.preventDefault();
    find("");
  }
  if (press.key === "Escape") {
    view.key?.("Escape");
    return;
  }
  if (press.ctrlKey || press.metaKey || press.altKey) return;
  if (press.target.closest?.("input:not([type=range]), select, textarea, dialog[open]")) return;
  if ((press.key === " " || press.key === "Enter") && press.target.closest?.("a, button, summary, tr")) return;
  // The arrows scroll what is only read, and move the slider.
  const isList = press.target.tagName !== "INPUT" && main.querySelector("a[data-row], button[data-row], tr[data-row]") !== null;
  const by = { j: 1, k: -1, ArrowDown: isList && 1, ArrowUp: isList && -1 }[press.key];
  const isTaken = view.key?.(press.key);
  if (press.key === "/") find("");
  else if (press.key === "?") keys.showModal();
  else if (by && !isTaken) standing = nameOf(step(main.querySelectorAll("[data-row]"), by));
  else if (press.key === "Enter") main.querySelector("[data-row].at")?.click();
  else if (!isTaken) return;
  press.preventDefault();
});
// The colours are those of the system, unless a person chose others.
const THEMES = { "": "as the system has them", light: "light", dark: "dark" };
const theme = document.getElementById("theme");
const DARK = "(prefers-color-scheme: dark)";
const darks = [...document.styleSheets].flatMap((sheet) => [...sheet.cssRules]).filter((rule) => rule.media?.mediaText === DARK);

function colour() {
  const chosen = localStorage.getItem("theme") ?? "";
  for (const rule of darks) rule.media.mediaText = { light: "not all", dark: "all" }[chosen] ?? DARK;
  document.documentElement.style.colorScheme = chosen || "light dark";
  theme.title = `Colours: ${THEMES[chosen]}`;
  theme.setAttribute("aria-label", theme.title);
  dispatchEvent(new Event("theme"));
}
theme.addEventListener("click", () => {
  const names = Object.keys(THEMES);
  localStorage.setItem("theme", names[(names.indexOf(localStorage.getItem("theme") ?? "") + 1) % names.length]);
  colour();
});
addEventListener("storage", colour); // another tab chose
colour();

keys.addEventListener("click", () => keys.close());

let asking = false;
let isAgain = false;
async function news() {
  if (asking) {
    isAgain = true;
    return;
  }
  asking = true;
  try {
    await view.news?.();
    const rows = [...main.querySelectorAll("[data-row]")];
    if (standing && !rows.some((row) => row.classList.contains("at"))) rows.find((row) => nameOf(row) === standing)?.classList.add("at");
    await badge();
  } catch {
    // The view stays as it was. The mark in the bar says that nothing arrives.
  } finally {
    asking = false;
  }
  if (isAgain) {
    isAgain = false;
    news();
  }
}

async function badge() {
  const waiting = document.getElementById("waiting");
  const count = (await get("work")).checkpoints.length;
  waiting.textContent = count ? String(count) : "";
  waiting.hidden = !count;
}

const GONE = {
  offline: "`durable-stream inspect` has ended, so nothing new arrives. Run it again, and open its link.",
  "logged out": "`durable-stream inspect` runs anew. Open the link that it printed; this tab goes on then.",
};
const gone = document.getElementById("gone");

function hear(state) {
  const isLive = state === "live";
  live.classList.toggle("on", isLive);
  live.textContent = state;
  live.title = isLive ? "New events arrive by themselves" : GONE[state].replaceAll("`", "");
  gone.hidden = isLive;
  gone.replaceChildren(...coded(GONE[state] ?? ""));
  if (isLive) news();
}

addEventListener("unhandledrejection", (failed) => {
  if (AWAY.includes(failed.reason?.code)) failed.preventDefault(); // the line at the top says it
});

// A browser opens only six connections to a server. So one tab listens, and tells all others what it hears; when it is
// closed, another one gets the lock. A tab that has just been opened asks for that, and for the secret.
const tabs = new BroadcastChannel("live");
const refused = new Set();
let state = ""; // only in the tab that listens
let again = () => {};
tabs.addEventListener("message", ({ data }) => {
  if (data === "ask") {
    if (state) tabs.postMessage(state);
    if (secret()) tabs.postMessage({ secret: secret() });
  } else if (!data.secret) hear(data);
  else if (!secret() && !refused.has(data.secret)) enter(data.secret);
});
addEventListener("refused", ({ detail }) => {
  refused.add(detail);
  tabs.postMessage("ask"); // perhaps another tab has a better one
});

function enter(given) {
  sessionStorage.setItem("secret", given);
  again();
  show();
}

/** Take the secret out of the address. */
function led() {
  const [, given] = /^#([0-9a-f]{64})$/.exec(location.hash) ?? [];
  if (!given) return show();
  history.replaceState(null, "", location.pathname + location.search);
  tabs.postMessage({ secret: given });
  enter(given);
}
addEventListener("hashchange", led);

async function listen() {
  const tell = (now) => {
    state = now;
    tabs.postMessage(state);
    hear(state);
  };
  for (;;) {
    let isRefused = false;
    try {
      const answer = await ask("live");
      isRefused = answer.status === 401;
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let part; !(part = await reader.read()).done; ) if (part.value.includes("head")) tell("live");
    } catch {
      // The line at the top says it.
    }
    tell(isRefused ? "logged out" : "offline");
    await new Promise((resolve) => {
      again = resolve;
      setTimeout(resolve, 3000);
    });
  }
}

tabs.postMessage("ask");
led();
navigator.locks.request("live", listen);
