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
  // Its timers do not keep a process alive.
  const alive = setInterval(() => {}, 1000);
  t.after(() => clearInterval(alive));
  await assert.rejects(tool.waits.execute({}, {}), /did not answer in time/);
});

test("a call whose link is lost goes to the next sidecar once, unless it was stopped meanwhile", async () => {
  const link = newLink();
  const tools = new Tools(link);
  const { tool } = tools.hooks(DEFINITIONS);
  const stopping = new AbortController();
  const call = tool.quick.execute({ a: "1" }, { sessionID: "ses_1", callID: "c" });
  const stopped = tool.quick.execute({}, { callID: "d", abort: stopping.signal });
  await new Promise(setImmediate);
  const [first] = link.sent.splice(0);
  link.live = false;
  tools.lost();
  tools.lost();
  stopping.abort();
  assert.deepEqual(link.sent, []);
  link.live = true;
  await assert.rejects(stopped, /stopped/);
  assert.deepEqual(link.sent, [first]);
  tools.answered({ id: first.id, value: "zone-b" });
  assert.equal(await call, "zone-b");
});

test("a call fails if no sidecar comes back in time", async () => {
  const link = newLink();
  const call = new Tools(link, 0).call("quick", {}, {}, 20);
  const timer = setInterval(() => {}, 1000);
  await new Promise(setImmediate);
  link.live = false;
  await assert.rejects(call, /did not answer in time/);
  await assert.rejects(new Tools(link).call("quick", {}, {}, 20), /not running/);
  clearInterval(timer);
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
