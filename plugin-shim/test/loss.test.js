/** Losses are bounded and reported. */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import v8 from "node:v8";
import vm from "node:vm";
import { sumOf } from "../src/spool.js";
import { newBench, readSpool, someEvent, until } from "./support.js";

const HERE = path.dirname(fileURLToPath(import.meta.url));

/** Tests may run as root, whom no mode stops: a plain file where the directory should be stops everybody. @param {string} home */
const blockSpool = (home) => fs.writeFileSync(path.join(home, "spool"), "in the way");

test("with no sidecar and no spool, memory is bounded and a gap item says what is missing", async (t) => {
  const { home, sidecar, plugin } = newBench(t);
  blockSpool(home);
  const { hooks, counters } = await plugin({ memoryLimit: 10_000 });
  const pad = "x".repeat(400);
  for (let n = 1; n <= 100; n += 1) hooks.event(someEvent(n, pad));
  assert.ok(counters.spool_failures > 0);
  const kept = counters.items;
  assert.ok(kept > 10 && kept < 25, `${kept} items of about 500 bytes in 10,000`);
  assert.equal(counters.lost_memory_full, 100 - kept);
  await sidecar.start();
  await until(() => counters.acked === kept + 1, "all that is left, and the gap");
  const gap = sidecar.got[sidecar.got.length - 1];
  assert.equal(gap.seq, kept + 1);
  assert.equal(gap.item.hook, "capture.gap");
  assert.equal(gap.item.output, null);
  const { bytes, ...rest } = gap.item.input;
  assert.deepEqual(rest, { lost: 100 - kept, reason: "memory_full" });
  assert.ok(bytes > (100 - kept) * 400);
  assert.deepEqual(sidecar.seqs, [...Array(kept + 1).keys()].map((i) => i + 1));
  hooks.event(someEvent(101));
  await until(() => counters.acked === kept + 2, "and it goes on");
});

/**
 * Every way in which an item is in memory alone when OpenCode ends.
 *
 * @type {[string, import("../src/plugin.js").Options, (home: string) => void][]}
 */
const ENDS = [
  ["an unwritable spool", {}, blockSpool],
  ["no home at all", {}, (home) => (fs.rmdirSync(home), fs.writeFileSync(home, "in the way"))],
  ["a full spool", { spoolLimit: 3000 }, () => {}],
  ["a full memory", { spoolLimit: 1000, memoryLimit: 2000 }, () => {}],
];

for (const [what, options, prepare] of ENDS) {
  test(`what is lost with the process leaves a mark: ${what}`, async (t) => {
    const { home, plugin, spoolFiles, marks } = newBench(t);
    prepare(home);
    const { hooks, counters } = await plugin(options);
    for (let n = 1; n <= 9; n += 1) hooks.event(someEvent(n, "x".repeat(500)));
    const [mark, ...more] = marks();
    assert.ok(mark.endsWith(`-${process.pid}.lost`), "it stands before the end, so that a kill leaves it, too");
    assert.equal(fs.statSync(mark).size, 0, "a full disk has room for it");
    await hooks.dispose();
    const kept = spoolFiles().flatMap((file) => readSpool(file).lines).filter(({ item }) => item.hook === "event");
    assert.deepEqual([more, marks()], [[], [`${mark}${9 - kept.length}`]]);
    assert.equal(counters.hook_errors, 0);
  });
}

test("a mark goes as soon as nothing is in memory alone", async (t) => {
  const { sidecar, plugin, marks } = newBench(t);
  const { hooks, counters } = await plugin({ spoolLimit: 2000 });
  for (let n = 1; n <= 9; n += 1) hooks.event(someEvent(n, "x".repeat(500)));
  assert.equal(marks().length, 1);
  await sidecar.start();
  await until(() => counters.acked === 9, "all");
  assert.deepEqual(marks(), []);
});

