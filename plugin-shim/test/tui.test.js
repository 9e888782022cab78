import assert from "node:assert/strict";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { test } from "node:test";
import { List, runner } from "../src/list.js";
import { screen, tui } from "../src/tui.js";

const PROOF = "8988d7257f273830394298b26cd0e4753922cc3fb71b4915834d6bbf7239b781";
const RUNS = { id: "int_1", title: "tests", state: "running", ran: 61000, cost: 0.5, doing: "bash: make", session: "ses_1" };
const ENDED = { ...RUNS, id: "int_2", title: "old", state: "failed", doing: "", reason: "timeout" };
const PERMISSION = { id: "chk_1", kind: "permission", text: "bash rm", options: ["once", "reject"] };
const QUESTION = { id: "chk_2", kind: "ask", text: "Ship it?", options: [] };
const PARTS = { id: "chk_3", kind: "question", text: "Which door?; Which window?", options: [] };

/**
 * @param {any} [state] what `top` says
 * @param {any} [known] what `checkpoints` says of one
 * @param {string} [printed] what `top` prints
 */
function newBench(state = { agents: [ENDED, RUNS], waiting: [PERMISSION, QUESTION] }, known = {}, printed) {
  /** @type {{dialogs: any[], toasts: any[], routes: any[]}} */
  const shown = { dialogs: [], toasts: [], routes: [] };
  const api = {
    ui: {
      dialog: {
        replace: (/** @type {any} */ make) => void shown.dialogs.push(make()),
        clear: () => void shown.dialogs.push(null),
      },
      DialogSelect: (/** @type {any} */ given) => given,
      DialogPrompt: (/** @type {any} */ given) => given,
      toast: (/** @type {any} */ given) => void shown.toasts.push(given),
    },
    route: { navigate: (/** @type {any[]} */ ...given) => void shown.routes.push(given) },
  };
  /** @type {string[][]} */
  const ran = [];
  const run = async (/** @type {string[]} */ ...words) => {
    ran.push(words);
    if (words[0] === "top") return printed ?? JSON.stringify(state);
    if (words[0] === "checkpoints" && words.at(-1) === "reject") throw new Error("it has an answer already");
    const listed = state.waiting.find((/** @type {any} */ each) => each.id === words[1]);
    return words[0] === "checkpoints" && words.at(-1) === "--json" ? JSON.stringify({ ...listed, ...known }) : "";
  };
  return { list: new List(screen(api), run), shown, ran };
}

const last = (/** @type {any[]} */ list) => list.at(-1);
const settle = () => new Promise((resolve) => setImmediate(resolve));
const choose = async (/** @type {any} */ dialog, /** @type {string} */ value) => {
  dialog.options.find((/** @type {any} */ each) => each.value === value).onSelect();
  await settle();
};
const confirm = async (/** @type {any} */ dialog, /** @type {string} */ text) => {
  dialog.onConfirm(text);
  await settle();
};

test("the list has what waits, what runs, and what has ended, the newest first", async () => {
  const { list, shown } = newBench();
  await list.open();
  const { options } = last(shown.dialogs);
  assert.deepEqual(options.map((/** @type {any} */ each) => each.value), ["chk_1", "chk_2", "int_1", "int_2"]);
  assert.deepEqual([options[2].description, options[2].footer], ["bash: make", "running · 61 s · $0.50"]);
  const waits = newBench({ agents: [{ ...RUNS, asks: 1 }], waiting: [] });
  await waits.list.open();
  assert.equal(last(waits.shown.dialogs).options[0].footer, "waiting for you · 61 s · $0.50");
  assert.notEqual(options[2].category, options[3].category);
});

test("what runs can be cancelled and its session opened; what has ended, only opened", async () => {
  const { list, shown, ran } = newBench();
  await list.open();
  await choose(last(shown.dialogs), "int_1");
  await choose(last(shown.dialogs), "cancel");
  assert.deepEqual(last(ran), ["top", "--json"], "it asks first");
  await choose(last(shown.dialogs), "cancel");
  assert.deepEqual(last(ran), ["intents", "int_1", "--cancel"]);
  assert.equal(shown.toasts[0].variant, "info");
  await list.open();
  await choose(last(shown.dialogs), "int_2");
  const values = last(shown.dialogs).options.map((/** @type {any} */ each) => each.value);
  assert.deepEqual(values, ["open", "back"]);
  await choose(last(shown.dialogs), "open");
  assert.deepEqual(shown.routes, [["session", { sessionID: "ses_1" }]]);
});

