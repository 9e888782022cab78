/**
 * Finds the home and its sidecar, and starts a sidecar if none is running.
 */
import { spawn as spawnChild } from "node:child_process";
import { randomBytes } from "node:crypto";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";

/** @typedef {import("./counters.js").Counters} Counters */

/** Longest pause between two starts, and longest time from a sidecar's start until it listens, ms. */
export const SPAWN_MAX_MS = 5000;
/** Pause before the third start; there is none before the second. */
const SPAWN_MIN_MS = 250;
/** How often one process asks older sidecars to make room, which is useless if it starts no newer sidecar itself. */
const MAX_ASKS = 3;
const OWN_VARIABLES = new Set(["OPENCODE_SERVER_PASSWORD", "OPENCODE_SERVER_USERNAME", "OPENCODE_PID", "DURABLE_STREAM_HEADLESS"]);

// These values are process-wide, because one process may contain several copies and versions of this plugin.
const BOOT = Symbol.for("durable-stream.boot");
const STARTS = Symbol.for("durable-stream.starts");
const ASKS = Symbol.for("durable-stream.asks");
const shared = /** @type {Record<symbol, any>} */ (/** @type {unknown} */ (globalThis));

/** @returns {string} 32 hex chars, the same for the life of this process */
export function bootId() {
  shared[BOOT] ??= randomBytes(16).toString("hex");
  return shared[BOOT];
}

/**
 * The platform's data directory, as the sidecar computes it.
 *
 * @param {NodeJS.ProcessEnv} env
 */
export function defaultHome(env) {
  const user = env.HOME || os.homedir();
  if (env.XDG_DATA_HOME?.trim() && process.platform !== "win32") return path.join(env.XDG_DATA_HOME, "durable-stream");
  if (process.platform === "darwin") return path.join(user, "Library", "Application Support", "durable-stream");
  if (process.platform === "win32") {
    const local = env.LOCALAPPDATA || path.join(os.homedir(), "AppData", "Local");
    return path.join(local, "durable-stream", "durable-stream");
  }
  return path.join(user, ".local", "share", "durable-stream");
}

/**
 * @typedef {object} Place
 * @property {number} port
 * @property {string} token
 * @property {string} [socket] the sidecar's socket, if its port is not that of this process's network
 */

/**
 * Where the sidecar of a home listens. "absent": no sidecar is running, so start one.
 * "unsafe": the home's files cannot be trusted, so neither connect nor start a sidecar.
 *
 * @param {string} home
 * @returns {Promise<Place | "absent" | "unsafe">} never rejects
 */
export async function locate(home) {
  try {
    const token = await readToken(home);
    const about = JSON.parse(await readOwn(path.join(home, "sidecar.json")));
    const { port, pid } = about;
    if (!Number.isInteger(port) || port < 1 || port > 65535) return "absent";
    // A pid of another namespace says nothing. If no sidecar listens, one is started anyway.
    if (isOurs("pid", about.pid_space) && !isAlive(pid)) return "absent";
    return { port, token, ...(isOurs("net", about.net_space) ? {} : { socket: path.join(home, "sock") }) };
  } catch (error) {
    return error instanceof UnsafeFile || codeOf(error) === "ELOOP" ? "unsafe" : "absent";
  }
}

/**
 * Whether a namespace is this process's own. Without namespaces, there is only one.
 *
 * @param {string} kind
 * @param {unknown} name
 */
function isOurs(kind, name) {
  try {
    return !name || fs.readlinkSync(`/proc/self/ns/${kind}`) === name;
  } catch {
    return true; // The system has none, or hides them.
  }
}

class UnsafeFile extends Error {}

/**
 * The home's token. Rejects if there is none, or if another user could have written or read it.
 *
 * @param {string} home
 */
export async function readToken(home) {
  await checkOwner(home);
  const file = path.join(home, "token");
  const token = (await readOwn(file)).trim();
  if (!/^[0-9a-f]{64}$/.test(token)) throw new UnsafeFile(file);
  return token;
}

/**
 * Refuse another user's home, even if we can write there, as root can.
 *
 * @param {string} home
 */
async function checkOwner(home) {
  if (process.getuid && (await fs.promises.stat(home)).uid !== process.getuid()) throw new UnsafeFile(home);
}

/**
 * Read a file that only we could have written and can read.
 *
 * @param {string} file
 */
