/**
 * A sidecar for the shim's tests: the sidecar's side of link protocol 1, and
 * nothing behind it. It acknowledges automatically, unless set not to.
 */
import { createHmac, randomBytes } from "node:crypto";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { WebSocket, WebSocketServer } from "ws";
import { COUNTERS } from "../src/counters.js";
import { create } from "../src/plugin.js";

/** @typedef {import("../src/counters.js").Counters} Counters */
/** @typedef {{seq: number, item: {hook: string, t: number, input: any, output: any}}} Got */

const HANG_MS = 10_000;

/**
 * Wait for a condition; the limit is for a hang, not a measure.
 *
 * @template T
 * @param {() => T} condition
 * @param {string} what
 * @returns {Promise<NonNullable<T>>}
 */
export async function until(condition, what) {
  const end = Date.now() + HANG_MS;
  for (;;) {
    const value = condition();
    if (value) return /** @type {NonNullable<T>} */ (value);
    if (Date.now() > end) throw new Error(`never happened: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 2));
  }
}

/** @param {string} token @param {string} message */
export function hmac(token, message) {
  return createHmac("sha256", token).update(message).digest("hex");
}

export class FakeSidecar {
  /** @type {WebSocketServer | null} */
  server = null;
  port = 0;
  token = randomBytes(32).toString("hex");
  /** Every frame of every link, in order of arrival. @type {any[]} */
  frames = [];
  /** @type {Got[]} items in order of arrival, resends included */
  got = [];
  /** @type {Set<WebSocket>} */
  sockets = new Set();
  /** Highest seq acknowledged, by instance. @type {Map<string, number>} */
  acked = new Map();
  autoAck = true;
  window = 512;
  /** @type {object} */
  context = {};
  proofRight = true;
  protocol = 1;
  version = "0.1.0";
  /** Whether identify is answered with `bye unsupported`. */
  refuses = false;
  /** @type {number[]} first seqs that broke the order on a socket */
  disorder = [];

  /** @param {string} home */
  constructor(home) {
    this.home = home;
  }

  /** Listen, on the same port again after `stop`. */
  async start() {
    const server = new WebSocketServer({ host: "127.0.0.1", port: this.port, perMessageDeflate: false, maxPayload: 16 << 20 });
    this.server = server;
    await new Promise((resolve, reject) => server.on("listening", resolve).on("error", reject));
    this.port = /** @type {import("node:net").AddressInfo} */ (server.address()).port;
    server.on("connection", (socket) => this.#serve(socket));
    this.writeFiles();
  }

  writeFiles() {
    fs.mkdirSync(this.home, { recursive: true, mode: 0o700 });
    fs.writeFileSync(path.join(this.home, "token"), this.token, { mode: 0o600 });
    const about = { pid: process.pid, port: this.port, boot: "b", version: "0.1.0", protocol: 1, started_ms: 0 };
    fs.writeFileSync(path.join(this.home, "sidecar.json"), JSON.stringify(about), { mode: 0o600 });
  }

  /** Go away as a killed process does: no `bye`, no close frame. */
  async stop() {
    this.drop();
    await new Promise((resolve) => (this.server ? this.server.close(resolve) : resolve(undefined)));
    this.server = null;
  }

  drop() {
    for (const socket of this.sockets) socket.terminate();
    this.sockets.clear();
  }

  /** Acknowledge everything that arrived and was not yet. */
  ackAll() {
    this.autoAck = true;
    for (const socket of this.sockets) this.#ack(socket);
  }

  /** @param {object} frame to every link */
  send(frame) {
    for (const socket of this.sockets) socket.send(JSON.stringify(frame));
  }

  /** @param {string} type */
  ofType(type) {
    return this.frames.filter((frame) => frame.type === type);
  }

  /** Wait until `count` frames of a type came. @param {string} type @param {number} [count] */
  async arrived(type, count = 1) {
    await until(() => this.ofType(type).length >= count, `${count} ${type}`);
    return this.ofType(type);
  }

  /** @returns {number[]} seqs in order of arrival */
  get seqs() {
    return this.got.map(({ seq }) => seq);
  }

  /** @param {any} socket */
  #ack(socket) {
    if (!socket.instance || !socket.lastSeq) return;
    const seq = Math.max(socket.lastSeq, this.acked.get(socket.instance) ?? 0);
    this.acked.set(socket.instance, seq);
    socket.send(JSON.stringify({ type: "ack", seq }));
  }

  /** @param {any} socket */
  #serve(socket) {
    this.sockets.add(socket);
    socket.on("close", () => this.sockets.delete(socket));
    socket.on("error", () => {});
    socket.on("message", (/** @type {Buffer} */ data) => {
      const frame = JSON.parse(data.toString());
      this.frames.push(frame);
      if (frame.type === "hello") {
        socket.clientNonce = frame.nonce;
        socket.nonce = randomBytes(32).toString("hex");
        const token = this.proofRight ? this.token : "0".repeat(64);
        const proof = hmac(token, `sidecar:${this.port}:${frame.nonce}:${socket.nonce}`);
        socket.send(JSON.stringify({ type: "challenge", protocol: this.protocol, nonce: socket.nonce, proof, sidecar_version: this.version }));
      } else if (frame.type === "identify") {
        if (frame.proof !== hmac(this.token, `shim:${this.port}:${socket.clientNonce}:${socket.nonce}`)) {
          socket.close();
          return;
        }
        if (this.refuses) {
          socket.send(JSON.stringify({ type: "bye", reason: "unsupported", detail: "in words" }));
          socket.close(1008);
          return;
        }
        socket.instance = frame.instance;
        const acked_seq = this.acked.get(frame.instance) ?? 0;
        const { window, context } = this;
        socket.send(JSON.stringify({ type: "welcome", sidecar_boot: "b", sidecar_version: "0.1.0", acked_seq, window, context }));
      } else if (frame.type === "bye" && frame.reason === "upgrade") {
        socket.close();
      } else if (frame.type === "hooks") {
        if (frame.first_seq <= (socket.lastSeq ?? 0)) this.disorder.push(frame.first_seq);
        frame.items.forEach((/** @type {any} */ item, /** @type {number} */ i) => this.got.push({ seq: frame.first_seq + i, item }));
        socket.lastSeq = frame.first_seq + frame.items.length - 1;
        if (this.autoAck) this.#ack(socket);
      }
    });
  }
}

/**
 * A child process that is never made: keeps what would be spawned.
 *
 * @returns {{spawn: any, spawned: any[][]}}
 */
export function fakeSpawn() {
  /** @type {any[][]} */
  const spawned = [];
  const spawn = (/** @type {any[]} */ ...args) => {
    spawned.push(args);
    return { on() {}, unref() {} };
  };
  return { spawn, spawned };
}

/**
 * One home, one fake sidecar and any number of plugin instances, all ended with the test.
 *
 * @param {import("node:test").TestContext} t
 */
export function newBench(t) {
  const home = fs.mkdtempSync(path.join(os.tmpdir(), "shim-"));
  const sidecar = new FakeSidecar(home);
  /** @type {any[]} */
  const instances = [];
  const { spawn, spawned } = fakeSpawn();
  t.after(async () => {
    for (const hooks of instances) await hooks.dispose?.();
    await sidecar.stop();
    for (const file of [home, ...marks()]) fs.rmSync(file, { recursive: true, force: true });
  });
  /**
   * @param {import("../src/plugin.js").Options} [options]
   * @param {any} [input]
   * @returns {Promise<{hooks: any, counters: Counters}>}
   */
  const plugin = async (options = {}, input = INPUT) => {
    const hooks = await create({ home, command: ["none"], env: {}, WebSocket, spawn, backoffMinMs: 2, backoffMaxMs: 20, ...options })(input);
    instances.push(hooks);
    return { hooks, counters: /** @type {any} */ (hooks)[COUNTERS] };
  };
  /**
   * A plugin that is linked to the sidecar.
   *
   * @param {import("../src/plugin.js").Options} [options]
   * @param {any} [input]
   */
  const live = async (options, input) => {
    await sidecar.start();
    const made = await plugin(options, input);
    await until(() => made.counters.welcomes === 1, "live");
    return made;
  };
  const filesIn = (/** @type {string} */ dir) => {
    const isDirectory = fs.statSync(dir, { throwIfNoEntry: false })?.isDirectory();
    return isDirectory ? fs.readdirSync(dir).map((name) => path.join(dir, name)) : [];
  };
  const inSpool = () => (fs.statSync(home).isDirectory() ? filesIn(path.join(home, "spool")) : []);
  const spoolFiles = () => inSpool().filter((file) => file.endsWith(".jsonl"));
  /** What says that hooks were lost: in the spool's directory and beside the home. */
  const marks = () => {
    const beside = filesIn(path.dirname(home)).filter((file) => file.startsWith(`${home}.`));
    return [...inSpool(), ...beside].filter((file) => /-\d+\.lost\d*$/.test(file));
  };
  return { home, sidecar, plugin, live, spawned, spoolFiles, marks };
}

/** What OpenCode gives a plugin. */
export const INPUT = {
  project: { id: "prj" },
  directory: "/secret/dir",
  worktree: "/secret",
  client: {},
};

/** @param {number} n @param {string} [pad] */
export const someEvent = (n, pad = "") => ({ event: { id: `evt_${n}`, type: "session.idle", properties: { n, pad } } });

/** @param {string} file */
export function readSpool(file) {
  const [header, ...lines] = fs.readFileSync(file, "utf8").trimEnd().split("\n").map((line) => JSON.parse(line));
  return { header, lines };
}
