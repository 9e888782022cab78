/**
 * The status card in OpenCode's terminal: the background work of the session on screen. `showCard` draws the card in
 * OpenCode 1, and `tui2.js` draws it in OpenCode 2.
 *
 * The card is drawn beside the conversation, because a message in a busy session would start a turn of the model, and
 * `/undo` would first take back such a message. The sidecar writes the file that this module reads.
 */
import { readFile, stat } from "node:fs/promises";
import path from "node:path";

export const FILE = "background.json";
/** How often a terminal looks whether the file has changed, ms. */
export const LOOK_MS = 1000;
const PICTURE =
  "A picture, not live: this work runs in another process, so nothing moves here. Its parent's /background shows more.";
const OLD_PICTURE =
  "This may be a picture from before this work ended: OpenCode draws the rest after its next start. The session above has the result.";
/** The card's title. */
const HEADING = "Background work";
const MAX_SHOWN = 6;
const MAX_TITLE = 30;
/** The card's place in the sidebar: after the session's cost, before everything else. */
const ORDER = 150;

/**
 * @typedef {{id: string, title: string, state: string, ran: number | null, since: number | null, cost: number, asks: number,
 *   parent: string | null, root: string, session?: string | null}} Agent
 * @typedef {{id: string, session: string, text: string}} Ask
 * @typedef {{id: string, session: string, title: string, text: string}} Toast
 * @typedef {{jsx: (type: string, props: any) => any, createSignal: (value: any) => [() => any, (value: any) => void]}} Drawing
 */

/**
 * Draw the card from now on. If this OpenCode cannot draw it, nothing happens.
 *
 * @param {any} api OpenCode's TUI API
 * @param {string} home
 * @param {() => Promise<Drawing>} [drawing]
 */
export async function showCard(api, home, drawing = terminal) {
  try {
    const card = cardOf(await drawing(), home, (name) => api.theme.current[name]);
    api.lifecycle.onDispose(card.follow());
    const pictures = new Set();
    const notes = () => card.notes(onScreen(api), pictures);
    api.slots.register({
      order: ORDER,
      slots: {
        app_bottom: () => card.column(notes, { paddingLeft: 2, paddingRight: 2 }),
        sidebar_content: (/** @type {any} */ _, /** @type {any} */ given) => card.column(() => card.work(given.session_id)),
        session_prompt_right: (/** @type {any} */ _, /** @type {any} */ given) =>
          card.column(() => card.summary(given.session_id)),
      },
    });
  } catch {
    // This version of OpenCode draws differently. `/background` and `durable-stream top` show the same work.
  }
}

/**
 * The parts of the card, which a terminal places where it likes. They change with the sidecar's file.
 *
 * @param {Drawing} drawing
 * @param {string} home
 * @param {(name: string) => any} color the terminal's color for "text", "textMuted" or "warning"
 * @param {(toasts: Toast[]) => void} [seen] gets all toasts of the file whenever the file has changed
 */
export function cardOf({ jsx, createSignal }, home, color, seen = () => {}) {
  const [agents, setAgents] = createSignal([]);
  const [asks, setAsks] = createSignal([]);
  const [now, setNow] = createSignal(Date.now());
  const file = new CardFile(path.join(home, FILE));
  const text = (/** @type {string} */ content, /** @type {string} */ name, wrapMode = "none") =>
    jsx("text", { fg: color(name), wrapMode, children: content });
  const look = async () => {
    const found = await file.changed();
    if (found) {
      setAgents(found);
      setAsks(file.asks);
      seen(file.toasts);
    }
    if (agents().length > 0) setNow(Date.now());
  };
  return {
    look,
    /** Look every second. @returns {() => void} what ends that */
    follow: () => {
      // If drawing fails, no card is better than an error every second.
      const timer = setInterval(() => look().catch(() => clearInterval(timer)), LOOK_MS);
      timer.unref?.();
      return () => clearInterval(timer);
    },
    column: (/** @type {() => any[]} */ children, more = {}) => jsx("box", { flexDirection: "column", ...more, children }),
    work: (/** @type {string} */ session) => {
      const rows = lines(of(agents(), session), now());
      if (rows.length === 0) return [];
      const title = jsx("text", { fg: color("text"), children: jsx("b", { children: HEADING }) });
      return [title, ...rows.map((row) => text(row.content, row.color))];
    },
    /** @param {string} session @param {string} [more] */
    summary: (session, more = "") => summary(of(agents(), session)).map((line) => text(line + more, "textMuted")),
    /** @param {string} session @param {Set<string>} [pictures] */
    notes: (session, pictures) =>
      notesOf(asks(), agents(), session, pictures).map((line) => text(line, "warning", "word")),
  };
}

/** OpenCode gives TUI plugins the modules that draw its terminal. @returns {Promise<Drawing>} */
export async function terminal() {
  // @ts-ignore: these modules exist only inside OpenCode
  const [{ jsx }, { createSignal }] = await Promise.all([import("@opentui/solid/jsx-runtime"), import("solid-js")]);
  return { jsx, createSignal };
}

