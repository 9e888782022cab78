/** What OpenCode sees: one export, hooks that never throw, wait or print, and a sidecar started once. */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { newCounters } from "../src/counters.js";
import { Starter } from "../src/start.js";
import { SHIM_VERSION } from "../src/version.js";
import { fakeSpawn, newBench, someEvent, until } from "./support.js";

const HERE = path.dirname(fileURLToPath(import.meta.url));

test("the entry has exactly one export, which OpenCode 1 and 2 load", async () => {
  const entry = await import("../src/index.js");
  assert.deepEqual(Object.keys(entry), ["default"]);
  const { id, server, setup, ...more } = entry.default;
  assert.deepEqual([typeof id, typeof server, typeof setup, more], ["string", "function", "function", {}]);
});

test("the version is package.json's", () => {
  const { version } = JSON.parse(fs.readFileSync(path.join(HERE, "..", "package.json"), "utf8"));
  assert.equal(SHIM_VERSION, version);
});

test("only the hooks of the contract are subscribed", async (t) => {
  const { hooks } = await newBench(t).plugin();
  const contract = ["chat.message", "command.execute.before", "config", "dispose", "event", "experimental.session.compacting", "tool", "tool.definition", "tool.execute.after", "tool.execute.before"];
  assert.deepEqual(Object.keys(hooks).sort(), contract);
});

test("DURABLE_STREAM=off: no hooks, no link, no files", async (t) => {
  const { home, plugin, sidecar } = newBench(t);
  const { hooks } = await plugin({ env: { DURABLE_STREAM: "off" } });
  assert.deepEqual(hooks, {});
  assert.deepEqual(fs.readdirSync(home), []);
  assert.equal(sidecar.frames.length, 0);
});

test("every hook survives whatever it is given", async (t) => {
  const { plugin } = newBench(t);
  const { hooks, counters } = await plugin();
  const hostile = () =>
    new Proxy({}, {
      get() {
        throw new Error("get");
      },
      ownKeys() {
        throw new Error("keys");
      },
    });
  const toJSON = { toJSON: () => assert.fail("toJSON") };
  const inputs = [undefined, null, 1, "x", hostile(), { event: hostile() }, { event: toJSON }, { event: null }, () => {}, Symbol("s"), 1n];
  for (const name of ["event", "chat.message", "tool.execute.before", "tool.execute.after"]) {
    for (const input of inputs) {
      for (const output of [undefined, hostile()]) await hooks[name](input, output);
    }
  }
  await hooks.dispose(hostile());
  assert.ok(counters.lost_unserialisable > 0);
  assert.equal(counters.hook_errors, 0, "they are lost items, reported in gaps, not errors");
});

test("a plugin input of any shape gives hooks", async (t) => {
  const { plugin } = newBench(t);
  for (const input of [undefined, null, {}, { project: null, client: null }]) {
    const { hooks } = await plugin({}, input);
    assert.equal(typeof hooks.event, "function");
  }
});

test("without any WebSocket the hooks still spool", async (t) => {
  const { sidecar, plugin, spoolFiles } = newBench(t);
  await sidecar.start();
  const { hooks, counters } = await plugin({
    WebSocket: class {
      constructor() {
        throw new Error("no sockets here");
      }
    },
  });
  await until(() => counters.connects >= 2, "tried");
  hooks.event(someEvent(1));
  assert.equal(spoolFiles().length, 1);
});

test("no output and a prompt exit, with hooks that fail in every way", () => {
  const home = fs.mkdtempSync(path.join(os.tmpdir(), "shim-"));
  fs.writeFileSync(path.join(home, "spool"), "in the way");
  const program = `
    const plugin = (await import(${JSON.stringify(path.join(HERE, "..", "src", "index.js"))})).default;
    const hooks = await plugin.server({ client: {} });
    const circular = {}; circular.self = circular;
    for (let i = 0; i < 100; i++) { hooks.event({ event: { type: "x", i } }); hooks.event(circular); }
    hooks["chat.message"](); hooks["tool.execute.after"](1n);
    await new Promise((resolve) => setTimeout(resolve, 100));
    if (process.argv.includes("dispose")) await hooks.dispose();
  `;
  for (const last of ["dispose", "none"]) {
    const child = spawnSync(process.execPath, ["--input-type=module", "-e", program, last], {
      env: { PATH: process.env.PATH, DURABLE_STREAM_HOME: home, DURABLE_STREAM_COMMAND: path.join(home, "no-such-command") },
      encoding: "utf8",
      timeout: 10_000,
    });
    assert.deepEqual([child.status, child.stdout, child.stderr], [0, "", ""]);
  }
  fs.rmSync(home, { recursive: true });
});

