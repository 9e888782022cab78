/**
 * OpenCode 2: `setup` joins the process's feed, and gives the model our tools.
 *
 * OpenCode 2 admits no prompt until `setup` has returned, so `setup` awaits nothing that can hang.
 *
 * OpenCode 1 contains a core of OpenCode 2 that also calls `setup`, with a context without `event`. In that case, the
 * plugin's `server` records the session, and `setup` does nothing.
 */
import { joinFeed, scopeOf } from "./feed.js";
import { isOff } from "./instance.js";
import { ANSWER_MS, readTools } from "./tools.js";

/** How long registering the tools may take. */
const OFFER_MS = 2000;

/**
 * Make `setup`, which OpenCode 2 calls once for each directory.
 *
 * With DURABLE_STREAM=off it does nothing.
 *
 * @param {import("./plugin.js").Options} options
 * @returns {(ctx: any) => Promise<(() => Promise<void>) | undefined>} never rejects; the returned function ends the link
 */
export function makeSetup(options) {
  return async function setup(ctx) {
    try {
      const env = options.env ?? process.env;
      if (isOff(env) || typeof ctx?.event?.subscribe !== "function") return undefined;
      const { feed, home, leave } = joinFeed(options, env, ctx.app ?? {});
      // Listen first: everything that is announced from here on is recorded.
      const stop = feed.listen(ctx, scopeOf(options.file ?? "", env));
      const undo = await offer(ctx, feed, home);
      await hear(ctx, feed);
      await mind(ctx, feed);
      return async () => {
        undo();
        stop();
        leave();
      };
    } catch {
      // OpenCode works without a link, but would report a broken plugin if this function threw an error.
      return undefined;
    }
  };
}

/**
 * Register the model's tools. A service that cannot accept them still records.
 *
 * @param {any} ctx
 * @param {import("./feed.js").Feed} feed
 * @param {string} home
 * @returns {Promise<() => void>} removes them
 */
async function offer(ctx, feed, home) {
  try {
    const definitions = readTools(home);
    if (Object.keys(definitions).length === 0 || typeof ctx.tool?.transform !== "function") return () => {};
    const registering = ctx.tool.transform((/** @type {any} */ tools) => {
      for (const [name, { description, args, required, wait_ms }] of Object.entries(definitions)) {
        tools.add({
          name,
          description,
          input: { type: "object", properties: args, required, additionalProperties: false },
          options: { codemode: false },
          execute: async (/** @type {any} */ given, /** @type {any} */ context) => {
            const about = { ...context, callID: context?.callID ?? context?.id };
            const text = await feed.tools.call(name, given ?? {}, about, wait_ms ?? ANSWER_MS);
            return { content: [{ type: "text", text }] };
          },
        });
      }
    });
    const made = await within(registering, OFFER_MS);
    return () => void made?.dispose?.();
  } catch {
    // This version of OpenCode 2 has another plugin API. `doctor` shows on which versions the tools were tested.
    return () => {};
  }
}

/**
 * Hear of each command that begins. OpenCode ends this with the instance.
 *
 * @param {any} ctx
 * @param {import("./feed.js").Feed} feed
 */
async function hear(ctx, feed) {
  try {
    await within(ctx.shell.hook("create.before", (/** @type {any} */ event) => feed.copies.begins(event)), OFFER_MS);
  } catch {
    // This version has another plugin API. Background work then has the service's own variables.
  }
}

/**
 * Mind what other sessions have reserved. OpenCode ends this with the instance.
 *
 * @param {any} ctx
 * @param {import("./feed.js").Feed} feed
 */
async function mind(ctx, feed) {
  try {
    /** @param {any} call */
    const directory = (call) => feed.directoryOf(call?.sessionID) ?? ctx.location?.directory ?? "/";
    const before = ctx.tool.hook("execute.before", (/** @type {any} */ call) => {
      const refusal = feed.reserved.refusal(call, null, directory(call));
      if (refusal) throw new Error(refusal);
    });
    const after = ctx.tool.hook("execute.after", (/** @type {any} */ call) => feed.reserved.warn(call, null, directory(call)));
    await within(Promise.all([before, after]), OFFER_MS);
  } catch {
    // This version has another plugin API. The model then hears of reservations only when it reserves.
  }
}

/** @template T @param {Promise<T>} promise @param {number} ms @returns {Promise<T | undefined>} */
function within(promise, ms) {
  return Promise.race([promise, new Promise((resolve) => setTimeout(resolve, ms, undefined).unref?.())]);
}
