/** Who is talked to, and what is said before it is known who listens. */
import assert from "node:assert/strict";
import fs from "node:fs";
import path from "node:path";
import { test } from "node:test";
import { WebSocketServer } from "ws";
import { INPUT, newBench, readSpool, someEvent, until } from "./support.js";

test("identify says who we are, and the proof is right", async (t) => {
  const { sidecar, plugin } = newBench(t);
  await sidecar.start();
  await plugin();
  const [identify] = await sidecar.arrived("identify");
  assert.match(identify.boot_id, /^[0-9a-f]{32}$/);
  assert.match(identify.instance, /^[0-9a-f]{16}$/);
  assert.match(identify.proof, /^[0-9a-f]{64}$/);
  const { pid, project, directory, worktree, opencode_version, last_seq, shim_version } = identify;
  assert.deepEqual(
    { pid, project, directory, worktree, opencode_version, last_seq, shim_version },
    { pid: process.pid, project: "prj", directory: "/secret/dir", worktree: "/secret", opencode_version: null, last_seq: 0, shim_version: "0.1.0" },
  );
  await until(() => sidecar.sockets.size === 1, "the fake takes our proof and stays");
});

test("the plugin tells a new sidecar what nobody has acknowledged", async (t) => {
  const { sidecar, live } = newBench(t);
  const { hooks, counters } = await live({}, INPUT);
  hooks.event(someEvent(1, "a"));
  await until(() => sidecar.got.length > 0 && counters.acked === sidecar.seqs.at(-1), "acknowledged");
  sidecar.drop();
  await sidecar.arrived("identify", 2);
  sidecar.autoAck = false;
  const before = sidecar.got.length;
  hooks.event(someEvent(2, "b"));
  await until(() => sidecar.got.length > before, "delivered");
  const last = sidecar.seqs.at(-1);
  sidecar.drop();
  const [, idle, busy] = await sidecar.arrived("identify", 3);
  assert.deepEqual([idle.last_seq, busy.last_seq], [0, last]);
});

test("OpenCode's version is known from a session it made", async (t) => {
  const { sidecar, plugin } = newBench(t);
  const { hooks } = await plugin();
  hooks.event({ event: { type: "session.created", properties: { info: { version: "1.18.33" } } } });
  await sidecar.start();
  const [identify] = await sidecar.arrived("identify");
  assert.equal(identify.opencode_version, "1.18.33");
});

test("an impostor gets a hello with a nonce and nothing else; what was captured goes to the spool", async (t) => {
  const { sidecar, plugin, spoolFiles, spawned } = newBench(t);
  sidecar.proofRight = false;
  await sidecar.start();
  const { hooks, counters } = await plugin();
  hooks.event(someEvent(1, "secret prompt"));
  await until(() => counters.impostors >= 2, "two tries");
  assert.ok(sidecar.frames.length >= 2);
  for (const frame of sidecar.frames) assert.deepEqual(Object.keys(frame), ["type", "role", "protocol", "nonce"]);
  assert.notEqual(sidecar.frames[0].nonce, sidecar.frames[1].nonce);
  assert.equal(spoolFiles().length, 1);
  assert.ok(spawned.length <= 1);
});

test("a listener that never answers is given up", async (t) => {
  const { home, sidecar, plugin } = newBench(t);
  sidecar.writeFiles();
  const mute = new WebSocketServer({ host: "127.0.0.1", port: 0 });
  t.after(() => mute.close());
  await new Promise((resolve) => mute.on("listening", resolve));
  const { port } = /** @type {import("node:net").AddressInfo} */ (mute.address());
  fs.writeFileSync(path.join(home, "sidecar.json"), JSON.stringify({ pid: process.pid, port }));
  const { counters } = await plugin({ ackTimeoutMs: 20 });
  await until(() => counters.handshake_timeouts >= 2, "given up twice");
});

test("a token or a sidecar.json that others can read, or a link to one, is not used, and nothing is spawned", async (t) => {
  for (const name of ["token", "sidecar.json", "link"]) {
    const { home, sidecar, plugin, spawned } = newBench(t);
    await sidecar.start();
    if (name === "link") {
      fs.renameSync(path.join(home, "token"), path.join(home, "elsewhere"));
      fs.symlinkSync(path.join(home, "elsewhere"), path.join(home, "token"));
    } else fs.chmodSync(path.join(home, name), 0o644);
    const { counters } = await plugin();
    await until(() => counters.unsafe_files >= 2, name);
    assert.equal(sidecar.frames.length, 0);
    assert.equal(spawned.length, 0);
  }
});

