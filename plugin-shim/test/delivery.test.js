/** Nothing is lost, doubled or reordered, whatever the sidecar does. */
import assert from "node:assert/strict";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { test } from "node:test";
import { Capture } from "../src/capture.js";
import { newCounters } from "../src/counters.js";
import { Mark } from "../src/mark.js";
import { Spool } from "../src/spool.js";
import { newBench, readSpool, someEvent, until } from "./support.js";

/** @param {number} n */
const upTo = (n) => Array.from({ length: n }, (_, i) => i + 1);

/** @param {number[]} seqs */
const once = (seqs) => [...new Set(seqs)].sort((a, b) => a - b);

test("hooks arrive in order with what OpenCode gave, and the spool is gone", async (t) => {
  const { sidecar, spoolFiles, live } = newBench(t);
  const { hooks, counters } = await live();
  const output = { message: { id: "msg_1" }, parts: [{ text: "hi" }] };
  hooks["chat.message"]({ sessionID: "ses_1" }, output);
  output.parts[0].text = "changed by OpenCode afterwards";
  hooks["tool.execute.after"]({ tool: "bash" }, { title: "x" });
  hooks.event(someEvent(3));
  await until(() => counters.acked === 3, "acked");
  assert.deepEqual(sidecar.seqs, [1, 2, 3]);
  assert.deepEqual(sidecar.got.map(({ item }) => item.hook), ["chat.message", "tool.execute.after", "event"]);
  assert.equal(sidecar.got[0].item.output.parts[0].text, "hi");
  assert.deepEqual(sidecar.got[2].item.input, someEvent(3));
  assert.equal(sidecar.got[2].item.output, null);
  await until(() => spoolFiles().length === 0, "spool deleted");
});

test("with no sidecar each item is in the spool when its hook returns, under a header", async (t) => {
  const { plugin, spoolFiles, home } = newBench(t);
  const { hooks } = await plugin();
  hooks.event(someEvent(1));
  const [file] = spoolFiles();
  hooks.event(someEvent(2));
  const { header, lines } = readSpool(file);
  assert.deepEqual(lines.map((line) => line.seq), [1, 2]);
  assert.deepEqual(lines[1].item.input, someEvent(2));
  assert.equal(path.basename(file), `${header.boot_id}-${header.instance}.jsonl`);
  const { spool, pid, project, directory, worktree, opencode_version, shim_version } = header;
  assert.deepEqual(
    { spool, pid, project, directory, worktree, opencode_version, shim_version },
    { spool: 2, pid: process.pid, project: "prj", directory: "/secret/dir", worktree: "/secret", opencode_version: null, shim_version: "0.1.0" },
  );
  assert.equal(typeof header.started_ms, "number");
  assert.equal(fs.statSync(file).mode & 0o777, 0o600);
  assert.equal(fs.statSync(path.join(home, "spool")).mode & 0o777, 0o700);
});

test("what is in flight unacknowledged is in the spool when the hook returns", async (t) => {
  const { sidecar, spoolFiles, live } = newBench(t);
  sidecar.autoAck = false;
  const { hooks, counters } = await live();
  hooks.event(someEvent(1));
  assert.deepEqual(readSpool(spoolFiles()[0]).lines.map((line) => line.seq), [1]);
  hooks.event(someEvent(2));
  assert.deepEqual(readSpool(spoolFiles()[0]).lines.map((line) => line.seq), [1, 2]);
  hooks.event(someEvent(3));
  await until(() => sidecar.got.length === 3, "sent as well");
  sidecar.ackAll();
  await until(() => counters.acked === 3, "acked");
  assert.deepEqual(readSpool(spoolFiles()[0]).lines, [], "emptied");
  hooks.event(someEvent(4));
  assert.deepEqual(readSpool(spoolFiles()[0]).lines.map((line) => line.seq), [4], "nothing of an earlier line is left");
});

test("the items of a moment share a frame, and nothing overtakes them", async (t) => {
  const { sidecar, live } = newBench(t);
  sidecar.autoAck = false;
  sidecar.context = { lossy: true };
  const { hooks } = await live();
  for (const n of upTo(4)) hooks.event(someEvent(n));
  hooks.event({ event: { type: "message.part.delta", properties: {} } });
  hooks.event(someEvent(5));
  await sidecar.arrived("hooks", 2);
  const order = sidecar.frames.filter(({ type }) => type === "hooks" || type === "lossy");
  assert.deepEqual(order.map(({ type, items }) => [type, items.length]), [["hooks", 4], ["lossy", 1], ["hooks", 1]]);
  assert.deepEqual(sidecar.seqs, upTo(5));
});

