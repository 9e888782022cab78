/**
 * The headless OpenCode 1, in which background work runs: the OpenCode that asks for work starts it, as its own child.
 *
 * So it has what the asking one has: variables, directory, sandbox and limits. It is detached and outlives its starter.
 * The sidecar reaches it only through its own plugin. Until it opens a directory, no plugin runs in it, and nobody
 * could end it. So its starter opens the first directory, or else kills it.
 */
import { spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import fs from "node:fs";
import net from "node:net";
import path from "node:path";
import { inode, startOf, sees } from "./identity.js";

/** How long it may take until it serves, and until it opens its first directory, ms. */
const START_MS = 60_000;
const POLL_MS = 50;
const ANSWER_MS = 2000;
/** A headless OpenCode ends itself if no sidecar was there for this long, ms. */
const ALONE_MS = 600_000;

// Process-wide, because one process may contain several copies of this plugin.
const OWN = Symbol.for("durable-stream.headless");
const shared = /** @type {Record<symbol, any>} */ (/** @type {unknown} */ (globalThis));

/**
 * @param {NodeJS.ProcessEnv} env
 * @returns {{id: string, links: import("./link.js").Link[]} | undefined} nothing in a person's own OpenCode
 */
function own(env) {
  const found = (shared[OWN] ??= new WeakMap());
  if (env.DURABLE_STREAM_HEADLESS) found.set(env, { id: env.DURABLE_STREAM_HEADLESS, links: [] });
  // A tool could print these, and an OpenCode that a tool starts must not take itself for this one.
  if (found.has(env)) for (const name of ["DURABLE_STREAM_HEADLESS", "OPENCODE_SERVER_PASSWORD"]) delete env[name];
  return found.get(env);
}

/** The id that this OpenCode was started with to be headless; else empty. @param {NodeJS.ProcessEnv} env */
export function headlessId(env) {
  return own(env)?.id ?? "";
}

/**
 * End this process when none of its instances was linked for too long.
 *
 * @param {NodeJS.ProcessEnv} env
 * @param {import("./link.js").Link} link
 */
export function endIfAlone(env, link) {
  const links = own(env)?.links ?? [];
  if (links.push(link) > 1) return;
  let lastMs = performance.now();
  const look = () => {
    if (links.some((each) => each.live)) lastMs = performance.now();
    else if (performance.now() - lastMs > ALONE_MS) process.kill(process.pid, "SIGTERM");
  };
  setInterval(look, ALONE_MS / 60).unref();
}

/**
 * The methods that the sidecar may call beside OpenCode's own.
 *
 * @param {string} home
 * @param {NodeJS.ProcessEnv} env
 * @param {typeof spawn} [spawnChild]
 * @returns {Record<string, (client: any, args: any) => Promise<any>>}
 */
export function headlessMethods(home, env, spawnChild = spawn) {
  return {
    ping: async () => ({ data: null }),
    /** What tells a process from a later one with its pid; empty if this process may not look into it. */
    "headless.sees": async (_, { pid }) => ({ data: sees(pid) ? startOf(pid) : "" }),
    "headless.start": async (_, wanted) => ({ data: await start(home, env, wanted, spawnChild) }),
    "headless.opened": async (_, { id }) => ({ data: await started.get(id) }),
    "headless.end": async () => {
      if (!headlessId(env)) throw new Error("this OpenCode is a person's own");
      setTimeout(() => process.kill(process.pid, "SIGTERM"), POLL_MS);
      return { data: null };
    },
  };
}

/** What became of each start: empty if the directory is open, else why not. @type {Map<string, Promise<string>>} */
const started = new Map();

/** The program that this process runs, with the arguments that must stand before OpenCode's own. */
export function program() {
  const script = process.argv[1] ?? "";
  const isCompiled = script.startsWith("/$bunfs/") || script.startsWith("B:/~BUN/");
  let file = process.execPath;
  // A dynamic loader was started, which got the program as an argument.
  if (path.basename(file).startsWith("ld-") && path.isAbsolute(process.argv0)) return [file, process.argv0];
  // After an update, another program or none is at that path. This one still opens the program that runs.
  const running = `/proc/${process.pid}/exe`;
  if (fs.existsSync(running) && inode(file) !== inode(running)) file = running;
  return isCompiled ? [file] : [file, script];
}

/**
 * Start `opencode serve`, and open a directory in it while the sidecar notes its process.
 *
 * @param {string} home
 * @param {NodeJS.ProcessEnv} variables
 * @param {{id: string, directory: string}} wanted
 * @param {typeof spawn} spawnChild
 */
async function start(home, variables, { id, directory }, spawnChild) {
  const [port, password] = [await freePort(), randomBytes(24).toString("hex")];
  /** @type {NodeJS.ProcessEnv} */
  const env = { ...variables, OPENCODE_SERVER_PASSWORD: password, DURABLE_STREAM_HOME: home, DURABLE_STREAM_HEADLESS: id };
  delete env.OPENCODE; // it sets the variable for what it starts, which distinguishes that from OpenCode itself
  delete env.OPENCODE_PID;
  delete env.OPENCODE_SERVER_USERNAME;
  if (process.argv.includes("acp")) delete env.OPENCODE_CLIENT; // it set the variable for itself
  const [file, ...before] = program();
  const child = spawnChild(file, [...before, "serve", "--hostname", "127.0.0.1", "--port", String(port)], {
    cwd: process.cwd(),
    env,
    detached: true,
    stdio: "ignore",
  });
  child.unref();
  /** @type {string} */
  let ended = "";
  child.once("error", (error) => (ended = error.message));
  child.once("exit", (code, signal) => (ended = `it ended with ${signal ?? `code ${code}`}`));
  const pid = child.pid ?? 0;
  started.set(id, open(port, password, directory, () => ended).then((failed) => {
    if (failed && pid) endAll(pid);
    return failed;
  }));
  return { pid, start: startOf(pid) };
}

/**
 * @param {number} port
 * @param {string} password
 * @param {string} directory
 * @param {() => string} ended
 * @returns {Promise<string>} empty if the directory is open, else why not
 */
async function open(port, password, directory, ended) {
  const untilMs = performance.now() + START_MS;
  while ((await ask(port, password, "/global/health", "", ANSWER_MS)) !== 200) {
    if (ended()) return ended();
    if (performance.now() > untilMs) return "it did not answer";
    await new Promise((done) => setTimeout(done, POLL_MS));
  }
  const status = await ask(port, password, "/session?limit=1", directory, START_MS);
  return status === 200 ? "" : ended() || `it did not open ${directory} (HTTP status ${status})`;
}

/**
 * Send a request without a library, because those would send it through a proxy of the user's.
 *
 * @param {number} port
 * @param {string} password
 * @param {string} route
 * @param {string} directory
 * @param {number} ms
 * @returns {Promise<number>} the HTTP status; 0 if there was no answer
 */
function ask(port, password, route, directory, ms) {
  const login = Buffer.from(`opencode:${password}`).toString("base64");
  const where = directory ? `x-opencode-directory: ${encodeURIComponent(directory)}\r\n` : "";
  const head = `GET ${route} HTTP/1.1\r\nHost: 127.0.0.1:${port}\r\nAuthorization: Basic ${login}\r\n${where}`;
  return new Promise((done) => {
    const socket = net.connect(port, "127.0.0.1", () => socket.write(`${head}Connection: close\r\n\r\n`));
    let answer = "";
    const end = () => {
      socket.destroy();
      done(Number(answer.match(/^HTTP\/1\.\d (\d{3})/)?.[1] ?? 0));
    };
    socket.setTimeout(ms, end);
    socket.on("data", (data) => (answer += data) && answer.includes("\r\n") && end());
    socket.on("error", end);
    socket.on("close", end);
  });
}

/** @returns {Promise<number>} */
function freePort() {
  return new Promise((done, failed) => {
    const server = net.createServer().once("error", failed);
    server.listen(0, "127.0.0.1", () => {
      const { port } = /** @type {net.AddressInfo} */ (server.address());
      server.close(() => done(port));
    });
  });
}

/** Kill a process that we started, with all that it started. @param {number} pid */
export function endAll(pid) {
  try {
    process.kill(-pid, "SIGKILL");
  } catch {
    // It has ended.
  }
}
