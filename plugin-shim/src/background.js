/**
 * `/background` in OpenCode 1's terminal: what is running and waiting, and its cost, without a model call.
 *
 * OpenCode turns a command into a prompt. The hook that runs before the command shows the list as a text that only
 * the person sees, and then throws an error, which stops the prompt and which the terminal does not show. If the TUI
 * plugin (`tui.js`) is installed, that plugin shows a native list, and this command is left out.
 */

import fs from "node:fs";

/** The name of the command, and of the call to the sidecar. */
export const COMMAND = "background";
/** How long the sidecar may take to answer, ms. An answer to a checkpoint waits until OpenCode accepts it. */
const ANSWER_MS = 15_000;
const TOAST_MS = 10_000;

/** @param {any} input */
function isOurs(input) {
  try {
    return input?.command === COMMAND;
  } catch {
    // A getter threw, so this is somebody else's command, which must not fail because of us.
    return false;
  }
}

/**
 * Whether the TUI plugin is installed beside this one.
 *
 * @param {string} [file] the URL of the server plugin's file
 */
export function hasList(file) {
  try {
    return fs.readFileSync(new URL("../tui.json", file), "utf8").includes("durable-stream-tui.js");
  } catch {
    // `tui.json` does not exist, or OpenCode cannot read that file either.
    return false;
  }
}

export class Background {
  #client;
  #ask;
  #hasList;

  /**
   * @param {any} client OpenCode's client
   * @param {(name: string, args: any, context: any, ms: number) => Promise<string>} ask calls the sidecar
   * @param {boolean} [hasList] true if the TUI plugin is installed, which has `/background` itself
   */
  constructor(client, ask, hasList = false) {
    this.#client = client;
    this.#ask = ask;
    this.#hasList = hasList;
  }

  /** @returns {Record<string, any>} */
  hooks() {
    return {
      /** A command that the user defined with this name is kept. @param {any} config OpenCode's; the hook changes it */
      config: async (config) => {
        if (this.#hasList) return;
        try {
          config.command ??= {};
          config.command[COMMAND] ??= {
            template: "Say that Durable Stream is not running; `durable-stream doctor` says why.",
            description: "Background work: what is running and waiting, and its cost (Durable Stream)",
          };
        } catch {
          // The config cannot be changed, so the command is missing; `durable-stream top` shows the same.
        }
      },
      /** @param {any} input */
      "command.execute.before": async (input) => {
        if (!isOurs(input)) return;
        try {
          const session = String(input.sessionID ?? "");
          await this.#show(session, await this.#text(session, String(input.arguments ?? "")));
        } catch {
          // OpenCode did not accept the text, but the command must still not become a prompt.
        }
        throw new Error("shown by Durable Stream");
      },
    };
  }

  /** @param {string} session @param {string} given */
  async #text(session, given) {
    try {
      return await this.#ask(COMMAND, { text: given }, { sessionID: session }, ANSWER_MS);
    } catch (error) {
      return error instanceof Error ? error.message : String(error);
    }
  }

  /** A message to a busy session would start a turn, so use a toast then. @param {string} id @param {string} text */
  async #show(id, text) {
    const { data } = await this.#client.session.status();
    if (data?.[id] && data[id].type !== "idle") {
      await this.#client.tui.showToast({
        body: { title: "Background work", message: text, variant: "info", duration: TOAST_MS },
      });
      return;
    }
    const part = { type: "text", text, ignored: true, metadata: { durable_stream: { key: COMMAND } } };
    await this.#client.session.promptAsync({ path: { id }, body: { noReply: true, parts: [part] } });
  }
}