test("hostile frames from the sidecar never throw and end the link; unknown ones are counted", async (t) => {
  const { sidecar, live } = newBench(t);
  const { hooks, counters } = await live({}, INPUT);
  sidecar.send({ type: "from_the_future", x: 1 });
  await until(() => counters.unknown_frames === 1, "counted");
  for (const text of ["not json", "null", "[]", '"x"', '{"type":"ack"}', '{"type":"ack","seq":"1"}']) {
    const before = counters.bad_frames + counters.unknown_frames;
    await until(() => sidecar.sockets.size === 1 && counters.welcomes > counters.lost_links, "live again");
    for (const socket of sidecar.sockets) socket.send(text);
    await until(() => counters.bad_frames + counters.unknown_frames > before, text);
  }
  hooks.event(someEvent(1));
  await until(() => counters.acked === 1, "and goes on");
});

test("an older sidecar is asked to make room, then ours is started, and nothing is lost", async (t) => {
  const { home, sidecar, plugin, spawned } = newBench(t);
  sidecar.version = "0.0.9";
  await sidecar.start();
  const { hooks, counters } = await plugin();
  hooks.event(someEvent(1, "kept meanwhile"));
  const [bye] = await sidecar.arrived("bye");
  assert.equal(bye.reason, "upgrade");
  assert.deepEqual(sidecar.frames.slice(0, 3).map(({ type }) => type), ["hello", "identify", "bye"]);
  fs.unlinkSync(path.join(home, "sidecar.json"));
  await until(() => spawned.length === 1, "ours is started");
  sidecar.version = "0.1.0";
  sidecar.writeFiles();
  await until(() => counters.acked === 1, "linked to it");
  assert.ok(counters.upgrades >= 1 && counters.upgrades <= 3);
});

test("an older sidecar that stays is worked with after three requests", async (t) => {
  const { sidecar, plugin } = newBench(t);
  sidecar.version = "0.0.9";
  await sidecar.start();
  const { hooks, counters } = await plugin();
  hooks.event(someEvent(1));
  await until(() => counters.acked === 1, "linked all the same");
  assert.equal(counters.upgrades, 3);
});

test("a sidecar that no longer speaks our protocol is asked seldom, and the spool is kept", async (t) => {
  for (const refuse of ["by its word", "for it is too old and stays"]) {
    const { sidecar, plugin, spoolFiles, spawned } = newBench(t);
    if (refuse === "by its word") {
      sidecar.protocol = 2;
      sidecar.version = "9.0.0";
      sidecar.refuses = true;
    } else {
      sidecar.protocol = 0;
      sidecar.version = "0.0.1";
    }
    await sidecar.start();
    const { hooks, counters } = await plugin();
    for (let n = 1; n <= 20; n += 1) hooks.event(someEvent(n));
    await until(() => counters.refusals === 1, "refused");
    const connects = counters.connects;
    // An impatient one knocks a hundred times meanwhile: this one not once more.
    const impatient = await plugin({ refusedMs: 1 });
    await until(() => impatient.counters.refusals >= 100, "a hundred refusals");
    assert.equal(counters.connects, connects, refuse);
    assert.equal(readSpool(spoolFiles().find((file) => fs.statSync(file).size > 2000) ?? "").lines.length, 20);
    assert.equal(spawned.length, 0, "one runs: none is started");
  }
});

for (const [size, frames, most] of [[10, 10_100, 10_000], [500_000, 200, 170]]) {
  test(`a sidecar that floods with ${size} bytes a frame is hung up on, and gets what it should have had later`, async (t) => {
    const { sidecar, live } = newBench(t);
    const { hooks, counters } = await live();
    const filler = "x".repeat(size);
    for (let n = 0; n < frames; n += 1) sidecar.send({ type: "stranger", filler });
    await until(() => counters.bad_frames === 1 && counters.lost_links === 1, "hung up");
    assert.ok(counters.unknown_frames <= most);
    hooks.event(someEvent(1));
    await until(() => counters.acked === 1, "on the next link");
  });
}
