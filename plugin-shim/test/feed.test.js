/** The feed of OpenCode 2: every event once, in the tick in which it is announced, whoever listens. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { WebSocket } from "ws";
import { isKept, scopeOf } from "../src/feed.js";
import { plugin } from "../src/plugin.js";
import { fakeSpawn, newBench, readSpool, until } from "./support.js";

/** A service that announces events to everyone who subscribed; a stand-in for OpenCode 2. */
class FakeService {
  /** @type {Set<(event: any) => void>} */
  #listeners = new Set();
  number = 0;
  /** @type {string[]} the sessions that were asked about */
  asked = [];
  /** @type {(() => void) | null} breaks the newest subscription */
  breakIt = null;

  get listeners() {
    return this.#listeners.size;
  }

  /** @param {string} directory */
  context(directory) {
    return {
      app: { name: "cli", version: "2.0.15", channel: "latest" },
      location: { directory },
      event: { subscribe: (/** @type {any} */ { signal }) => this.#subscribe(signal) },
      session: {
        get: async (/** @type {any} */ { sessionID }) => {
          this.asked.push(sessionID);
          return { id: sessionID, location: { directory } };
        },
      },
    };
  }

  /** @param {AbortSignal} signal */
  #subscribe(signal) {
    /** @type {any[]} */
    const waiting = [];
    /** @type {((result: any) => void) | null} */
    let wake = null;
    const listener = (/** @type {any} */ event) => {
      if (wake) wake({ value: event, done: false });
      else waiting.push(event);
      wake = null;
    };
    this.#listeners.add(listener);
    /** @type {((error: Error) => void) | null} */
    let fail = null;
    this.breakIt = () => {
      this.#listeners.delete(listener);
      fail?.(new Error("broken"));
    };
    signal.addEventListener("abort", () => {
      this.#listeners.delete(listener);
      wake?.({ value: undefined, done: true });
    });
    return {
      [Symbol.asyncIterator]: () => ({
        next: () => {
          if (waiting.length) return Promise.resolve({ value: waiting.shift(), done: false });
          return new Promise((resolve, reject) => {
            wake = resolve;
            fail = reject;
          });
        },
      }),
    };
  }

