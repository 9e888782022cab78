import assert from "node:assert/strict";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { test } from "node:test";
import { FILE, LOOK_MS } from "../src/card.js";
import { List } from "../src/list.js";
import { Toasts, screen2, tui2 } from "../src/tui2.js";

const RUNS = { id: "int_1", title: "tests", state: "running", ran: null, since: 1000, cost: 0, asks: 0, parent: "ses_1", root: "ses_1" };
const STARTED = { id: "key_1", session: "ses_1", title: "OpenCode", text: "tests: started" };

/** OpenCode 2's API, as far as the plugin uses it. Dialogs answer when the test says so. */
function newTerminal() {
  /** @type {{dialogs: any[], toasts: any[], routes: any[], claims: any[], layers: any[]}} */
  const shown = { dialogs: [], toasts: [], routes: [], claims: [], layers: [] };
  const dialog = (/** @type {any} */ given) => new Promise((resolve) => shown.dialogs.push({ ...given, resolve }));
  const context = {
    theme: { text: { base: "white", muted: "gray", feedback: { warning: { base: "yellow" } } } },
    data: { session: { get: (/** @type {string} */ id) => (id === "ses_1" ? { id } : undefined) } },
    keymap: { layer: (/** @type {any} */ make) => void shown.layers.push(make()) },
    ui: {
      slot: (/** @type {any} */ claim) => void shown.claims.push(claim),
      dialog: { select: dialog, prompt: dialog, clear: () => void shown.dialogs.push(null) },
      toast: { show: (/** @type {any} */ given) => void shown.toasts.push(given) },
      router: { navigate: (/** @type {any} */ to) => void shown.routes.push(to) },
    },
  };
  return { context, shown };
}

/** What the terminal's own modules do, without a screen. @returns {Promise<import("../src/card.js").Drawing>} */
const drawing = async () => ({
  jsx: (type, props) => ({ type, ...props }),
  createSignal: (value) => [() => value, (/** @type {any} */ next) => void (value = next)],
});

/** @param {any} node @returns {string[]} the texts, line by line */
const texts = (node) => {
  if (typeof node === "function") return texts(node());
  if (Array.isArray(node)) return node.flatMap(texts);
  return typeof node === "string" ? [node] : texts(node.children);
};

const newHome = () => fs.mkdtempSync(path.join(os.tmpdir(), "tui2-"));
const write = (/** @type {string} */ home, /** @type {any} */ content) =>
  fs.writeFileSync(path.join(home, FILE), JSON.stringify(content));
const last = (/** @type {any[]} */ list) => list.at(-1);
const settle = () => new Promise((resolve) => setImmediate(resolve));

test("/background is registered while the terminal draws, with a name that a config can refer to", async () => {
  const { context, shown } = newTerminal();
  const plugin = tui2({ command: ["/nowhere/durable-stream"], home: newHome() }, drawing);
  const end = await plugin.setup(context);
  assert.equal(shown.layers.length, 0);
  assert.equal(shown.claims[0].render({}), null);
  const [{ mode, commands }] = shown.layers;
  assert.deepEqual([mode, commands[0].slash.name, typeof commands[0].id], ["global", "background", "string"]);
  commands[0].run();
  while (shown.toasts.length === 0) await new Promise((resolve) => setTimeout(resolve, 5));
  assert.equal(shown.toasts[0].variant, "error", "the program is not there");
  end();
});

test("a dialog gets no functions, and its answer acts; a closed one does nothing", async () => {
  const { context, shown } = newTerminal();
  /** @type {string[][]} */
  const ran = [];
  const state = { agents: [{ ...RUNS, ran: 1, session: "ses_2" }], waiting: [{ id: "chk_1", kind: "ask", text: "Go?", options: [] }] };
  const list = new List(screen2(context.ui), async (...words) => {
    ran.push(words);
    return JSON.stringify(words[0] === "top" ? state : state.waiting[0]);
  });
  await list.open();
  const listed = last(shown.dialogs);
  assert.equal(listed.options.every((/** @type {any} */ each) => !("onSelect" in each)), true);
  listed.resolve("int_1");
  await settle();
  last(shown.dialogs).resolve("open");
  await settle();
  assert.deepEqual(shown.routes, [{ type: "session", sessionID: "ses_2" }]);
  await list.open();
  last(shown.dialogs).resolve("chk_1");
  await settle();
  last(shown.dialogs).resolve("yes");
  await settle();
  assert.deepEqual(last(ran), ["checkpoints", "chk_1", "--answer", "yes"]);
  await list.open();
  const before = ran.length;
  last(shown.dialogs).resolve(undefined);
  await settle();
  assert.equal(ran.length, before);
});

test("a toast is shown once, in a terminal that knows its session, and none from before the terminal was opened", () => {
  const { context, shown } = newTerminal();
  const toasts = new Toasts(context);
  toasts.skip([STARTED]);
  const fresh = { ...STARTED, id: "key_2" };
  toasts.show([STARTED, fresh, { ...fresh, id: "key_3", session: "ses_9" }]);
  toasts.show([STARTED, fresh]);
  assert.deepEqual(shown.toasts.map((toast) => [toast.message, toast.sessionID]), [["tests: started", "ses_1"]]);
});

test("what comes into the file is shown; a file that is gone, or malformed, changes nothing", async (t) => {
  const { context, shown } = newTerminal();
  const home = newHome();
  const end = await tui2({ command: [], home }, drawing).setup(context);
  t.after(end);
  const prompt = shown.claims.find((claim) => claim.append === "session.composer.top").render({ sessionID: "ses_1" });
  fs.writeFileSync(path.join(home, FILE), '{"agents": [{}], "toasts": [{}, 5');
  write(home, { agents: [RUNS], toasts: [STARTED, { id: 5 }] });
  while (shown.toasts.length === 0) await new Promise((resolve) => setTimeout(resolve, LOOK_MS / 20));
  assert.equal(texts(prompt).length, 1);
  fs.rmSync(home, { recursive: true });
});
