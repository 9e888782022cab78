/**
 * OpenCode 2: `setup` tells the sidecar which service it is running in, and gives the model our tools. The sidecar
 * reads the service's own durable log, so no event passes through here.
 *
 * OpenCode 1 contains a core of OpenCode 2 that also calls `setup`, with a context without `event`. In that case, the
 * plugin's `server` records the session, and `setup` does nothing.
 */
import { randomBytes } from "node:crypto";
import os from "node:os";
import path from "node:path";
import { Calls } from "./calls.js";
import { newCounters } from "./counters.js";
import { Link } from "./link.js";
import { Starter, bootId, defaultHome, locate } from "./start.js";
import { ANSWER_MS, Tools, readTools } from "./tools.js";

// The announcements are process-wide, because OpenCode calls `setup` of each copy of the plugin for each directory.
const ANNOUNCED = Symbol.for("durable-stream.announced");
const shared = /** @type {Record<symbol, any>} */ (/** @type {unknown} */ (globalThis));

/** @typedef {{link: Link, tools: Tools, users: number}} Announcement */

/**
 * Make `setup`, which OpenCode 2 calls once for each directory.
 *
 * With DURABLE_STREAM=off it does nothing.
 *
 * @param {import("./plugin.js").Options} options
 * @returns {(ctx: any) => Promise<(() => Promise<void>) | undefined>} never rejects; the returned function ends the link
 */
export function announce(options) {
  return async function setup(ctx) {
    try {
      const env = options.env ?? process.env;
      if (env.DURABLE_STREAM?.trim().toLowerCase() === "off") return undefined;
      if (typeof ctx?.event?.subscribe !== "function") return undefined;
      const { link, leave } = join(options, env, ctx.app ?? {});
      const undo = await offer(ctx, link, options, env);
      return async () => {
        undo();
        await leave();
      };
    } catch {
      // OpenCode works without a link, but would report a broken plugin if this function threw an error.
      return undefined;
    }
  };
}

/**
 * Link this process to the home's sidecar, or share the existing link.
 *
 * @param {import("./plugin.js").Options} options
 * @param {NodeJS.ProcessEnv} env
 * @param {any} app the service's name, version and channel
 */
function join(options, env, app) {
  const home = path.resolve(options.home || env.DURABLE_STREAM_HOME || defaultHome(env));
  /** @type {Map<string, Announcement>} */
  const known = (shared[ANNOUNCED] ??= new Map());
  const there = known.get(home);
  const announced = there ?? { ...newLink(options, env, home, app), users: 0 };
  announced.users += 1;
  known.set(home, announced);
  let ended = false;
  const leave = async () => {
    if (ended) return;
    ended = true;
    announced.users -= 1;
    if (announced.users > 0) return;
    known.delete(home);
    announced.link.dispose();
  };
  return { link: announced, leave };
}

/**
 * Register the model's tools. A service that cannot accept them still records.
 *
 * @param {any} ctx
 * @param {Announcement} announced
 * @param {import("./plugin.js").Options} options
 * @param {NodeJS.ProcessEnv} env
 * @returns {Promise<() => void>} removes them
 */
async function offer(ctx, announced, options, env) {
  try {
    const home = path.resolve(options.home || env.DURABLE_STREAM_HOME || defaultHome(env));
    const definitions = readTools(home);
    if (Object.keys(definitions).length === 0 || typeof ctx.tool?.transform !== "function") return () => {};
    const made = await ctx.tool.transform((/** @type {any} */ tools) => {
      for (const [name, { description, args, required, wait_ms }] of Object.entries(definitions)) {
        tools.add({
          name,
          description,
          input: { type: "object", properties: args, required, additionalProperties: false },
          options: { codemode: false },
          execute: async (/** @type {any} */ given, /** @type {any} */ context) => {
            const text = await announced.tools.call(name, given ?? {}, context ?? {}, wait_ms ?? ANSWER_MS);
            return { content: [{ type: "text", text }] };
          },
        });
      }
    });
    return () => void made?.dispose?.();
  } catch {
    // This version of OpenCode 2 has another plugin API. `doctor` shows on which versions the tools were tested.
    return () => {};
  }
}

/**
 * @param {import("./plugin.js").Options} options
 * @param {NodeJS.ProcessEnv} env
 * @param {string} home
 * @param {any} app
 */
function newLink(options, env, home, app) {
  const counters = newCounters();
  options.onCounters?.(counters);
  const instance = randomBytes(8).toString("hex");
  /** @type {Tools} */
  const tools = new Tools({
    get live() {
      return link.live;
    },
    send: (text) => link.send(text),
  });
  /** @type {Link} */
  const link = new Link({
    tools,
    locate: () => locate(home),
    starter: new Starter({
      command: options.command ?? [env.DURABLE_STREAM_COMMAND || "durable-stream"],
      home,
      env,
      counters,
      spawn: options.spawn,
    }),
    WebSocket: options.WebSocket ?? globalThis.WebSocket,
    identity: () => ({
      boot_id: bootId(),
      instance,
      pid: process.pid,
      project: null,
      directory: null,
      worktree: null,
      opencode_version: textOrNull(app.version),
      last_seq: 0,
      service: registration(env, app.channel),
    }),
    calls: new Calls({ client: null, timeoutMs: options.callTimeoutMs ?? 30_000, counters }),
    counters,
    timings: {
      ackTimeoutMs: options.ackTimeoutMs ?? 3000,
      backoffMinMs: options.backoffMinMs ?? 50,
      backoffMaxMs: options.backoffMaxMs ?? 2000,
      refusedMs: options.refusedMs ?? 60_000,
    },
  });
  // This link never sends items, so no item waits for an ack and none can be lost.
  link.start({ welcomed() {}, acknowledged() {}, lost() {}, waitingMs: () => 0, settled: true });
  return { link, tools };
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

/** @param {unknown} value */
function textOrNull(value) {
  return typeof value === "string" ? value : null;
}