test("an ack does not send what is collected", (t) => {
  const dir = fs.mkdtempSync(path.join(os.tmpdir(), "shim-"));
  t.after(() => fs.rmSync(dir, { recursive: true }));
  const counters = newCounters();
  const spool = new Spool({ dir: path.join(dir, "spool"), name: "s.jsonl", header: () => ({}), limit: 1e6, counters });
  /** @type {number[]} */
  const frames = [];
  const sendItems = (/** @type {string} */ text) => frames.push(JSON.parse(text).items.length) > 0;
  const link = { live: true, sendItems, watch: () => {}, fail: () => {} };
  const capture = new Capture({ spool, mark: new Mark(dir, "m.lost"), memoryLimit: 1e6, counters, link });
  capture.welcomed(0, 512);
  for (const step of [() => capture.flush(), () => capture.acknowledged(2), () => capture.flush()]) {
    for (const n of upTo(2)) capture.add(String(n), 1);
    step();
  }
  assert.deepEqual(frames, [2, 4]);
});

test("a read that a lost link interrupts returns nothing, and the next one begins again", async (t) => {
  const dir = fs.mkdtempSync(path.join(os.tmpdir(), "shim-"));
  t.after(() => fs.rmSync(dir, { recursive: true }));
  const counters = newCounters();
  const spool = new Spool({ dir: path.join(dir, "spool"), name: "s.jsonl", header: () => ({}), limit: 1e6, counters });
  for (const seq of upTo(3)) spool.append({ seq, text: "{}", bytes: 2 });
  const first = await spool.read();
  assert.equal(first.length, 3);
  spool.rewind();
  const interrupted = spool.read();
  spool.rewind();
  assert.deepEqual(await interrupted, []);
  assert.deepEqual(await spool.read(), first);
  spool.remove();
});

test("without a usable spool, items are sent when their hook returns", async (t) => {
  const { sidecar, live, home } = newBench(t);
  sidecar.autoAck = false;
  const { hooks, counters } = await live();
  fs.writeFileSync(path.join(home, "spool"), "in the way");
  for (const n of upTo(3)) hooks.event(someEvent(n));
  assert.equal(counters.sent, 3);
});

test("the backlog is read back in order with little memory, then hooks go live again", async (t) => {
  const { sidecar, plugin, spoolFiles } = newBench(t);
  const { hooks, counters } = await plugin({ memoryLimit: 20_000 });
  for (const n of upTo(2000)) hooks.event(someEvent(n, "x".repeat(n % 3 === 0 ? 2000 : 10)));
  await sidecar.start();
  await until(() => counters.welcomes === 1, "live");
  for (let n = 2001; n <= 2500; n += 1) hooks.event(someEvent(n));
  await until(() => counters.acked === 2500, "all acked");
  assert.deepEqual(sidecar.seqs, upTo(2500));
  assert.deepEqual(sidecar.got.map(({ item }) => item.input.event.properties.n), upTo(2500));
  assert.equal(counters.lost_memory_full, 0);
  await until(() => spoolFiles().length === 0, "spool deleted");
  hooks.event(someEvent(2501));
  await until(() => counters.acked === 2501, "live");
});

test("a dropped socket costs nothing: resent from what the sidecar has, no seq skipped", async (t) => {
  const { sidecar, plugin } = newBench(t);
  await sidecar.start();
  sidecar.window = 20;
  const { hooks, counters } = await plugin();
  for (let round = 0; round < 8; round += 1) {
    await until(() => counters.welcomes > counters.lost_links, "live");
    for (let i = 0; i < 100; i += 1) hooks.event(someEvent(round * 100 + i + 1));
    const had = sidecar.got.length;
    await until(() => sidecar.got.length > had, "some arrive");
    sidecar.drop();
    hooks.event(someEvent(0));
  }
  await until(() => counters.acked === 808, "all acked");
  assert.deepEqual(once(sidecar.seqs), upTo(808));
  assert.deepEqual(sidecar.disorder, [], "seqs only rise on a socket");
});

test("what the sidecar says it has is not sent again", async (t) => {
  const { sidecar, live } = newBench(t);
  sidecar.autoAck = false;
  const { hooks, counters } = await live();
  for (const n of upTo(10)) hooks.event(someEvent(n));
  await until(() => sidecar.got.length === 10, "sent");
  sidecar.acked.set(sidecar.ofType("identify")[0].instance, 7);
  sidecar.drop();
  await until(() => counters.welcomes === 2 && sidecar.got.length > 10, "linked again");
  await until(() => sidecar.got.length === 13, "three again");
  assert.deepEqual(sidecar.seqs.slice(10), [8, 9, 10]);
});