test("DURABLE_STREAM_RECORD gets every hook as a line, deltas too", async (t) => {
  const { home, plugin } = newBench(t);
  const file = path.join(home, "recording.jsonl");
  const { hooks } = await plugin({ env: { DURABLE_STREAM_RECORD: file } });
  hooks.event(someEvent(1));
  hooks.event({ event: { type: "message.part.delta" } });
  hooks["chat.message"]({ sessionID: "s" }, { parts: [] });
  const lines = fs.readFileSync(file, "utf8").trimEnd().split("\n").map((line) => JSON.parse(line));
  assert.deepEqual(lines.map(({ hook }) => hook), ["event", "event", "chat.message"]);
  assert.deepEqual(Object.keys(lines[2]).sort(), ["hook", "input", "output", "t"]);
  assert.equal(fs.statSync(file).mode & 0o777, 0o600);
});

test("one start while one is under way, over all instances, and the command line of the contract", async (t) => {
  const { home, plugin, spawned } = newBench(t);
  const env = { PATH: "/bin", OPENCODE_SERVER_PASSWORD: "pw" };
  const one = await plugin({ command: ["/abs/durable-stream", "-x"], env });
  const two = await plugin({ command: ["/abs/durable-stream", "-x"], env });
  await until(() => spawned.length === 1, "started");
  for (const { hooks } of [one, two]) hooks.event(someEvent(1));
  await until(() => one.counters.spawns + two.counters.spawns === 1, "counted once");
  const [file, args, options] = spawned[0];
  assert.deepEqual([file, ...args], ["/abs/durable-stream", "-x", "--home", home, "serve", "--idle-exit"]);
  assert.equal(options.detached, true);
  assert.equal(options.stdio, "ignore");
  assert.deepEqual(options.env, { PATH: "/bin" });
});

test("a dead pid and a refused port both lead to a start; a dead pid is not knocked at", async (t) => {
  for (const [about, connects] of /** @type {[object, number][]} */ ([
    [{ pid: 2 ** 22 + 1, port: 9 }, 0],
    [{ pid: process.pid, port: 1 }, 1],
  ])) {
    const { home, sidecar, plugin, spawned } = newBench(t);
    sidecar.writeFiles();
    fs.writeFileSync(path.join(home, "sidecar.json"), JSON.stringify(about));
    const { counters } = await plugin();
    await until(() => spawned.length === 1, "started");
    assert.equal(Math.min(counters.connects, 1), connects);
  }
});

test("a sidecar that cannot be started is counted, never thrown", async (t) => {
  const { home } = newBench(t);
  const counters = newCounters();
  const how = { command: ["/no/such/command"], home, env: {}, counters };
  new Starter(how).start();
  await until(() => counters.spawn_failures === 1, "ENOENT");
  new Starter({ ...how, command: [/** @type {any} */ (null)] }).start();
  assert.equal(counters.spawn_failures, 2, "at once a second time, and a spawn that throws is counted too");
  new Starter({ ...how, spawn: fakeSpawn().spawn }).start();
  assert.equal(counters.spawns, 2, "a third time not so soon");
});

test("a home of another user is neither linked, started for, nor written into, and OpenCode does not notice", async (t) => {
  if (process.getuid?.() !== 0) {
    // Only root can make a home of another user; it is reported instead by a home it cannot own: the root directory.
    const { counters } = await newBench(t).plugin({ home: "/" });
    await until(() => counters.unsafe_files >= 2, "refused");
    return;
  }
  const { home, sidecar, plugin, spawned, spoolFiles } = newBench(t);
  await sidecar.start();
  fs.chownSync(home, 65534, 65534);
  const { hooks, counters } = await plugin();
  for (let n = 1; n <= 50; n += 1) await hooks.event(someEvent(n));
  await until(() => counters.unsafe_files >= 2, "refused");
  assert.deepEqual([sidecar.frames.length, spawned.length, spoolFiles().length, counters.hook_errors], [0, 0, 0, 0]);
  assert.deepEqual(fs.readdirSync(home).sort(), ["sidecar.json", "token"]);
  fs.chownSync(home, 0, 0);
  await until(() => counters.acked === 50, "nothing was lost meanwhile");
});