test("hooks that flood a hung sidecar without a spool cost bounded memory, and one gap reports them all", async (t) => {
  const { home, sidecar, live } = newBench(t);
  blockSpool(home);
  sidecar.autoAck = false;
  const { hooks, counters } = await live({ memoryLimit: 4 << 20, ackTimeoutMs: 2000 });
  v8.setFlagsFromString("--expose-gc");
  const collect = vm.runInNewContext("gc");
  collect();
  const before = process.memoryUsage().heapUsed;
  const total = 25_000;
  for (let n = 1; n <= total; n += 1) {
    hooks.event(someEvent(n, String(n).padEnd(4000, "x")));
    if (n % 500 === 0) await new Promise(setImmediate);
  }
  // What the fake sidecar keeps of its window is not the shim's.
  const held = sidecar.got.length;
  collect();
  const grown = process.memoryUsage().heapUsed - before;
  assert.ok(grown < (4 << 20) * 3 + held * 10_000 && grown < 50 << 20, `${grown} bytes for 100 MB of hooks, ${held} held`);
  await until(() => counters.late_acks + counters.handshake_timeouts > 0, "given up");
  sidecar.ackAll();
  await until(() => counters.lost_memory_full > 0 && counters.acked === total - counters.lost_memory_full + 1, "all that is left, and the gap");
  const gaps = sidecar.got.filter(({ item }) => item.hook === "capture.gap");
  assert.equal(new Set(gaps.map(({ seq }) => seq)).size, 1);
  assert.equal(gaps[0].item.input.lost, counters.lost_memory_full);
  assert.equal(new Set(sidecar.seqs).size + counters.lost_memory_full, total + 1);
});

test("a spool that may not grow keeps whole lines, and what follows them is kept in memory", (t) => {
  const home = fs.mkdtempSync(path.join(os.tmpdir(), "shim-"));
  t.after(() => fs.rmSync(home, { recursive: true }));
  const program = `
    const { create } = await import(${JSON.stringify(path.join(HERE, "..", "src", "plugin.js"))});
    let counters;
    const options = { home: ${JSON.stringify(home)}, command: ["none"], env: {}, onCounters: (made) => (counters = made) };
    const hooks = await create(options)({});
    for (let n = 1; n <= 100; n += 1) hooks.event({ event: { id: "evt_" + n, type: "x", pad: "x".repeat(500) } });
    console.log(JSON.stringify(counters));
    process.exit();
  `;
  // Blocks of 512 bytes, or of 1024 in some shells: 8 or 16 KiB, and 100 items are over 50.
  const limited = 'ulimit -f 16; exec "$0" --input-type=module -e "$1"';
  const child = spawnSync("sh", ["-c", limited, process.execPath, program], { encoding: "utf8", timeout: 10_000 });
  assert.deepEqual([child.status, child.stderr], [0, ""]);
  const counters = JSON.parse(child.stdout);
  assert.ok(counters.spool_failures > 0);
  assert.equal(counters.items, 100);
  assert.equal(counters.lost_memory_full, 0);
  const [file] = fs.readdirSync(path.join(home, "spool")).filter((name) => name.endsWith(".jsonl"));
  const { lines } = readSpool(path.join(home, "spool", file));
  assert.equal(lines.length, counters.spooled);
  assert.deepEqual(lines.map((line) => line.seq), [...Array(lines.length).keys()].map((i) => i + 1));
});

test("without a spool but with a sidecar nothing is lost over a dropped socket", async (t) => {
  const { home, sidecar, live } = newBench(t);
  blockSpool(home);
  sidecar.autoAck = false;
  const { hooks, counters } = await live();
  for (let n = 1; n <= 700; n += 1) hooks.event(someEvent(n));
  await until(() => sidecar.got.length === 512, "a window");
  sidecar.autoAck = true;
  sidecar.drop();
  await until(() => counters.acked === 700, "all");
  assert.equal(new Set(sidecar.seqs).size, 700);
  assert.deepEqual(sidecar.disorder, []);
});

