/**
 * The tools that the model gets, as the sidecar describes them in `tools.json`.
 *
 * OpenCode fixes a plugin's tools when it loads the plugin, so the file is read only at that time. A call
 * goes to the sidecar as a `tool` frame; without a sidecar, the call fails with a readable text.
 */
import fs from "node:fs";
import path from "node:path";

/** How long a call waits for a link before it fails, ms. */
const LINK_MS = 5000;
/** The same if the link was lost, because another sidecar is about to start, which takes long on a busy machine. */
const RESTART_MS = 30_000;
/** How long the sidecar may take to answer, ms, unless the tool's description says otherwise. */
export const ANSWER_MS = 60_000;
const LOOK_MS = 50;
/** How long a compaction waits for the list of background work, ms. A compaction is a model call of several seconds. */
const COMPACTION_MS = 500;
/** Maximum size of `tools.json` in bytes. Our file is small, so a larger one is not ours. */
const MAX_BYTES = 256 * 1024;

/** @typedef {{description: string, args: Record<string, object>, required: string[], wait_ms?: number}} Definition */

/**
 * @param {string} home
 * @returns {Record<string, Definition>} this version's tools, if no sidecar has run in the home
 */
export function readTools(home) {
  try {
    const text = fs.readFileSync(path.join(home, "tools.json"), "utf8");
    if (text.length > MAX_BYTES) return {};
    const found = JSON.parse(text);
    return found && typeof found === "object" && !Array.isArray(found) ? found : {};
  } catch {
    // No sidecar has run in this home yet, so use the tools that this version of the plugin contains.
    return shipped();
  }
}

/** @returns {Record<string, Definition>} */
function shipped() {
  try {
    return JSON.parse(fs.readFileSync(new URL("./tools.json", import.meta.url), "utf8"));
  } catch {
    // The installation is incomplete; `doctor` reports that.
    return {};
  }
}

/**
 * Sends calls over the link, and passes the answers to the callers. A call whose link is lost goes to the next sidecar,
 * which knows the call by its ids and does nothing twice.
 */
export class Tools {
  #link;
  #restartMs;
  #count = 0;
  /** When the last link was lost, by `performance.now()`. */
  #lostMs = -Infinity;
  /** @type {Map<string, {resolve: (text: string) => void, reject: (error: Error) => void, again: () => void}>} */
  #waiting = new Map();

  /** @param {{live: boolean, send: (text: string) => boolean}} link @param {number} [restartMs] */
  constructor(link, restartMs = RESTART_MS) {
    this.#link = link;
    this.#restartMs = restartMs;
  }

  /**
   * The hooks that register the tools.
   *
   * @param {Record<string, Definition>} definitions
   * @returns {Record<string, any>} empty without tools
   */
  hooks(definitions) {
    const names = Object.keys(definitions);
    if (names.length === 0) return {};
    /** @type {Record<string, any>} */
    const tool = {};
    for (const name of names) {
      const { description, args, wait_ms } = definitions[name];
      tool[name] = {
        description,
        args,
        /** @param {any} given @param {any} context */
        execute: (given, context) => this.call(name, given ?? {}, context ?? {}, wait_ms ?? ANSWER_MS),
      };
    }
    /** @type {Record<string, any>} */
    const hooks = {
      tool,
      /**
       * Restore the required properties, as OpenCode requires all. OpenCode awaits this hook for every tool of every
       * request to the model, so the hook goes once OpenCode is seen to keep the changed schemas.
       *
       * @param {any} input
       * @param {any} output
       */
      "tool.definition": async (input, output) => {
        try {
          const definition = definitions[input?.toolID ?? input?.tool ?? input?.id];
          if (!definition || !output?.jsonSchema) return;
          if (output.jsonSchema.required === definition.required) delete hooks["tool.definition"];
          else output.jsonSchema.required = definition.required;
        } catch {
          // The definition cannot be changed, so the model names every argument; null counts as missing.
        }
      },
      /** Name running work in a summary, so that the model remembers it. @param {any} input @param {any} output */
      "experimental.session.compacting": async (input, output) => {
        try {
          if (!this.#link.live || !Array.isArray(output?.context)) return;
          const args = { unfinished: true };
          const listed = await this.call("intent_status", args, { sessionID: input?.sessionID }, COMPACTION_MS);
          if (listed.startsWith("int_")) output.context.push(`Keep in the summary: background work under way:\n${listed}`);
        } catch {
          // The summary does not mention the background work, but the result of that work still arrives.
        }
      },
    };
    return hooks;
  }

  /** Pass an answer to its caller. @param {any} frame a `result` frame */
  answered(frame) {
    const waiting = this.#waiting.get(String(frame.id));
    if (!waiting) return;
    this.#waiting.delete(String(frame.id));
    if (frame.error) waiting.reject(new Error(String(frame.error.message ?? "the sidecar refused the call")));
    else waiting.resolve(typeof frame.value === "string" ? frame.value : JSON.stringify(frame.value));
  }

  /** The link ended, so the calls on it are sent again on the next one. */
  lost() {
    this.#lostMs = performance.now();
    for (const { again } of [...this.#waiting.values()]) again();
  }

  /**
   * Ask the sidecar; rejects with a text for the caller.
   *
   * @param {string} name
   * @param {any} args
   * @param {any} context
   * @param {number} answerMs
   * @returns {Promise<string>}
   */
  async call(name, args, context, answerMs) {
    await this.#linked(answerMs);
    this.#count += 1;
    const id = `t${this.#count}`;
    const { sessionID, messageID, callID, agent, directory, abort } = context;
    const about = { sessionID, messageID, callID, agent, directory };
    const frame = JSON.stringify({ type: "tool", id, name, args, context: about });
    return await new Promise((resolve, reject) => {
      let isLinking = false;
      const again = async () => {
        if (isLinking) return;
        isLinking = true;
        try {
          await this.#linked(answerMs);
          if (abort?.aborted) throw new Error("the call was stopped");
          isLinking = false;
          if (this.#waiting.has(id)) this.#link.send(frame);
        } catch (error) {
          this.#waiting.get(id)?.reject(/** @type {Error} */ (error));
          this.#waiting.delete(id);
        }
      };
      const timer = setTimeout(() => {
        this.#waiting.delete(id);
        reject(new Error("Durable Stream did not answer in time"));
      }, answerMs);
      timer.unref?.();
      this.#waiting.set(id, {
        resolve: (text) => (clearTimeout(timer), resolve(text)),
        reject: (error) => (clearTimeout(timer), reject(error)),
        again: () => void again(),
      });
      this.#link.send(frame);
    });
  }

  /** @param {number} mostMs */
  async #linked(mostMs) {
    const began = performance.now();
    const end = Math.min(Math.max(began + LINK_MS, this.#lostMs + this.#restartMs), began + mostMs);
    while (!this.#link.live) {
      if (performance.now() > end) throw new Error("Durable Stream is not running; `durable-stream doctor` says why");
      await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
    }
  }
}