  /** @param {string} type @param {any} [data] @param {any} [more] */
  announce(type, data = { sessionID: "ses_1" }, more = { durable: { aggregateID: "ses_1", seq: this.number } }) {
    this.number += 1;
    const event = { id: `evt_${this.number}`, created: this.number, type, data, ...more };
    for (const listener of [...this.#listeners]) listener(event);
    return event;
  }
}

/** @param {import("node:test").TestContext} t @param {any} [options] */
function bench(t, options = {}) {
  const { home, sidecar, spoolFiles } = newBench(t);
  const service = new FakeService();
  const { spawn } = fakeSpawn();
  /** @type {(() => Promise<void>)[]} */
  const ends = [];
  t.after(async () => {
    for (const end of ends) await end();
  });
  const setUp = async (directory = "/p", file = "file:///home/ada/.config/opencode/plugins/a.js") => {
    const made = plugin({ home, WebSocket, spawn, backoffMinMs: 5, env: { HOME: "/home/ada" }, ...options }, file);
    const end = await made.setup(service.context(directory));
    assert.ok(end);
    ends.push(end);
    return end;
  };
  const types = () => sidecar.got.filter(({ item }) => item.hook === "service").map(({ item }) => item.input.type);
  return { home, sidecar, service, setUp, spoolFiles, types };
}

test("an event goes to the sidecar whole, and a session that began before is described once", async (t) => {
  const { sidecar, service, setUp } = bench(t);
  await sidecar.start();
  await setUp();
  const event = service.announce("session.inbox.enqueued");
  service.announce("session.execution.started");
  await until(() => sidecar.got.length >= 3, "three items");
  assert.deepEqual(sidecar.got.map(({ item }) => item.hook).sort(), ["service", "service", "service.session"]);
  assert.deepEqual(sidecar.got[0]?.item.input, event);
  assert.deepEqual(service.asked, ["ses_1"]);
});

test("several directories and copies send each event once", async (t) => {
  const { sidecar, service, setUp, types } = bench(t);
  await sidecar.start();
  const ends = [await setUp("/p"), await setUp("/q"), await setUp("/p", "file:///home/ada/.config/opencode/plugins/b.js")];
  assert.equal(service.listeners, 3);
  for (let n = 0; n < 20; n += 1) service.announce(`session.thing.${n}`);
  await until(() => types().length >= 20, "the events");
  await ends[0]?.();
  await ends[2]?.();
  service.announce("session.last");
  await until(() => types().includes("session.last"), "the event of the instance that is left");
  assert.equal(types().length, 21);
  assert.equal(sidecar.ofType("identify").length, 1);
});

test("without a sidecar every event is in the spool before the next tick", async (t) => {
  const { service, setUp, spoolFiles } = bench(t);
  await setUp();
  service.announce("session.created");
  service.announce("session.inbox.enqueued");
  await new Promise((resolve) => setImmediate(resolve));
  const { header, lines } = readSpool(String(spoolFiles()[0]));
  assert.match(header.service, /service\.json$/);
  assert.deepEqual(lines.map(({ item }) => item.input.type), ["session.created", "session.inbox.enqueued"]);
});

test("a subscription that breaks is renewed", async (t) => {
  const { sidecar, service, setUp, types } = bench(t);
  await sidecar.start();
  await setUp();
  service.breakIt?.();
  service.announce("session.lost"); // nobody listens to it: the sidecar compares the session
  await new Promise((resolve) => setImmediate(resolve));
  await until(() => service.listeners === 1, "a new subscription");
  service.announce("session.seen");
  await until(() => types().includes("session.seen"), "the next event");
  const gaps = () => sidecar.got.filter(({ item }) => item.hook === "capture.gap").map(({ item }) => item.input);
  assert.deepEqual(gaps().map(({ lost, reason }) => [lost, reason]), [[0, "feed_broken"]]);
  await setUp("/q");
  service.breakIt?.();
  await new Promise((resolve) => setImmediate(resolve));
  await until(() => service.listeners === 2, "a new subscription beside the other");
  service.announce("session.heard");
  await until(() => types().includes("session.heard"), "the next event");
  assert.equal(gaps().length, 1, "the other subscription heard everything");
});

test("a copy in a project sends only what happens below it, beside a copy of the user all", async (t) => {
  const mine = "file:///home/ada/mine/.opencode/plugins/a.js";
  const { sidecar, service, setUp, types } = bench(t);
  await sidecar.start();
  await setUp("/home/ada/mine", mine);
  const at = (/** @type {string} */ directory) => ({ location: { directory }, durable: { seq: 1 } });
  service.announce("session.here", { sessionID: "ses_1" }, at("/home/ada/mine/sub"));
  service.announce("session.there", { sessionID: "ses_2" }, at("/home/ada/mine2"));
  service.announce("session.there.too", { sessionID: "ses_2" }, {}); // says nowhere, but its session did
  service.announce("session.here.too", { sessionID: "ses_1" }, { durable: { seq: 2 } });
  await until(() => types().includes("session.here.too"), "the events");
  assert.deepEqual(types(), ["session.here", "session.here.too"]);
  await setUp("/home/ada/other");
  service.announce("session.all", { sessionID: "ses_2" }, at("/home/ada/mine2"));
  await until(() => types().includes("session.all"), "the event of the other directory");
});

test("what belongs to a project is known by its place", () => {
  const env = { HOME: "/home/ada" };
  assert.equal(scopeOf("file:///home/ada/p/.opencode/plugin/a.js", env), "/home/ada/p");
  assert.equal(scopeOf("file:///home/ada/.opencode/plugins/a.js", env), null);
  assert.equal(scopeOf("file:///home/ada/.config/opencode/plugin/a.js", env), null);
  assert.equal(scopeOf("", env), null);
});

test("pieces of answers and catalogs are left out; what is numbered never is", () => {
  const of = (/** @type {string} */ type, /** @type {any} */ data = {}, /** @type {any} */ more = {}) => isKept({ type, data, ...more });
  assert.equal(of("session.text.delta", { sessionID: "ses_1" }), false);
  assert.equal(of("session.usage.updated", { sessionID: "ses_1" }), false);
  assert.equal(of("model.updated"), false);
  assert.equal(of("shell.created", { info: {} }), false);
  assert.equal(of("session.tool.progress", { sessionID: "ses_1", metadata: { shellID: "sh" } }), false);
  assert.equal(of("session.tool.progress", { sessionID: "ses_1", metadata: { sessionID: "ses_2" } }), true);
  assert.equal(of("permission.asked", { sessionID: "ses_1" }), true);
  assert.equal(of("form.created", { form: { sessionID: "ses_1" } }), true);
  assert.equal(of("session.newer.delta", {}, { durable: { seq: 1 } }), true);
  assert.equal(of("worktree.resolved", { projectID: "p" }, { durable: { seq: 0 } }), true);
  for (const odd of [null, undefined, 3, {}, { type: 4 }, { type: "x" }]) assert.equal(isKept(odd), false);
});

test("an event that cannot be expressed is told as lost, and the next one comes", async (t) => {
  const { sidecar, service, setUp, types } = bench(t);
  await sidecar.start();
  await setUp();
  service.announce("session.odd", { sessionID: "ses_1", big: 1n });
  service.announce("session.next");
  await until(() => types().includes("session.next"), "the next event");
  assert.ok(sidecar.got.some(({ item }) => item.hook === "capture.gap"));
});