/** The session on screen, or "". @param {any} api OpenCode's TUI API @returns {string} */
function onScreen(api) {
  const { name, params } = api.route?.current ?? {};
  return name === "session" && typeof params?.sessionID === "string" ? params.sessionID : "";
}

/**
 * What stays on screen until it is over: the question that the session on screen waits for, or that this session is a
 * picture. OpenCode 1 draws what other processes do only once, when the session is opened.
 *
 * @param {Ask[]} asks
 * @param {Agent[]} agents
 * @param {string} session
 * @param {Set<string>} [pictures] the sessions that were on screen while work of another process ran in them; this one
 *   is added. Leave it out if OpenCode draws such a session as it changes
 * @returns {string[]} lines
 */
export function notesOf(asks, agents, session, pictures) {
  const mine = asks.filter((ask) => ask.session === session);
  const rows = mine.slice(0, 1).flatMap(({ text }) => text.split("\n"));
  if (mine.length > 1) rows.push(`${mine.length - 1} more in /background.`);
  if (pictures && session && agents.some((agent) => agent.session === session)) {
    pictures.add(session);
    rows.push(PICTURE);
  } else if (pictures?.has(session)) rows.push(OLD_PICTURE);
  return rows;
}

/** The sidecar's file, which is read only when it has changed. */
export class CardFile {
  #path;
  #seen = "";
  /** The toasts that OpenCode 2 shows, oldest first. @type {Toast[]} */
  toasts = [];
  /** What waits for a person, oldest first. @type {Ask[]} */
  asks = [];

  /** @param {string} path */
  constructor(path) {
    this.#path = path;
  }

  /** @returns {Promise<Agent[] | null>} the file's content; `null` if it is unchanged, or cannot be read now */
  async changed() {
    try {
      const { mtimeMs, ino, size } = await stat(this.#path);
      const seen = `${mtimeMs} ${ino} ${size}`;
      if (seen === this.#seen) return null;
      const { agents, asks, toasts } = JSON.parse(await readFile(this.#path, "utf8"));
      this.#seen = seen;
      this.toasts = Array.isArray(toasts) ? toasts.filter(isToast) : [];
      this.asks = Array.isArray(asks) ? asks.filter(isAsk) : [];
      // Leave out malformed entries, because an error while the terminal draws would end OpenCode.
      return Array.isArray(agents) ? agents.filter(isWhole) : [];
    } catch {
      return null;
    }
  }
}

/** @param {any} agent @returns {boolean} */
function isWhole(agent) {
  const { title, state, ran, since, cost, asks } = agent ?? {};
  const texts = typeof title === "string" && typeof state === "string";
  const times = [ran, since].every((each) => each === null || typeof each === "number");
  return texts && times && typeof cost === "number" && typeof asks === "number";
}

/** @param {any} ask @returns {boolean} */
function isAsk(ask) {
  return [ask?.id, ask?.session, ask?.text].every((each) => typeof each === "string");
}

/** @param {any} toast @returns {boolean} */
function isToast(toast) {
  return [toast?.id, toast?.session, toast?.title, toast?.text].every((each) => typeof each === "string");
}

/** Everything that a session started, at any depth. @param {Agent[]} agents @param {string} session */
function of(agents, session) {
  return agents.filter(({ parent, root }) => parent === session || root === session);
}

/**
 * The card, without its title.
 *
 * @param {Agent[]} agents
 * @param {number} now ms UTC
 * @returns {{content: string, color: string}[]}
 */
export function lines(agents, now) {
  const rows = agents.slice(-MAX_SHOWN).flatMap((agent) => {
    const ms = agent.since === null ? agent.ran : now - agent.since;
    const ran = ms === null ? "" : span(ms);
    const cost = agent.cost >= 0.005 ? `$${agent.cost.toFixed(2)}` : "";
    const state = agent.asks > 0 ? "waiting for you" : agent.state;
    return [
      { content: `• ${short(agent.title)}`, color: agent.asks > 0 ? "warning" : "text" },
      { content: `  ${[state, ran, cost].filter(Boolean).join(" · ")}`, color: "textMuted" },
    ];
  });
  const more = agents.length - MAX_SHOWN;
  return more > 0 ? [...rows, { content: `  and ${more} more: /background`, color: "textMuted" }] : rows;
}

/** One line, or none, for the prompt. @param {Agent[]} agents */
function summary(agents) {
  if (agents.length === 0) return [];
  const waiting = agents.filter(({ asks }) => asks > 0).length;
  return [`${agents.length} in background${waiting ? `, ${waiting} waiting for you` : ""}`];
}

/** @param {number} ms */
function span(ms) {
  const seconds = Math.max(0, Math.floor(ms / 1000));
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** @param {string} title */
function short(title) {
  const line = title.replace(/[\p{C}\s]+/gu, " ").trim();
  return line.length > MAX_TITLE ? `${line.slice(0, MAX_TITLE - 1)}…` : line;
}