test("a spool at its limit hands over to memory, in order; beyond both there is a gap", async (t) => {
  const { sidecar, plugin, spoolFiles } = newBench(t);
  const { hooks, counters } = await plugin({ spoolLimit: 20_000, memoryLimit: 10_000 });
  for (let n = 1; n <= 100; n += 1) hooks.event(someEvent(n, "x".repeat(n % 2 ? 500 : 1)));
  const [file] = spoolFiles();
  assert.ok(fs.statSync(file).size <= 20_000);
  const spooled = readSpool(file).lines.length;
  assert.ok(counters.items > spooled, "memory holds some");
  assert.ok(counters.lost_memory_full > 0);
  await sidecar.start();
  await until(() => counters.acked === 101 - counters.lost_memory_full, "all");
  const gap = sidecar.got[sidecar.got.length - 1].item;
  assert.equal(gap.hook, "capture.gap");
  assert.equal(sidecar.got.length - 1 + gap.input.lost, 100, "what came and what is counted as lost is all there was");
  assert.deepEqual(sidecar.seqs, [...sidecar.seqs].sort((a, b) => a - b));
});

test("a spool that fails for a while is used again, and nothing is lost", async (t) => {
  const { home, sidecar, plugin, spoolFiles } = newBench(t);
  blockSpool(home);
  const { hooks, counters } = await plugin();
  hooks.event(someEvent(1));
  fs.unlinkSync(path.join(home, "spool"));
  let n = 1;
  await until(() => (hooks.event(someEvent((n += 1))), spoolFiles().length === 1), "the spool is tried again");
  assert.deepEqual(readSpool(spoolFiles()[0]).lines.map((line) => line.seq), [...Array(n).keys()].map((i) => i + 1));
  await sidecar.start();
  await until(() => counters.acked === n, "all");
});

test("a file that already has the spool's name is neither read nor written", async (t) => {
  const { home, plugin, spoolFiles } = newBench(t);
  const first = await plugin();
  first.hooks.event(someEvent(1));
  const [file] = spoolFiles();
  const target = path.join(home, "target");
  fs.renameSync(file, target);
  // O_EXCL and O_NOFOLLOW: a prepared link is never written through.
  fs.symlinkSync(target, path.join(home, "spool", "link.jsonl"));
  const { Spool } = await import("../src/spool.js");
  const { newCounters } = await import("../src/counters.js");
  const counters = newCounters();
  const spool = new Spool({ dir: path.join(home, "spool"), name: "link.jsonl", header: () => ({}), limit: 1e6, counters });
  const before = fs.readFileSync(target);
  assert.equal(spool.append({ seq: 1, text: "{}", bytes: 2 }), false);
  assert.equal(counters.spool_failures, 1);
  assert.deepEqual(fs.readFileSync(target), before);
});

