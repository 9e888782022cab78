/**
 * Finding the home and its sidecar, and starting one where none runs.
 */
import { spawn as spawnChild } from "node:child_process";
import { randomBytes } from "node:crypto";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";

/** @typedef {import("./counters.js").Counters} Counters */

/** The least time between two starts in one process, ms. */
export const SPAWN_EVERY_MS = 5000;

// Process-wide, because one process may hold several copies and versions of this plugin.
const BOOT = Symbol.for("durable-stream.boot");
const SPAWN = Symbol.for("durable-stream.spawn");
const shared = /** @type {Record<symbol, any>} */ (/** @type {unknown} */ (globalThis));

/** @returns {string} 32 hex chars, one for the life of this process */
export function bootId() {
  shared[BOOT] ??= randomBytes(16).toString("hex");
  return shared[BOOT];
}

/**
 * The platform's data directory, the same that the sidecar computes.
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
 */

/**
 * Where the sidecar of a home listens. "absent": none runs, start one.
 * "unsafe": its files cannot be trusted, so neither link nor start.
 *
 * @param {string} home
 * @returns {Promise<Place | "absent" | "unsafe">} never rejects
 */
export async function locate(home) {
  try {
    const token = (await readOwn(path.join(home, "token"))).trim();
    const about = JSON.parse(await readOwn(path.join(home, "sidecar.json")));
    if (!/^[0-9a-f]{64}$/.test(token)) return "unsafe";
    const { port, pid } = about;
    if (!Number.isInteger(port) || port < 1 || port > 65535 || !isAlive(pid)) return "absent";
    return { port, token };
  } catch (error) {
    return error instanceof UnsafeFile || codeOf(error) === "ELOOP" ? "unsafe" : "absent";
  }
}

class UnsafeFile extends Error {}

/**
 * A file that only we could have written and can read.
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
 * Start a sidecar, detached: it outlives OpenCode and never touches its
 * terminal. At most once in `SPAWN_EVERY_MS` a process, over all instances; if
 * another process was faster, ours ends by itself.
 *
 * @param {object} how
 * @param {string[]} how.command
 * @param {string} how.home
 * @param {NodeJS.ProcessEnv} how.env
 * @param {Counters} how.counters
 * @param {typeof spawnChild} [how.spawn]
 */
export function startSidecar({ command, home, env, counters, spawn = spawnChild }) {
  const nowMs = performance.now();
  const last = (shared[SPAWN] ??= { atMs: -Infinity });
  if (nowMs - last.atMs < SPAWN_EVERY_MS) return;
  last.atMs = nowMs;
  counters.spawns += 1;
  try {
    const child = spawn(command[0], [...command.slice(1), "--home", home, "serve", "--idle-exit"], {
      cwd: "/",
      // OpenCode's own variables (its server's password among them) are not the sidecar's business.
      env: Object.fromEntries(Object.entries(env).filter(([name]) => !name.startsWith("OPENCODE_"))),
      detached: true,
      stdio: "ignore",
      windowsHide: true,
    });
    child.on("error", () => {
      counters.spawn_failures += 1;
    });
    child.unref();
  } catch {
    counters.spawn_failures += 1;
  }
}
