import assert from "node:assert/strict";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { test } from "node:test";
import { packaged } from "../src/packaged.js";
import { findProgram } from "../src/program.js";

const FILE = "file:///cache/opencode-durable-stream/src/index.js";

/** @param {import("node:test").TestContext} t */
function newUser(t) {
  const user = fs.mkdtempSync(path.join(os.tmpdir(), "packaged-"));
  t.after(() => fs.rmSync(user, { recursive: true, force: true }));
  return { user, env: { HOME: user, PATH: `${user}/bin:relative:` } };
}

/** @param {string} file */
function newProgram(file) {
  fs.mkdirSync(path.dirname(file), { recursive: true });
  fs.writeFileSync(file, "#!/bin/sh\nexit 1\n", { mode: 0o755 });
  return file;
}

test("the program is found on the PATH, else where pipx and uv put it", (t) => {
  const { user, env } = newUser(t);
  assert.equal(findProgram(env), null);
  const local = newProgram(`${user}/.local/bin/durable-stream`);
  assert.equal(findProgram(env), local);
  const pipx = newProgram(`${user}/pipx/durable-stream`);
  assert.equal(findProgram({ ...env, PIPX_BIN_DIR: path.dirname(pipx) }), pipx);
  const first = newProgram(`${user}/bin/durable-stream`);
  assert.equal(findProgram(env), first);
  fs.chmodSync(first, 0o644);
  assert.equal(findProgram(env), local, "it cannot be run");
  fs.rmSync(local);
  fs.mkdirSync(local);
  assert.equal(findProgram(env), null, "a directory");
  assert.equal(findProgram({ ...env, DURABLE_STREAM_COMMAND: "/opt/ds" }), "/opt/ds");
});

test("without program and home the package does nothing, and its id says why", async (t) => {
  const { user, env } = newUser(t);
  const { id, server, setup, ...more } = packaged(env, FILE);
  assert.match(id, /^durable-stream-needs-its-python-package-[0-9a-f]{8}$/);
  assert.deepEqual(more, {});
  const input = new Proxy({}, { get: () => assert.fail("it looked at what OpenCode gave it") });
  assert.deepEqual(await server(input), {});
  assert.equal(await setup(input), undefined);
  assert.deepEqual(fs.readdirSync(user), []);
});

test("with a program or a home the package is the plugin", (t) => {
  const { user, env } = newUser(t);
  newProgram(`${user}/bin/durable-stream`);
  const { id } = packaged(env, FILE);
  assert.match(id, /^durable-stream-[0-9a-f]{8}$/);
  fs.rmSync(`${user}/bin`, { recursive: true });
  fs.mkdirSync(`${user}/records`);
  assert.equal(packaged({ ...env, DURABLE_STREAM_HOME: `${user}/records` }, FILE).id, id);
});

test("two copies have two ids", () => {
  assert.notEqual(packaged({ PATH: "" }, FILE).id, packaged({ PATH: "" }, `${FILE}?1`).id);
});
