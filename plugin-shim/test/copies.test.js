/** The commands of `[phantom] setup`, with the real shell; and the snapshots of a copy that is gone. */
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createHash } from "node:crypto";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { test } from "node:test";
import { Copies } from "../src/copies.js";

const HOLD = "echo begun; mkfifo held; echo $$ > pid; read _ < held";

/** @param {import("node:test").TestContext} t */
function place(t) {
  const directory = fs.mkdtempSync(path.join(fs.realpathSync(os.tmpdir()), "copy-"));
  t.after(() => fs.rmSync(directory, { recursive: true, force: true }));
  return directory;
}

/** @param {import("node:test").TestContext} t @param {NodeJS.ProcessEnv} [more] */
function bench(t, more = {}) {
  const directory = place(t);
  const copies = new Copies({ PATH: process.env.PATH, ...more });
  const call = async (/** @type {string} */ method, /** @type {any} */ args) => (await copies.methods[method](null, args)).data;
  /** @param {string} command @param {any} [given] */
  const run = async (command, given = {}) => {
    for (;;) {
      const ended = await call("setup.run", { id: "int_1", command, directory, project: "/project", ...given });
      if (ended) return ended;
    }
  };
  return { directory, copies, call, run };
}

/** The pid of a command that holds. @param {string} directory */
async function begun(directory) {
  const file = path.join(directory, "pid");
  for (;;) {
    const pid = fs.existsSync(file) ? Number(fs.readFileSync(file, "utf8")) : 0;
    if (pid) return pid;
    await new Promise((done) => setTimeout(done, 5));
  }
}

/** @param {number} pid */
async function gone(pid) {
  for (;;) {
    try {
      process.kill(pid, 0);
    } catch {
      return;
    }
    // A zombie whose new parent has not waited for it yet.
    if (/^\d+ \(.*\) Z/.test(fs.existsSync(`/proc/${pid}/stat`) ? fs.readFileSync(`/proc/${pid}/stat`, "utf8") : "")) return;
    await new Promise((done) => setTimeout(done, 5));
  }
}

test("a command runs in the copy with the variables of this process, and the sidecar gets its end and output", async (t) => {
  const { directory, run } = bench(t, { WHOSE: "ada", GIT_DIR: "/elsewhere", OPENCODE_SERVER_PASSWORD: "secret" });
  const tell = 'echo "$WHOSE $DURABLE_STREAM_PROJECT $PWD$GIT_DIR$OPENCODE_SERVER_PASSWORD"; ls -A';
  assert.deepEqual(await run(tell), { code: 0, output: `ada /project ${directory}\n` });
  assert.deepEqual(await run("read x; echo oh >&2; exit 3"), { code: 3, output: "oh\n" });
  assert.deepEqual(await run("echo $WHOSE", { variables: { WHOSE: "terminal" } }), { code: 0, output: "terminal\n" });
  const { output } = await run("seq 9999");
  assert.equal(output.length, 16_000);
  assert.match(output, /\n9999\n$/);
});

test("what a command leaves running delays nothing and runs on", async (t) => {
  const { directory, run } = bench(t);
  assert.equal((await run("sleep 600 & echo $! > pid")).code, 0);
  const pid = await begun(directory);
  assert.ok(process.kill(pid, 0));
  process.kill(pid, "SIGKILL");
});

test("a command that cannot begin counts as failed", async (t) => {
  const { run } = bench(t);
  for (const directory of ["/none", "/proc"]) assert.equal((await run("true", { directory })).code, 126);
});

test("a command that is stopped ends with all that it started, and the next one has its id", async (t) => {
  const { directory, call, run } = bench(t);
  const running = run(`(${HOLD}) & wait`);
  const pid = await begun(directory);
  assert.deepEqual(await call("setup.stop", { id: "int_1" }), { code: null, output: "begun\n" });
  await gone(pid);
  assert.equal((await running).code, null);
  assert.equal(await call("setup.stop", { id: "int_1" }), undefined);
  assert.equal((await run("true")).code, 0);
});

test("without its link to the sidecar no command runs on", async (t) => {
  const { directory, copies, run } = bench(t);
  void run(HOLD);
  const pid = await begun(directory);
  copies.lost();
  await gone(pid);
});

test("a command ends with the OpenCode that runs it, also when that is killed", async (t) => {
  const directory = place(t);
  const script = `import { Copies } from ${JSON.stringify(new URL("../src/copies.js", import.meta.url).href)};
    const args = ${JSON.stringify({ id: "int_1", command: HOLD, directory, project: "/project" })};
    const copies = new Copies(process.env);
    for (;;) await copies.methods["setup.run"](null, args);`;
  const opencode = spawn(process.execPath, ["--input-type=module", "-e", script], { stdio: "ignore" });
  const pid = await begun(directory);
  opencode.kill("SIGKILL");
  await gone(pid);
});

test("the snapshots of a directory are removed when it is gone, and nothing else", async (t) => {
  const data = place(t);
  const { directory, call } = bench(t, { XDG_DATA_HOME: data });
  const name = createHash("sha1").update(directory).digest("hex");
  const kept = path.join(data, "opencode", "snapshot", "project", name);
  fs.mkdirSync(kept, { recursive: true });
  await call("snapshots.remove", { project: "project", directory });
  fs.rmSync(directory, { recursive: true });
  for (const project of ["", ".", "..", "../project", "other"]) await call("snapshots.remove", { project, directory });
  assert.ok(fs.existsSync(kept));
  await call("snapshots.remove", { project: "project", directory });
  assert.ok(!fs.existsSync(kept) && fs.existsSync(path.dirname(kept)));
});

test("the sidecar gets the variables of a command that it may begin once, and those of no other", async (t) => {
  const { copies, call } = bench(t);
  const [command, other] = [await call("variables.ask", {}), await call("variables.ask", {})];
  const env = { ASKER: "terminal" };
  copies.begins({ command, env });
  copies.begins({ command: "ls", env });
  copies.begins({ get command() { throw new Error("another form of event"); } });
  env.ASKER = "later";
  const given = () => Promise.all([command, other, "ls"].map((each) => call("variables.get", { command: each })));
  assert.deepEqual(await given(), [{ ASKER: "terminal" }, null, undefined]);
  assert.deepEqual(await given(), [undefined, undefined, undefined]);
});
