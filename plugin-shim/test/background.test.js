import assert from "node:assert/strict";
import { test } from "node:test";
import { Background, COMMAND } from "../src/background.js";

/** @param {any} [given] */
function newBench({ status = {}, ask = async () => "int_1 running" } = {}) {
  /** @type {any[]} */
  const calls = [];
  const client = {
    session: {
      status: async () => ({ data: status }),
      promptAsync: async (/** @type {any} */ given) => void calls.push(["prompt", given]),
    },
    tui: { showToast: async (/** @type {any} */ given) => void calls.push(["toast", given]) },
  };
  /** @type {any[]} */
  const asked = [];
  const background = new Background(client, async (...given) => (asked.push(given), ask()));
  return { hooks: background.hooks(), calls, asked };
}

const input = { command: COMMAND, sessionID: "ses_1", arguments: "cancel int_1" };

test("the list is shown to the person alone, and the command ends before the model is asked", async () => {
  const { hooks, calls, asked } = newBench();
  await assert.rejects(hooks["command.execute.before"](input));
  assert.deepEqual(asked[0].slice(0, 3), [COMMAND, { text: "cancel int_1" }, { sessionID: "ses_1" }]);
  const [[kind, given]] = calls;
  assert.deepEqual([kind, given.path, given.body.noReply], ["prompt", { id: "ses_1" }, true]);
  assert.deepEqual([given.body.parts[0].text, given.body.parts[0].ignored], ["int_1 running", true]);
});

test("a busy session gets a toast, because a message would start a turn", async () => {
  const { hooks, calls } = newBench({ status: { ses_1: { type: "busy" } } });
  await assert.rejects(hooks["command.execute.before"](input));
  assert.equal(calls[0][0], "toast");
});

test("an error of the sidecar is shown, too", async () => {
  const ask = async () => {
    throw new Error("no intent begins with int_1");
  };
  const { hooks, calls } = newBench({ ask });
  await assert.rejects(hooks["command.execute.before"](input));
  assert.match(calls[0][1].body.parts[0].text, /no intent/);
});

test("other commands pass, and a command of the user's with this name stays", async () => {
  const { hooks, calls } = newBench();
  await hooks["command.execute.before"]({ command: "other" });
  await hooks["command.execute.before"](
    new Proxy({}, {
      get() {
        throw new Error("get");
      },
    }),
  );
  assert.deepEqual(calls, []);
  const config = { command: { [COMMAND]: { template: "mine" } } };
  await hooks.config(config);
  assert.equal(config.command[COMMAND].template, "mine");
  await hooks.config(Object.freeze({}));
  /** @type {any} */
  const empty = {};
  await hooks.config(empty);
  assert.ok(empty.command[COMMAND].description);
});
