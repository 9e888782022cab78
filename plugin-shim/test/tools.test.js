/** The model's tools: registered as the sidecar describes them, and answered by it. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { Tools } from "../src/tools.js";

const DEFINITIONS = {
  quick: { description: "q", args: { a: { type: "string" } }, required: [] },
  waits: { description: "w", args: {}, required: [], wait_ms: 20 },
};

/** A link that keeps what is sent. */
function newLink() {
  /** @type {any[]} */
  const sent = [];
  return { live: true, sent, send: (/** @type {string} */ text) => sent.push(JSON.parse(text)) > 0 };
}

test("a call goes out with its context, and its answer or error comes back", async () => {
  const link = newLink();
  const tools = new Tools(link);
  const { tool } = tools.hooks(DEFINITIONS);
  const first = tool.quick.execute({ a: "1" }, { sessionID: "ses_1", messageID: "msg_1", callID: "c", secret: 1 });
  const second = tool.quick.execute({}, {});
  await new Promise(setImmediate);
  const [one, two] = link.sent;
  assert.deepEqual([one.type, one.name, one.args], ["tool", "quick", { a: "1" }]);
  assert.deepEqual(one.context, { sessionID: "ses_1", messageID: "msg_1", callID: "c" });
  tools.answered({ id: two.id, error: { message: "wrong arguments" } });
  tools.answered({ id: one.id, value: "done" });
  tools.answered({ id: one.id, value: "again" });
  assert.equal(await first, "done");
  await assert.rejects(second, /wrong arguments/);
});

test("a tool has the time that its description gives", async (t) => {
  const tools = new Tools(newLink());
  const { tool } = tools.hooks(DEFINITIONS);
  // The other tool has a minute, so that only this one can end.
  const quick = tool.quick.execute({}, {});
  // Its timers do not keep a process alive.
  const alive = setInterval(() => {}, 1000);
  t.after(() => clearInterval(alive));
  await assert.rejects(tool.waits.execute({}, {}), /did not answer in time/);
  tools.lost();
  await assert.rejects(quick, /restarted/);
});

test("only what is required is required, in each request to the model", async () => {
  const hooks = new Tools(newLink()).hooks(DEFINITIONS);
  for (let request = 0; request < 3; request += 1) {
    const output = { jsonSchema: { required: ["a"] } };
    await hooks["tool.definition"]({ toolID: "quick" }, output);
    assert.deepEqual(output.jsonSchema.required, []);
  }
  assert.deepEqual(new Tools(newLink()).hooks({}), {});
});

test("a schema that OpenCode keeps is mended once: then OpenCode has no hook to call for each tool", async () => {
  const hooks = new Tools(newLink()).hooks(DEFINITIONS);
  const schemas = { quick: { required: ["a"] }, waits: { required: ["b"] }, bash: { required: ["command"] } };
  for (let request = 0; request < 2; request += 1) {
    for (const [toolID, jsonSchema] of Object.entries(schemas)) await hooks["tool.definition"]?.({ toolID }, { jsonSchema });
  }
  assert.deepEqual(schemas, { quick: { required: [] }, waits: { required: [] }, bash: { required: ["command"] } });
  assert.equal("tool.definition" in hooks, false);
});
