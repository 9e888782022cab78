/**
 * The feed of OpenCode 2: every event of the service's process, handed to the link or the spool in the tick in which
 * the service announces it. OpenCode 2 keeps no log of its events, so an event that is missed here is gone.
 *
 * OpenCode calls `setup` of each copy of the plugin for each directory, and each instance gets the events of all
 * directories. So one feed a process, found through `globalThis`, takes the events of all instances, each event once.
 * An instance that ends leaves no hole while another one listens.
 */
import os from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { homeOf, newInstance, textOrNull } from "./instance.js";
import { encodeItem } from "./item.js";
import { Reserved } from "./reserved.js";
import { bootId } from "./start.js";

/** How many event ids are remembered, at least, to recognise an event that a second instance gets, too. */
const SEEN = 10_000;
/** How long to wait before a subscription is renewed that broke at once. */
const RETRY_MS = 1000;
/** How many sessions are remembered, at least, with their directory. */
const SESSIONS = 5_000;

// The name has a version, because a newer copy of this file may join the feed of an older one.
const FEEDS = Symbol.for("durable-stream.feeds.1");
const shared = /** @type {Record<symbol, any>} */ (/** @type {unknown} */ (globalThis));

/** A map that forgets the older half of its entries when it is full. @template V */
class Recent {
  /** @type {Map<string, V>} */
  #new = new Map();
  /** @type {Map<string, V>} */
  #old = new Map();
  #most;

  /** @param {number} most */
  constructor(most) {
    this.#most = most;
  }

  /** @param {string} key @returns {V | undefined} */
  get(key) {
    return this.#new.get(key) ?? this.#old.get(key);
  }

  /** @param {string} key @param {V} value */
  set(key, value) {
    if (this.#new.size >= this.#most) {
      this.#old = this.#new;
      this.#new = new Map();
    }
    this.#new.set(key, value);
  }
}

/** The feed of one process into one home. `users` counts the instances that listen. */
export class Feed {
  users = 0;
  #parts;
  /** @type {Recent<true>} */
  #seen = new Recent(SEEN);
  /** The sessions that this process has described to the sidecar. @type {Recent<true>} */
  #described = new Recent(SESSIONS);
  /** The directory of each session, recorded or not. @type {Recent<string>} */
  #places = new Recent(SESSIONS);
  /** The directory of each listening instance, if only that directory is recorded; else null. @type {Set<{directory: string | null}>} */
  #scopes = new Set();
  /** How many subscriptions get the events. */
  #hearing = 0;

