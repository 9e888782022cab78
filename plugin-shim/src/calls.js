/**
 * Answers `call` frames: the sidecar calls a method of OpenCode's in-process client.
 *
 * Under the TUI, OpenCode listens on no port, so the sidecar can reach it only through the plugin. Methods that are
 * not in the table are refused, because a link must not give access to everything.
 */

import { listed } from "./plugins.js";

/** @typedef {import("./counters.js").Counters} Counters */
/** @typedef {{code: "unknown_method" | "opencode" | "unavailable" | "timeout", message: string, status?: number}} CallError */

/** A `result` frame may have 16 MiB with its envelope. The limit is in bytes, because `length` counts UTF-16 units. */
const MAX_RESULT_BYTES = 15 * 1024 * 1024;
/** Maximum number of calls in progress at once. */
const MAX_CALLS = 64;

/** @type {Record<string, (client: any, args: any) => Promise<any>>} */
const METHODS = {
  "app.agents": (client, args) => client.app.agents(args),
  "instance.dispose": (client, args) => client.instance.dispose(args),
  "plugin.list": (client) => listed(client),
  "session.create": (client, args) => client.session.create(args),
  "session.get": (client, args) => client.session.get(args),
  "session.list": (client, args) => client.session.list(args),
  "session.messages": (client, args) => client.session.messages(args),
  // Only the ids, because the messages of a long session do not fit into a frame.
  "session.messageIds": async (client, args) => {
    const found = await client.session.messages(args);
    return found?.data ? { ...found, data: found.data.map((/** @type {any} */ message) => message.info.id) } : found;
  },
  "session.fork": (client, args) => client.session.fork(args),
  "session.promptAsync": (client, args) => client.session.promptAsync(args),
  "session.abort": (client, args) => client.session.abort(args),
  "session.delete": (client, args) => client.session.delete(args),
  "session.status": (client, args) => client.session.status(args),
  // The model reads the `message` of a rejection, for which the client's own method has no parameter.
  "permission.reply": (client, { session_id, permission_id, response, message }) =>
    message
      ? post(client, "/permission/{requestID}/reply", permission_id, { reply: response, message })
      : client.postSessionIdPermissionsPermissionId({
          path: { id: session_id, permissionID: permission_id },
          body: { response },
        }),
  // The in-process client has no methods for questions, so send the requests directly.
  "question.list": (client) => client._client.get({ url: "/question" }),
  "question.reply": (client, { request_id, answers }) =>
    post(client, "/question/{requestID}/reply", request_id, { answers }),
  "question.reject": (client, { request_id }) => post(client, "/question/{requestID}/reject", request_id),
  "tui.showToast": (client, args) => client.tui.showToast(args),
};

/** @param {any} client @param {string} url @param {unknown} requestID @param {object} [body] */
function post(client, url, requestID, body) {
  const sent = body ? { body, headers: { "content-type": "application/json" } } : {};
  return client._client.post({ url, path: { requestID }, ...sent });
}

export class Calls {
  #client;
  #methods;
  #timeoutMs;
  #counters;
  #underWay = 0;

  /**
   * @param {object} parts
   * @param {any} parts.client OpenCode's in-process client; null if there is none
   * @param {typeof METHODS} [parts.more] methods beside those of the client
   * @param {number} parts.timeoutMs
   * @param {Counters} parts.counters
   */
  constructor({ client, more, timeoutMs, counters }) {
    this.#client = client;
    this.#methods = { ...(client ? METHODS : {}), ...more };
    this.#timeoutMs = timeoutMs;
    this.#counters = counters;
  }

  /**
   * Run a call and encode its `result` frame.
   *
   * @param {{id?: unknown, method?: unknown, args?: unknown}} frame
   * @returns {Promise<string>} the frame's text; never rejects. After the error "timeout",
   *   the call may still take effect.
   */
  async answer({ id, method, args }) {
    this.#counters.calls += 1;
    /** @type {{value: unknown} | {error: CallError}} */
    let outcome;
    try {
      outcome = await this.#execute(String(method), args ?? {});
    } catch (error) {
      outcome = { error: { code: "opencode", message: messageOf(error) } };
    }
    if ("error" in outcome) this.#counters.call_errors += 1;
    return resultFrame(id, outcome);
  }

  /**
   * @param {string} method
   * @param {unknown} args
   * @returns {Promise<{value: unknown} | {error: CallError}>}
   */
  async #execute(method, args) {
    if (!Object.hasOwn(this.#methods, method)) {
      return { error: { code: "unknown_method", message: `this shim has no method ${method.slice(0, 200)}` } };
    }
    if (this.#underWay >= MAX_CALLS) return { error: { code: "unavailable", message: "too many calls at once" } };
    this.#underWay += 1;
    /** @type {NodeJS.Timeout | undefined} */
    let timer;
    try {
      const late = new Promise((resolve) => {
        timer = setTimeout(() => resolve(LATE), this.#timeoutMs);
        timer.unref?.();
      });
      const response = await Promise.race([this.#methods[method](this.#client, args), late]);
      if (response === LATE) {
        return { error: { code: "timeout", message: `${method} took more than ${this.#timeoutMs} ms` } };
      }
      const status = response?.response?.status;
      if (response?.error !== undefined) {
        return { error: { code: "opencode", message: messageOf(response.error), ...(status ? { status } : {}) } };
      }
      return { value: response?.data ?? null };
    } finally {
      clearTimeout(timer);
      this.#underWay -= 1;
    }
  }
}

const LATE = Symbol("late");

/**
 * @param {unknown} id
 * @param {{value: unknown} | {error: CallError}} outcome
 */
function resultFrame(id, outcome) {
  try {
    const text = JSON.stringify({ type: "result", id, ...outcome });
    if (Buffer.byteLength(text) <= MAX_RESULT_BYTES) return text;
    return resultFrame(id, { error: { code: "opencode", message: "the result is too large for a frame" } });
  } catch (error) {
    return JSON.stringify({ type: "result", id, error: { code: "opencode", message: messageOf(error) } });
  }
}

/** @param {any} error an Error, or OpenCode's {name, data: {message}} @returns {string} */
function messageOf(error) {
  try {
    const text = error?.data?.message || error?.message || (typeof error === "string" ? error : JSON.stringify(error));
    // OpenCode's client gives an empty object for an answer that is not its server's, as a proxy's is.
    if (!text || text === "{}") return "OpenCode's own server did not answer; is a proxy in the way (NO_PROXY)?";
    return String(text).slice(0, 2000);
  } catch {
    return "an error that cannot be shown";
  }
}