/** What may happen to a file with the seqs 1 to 9, and the seqs that it costs. @type {[string, (text: string) => string, number, number][]} */
const DAMAGE = [
  ["a digit of the seq", (text) => text.replace('{"seq":5,', '{"seq":9,'), 5, 5],
  ["the item", (text) => text.replace('"evt_5"', '"evt_6"'), 5, 5],
  ["a newline", (text) => text.replace(/("seq":5,.*)\n/, "$1x"), 5, 6],
  ["a hole", (text) => text.replace(/{"seq":3,.*\n{"seq":4,.*\n/, ""), 3, 4],
  ["the last line", (text) => text.replace('{"seq":9,', '{"seq":x,'), 9, 9],
  ["the last newline", (text) => text.replace(/\n$/, "x"), 9, 9],
  ["the end", (text) => text.slice(0, text.indexOf('{"seq":7,') + 20), 7, 9],
];

for (const [what, damage, first, last] of DAMAGE) {
  test(`damage to the spool costs its own items, and a gap names them: ${what}`, async (t) => {
    const { sidecar, plugin, spoolFiles } = newBench(t);
    const { hooks, counters } = await plugin();
    for (let n = 1; n <= 9; n += 1) hooks.event(someEvent(n));
    const [file] = spoolFiles();
    const text = fs.readFileSync(file, "utf8");
    assert.notEqual(damage(text), text);
    fs.writeFileSync(file, damage(text));
    await sidecar.start();
    await until(() => counters.acked === 9, "all of it is settled");
    const gaps = sidecar.got.filter(({ item }) => item.hook === "capture.gap");
    assert.deepEqual(gaps.map(({ seq, item }) => [seq, item.input]), [
      [last, { lost: last - first + 1, reason: "spool_damaged", first_seq: first, last_seq: last }],
    ]);
    const kept = sidecar.got.filter(({ item }) => item.hook === "event").map(({ item }) => item.input.event.properties.n);
    assert.deepEqual(kept, [1, 2, 3, 4, 5, 6, 7, 8, 9].filter((n) => n < first || n > last));
    assert.equal(counters.lost_spool_damaged, last - first + 1);
    assert.equal(counters.lost_links, 0, "no link is lost over it");
    hooks.event(someEvent(10));
    await until(() => counters.acked === 10, "and it goes on");
  });
}

test("an acknowledgement without end drops nothing that was not given a seq", async (t) => {
  const { sidecar, plugin } = newBench(t);
  await sidecar.start();
  const { hooks, counters } = await plugin();
  hooks.event(someEvent(1));
  await until(() => counters.acked === 1, "acked");
  sidecar.send({ type: "ack", seq: 900 });
  for (let n = 2; n <= 5; n += 1) hooks.event(someEvent(n));
  await until(() => counters.acked === 5, "all");
  assert.deepEqual(sidecar.seqs, [1, 2, 3, 4, 5]);
});

test("the spool is 0600 whatever the umask", async (t) => {
  const umask = process.umask();
  t.after(() => process.umask(umask));
  for (const mask of [0o000, 0o277]) {
    const { home, plugin, spoolFiles } = newBench(t);
    fs.mkdirSync(path.join(home, "spool"), { mode: 0o700 });
    const { hooks } = await plugin();
    process.umask(mask);
    hooks.event(someEvent(1));
    process.umask(umask);
    assert.equal(fs.statSync(spoolFiles()[0]).mode & 0o777, 0o600);
  }
});

test("a value that JSON cannot express is reported in its place", async (t) => {
  const { sidecar, plugin } = newBench(t);
  await sidecar.start();
  const { hooks, counters } = await plugin();
  /** @type {any} */
  const circular = { event: {} };
  circular.event.self = circular;
  hooks.event(someEvent(1));
  hooks.event(circular);
  hooks["tool.execute.after"]({ n: 1n }, {});
  hooks.event(someEvent(6));
  await until(() => counters.acked === 4, "acked");
  const told = sidecar.got.map(({ seq, item }) => [seq, item.hook, item.input.reason, item.input.lost]);
  assert.deepEqual(told, [
    [1, "event", undefined, undefined],
    [2, "capture.gap", "unserialisable", 1],
    [3, "capture.gap", "unserialisable", 1],
    [4, "event", undefined, undefined],
  ]);
});

test("deltas are dropped unless the context asks for them, and are never acknowledged", async (t) => {
  const { sidecar, spoolFiles, live } = newBench(t);
  const delta = { event: { type: "message.part.delta", properties: { delta: "x" } } };
  const { hooks, counters } = await live();
  hooks.event(delta);
  assert.equal(counters.lossy_dropped, 1);
  sidecar.send({ type: "context", context: { lossy: true } });
  await until(() => (hooks.event(delta), counters.lossy_sent >= 1), "the context came");
  hooks.event(someEvent(1));
  await until(() => counters.acked === 1, "seq 1 is the first item's: deltas have none");
  const [frame] = sidecar.ofType("lossy");
  assert.deepEqual(frame.items[0].input, delta);
  await sidecar.stop();
  hooks.event(delta);
  hooks.event(delta);
  await until(() => counters.lost_links >= 1, "noticed");
  const before = counters.lossy_dropped;
  hooks.event(delta);
  assert.equal(counters.lossy_dropped, before + 1);
  assert.deepEqual(spoolFiles().flatMap((file) => readSpool(file).lines), []);
});

test("the spool's sum is the vector that the sidecar's tests use too", () => {
  assert.equal(sumOf(7, '{"ä":1}'), "7d8d7d7f");
});
