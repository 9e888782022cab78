/** OpenCode 2: setup announces its service on one link of the process, and does nothing where it is not OpenCode 2. */
import assert from "node:assert/strict";
import fs from "node:fs";
import path from "node:path";
import { test } from "node:test";
import { WebSocket } from "ws";
import { plugin } from "../src/plugin.js";
import { registration } from "../src/feed.js";
import { fakeSpawn, newBench, until } from "./support.js";

const silence = { [Symbol.asyncIterator]: () => ({ next: () => new Promise(() => {}) }) };
const CONTEXT = { app: { name: "cli", version: "2.0.0", channel: "latest" }, event: { subscribe: () => silence } };

/**
 * @param {import("node:test").TestContext} t
 * @param {NodeJS.ProcessEnv} [env]
 */
function bench(t, env = {}) {
  const { home, sidecar } = newBench(t);
  const spawned = fakeSpawn();
  /** @type {import("../src/counters.js").Counters[]} */
  const counters = [];
  const onCounters = counters.push.bind(counters);
  const options = { home, WebSocket, spawn: spawned.spawn, backoffMinMs: 5, onCounters, env: { HOME: home, ...env } };
  /** Only a welcomed link says bye. @param {number} [count] */
  const welcomed = (count = 1) => until(() => counters.some(({ welcomes }) => welcomes >= count), "a welcome");
  return { home, sidecar, welcomed, copies: [plugin(options, "file:///a.js"), plugin(options, "file:///b.js")] };
}

test("the sidecar learns the service, its version and nothing else", async (t) => {
  const { home, sidecar, copies, welcomed } = bench(t);
  await sidecar.start();
  const end = await copies[0].setup(CONTEXT);
  const [identify] = await sidecar.arrived("identify");
  const { service, opencode_version, directory, project, pid, last_seq } = identify;
  assert.deepEqual(
    { service, opencode_version, directory, project, pid, last_seq },
    {
      service: path.join(home, ".local", "state", "opencode", "service.json"),
      opencode_version: "2.0.0",
      directory: null,
      project: null,
      pid: process.pid,
      last_seq: 0,
    },
  );
  await welcomed();
  await end?.();
  await sidecar.arrived("bye");
});

test("many directories and copies share one link, and the last one ends it", async (t) => {
  const { sidecar, copies, welcomed } = bench(t);
  await sidecar.start();
  const ends = [];
  for (const copy of [...copies, ...copies]) ends.push(await copy.setup(CONTEXT));
  await sidecar.arrived("identify");
  await welcomed();
  for (const end of ends.slice(1)) await end?.();
  await ends[1]?.(); // again: counted once
  assert.equal(sidecar.ofType("bye").length, 0);
  await ends[0]?.();
  await sidecar.arrived("bye");
  assert.equal(sidecar.ofType("identify").length, 1);
});

test("after a restart of the sidecar it is announced again", async (t) => {
  const { sidecar, copies } = bench(t);
  await sidecar.start();
  const end = await copies[0].setup(CONTEXT);
  await sidecar.arrived("identify");
  sidecar.drop();
  await sidecar.arrived("identify", 2);
  await end?.();
});

test("setup does nothing in the embedded core of OpenCode 1, in what is no OpenCode, and with DURABLE_STREAM=off", async (t) => {
  const { home, copies } = bench(t);
  for (const context of [{ agent: {}, plugin: {}, options: {} }, undefined, { event: { subscribe: 1 } }]) {
    assert.equal(await copies[0].setup(context), undefined);
  }
  const off = bench(t, { DURABLE_STREAM: "off" });
  assert.equal(await off.copies[0].setup(CONTEXT), undefined);
  assert.deepEqual([fs.readdirSync(home), fs.readdirSync(off.home)], [[], []]);
});

test("setup never rejects", async (t) => {
  const { copies } = bench(t);
  const context = { event: { subscribe() {} }, get app() { throw new Error("no"); } };
  assert.equal(await copies[0].setup(context), undefined);
});

test("the registration follows XDG and the channel, as OpenCode names it", () => {
  assert.equal(registration({ HOME: "/h" }, "next"), "/h/.local/state/opencode/service.json");
  assert.equal(registration({ HOME: "/h", XDG_STATE_HOME: "/s" }, undefined), "/s/opencode/service.json");
  assert.equal(registration({ HOME: "/h", XDG_STATE_HOME: "/s" }, "local/x"), "/s/opencode/service-local-x.json");
});