test("a sidecar that forgot everything gets only what we still hold", async (t) => {
  const { sidecar, plugin } = newBench(t);
  await sidecar.start();
  const { hooks, counters } = await plugin();
  for (const n of upTo(5)) hooks.event(someEvent(n));
  await until(() => counters.acked === 5, "acked");
  sidecar.acked.clear();
  await sidecar.stop();
  hooks.event(someEvent(6));
  await sidecar.start();
  await until(() => counters.acked === 6, "acked");
  assert.deepEqual(once(sidecar.seqs), upTo(6));
  assert.equal(sidecar.seqs.filter((seq) => seq <= 5).length, 5, "acknowledged items are not resent");
});

test("an ack that does not come in time counts as no link", async (t) => {
  const { sidecar, spoolFiles, live } = newBench(t);
  sidecar.autoAck = false;
  const { hooks, counters } = await live({ ackTimeoutMs: 60 });
  hooks.event(someEvent(1));
  await until(() => counters.late_acks === 1, "given up");
  assert.deepEqual(readSpool(spoolFiles()[0]).lines.map((line) => line.seq), [1]);
  sidecar.ackAll();
  await until(() => counters.acked === 1, "acked on a later link");
  assert.deepEqual(once(sidecar.seqs), [1]);
});

test("the window is respected, live and from the spool", async (t) => {
  const { sidecar, plugin } = newBench(t);
  sidecar.autoAck = false;
  sidecar.window = 5;
  const { hooks, counters } = await plugin();
  for (const n of upTo(7)) hooks.event(someEvent(n));
  await sidecar.start();
  await until(() => sidecar.got.length === 5, "a window of five");
  hooks.event(someEvent(8));
  // A frame of another kind, answered, shows that nothing more was on its way.
  sidecar.send({ type: "call", id: "c1", method: "none" });
  await until(() => sidecar.ofType("result").length === 1, "answered");
  assert.deepEqual(sidecar.seqs, upTo(5));
  sidecar.ackAll();
  await until(() => counters.acked === 8, "the rest follows");
  assert.deepEqual(sidecar.seqs, upTo(8));
});

test("a frame holds at most 256 items and about 1 MiB", async (t) => {
  const { sidecar, plugin } = newBench(t);
  const { hooks, counters } = await plugin();
  for (const n of upTo(600)) hooks.event(someEvent(n, n > 500 ? "x".repeat(30_000) : ""));
  await sidecar.start();
  await until(() => counters.acked === 600, "all");
  const frames = sidecar.ofType("hooks");
  assert.ok(frames.every(({ items }) => items.length <= 256));
  assert.ok(frames.every((frame) => JSON.stringify(frame).length < 1.2 * 1024 * 1024));
  assert.ok(frames.length < 40, "and it is a batch");
});

test("dispose says bye and leaves what is unacknowledged in the spool, synchronously", async (t) => {
  const { sidecar, spoolFiles, live } = newBench(t);
  sidecar.autoAck = false;
  const { hooks } = await live();
  hooks.event(someEvent(1));
  hooks.dispose();
  assert.deepEqual(readSpool(spoolFiles()[0]).lines.map((line) => line.seq), [1]);
  await until(() => sidecar.ofType("bye").length === 1, "bye");
  assert.equal(sidecar.ofType("bye")[0].reason, "disposed");
  assert.deepEqual(sidecar.seqs, [1]);
  sidecar.ackAll();
  await until(() => spoolFiles().length === 0, "a last ack still clears the spool");
  await until(() => sidecar.sockets.size === 0, "closed");
});

test("dispose without a link leaves everything to the sidecar, and later hooks too", async (t) => {
  const { plugin, spoolFiles } = newBench(t);
  const { hooks } = await plugin();
  hooks.event(someEvent(1));
  await hooks.dispose();
  await hooks.dispose();
  hooks.event(someEvent(2));
  await hooks.dispose();
  hooks.event(someEvent(3));
  const files = spoolFiles().sort();
  assert.deepEqual(files.map((file) => path.basename(file).replace(/^[0-9a-f]+-[0-9a-f]+/, "")), [".jsonl", ".left0.jsonl", ".left1.jsonl"]);
  assert.deepEqual(files.map((file) => readSpool(file).lines.map((line) => line.seq)), [[3], [1], [2]]);
});

test("what a disposed instance's link does not acknowledge in time is left to the sidecar", async (t) => {
  const { sidecar, spoolFiles, live } = newBench(t);
  sidecar.autoAck = false;
  const { hooks } = await live();
  hooks.event(someEvent(1));
  hooks.dispose();
  sidecar.drop();
  await until(() => spoolFiles().some((file) => file.endsWith(".left0.jsonl")), "left");
  assert.deepEqual(readSpool(spoolFiles()[0]).lines.map((line) => line.seq), [1]);
});
