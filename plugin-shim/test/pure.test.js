/** The rooms without I/O: item, queue, window, handshake, the link's table. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { isProof, makeProof, newNonce } from "../src/handshake.js";
import { MAX_ITEM_BYTES, encodeItem } from "../src/item.js";
import { Queue, nextRun } from "../src/queue.js";
import { Pace, SPAWN_MAX_MS } from "../src/start.js";
import { isNewer } from "../src/version.js";

test("an item has its four keys even when OpenCode gave no output", () => {
  assert.deepEqual(JSON.parse(encodeItem("event", 7, { a: 1 }, undefined)?.text ?? ""), {
    hook: "event",
    t: 7,
    input: { a: 1 },
    output: null,
  });
});

test("an item over the limit keeps the head of its long strings and says how long they were", () => {
  const long = "x".repeat(MAX_ITEM_BYTES + 1);
  const encoded = encodeItem("event", 0, { long, short: "s" }, null);
  assert.equal(encoded?.cut, true);
  const { input } = JSON.parse(encoded?.text ?? "");
  assert.equal(input.short, "s");
  assert.equal(input.long, `${"x".repeat(64 * 1024)}{"$cut":${long.length}}`);
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
