/** The sidecar asks, OpenCode's client answers. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { INPUT, newBench, until } from "./support.js";

const client = {
  session: {
    ok: true,
    /** @param {any} args */
    async get(args) {
      // A method taken off its object would lose `this`, as the real client's do.
      return this.ok && args.path.id === "ses_1"
        ? { data: { id: "ses_1" }, response: { status: 200 } }
        : { error: { name: "NotFound", data: { message: "no such session" } }, response: { status: 404 } };
    },
    async list() {
      throw new Error("broken");
    },
    status: () => new Promise(() => {}),
    promptAsync: async () => ({ data: undefined, response: { status: 204 } }),
    /** @param {any} args */
    messages: async (args) => (args.path ? { data: [{ info: { id: "msg_1" }, parts: [10n] }] } : { data: 10n }),
    /** @param {any} args */
    fork: async (args) => ({ data: args }),
    create: async () => ({ data: "x".repeat(16 << 20) }),
  },
  /** @param {any} args */
  postSessionIdPermissionsPermissionId: async (args) => ({ data: args }),
  _client: {
    /** @param {any} args */
    get: async (args) => ({ data: args }),
    /** @param {any} args */
    post: async (args) => ({ data: args }),
  },
  // tui is missing: an OpenCode without it
};

/** @param {string} url @param {string} requestID @param {object} [body] */
function posted(url, requestID, body) {
  return { url, path: { requestID }, ...(body ? { body, headers: { "content-type": "application/json" } } : {}) };
}

const CASES = /** @type {[string, any, any][]} */ ([
  ["session.get", { path: { id: "ses_1" } }, { value: { id: "ses_1" } }],
  ["session.get", { path: { id: "ses_2" } }, { error: { code: "opencode", message: "no such session", status: 404 } }],
  ["session.get", undefined, { error: { code: "opencode", message: /undefined/ } }],
  ["session.list", {}, { error: { code: "opencode", message: "broken" } }],
  ["session.status", {}, { error: { code: "timeout", message: /60 ms/ } }],
  ["session.promptAsync", {}, { value: null }],
  ["session.messages", {}, { error: { code: "opencode", message: /BigInt/ } }],
  ["session.messageIds", { path: { id: "ses_1" } }, { value: ["msg_1"] }],
  ["session.fork", { path: { id: "ses_1" } }, { value: { path: { id: "ses_1" } } }],
  ["session.create", {}, { error: { code: "opencode", message: /too large/ } }],
  [
    "permission.reply",
    { session_id: "s", permission_id: "p", response: "once" },
    { value: { path: { id: "s", permissionID: "p" }, body: { response: "once" } } },
  ],
  [
    "permission.reply",
    { session_id: "s", permission_id: "p", response: "reject", message: "no" },
    { value: posted("/permission/{requestID}/reply", "p", { reply: "reject", message: "no" }) },
  ],
  ["question.list", {}, { value: { url: "/question" } }],
  [
    "question.reply",
    { request_id: "q", answers: [["Blue"]] },
    { value: posted("/question/{requestID}/reply", "q", { answers: [["Blue"]] }) },
  ],
  ["question.reject", { request_id: "q" }, { value: posted("/question/{requestID}/reject", "q") }],
  ["tui.showToast", {}, { error: { code: "opencode", message: /undefined/ } }],
  ["session.delete.all", {}, { error: { code: "unknown_method", message: /session\.delete\.all/ } }],
  ["constructor", {}, { error: { code: "unknown_method", message: /constructor/ } }],
]);

test("calls are answered under their id, with the data or an error", async (t) => {
  const { sidecar, live } = newBench(t);
  const { counters } = await live({ callTimeoutMs: 60 }, { ...INPUT, client });
  CASES.forEach(([method, args], id) => sidecar.send({ type: "call", id, method, args }));
  await until(() => sidecar.ofType("result").length === CASES.length, "all answered");
  for (const [id, [method, , want]] of CASES.entries()) {
    const { type: _type, id: _id, ...got } = sidecar.ofType("result").find((frame) => frame.id === id);
    if (want.error?.message instanceof RegExp) {
      assert.match(got.error.message, want.error.message, method);
      assert.equal(got.error.code, want.error.code);
    } else {
      assert.deepEqual(got, want, method);
    }
  }
  assert.equal(counters.calls, CASES.length);
});

test("too many calls at once are refused, not queued", async (t) => {
  const { sidecar, live } = newBench(t);
  await live({ callTimeoutMs: 100 }, { ...INPUT, client });
  for (let id = 0; id < 70; id += 1) sidecar.send({ type: "call", id, method: "session.status" });
  await until(() => sidecar.ofType("result").length === 70, "all answered");
  const codes = sidecar.ofType("result").map(({ error }) => error.code);
  assert.equal(codes.filter((code) => code === "unavailable").length, 6);
});