async function readOwn(file) {
  const handle = await fs.promises.open(file, fs.constants.O_RDONLY | (fs.constants.O_NOFOLLOW ?? 0));
  try {
    const about = await handle.stat();
    const foreign = process.getuid ? about.uid !== process.getuid() || (about.mode & 0o077) !== 0 : false;
    if (!about.isFile() || foreign) throw new UnsafeFile(file);
    return await handle.readFile("utf8");
  } finally {
    await handle.close();
  }
}

/** @param {unknown} pid */
function isAlive(pid) {
  if (typeof pid !== "number" || !Number.isInteger(pid) || pid < 1) return false;
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return codeOf(error) === "EPERM";
  }
}

/** @param {unknown} error */
function codeOf(error) {
  return /** @type {NodeJS.ErrnoException} */ (error)?.code;
}

/**
 * Decides when the next start of a sidecar is due. The class is pure: the clock is a parameter, in ms.
 *
 * The first start is due at once. A second start is also due at once if the first sidecar
 * has ended, because it was killed or another sidecar was still exiting. After that, the
 * pauses double. Progress resets the count, so a sidecar killed after useful work is
 * replaced at once.
 */
export class Pace {
  #starts = 0;
  #dueMs = -Infinity;
  #runsUntilMs = -Infinity;

  /** @param {number} nowMs */
  isDue(nowMs) {
    return nowMs >= this.#dueMs && nowMs >= this.#runsUntilMs;
  }

  /** @param {number} nowMs */
  started(nowMs) {
    this.#starts += 1;
    const pauseMs = this.#starts < 2 ? 0 : SPAWN_MIN_MS * 2 ** Math.min(this.#starts - 2, 10);
    this.#dueMs = nowMs + Math.min(SPAWN_MAX_MS, pauseMs);
    // Start no second sidecar while the first one may still be starting.
    this.#runsUntilMs = nowMs + SPAWN_MAX_MS;
  }

  /** The most recently started sidecar has ended. */
  ended() {
    this.#runsUntilMs = -Infinity;
  }

  /** A sidecar acknowledged something. */
  progressed() {
    this.#starts = 0;
    this.#dueMs = -Infinity;
  }
}

/** Starts sidecars for one instance; all instances of the process share the pace. */
export class Starter {
  #how;

  /**
   * @param {object} how
   * @param {string[]} how.command
   * @param {string} how.home
   * @param {NodeJS.ProcessEnv} how.env
   * @param {Counters} how.counters
   * @param {typeof spawnChild} [how.spawn]
   */
  constructor(how) {
    this.#how = how;
  }

  /** @returns {Pace} the pace of this home */
  get #pace() {
    const paces = (shared[STARTS] ??= new Map());
    if (!paces.has(this.#how.home)) paces.set(this.#how.home, new Pace());
    return paces.get(this.#how.home);
  }

  /** @returns {Map<string, number>} how often older sidecars were asked, by home */
  get #asks() {
    return (shared[ASKS] ??= new Map());
  }

  /** A sidecar did useful work, so the next start is due at once. */
  progressed() {
    this.#pace.progressed();
  }

  /** True if an older sidecar should be asked to make room; counts as asking. */
  mayAsk() {
    const asked = this.#asks.get(this.#how.home) ?? 0;
    this.#asks.set(this.#how.home, asked + 1);
    return asked < MAX_ASKS;
  }

  /** A sidecar as new as this plugin is running. So the one that we start is new enough, and asking is useful again. */
  fits() {
    this.#asks.delete(this.#how.home);
  }

  /**
   * Start a sidecar if one is due. The sidecar is detached, so it outlives OpenCode and never
   * touches OpenCode's terminal. If another process was faster, our sidecar exits; if an
   * older sidecar is exiting, our sidecar waits for the older one to end.
   */
  start() {
    const { command, home, env, counters, spawn = spawnChild } = this.#how;
    const pace = this.#pace;
    const nowMs = performance.now();
    if (!pace.isDue(nowMs)) return;
    pace.started(nowMs);
    counters.spawns += 1;
    try {
      const child = spawn(command[0], [...command.slice(1), "--home", home, "serve", "--idle-exit"], {
        cwd: "/",
        // Only these are this OpenCode's own. With the others, the sidecar may start a headless one in its place.
        env: Object.fromEntries(Object.entries(env).filter(([name]) => !OWN_VARIABLES.has(name))),
        detached: true,
        stdio: "ignore",
        windowsHide: true,
      });
      child.on("exit", () => pace.ended());
      child.on("error", () => {
        counters.spawn_failures += 1;
        pace.ended();
      });
      child.unref();
    } catch {
      counters.spawn_failures += 1;
      pace.ended();
    }
  }
}
