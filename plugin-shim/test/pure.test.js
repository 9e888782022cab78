/** The rooms without I/O: item, queue, window, handshake, the link's table. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { isProof, judge, makeProof, newNonce } from "../src/handshake.js";
import { MAX_ITEM_BYTES, encodeItem } from "../src/item.js";
import { NEXT } from "../src/link.js";
import { Queue, nextRun } from "../src/queue.js";
import { Pace, SPAWN_MAX_MS } from "../src/start.js";
import { SHIM_VERSION, isNewer } from "../src/version.js";
import { Window } from "../src/window.js";

test("an item has its four keys even when OpenCode gave no output", () => {
  assert.deepEqual(JSON.parse(encodeItem("event", 7, { a: 1 }, undefined)?.text ?? ""), {
    hook: "event",
    t: 7,
    input: { a: 1 },
    output: null,
  });
});

test("an item counts bytes, not characters", () => {
  const encoded = encodeItem("event", 7, "ä€😀", null);
  assert.equal(encoded?.bytes, Buffer.byteLength(encoded?.text ?? ""));
  assert.notEqual(encoded?.bytes, encoded?.text.length);
});

test("what JSON cannot express is null, never a throw", () => {
  /** @type {any} */
  const circular = {};
  circular.self = circular;
  const throwing = {
    get boom() {
      throw new Error("boom");
    },
  };
  for (const bad of [circular, { n: 10n }, throwing]) assert.equal(encodeItem("event", 0, bad, null), null);
});

test("an item over the limit keeps the head of its long strings and says how long they were", () => {
  const long = "x".repeat(MAX_ITEM_BYTES + 1);
  const encoded = encodeItem("event", 0, { long, short: "s" }, null);
  assert.equal(encoded?.cut, true);
  const { input } = JSON.parse(encoded?.text ?? "");
  assert.equal(input.short, "s");
  assert.equal(input.long, `${"x".repeat(64 * 1024)}{"$cut":${long.length}}`);
});

test("an item that stays too big after cutting is lost", () => {
  assert.equal(encodeItem("event", 0, Array(400).fill("x".repeat(64 * 1024)), null), null);
});

test("a run ends before a hole, at the item limit, and at the byte limit; a big item comes alone", () => {
  const queue = new Queue(1e9);
  for (const bytes of [10, 10, 10, 500, 10]) queue.add("t", bytes);
  assert.deepEqual(queue.next(0, 9, 100), { first: 1, last: 3, bytes: 30, texts: ["t", "t", "t"] });
  assert.equal(queue.next(0, 2, 100)?.last, 2);
  assert.equal(queue.next(0, 9, 25)?.last, 2);
  assert.equal(queue.next(3, 9, 100)?.last, 4);
  assert.equal(queue.next(4, 9, 100)?.first, 5);
  assert.equal(queue.next(5, 9, 100), null);
  const damaged = [1, 2, 4].map((seq) => ({ seq, text: "t", bytes: 1 }));
  assert.equal(nextRun(damaged, 0, 9, 100)?.last, 2);
});

test("dropping items gives their bytes back and keeps the rest findable", () => {
  const queue = new Queue(1e9);
  for (let i = 0; i < 1000; i += 1) queue.add(`t${i + 1}`, 2);
  for (let seq = 1; seq <= 900; seq += 1) queue.dropThrough(seq);
  assert.equal(queue.length, 100);
  assert.equal(queue.bytes, 200);
  assert.deepEqual(queue.next(949, 1, 100)?.texts, ["t950"]);
});

test("a full queue refuses until a quarter is free, and one gap reports the whole burst", () => {
  const queue = new Queue(100);
  for (let i = 0; i < 10; i += 1) queue.add("t", 10);
  assert.equal(queue.room(10), false);
  queue.lose("memory_full", 10);
  queue.dropThrough(2);
  assert.equal(queue.room(10), false, "80 of 100 held: still refusing");
  queue.lose("memory_full", 10);
  queue.dropThrough(3);
  assert.equal(queue.room(10), true);
  assert.deepEqual(queue.takeGaps(), [{ lost: 2, bytes: 20, reason: "memory_full" }]);
  assert.equal(queue.hasGap, false);
});