test("Enter again and again never destroys or allows more than was asked", async () => {
  const always = { ...PERMISSION, options: ["once", "always", "reject"], always: ["rm *"] };
  const cut = { ...PERMISSION, text: "rm ".repeat(500) };
  const queued = { ...RUNS, state: "queued", session: null };
  /** @type {[any, any, string[]][]} */
  const cases = [
    [{ agents: [queued], waiting: [] }, {}, ["int_1"]],
    [{ agents: [queued], waiting: [] }, {}, ["int_1", "cancel"]],
    [{ agents: [RUNS], waiting: [] }, {}, ["int_1", "cancel"]],
    [{ agents: [], waiting: [PERMISSION] }, always, ["chk_1", "always"]],
    [{ agents: [], waiting: [PERMISSION] }, cut, ["chk_1"]],
  ];
  for (const [state, known, chosen] of cases) {
    const { list, shown, ran } = newBench(state, known);
    await list.open();
    for (const value of chosen) await choose(last(shown.dialogs), value);
    assert.equal(last(shown.dialogs).options[0].value, "back", chosen.join());
    await choose(last(shown.dialogs), "back");
    assert.deepEqual(last(ran), ["top", "--json"]);
  }
});

test("a permission is answered by a choice, a question by a text; a refusal is shown", async () => {
  const { list, shown, ran } = newBench();
  await list.open();
  await choose(last(shown.dialogs), "chk_1");
  await choose(last(shown.dialogs), "once");
  assert.deepEqual(last(ran), ["checkpoints", "chk_1", "--answer", "once"]);
  await list.open();
  await choose(last(shown.dialogs), "chk_1");
  await choose(last(shown.dialogs), "reject");
  assert.deepEqual([last(shown.toasts).variant, last(shown.toasts).message], ["error", "it has an answer already"]);
  await list.open();
  await choose(last(shown.dialogs), "chk_2");
  await confirm(last(shown.dialogs), "on Monday");
  assert.deepEqual(last(ran), ["checkpoints", "chk_2", "--answer", "on Monday"]);
});

test("an effect in doubt is decided by a choice, and not where it is cut", async () => {
  const options = ["it happened", "try again", "give up"];
  const doubt = { id: "chk_4", kind: "effect", text: 'pay {"sum": 7}', session: "", options };
  const { list, shown, ran } = newBench({ agents: [], waiting: [doubt] });
  await list.open();
  await choose(last(shown.dialogs), "chk_4");
  assert.deepEqual(last(shown.dialogs).options.map((/** @type {any} */ each) => each.value), options);
  await choose(last(shown.dialogs), "try again");
  assert.deepEqual(last(ran), ["checkpoints", "chk_4", "--answer", "try again"]);
  const cut = newBench({ agents: [], waiting: [doubt] }, { left_out: 3 });
  await cut.list.open();
  await choose(last(cut.shown.dialogs), "chk_4");
  assert.deepEqual(last(cut.shown.dialogs).options.map((/** @type {any} */ each) => each.value), ["back"]);
});

test("a question of several parts has a prompt for each, and all answers are sent at once", async () => {
  const { list, shown, ran } = newBench(
    { agents: [], waiting: [PARTS] },
    { questions: 2, text: "Which door?\nWhich window?", options: [] },
  );
  await list.open();
  await choose(last(shown.dialogs), "chk_3");
  assert.deepEqual(last(ran), ["checkpoints", "chk_3", "--json"]);
  assert.equal(last(shown.dialogs).title, "Which door?");
  await confirm(last(shown.dialogs), "the red one");
  assert.equal(last(shown.dialogs).title, "Which window?");
  assert.equal(ran.length, 2, "nothing is sent before the last answer");
  await confirm(last(shown.dialogs), "none of them");
  assert.deepEqual(last(ran), ["checkpoints", "chk_3", "--answer", "the red one", "--answer", "none of them"]);
  assert.equal(last(shown.toasts).message, "Answered: the red one; none of them");
});

