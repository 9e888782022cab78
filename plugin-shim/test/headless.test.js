import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { test } from "node:test";
import { headlessId, headlessMethods } from "../src/headless.js";
import { environmentLines } from "../src/identity.js";
import { locate } from "../src/start.js";

/** A server in the place of OpenCode's, which opens every directory but `/none`. */
const SERVER = `
  const { createServer } = require("node:http");
  createServer((request, answer) => {
    answer.statusCode = request.headers["x-opencode-directory"] === encodeURIComponent("/none") ? 500 : 200;
    if (!request.headers.authorization) answer.statusCode = 401;
    answer.end(JSON.stringify(process.env.DURABLE_STREAM_HEADLESS));
  }).listen(Number(process.argv[process.argv.indexOf("--port") + 1]), "127.0.0.1");`;

/** @param {NodeJS.ProcessEnv} env */
function bench(env) {
  /** @type {any[]} */
  const begun = [];
  const fake = (/** @type {string} */ file, /** @type {string[]} */ args, /** @type {any} */ options) => {
    begun.push({ file, args, options });
    return spawn(process.execPath, ["-e", SERVER, "x", ...args], options);
  };
  return { begun, methods: headlessMethods("/home/of/it", env, /** @type {any} */ (fake)) };
}

test("the one that asks starts it with its own variables, and opens the directory", async () => {
  const { begun, methods } = bench({ PATH: process.env.PATH, SECRET: "1", OPENCODE_PID: "1" });
  const { data } = await methods["headless.start"](null, { id: "one", directory: "/project" });
  try {
    assert.equal((await methods["headless.opened"](null, { id: "one" })).data, "");
    const [{ options }] = begun;
    assert.deepEqual([options.detached, options.cwd, options.stdio], [true, process.cwd(), "ignore"]);
    assert.deepEqual([options.env.SECRET, options.env.DURABLE_STREAM_HEADLESS, options.env.OPENCODE_PID], ["1", "one", undefined]);
  } finally {
    process.kill(data.pid, "SIGKILL");
  }
});

test("one that does not open the directory is killed, with the reason", async () => {
  const { methods } = bench({ PATH: process.env.PATH });
  const { data } = await methods["headless.start"](null, { id: "two", directory: "/none" });
  assert.match((await methods["headless.opened"](null, { id: "two" })).data, /did not open \/none/);
  const gone = () => {
    try {
      return process.kill(data.pid, 0) && false;
    } catch {
      return true;
    }
  };
  while (!gone()) await new Promise((done) => setTimeout(done, 5));
});

test("a tool of a headless OpenCode finds neither its id nor its password", async () => {
  const env = { DURABLE_STREAM_HEADLESS: "three", OPENCODE_SERVER_PASSWORD: "secret" };
  assert.equal(headlessId(env), "three");
  assert.deepEqual([env, headlessId(env), headlessId({})], [{}, "three", ""]);
  await assert.rejects(bench({}).methods["headless.end"](null, {}));
});

test("a socket, a display or a path counts, a terminal's name does not, and a relative place counts with its directory", () => {
  const own = environmentLines({ TERM: "xterm", PWD: "/a", TMUX: "1", OPENCODE_PID: "1" }, "/a");
  assert.deepEqual(own, []);
  for (const name of ["SSH_AUTH_SOCK", "DISPLAY", "WAYLAND_DISPLAY", "VIRTUAL_ENV", "OPENCODE_PERMISSION"]) {
    assert.deepEqual(environmentLines({ [name]: "/x" }, "/a"), [`${name}=/x`]);
  }
  for (const [name, value] of [["OPENCODE_CONFIG_DIR", "./cfg"], ["OPENCODE_CONFIG", "cfg.json"], ["PATH", "/bin:bin"]]) {
    assert.deepEqual(environmentLines({ [name]: value }, "/a"), [`${name}=${value}`, "=/a"]);
  }
});

test("in another network the sidecar is reached over its socket", async () => {
  const home = fs.mkdtempSync(path.join(os.tmpdir(), "home-"));
  fs.writeFileSync(path.join(home, "token"), "5".repeat(64), { mode: 0o600 });
  const about = { port: 5, pid: process.pid, pid_space: "", net_space: "net:[1]" };
  for (const [space, socket] of [["net:[1]", path.join(home, "sock")], ["", undefined]]) {
    fs.writeFileSync(path.join(home, "sidecar.json"), JSON.stringify({ ...about, net_space: space }), { mode: 0o600 });
    const found = /** @type {any} */ (await locate(home));
    if (process.platform === "linux") assert.deepEqual([found.port, found.socket], [5, socket]);
  }
  fs.rmSync(home, { recursive: true });
});
