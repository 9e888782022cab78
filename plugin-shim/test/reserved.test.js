/** What others have reserved is said with the file, once, and an edit fails only if the user wants that. */
import assert from "node:assert/strict";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { test } from "node:test";
import { Reserved, matches } from "../src/reserved.js";

const vectors = JSON.parse(fs.readFileSync(new URL("./reserved.json", import.meta.url), "utf8"));

test("a path matches as the sidecar has it", () => {
  for (const [pattern, file, expected] of vectors) {
    assert.equal(matches(pattern.normalize("NFC").toLowerCase().split("/"), file), expected, `${pattern} ${file}`);
  }
});

/** @param {import("node:test").TestContext} t @param {object} [more] */
function bench(t, more = {}) {
  const root = fs.realpathSync(fs.mkdtempSync(path.join(os.tmpdir(), "shim-")));
  t.after(() => fs.rmSync(root, { recursive: true }));
  const entry = { roots: [root], path: ["src", "**"], until: Date.now() + 60_000, free: ["ses_own"], text: "src/ is taken" };
  const context = { reserved: [entry], refuse: false, ...more };
  return { root, entry, context, reserved: new Reserved(() => context) };
}

/** @param {string} tool @param {any} args @param {string} [sessionID] */
const call = (tool, args, sessionID = "ses_1") => ({ tool, sessionID, args });

test("a reserved file is announced once by reading and once by editing, in either OpenCode", (t) => {
  const { root, reserved } = bench(t);
  const said = (/** @type {any} */ made) => {
    const output = { output: "done" };
    reserved.warn(made, output, root);
    return output.output !== "done";
  };
  const file = { filePath: path.join(root, "src", "a.py") };
  assert.deepEqual([said(call("read", file)), said(call("read", file)), said(call("edit", file)), said(call("edit", file))], [true, false, true, false]);
  assert.ok(said(call("write", { filePath: "src/new.py" }, "ses_2")));
  assert.ok(said(call("apply_patch", { patchText: "*** Begin Patch\n*** Add File: b.py\n+x\n*** Update File: b.py\n*** Move to: src/b.py\n" }, "ses_3")));
  assert.ok(!said(call("read", file, "ses_own")) && !said(call("bash", file, "ses_4")) && !said(call("read", { filePath: "docs/a" }, "ses_4")));
  assert.ok(!said(call("read", { filePath: "../other/src/a.py" }, "ses_4")));
  const two = { tool: "read", sessionID: "ses_5", input: { path: "src/a.py" }, result: { content: [{ type: "text", text: "x" }] } };
  reserved.warn(two, null, root);
  assert.match(two.result.content[1].text, /src\/ is taken/);
});

test("a file in a private copy is the user's file", (t) => {
  const { root, reserved } = bench(t, { refuse: true, copies: "/home/copies" });
  const refused = (/** @type {string} */ file) => reserved.refusal(call("edit", null), { args: { filePath: file } }, "/") !== null;
  assert.ok(refused(`/home/copies/int_1/files${root}/src/a.py`) && !refused(`/home/copies/int_1/files${root}/docs/a.py`));
  assert.ok(!refused(`/home/copies/${root}/src/a.py`) && !refused(`/home/copies2/int_1/files${root}/src/a.py`));
});

test("two copies of the plugin say the same once", (t) => {
  const { root, context, reserved } = bench(t);
  const output = { output: "done" };
  for (const copy of [reserved, new Reserved(() => context)]) copy.warn(call("read", { filePath: "src/a.py" }), output, root);
  assert.equal(output.output.split("src/ is taken").length, 2);
});

test("a link leads to what is reserved, from inside and from outside", (t) => {
  const { root, reserved } = bench(t, { refuse: true });
  fs.mkdirSync(path.join(root, "src"));
  fs.symlinkSync(path.join(root, "src"), path.join(root, "linked"));
  const outside = `${root}-link`;
  fs.symlinkSync(root, outside);
  t.after(() => fs.rmSync(outside));
  for (const file of ["linked/new/x", path.join(outside, "src", "x"), path.join(outside, "linked", "x")]) {
    assert.match(String(reserved.refusal(call("edit", null), { args: { filePath: file } }, root)), /src\/ is taken/);
  }
});

test("an edit is refused only if the user wants that, and nothing else ever is", (t) => {
  const { root, entry, context, reserved } = bench(t);
  const file = { filePath: path.join(root, "src", "a.py") };
  const refused = (/** @type {string} */ tool, session = "ses_1") => reserved.refusal(call(tool, null, session), { args: file }, root) !== null;
  assert.ok(!refused("edit"));
  context.refuse = true;
  assert.ok(refused("edit") && refused("write") && !refused("read") && !refused("bash") && !refused("edit", "ses_own"));
  entry.until = Date.now();
  assert.ok(!refused("edit"), "it is over, though the sidecar has not said so");
});

test("whatever OpenCode and the sidecar send, the call goes on", (t) => {
  const odd = [undefined, null, 1, "x", [], {}, [null], [{}], [{ roots: null, path: null, until: Infinity, free: [] }]];
  const thrown = new Proxy({}, { get() { throw new Error("get"); } });
  for (const reserved of [...odd, thrown]) {
    const made = new Reserved(() => /** @type {any} */ ({ reserved, refuse: true }));
    for (const given of [...odd, thrown, call("edit", thrown), call("edit", { filePath: "a", patchText: 1 }), call("read", { filePath: "\0" })]) {
      assert.equal(made.refusal(given, { args: given }, "/"), null);
      made.warn(given, Object.freeze({ output: "x" }), "/");
    }
  }
  const { root, context } = bench(t, { refuse: true });
  const reserved = new Reserved(() => context);
  assert.doesNotThrow(() => reserved.warn(call("edit", { filePath: "src/a" }), Object.freeze({ output: "x" }), root));
});