test("what is too long to be shown whole keeps both ends and can only be rejected", async () => {
  const text = `bash echo ${"A".repeat(5000)} ; curl evil`;
  for (const known of [{ text }, { left_out: 3 }, { always: ["x".repeat(600)] }]) {
    const { list, shown, ran } = newBench(undefined, known);
    await list.open();
    await choose(last(shown.dialogs), "chk_1");
    const values = last(shown.dialogs).options.map((/** @type {any} */ each) => each.value);
    assert.deepEqual(values, ["back", "reject"]);
    assert.match(last(shown.dialogs).placeholder, /durable-stream checkpoints chk_1/);
    if (known.text) assert.match(last(shown.dialogs).title, /^bash echo A+ … \d+ characters left out … A+ ; curl evil$/);
    await choose(last(shown.dialogs), "reject");
    assert.deepEqual(last(ran), ["checkpoints", "chk_1", "--answer", "reject"]);
  }
});

test("always names what it allows before it allows that, and is not offered if nobody knows", async () => {
  const asked = { ...PERMISSION, options: ["once", "always", "reject"] };
  const state = { agents: [], waiting: [asked] };
  const { list, shown, ran } = newBench(/** @type {any} */ (state), { always: ["rm *", "ls"] });
  await list.open();
  await choose(last(shown.dialogs), "chk_1");
  await choose(last(shown.dialogs), "always");
  assert.ok(last(shown.dialogs).title.includes("rm * ; ls"));
  assert.equal(last(ran).at(-1), "--json", "nothing is sent yet");
  await choose(last(shown.dialogs), "allow");
  assert.deepEqual(last(ran), ["checkpoints", "chk_1", "--answer", "always"]);
  const unknown = newBench(/** @type {any} */ (state), { always: [] });
  await unknown.list.open();
  await choose(last(unknown.shown.dialogs), "chk_1");
  const values = last(unknown.shown.dialogs).options.map((/** @type {any} */ each) => each.value);
  assert.deepEqual(values, ["once", "reject"]);
});

test("no character of an ask is hidden", async () => {
  const { list, shown } = newBench({ agents: [], waiting: [{ ...QUESTION, text: "a\u202eb\u001b[8m\nrm" }] });
  await list.open();
  await choose(last(shown.dialogs), "chk_2");
  assert.equal(last(shown.dialogs).title, "a<U+202E>b<U+001B>[8m ⏎ rm");
});

test("an answer and a cancellation carry the proof that they were given in the list, and no other command does", async () => {
  const home = fs.mkdtempSync(path.join(os.tmpdir(), "list-"));
  try {
    fs.writeFileSync(path.join(home, "token"), "ab".repeat(32), { mode: 0o600 });
    const run = runner({ command: ["/bin/sh", "-c", 'printf %s "$DURABLE_STREAM_PROOF"', "x"], home });
    // What the sidecar computes: tests/sidecar/background/test_people.py.
    assert.equal(await run("checkpoints", "chk_1", "--answer", "yes", "--answer", "é"), PROOF);
    assert.match(await run("intents", "int_1", "--cancel"), /^[0-9a-f]{64}$/);
    assert.equal(await run("checkpoints", "chk_1", "--json"), "");
    fs.rmSync(path.join(home, "token"));
    assert.equal(await run("checkpoints", "chk_1", "--answer", "yes"), "");
  } finally {
    fs.rmSync(home, { recursive: true });
  }
});

test("a command line that fails or prints nonsense is a toast", async () => {
  const { shown } = newBench();
  await tui({ command: ["/nowhere/durable-stream"], home: "/h" }, "file:///x").tui({
    command: { register: (/** @type {any} */ make) => void shown.routes.push(make()) },
    ui: {
      dialog: { replace: () => {}, clear: () => {} },
      toast: (/** @type {any} */ given) => void shown.toasts.push(given),
    },
  });
  const [[command]] = shown.routes;
  assert.equal(command.slash.name, "background");
  command.onSelect();
  while (shown.toasts.length === 0) await new Promise((resolve) => setTimeout(resolve, 5));
  assert.equal(shown.toasts[0].variant, "error");
});
