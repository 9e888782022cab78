/**
 * The parts of one instance of the plugin, in either OpenCode: what is recorded goes to the link or to the spool.
 */
import { randomBytes } from "node:crypto";
import fs from "node:fs";
import path from "node:path";
import { Calls } from "./calls.js";
import { Capture } from "./capture.js";
import { Copies } from "./copies.js";
import { newCounters } from "./counters.js";
import { pidSpace } from "./identity.js";
import { Link } from "./link.js";
import { Mark } from "./mark.js";
import { SPOOL_FORMAT, Spool } from "./spool.js";
import { Starter, bootId, defaultHome, locate } from "./start.js";
import { Tools } from "./tools.js";
import { SHIM_VERSION } from "./version.js";

const MIB = 1024 * 1024;

/** @param {import("./plugin.js").Options} options @param {NodeJS.ProcessEnv} env */
export function homeOf(options, env) {
  return path.resolve(options.home || env.DURABLE_STREAM_HOME || defaultHome(env));
}

/** @param {NodeJS.ProcessEnv} env */
export function isOff(env) {
  return env.DURABLE_STREAM?.trim().toLowerCase() === "off";
}

/**
 * Make the parts, and open the link in a later tick.
 *
 * @param {import("./plugin.js").Options} options
 * @param {NodeJS.ProcessEnv} env
 * @param {any} client OpenCode's, for the sidecar's calls; null if there is none
 * @param {() => object} describe what the spool's header and the link say of this OpenCode
 * @param {(token: string) => object} more what only the link says
 * @param {(home: string, copies: Copies["methods"]) => Record<string, any>} methods what the sidecar may call beside
 *   the client's methods
 */
export function newInstance(options, env, client, describe, more = () => ({}), methods = () => ({})) {
  const counters = newCounters();
  options.onCounters?.(counters);
  const home = homeOf(options, env);
  const instance = randomBytes(8).toString("hex");
  const about = () => ({ boot_id: bootId(), instance, pid: process.pid, ...describe() });
  const startedMs = Date.now();
  const command = options.command ?? [env.DURABLE_STREAM_COMMAND || "durable-stream"];
  const { ackTimeoutMs = 3000, backoffMinMs = 50, backoffMaxMs = 2000, refusedMs = 60_000 } = options;
  const copies = new Copies(env, options.spawn);
  /** @type {Link} */
  const link = new Link({
    tools: { answered: (frame) => tools.answered(frame), lost: () => (tools.lost(), copies.lost()) },
    locate: () => locate(home),
    starter: new Starter({ command, home, env, counters, spawn: options.spawn }),
    WebSocket: options.WebSocket ?? globalThis.WebSocket,
    identity: (token) => ({ ...about(), ...more(token), last_seq: capture.lastSeq }),
    calls: new Calls({ client, more: methods(home, copies.methods), timeoutMs: options.callTimeoutMs ?? 30_000, counters }),
    counters,
    timings: { ackTimeoutMs, backoffMinMs, backoffMaxMs, refusedMs },
  });
  const tools = new Tools(link, options.restartMs);
  const spool = new Spool({
    dir: path.join(home, "spool"),
    name: `${bootId()}-${instance}.jsonl`,
    header: () => ({ spool: SPOOL_FORMAT, started_ms: startedMs, shim_version: SHIM_VERSION, pid_space: pidSpace(), ...about() }),
    limit: options.spoolLimit ?? 256 * MIB,
    counters,
  });
  const mark = new Mark(home, `${bootId()}-${instance}-${process.pid}.lost`);
  const capture = new Capture({ spool, mark, memoryLimit: options.memoryLimit ?? 32 * MIB, counters, link });
  link.start(capture);
  return { home, counters, tools, link, capture, copies, record: openRecording(env.DURABLE_STREAM_RECORD, counters) };
}

/**
 * The debug option DURABLE_STREAM_RECORD: writes every item as a line that `play` can replay.
 *
 * @param {string | undefined} file
 * @param {import("./counters.js").Counters} counters
 * @returns {((text: string) => void) | null}
 */
function openRecording(file, counters) {
  if (!file) return null;
  return (text) => {
    try {
      fs.appendFileSync(file, `${text}\n`, { mode: 0o600 });
    } catch {
      counters.record_failures += 1;
    }
  };
}

/** @param {unknown} value */
export function textOrNull(value) {
  return typeof value === "string" && value !== "" ? value : null;
}