test("the window counts items, gives room back on an ack, and takes an ack inside a frame", () => {
  const window = new Window();
  window.reset(10);
  window.add({ first: 1, last: 4, bytes: 4, end: -1 }, 0);
  window.add({ first: 5, last: 10, bytes: 6, end: 99 }, 0);
  assert.equal(window.room, 0);
  assert.equal(window.ack(6, 5), -1, "the frame from the spool is not wholly acknowledged");
  assert.equal(window.room, 6);
  assert.equal(window.waitingMs(8), 3);
  assert.equal(window.ack(10, 9), 99);
  assert.equal(window.room, 10);
  assert.equal(window.waitingMs(1000), 0, "nothing is in flight");
});

test("a proof is bound to side, port and both nonces", () => {
  const [token, a, b] = ["ab".repeat(32), newNonce(), newNonce()];
  const right = makeProof(token, "sidecar", 1234, a, b);
  assert.ok(isProof(right, makeProof(token, "sidecar", 1234, a, b)));
  for (const wrong of [
    makeProof(token, "shim", 1234, a, b),
    makeProof(token, "sidecar", 1235, a, b),
    makeProof(token, "sidecar", 1234, b, a),
    makeProof("cd".repeat(32), "sidecar", 1234, a, b),
    "",
    "é".repeat(64),
    null,
  ]) {
    assert.equal(isProof(wrong, right), false);
  }
});

test("a proof is the vector that the sidecar's tests use too", () => {
  assert.equal(
    makeProof("0".repeat(64), "sidecar", 1, "1".repeat(64), "2".repeat(64)),
    "23ae48e74bfd0f8bbce897be7363a76ccf6743e88c4d441f6bee150fa9da12bd",
  );
});

test("from every state of the link, dispose or its end leads to disposed", () => {
  for (const state of /** @type {(keyof typeof NEXT)[]} */ (Object.keys(NEXT))) {
    if (state === "disposed") assert.deepEqual(NEXT[state], {});
    else assert.ok(state === "closing" ? NEXT[state].lost === "disposed" : NEXT[state].dispose, state);
  }
});

test("a later release is newer; anything but a release is not", () => {
  /** @type {[unknown, unknown, boolean][]} */
  const cases = [
    ["0.1.0", "0.1.0", false],
    ["0.1.1", "0.1.0", true],
    ["0.10.0", "0.9.9", true],
    ["1.0.0", "0.99.99", true],
    ["0.1.0", "1.0.0", false],
    ["0.2.0.dev1", "0.1.0", true],
    ["0.1.0-beta", "0.1.0", false],
    ["x", "0.1.0", false],
    ["0.1.0", null, false],
    ["9".repeat(400) + ".0.0", "0.1.0", false],
  ];
  for (const [one, other, newer] of cases) assert.equal(isNewer(one, other), newer, `${one} ${other}`);
});

test("an older sidecar is asked three times to make room; then it is worked with, if it speaks our protocol", () => {
  const starter = { asked: 0, fits: () => (starter.asked = 0), mayAsk: () => (starter.asked += 1) <= 3 };
  const fitting = { protocol: 1, sidecar_version: SHIM_VERSION };
  const older = { protocol: 1, sidecar_version: "0.0.9" };
  const tooOld = { protocol: 0, sidecar_version: "0.0.1" };
  assert.equal(judge(fitting, starter), "usable");
  assert.equal(judge({ protocol: 1, sidecar_version: "99.0.0" }, starter), "usable", "a newer one still speaks ours");
  assert.equal(judge({ protocol: 2, sidecar_version: "99.0.0" }, starter), "usable", "it says itself that it does not");
  for (let i = 0; i < 3; i += 1) assert.equal(judge(older, starter), "outdated");
  assert.equal(judge(older, starter), "usable", "what we start is no newer");
  assert.equal(judge(tooOld, starter), "hopeless");
  assert.equal(judge(fitting, starter), "usable");
  assert.equal(judge(tooOld, starter), "outdated", "asking is of use again");
});

test("the second start comes at once, further ones after growing pauses, and work done ends the growth", () => {
  const pace = new Pace();
  let now = 0;
  /** @type {number[]} */
  const pauses = [];
  for (let n = 0; n < 9; n += 1) {
    const from = now;
    while (!pace.isDue(now)) now += 1;
    pauses.push(now - from);
    pace.started(now);
    pace.ended();
  }
  assert.deepEqual(pauses, [0, 0, 250, 500, 1000, 2000, 4000, SPAWN_MAX_MS, SPAWN_MAX_MS]);
  pace.progressed();
  assert.ok(pace.isDue(now));
  pace.started(now);
  assert.ok(!pace.isDue(now + SPAWN_MAX_MS - 1), "one is on its way");
  assert.ok(pace.isDue(now + SPAWN_MAX_MS), "or was never heard of again");
});
