import assert from "node:assert/strict";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { test } from "node:test";
import { CardFile, FILE, lines, notesOf, showCard } from "../src/card.js";

const RUNS = { id: "int_1", title: "run the\u001b[31m tests", state: "running", ran: null, since: 1000, cost: 0.5, asks: 0, parent: "ses_1", root: "ses_1" };
const QUEUED = { ...RUNS, id: "int_2", title: "x".repeat(50), state: "queued", ran: null, since: null, cost: 0, parent: "ses_2" };
const ASKS = { ...RUNS, id: "int_3", asks: 2 };

function newHome() {
  return fs.mkdtempSync(path.join(os.tmpdir(), "card-"));
}

test("an agent has a line for its title and one for what it does", () => {
  assert.deepEqual(lines([RUNS], 63_000).map(({ content }) => content), ["• run the [31m tests", "  running · 1 min · $0.50"]);
  const [title, state] = lines([QUEUED], 63_000);
  assert.ok(title && state && title.content.length <= 38);
  assert.equal(state.content, "  queued");
  assert.equal(lines([ASKS], 0)[0]?.color, "warning");
});

test("what waits stays at the foot of its session, and what was opened while work ran says that it is a picture", () => {
  const asks = ["first\nhow", "second"].map((text, n) => ({ id: `chk_${n}`, session: "ses_1", text }));
  assert.deepEqual(notesOf(asks.slice(0, 1), [], "ses_1"), ["first", "how"]);
  assert.match(notesOf(asks, [], "ses_1").join("|"), /^first\|how\|1 more/);
  assert.deepEqual(notesOf(asks, [], "ses_2"), []);
  const agents = [{ ...RUNS, session: "ses_below" }];
  const pictures = new Set();
  assert.deepEqual(notesOf([], [], "ses_below", pictures), [], "it was not opened while it ran");
  assert.match(notesOf([], agents, "ses_below", pictures).join("|"), /^A picture, not live[^|]*$/);
  assert.match(notesOf([], [], "ses_below", pictures).join("|"), /^This may be a picture from before this work ended[^|]*$/);
  assert.deepEqual(notesOf([], agents, "ses_below"), [], "OpenCode 2 draws it live");
  assert.deepEqual(notesOf([], [{ ...RUNS, session: null }], "", pictures), []);
});

test("the file is read when it changed, and a broken one changes nothing", async () => {
  const home = newHome();
  const file = new CardFile(path.join(home, FILE));
  assert.equal(await file.changed(), null);
  fs.writeFileSync(path.join(home, FILE), JSON.stringify({ agents: [RUNS] }));
  assert.deepEqual(await file.changed(), [RUNS]);
  assert.equal(await file.changed(), null);
  fs.writeFileSync(path.join(home, FILE), '{"agents":');
  assert.equal(await file.changed(), null);
  fs.writeFileSync(path.join(home, FILE), JSON.stringify({ agents: [null, {}, { ...RUNS, title: 7 }, ASKS] }));
  assert.deepEqual(await file.changed(), [ASKS], "what cannot be drawn is left out");
});

test("the card has the work of the session that is shown, at any depth", async (t) => {
  t.mock.timers.enable({ apis: ["setInterval"] });
  const home = newHome();
  fs.writeFileSync(path.join(home, FILE), JSON.stringify({ agents: [RUNS, QUEUED] }));
  /** @type {any} */
  let slots;
  /** @type {() => void} */
  let end = () => {};
  const api = {
    theme: { current: {} },
    lifecycle: { onDispose: (/** @type {() => void} */ undo) => void (end = undo) },
    slots: { register: (/** @type {any} */ given) => void ({ slots } = given) },
  };
  /** @type {(value: any) => void} */
  let told = () => {};
  const first = new Promise((resolve) => (told = resolve));
  await showCard(api, home, async () => ({
    jsx: (type, props) => ({ type, ...props }),
    createSignal: (value) => {
      const set = (/** @type {any} */ next) => {
        value = next;
        if (Array.isArray(next)) told(next);
      };
      return [() => value, set];
    },
  }));
  const prompt = (/** @type {string} */ id) => slots.session_prompt_right({}, { session_id: id }).children();
  assert.deepEqual(prompt("ses_1"), []);
  t.mock.timers.tick(1000);
  await first;
  assert.match(prompt("ses_1")[0].children, /^2 /);
  assert.match(prompt("ses_2")[0].children, /^1 /);
  assert.equal(slots.sidebar_content({}, { session_id: "ses_1" }).children().length, 5);
  assert.deepEqual(slots.sidebar_content({}, { session_id: "ses_9" }).children(), []);
  end();
});