  /**
   * @param {import("./plugin.js").Options} options
   * @param {NodeJS.ProcessEnv} env
   * @param {any} app the service's name, version and channel
   */
  constructor(options, env, app) {
    const about = () => ({
      project: null,
      directory: null,
      worktree: null,
      opencode_version: textOrNull(app.version),
      service: registration(env, app.channel),
    });
    const more = () => ({ scope: this.#directories() });
    this.#parts = newInstance(options, env, null, about, more, (_, copies) => copies);
    this.reserved = new Reserved(() => this.#parts.link.context);
    this.#parts.record?.(JSON.stringify({ t: Date.now(), hook: "__boot", input: { boot_id: bootId(), pid: process.pid } }));
  }

  get tools() {
    return this.#parts.tools;
  }

  get copies() {
    return this.#parts.copies;
  }

  /** @param {unknown} session @returns {string | undefined} the directory of a session, if an event named it */
  directoryOf(session) {
    return typeof session === "string" ? this.#places.get(session) : undefined;
  }

  /**
   * Listen to one instance's events, from this tick on.
   *
   * @param {any} ctx what OpenCode passes to `setup`
   * @param {string | null} directory record only the sessions below it; null for all
   * @returns {() => void} stop listening
   */
  listen(ctx, directory) {
    const scope = { directory };
    const stopping = new AbortController();
    this.#scopes.add(scope);
    void this.#follow(ctx, stopping.signal);
    return () => {
      this.#scopes.delete(scope);
      stopping.abort();
    };
  }

  /** The last instance has ended. */
  close() {
    this.#parts.capture.close();
    this.#parts.link.dispose();
  }

  /**
   * Take all events until the instance ends. A subscription that breaks or ends before is renewed. If no
   * other instance listened meanwhile, a gap is recorded.
   *
   * @param {any} ctx
   * @param {AbortSignal} stopping
   */
  async #follow(ctx, stopping) {
    for (let failures = 0; !stopping.aborted; failures += 1) {
      let hears = 0;
      try {
        const events = ctx.event.subscribe({ signal: stopping })[Symbol.asyncIterator]();
        // The subscription begins with the first call of `next`, which happens before `setup` returns.
        let next = events.next();
        this.#hearing += hears = 1;
        for (let got; !(got = await next).done; ) {
          next = events.next();
          failures = 0;
          this.take(got.value, ctx);
        }
      } catch {
        if (!stopping.aborted) this.#parts.counters.hook_errors += 1;
      }
      this.#hearing -= hears;
      if (!stopping.aborted) {
        if (failures === 0 && this.#hearing === 0) this.#parts.capture.unheard();
        if (failures > 0) await new Promise((resolve) => setTimeout(resolve, RETRY_MS).unref?.());
      }
    }
  }

  /**
   * Hand one event on; never throws.
   *
   * @param {any} event
   * @param {any} ctx
   */
  take(event, ctx) {
    try {
      if (!isKept(event)) return;
      const id = event.id;
      if (typeof id === "string") {
        if (this.#seen.get(id)) return;
        this.#seen.set(id, true);
      }
      const session = sessionOf(event);
      if (session !== null && !this.#isInScope(session, event)) return;
      this.#add("service", event);
      if (session !== null && this.#described.get(session) === undefined) this.#describe(session, event, ctx);
    } catch {
      this.#parts.counters.hook_errors += 1;
      this.#parts.capture.addLost();
    }
  }

  /** @param {string} hook @param {unknown} input */
  #add(hook, input) {
    const encoded = encodeItem(hook, Date.now(), input, null);
    if (!encoded) {
      this.#parts.capture.addLost();
      return;
    }
    if (encoded.cut) this.#parts.counters.cut += 1;
    this.#parts.record?.(encoded.text);
    this.#parts.capture.add(encoded.text, encoded.bytes);
  }

  /** @param {string} session @param {any} event */
  #isInScope(session, event) {
    const directories = this.#directories();
    // Some events do not say where they happened, but an earlier event of the session did.
    const directory = textOrNull(event.location?.directory);
    if (directory) this.#places.set(session, directory);
    const place = directory ?? this.#places.get(session);
    return directories.length === 0 || !place || directories.some((directory) => isBelow(place, directory));
  }

  /** The directories whose sessions are recorded; none for all. @returns {string[]} */
  #directories() {
    const directories = [...this.#scopes].map((scope) => scope.directory);
    return directories.some((directory) => directory === null) ? [] : /** @type {string[]} */ (directories);
  }

  /**
   * Send the description of a session that began before this process. The sidecar may not know the session, and no
   * service may be running when the sidecar reads the spool.
   *
   * @param {string} session
   * @param {any} event
   * @param {any} ctx
   */
  #describe(session, event, ctx) {
    this.#described.set(session, true);
    if (event.type === "session.created" || event.type === "session.deleted") return;
    Promise.resolve(ctx.session?.get?.({ sessionID: session }))
      .then((info) => {
        if (info) this.#add("service.session", info);
      })
      .catch(() => {
        // The session is gone, or this version has no such method. The sidecar asks the service's API, too.
        this.#parts.counters.call_errors += 1;
      });
  }
}

/**
 * Join the process's feed into a home, or start one.
 *
 * @param {import("./plugin.js").Options} options
 * @param {NodeJS.ProcessEnv} env
 * @param {any} app
 */
export function joinFeed(options, env, app) {
  const home = homeOf(options, env);
  /** @type {Map<string, Feed>} */
  const feeds = (shared[FEEDS] ??= new Map());
  const feed = feeds.get(home) ?? new Feed(options, env, app);
  feeds.set(home, feed);
  feed.users += 1;
  let ended = false;
  const leave = () => {
    if (ended) return;
    ended = true;
    feed.users -= 1;
    if (feed.users > 0) return;
    feeds.delete(home);
    feed.close();
  };
  return { feed, home, leave };
}

/**
 * Whether an event is sent to the sidecar. Everything that is numbered is, whatever its type. Of the events that are
 * only announced, pieces of answers and catalogs are not.
 *
 * @param {any} event
 */
export function isKept(event) {
  const type = event?.type;
  if (typeof type !== "string") return false;
  if (event.durable) return true;
  if (type.endsWith(".delta") || type.endsWith(".updated")) return false;
  if (type === "session.tool.progress") return typeof event.data?.metadata?.sessionID === "string";
  return sessionOf(event) !== null;
}

/** @param {any} event @returns {string | null} */
function sessionOf(event) {
  const data = event.data;
  return textOrNull(data?.sessionID) ?? textOrNull(data?.form?.sessionID);
}

/** @param {string} place @param {string} directory */
function isBelow(place, directory) {
  return place === directory || place.startsWith(directory.endsWith(path.sep) ? directory : directory + path.sep);
}

/**
 * The project to which a plugin file belongs, if the file is in a project's `.opencode` directory; null for a file of
 * the user.
 *
 * @param {string} file the URL of the plugin file
 * @param {NodeJS.ProcessEnv} env
 */
export function scopeOf(file, env) {
  if (!file.startsWith("file:")) return null;
  const place = fileURLToPath(file);
  const mark = place.lastIndexOf(`${path.sep}.opencode${path.sep}`);
  if (mark < 0) return null;
  const project = place.slice(0, mark);
  return project === path.resolve(env.HOME || os.homedir()) ? null : project;
}

/**
 * The file in which the service says where it listens.
 *
 * @param {NodeJS.ProcessEnv} env
 * @param {unknown} channel of its release
 */
export function registration(env, channel) {
  const state = env.XDG_STATE_HOME?.trim() || path.join(env.HOME || os.homedir(), ".local", "state");
  const main = typeof channel !== "string" || channel === "latest" || channel === "next";
  const name = main ? "service.json" : `service-${channel.replace(/[^a-zA-Z0-9._-]/g, "-")}.json`;
  return path.join(state, "opencode", name);
}
