/**
 * The list of background work in OpenCode's terminal: what waits for the person, what runs and what has ended.
 *
 * The list uses the command line as a person would, so it needs no token and no connection to the sidecar.
 */
import { spawn } from "node:child_process";

const ASK_MS = 30_000;
const MAX_LENGTH = 4 * 1024 * 1024;
const MAX_COMPLAINT = 500;
const ENDED = new Set(["completed", "failed", "cancelled", "refused"]);

/** The title of the list and the text of its command, in every version of OpenCode. */
export const TITLE = "Background work";
export const ABOUT = "What is running and waiting, and its cost";

/**
 * @typedef {{command: string[], home: string}} Options
 * @typedef {(...words: string[]) => Promise<string>} Run runs `durable-stream` with these words; gives its stdout
 * @typedef {{title: string, value: string, onSelect: () => void, [shown: string]: any}} Option
 */

/**
 * What the list needs of a terminal. Each dialog replaces the one before it.
 *
 * @typedef {object} Screen
 * @property {(title: string, options: Option[], placeholder: string) => void} select
 * @property {(title: string, placeholder: string, onConfirm: (text: string) => void) => void} prompt
 * @property {() => void} clear
 * @property {(variant: "info" | "error", message: string) => void} toast
 * @property {(session: string) => void} open
 */

/** @param {Options} options @returns {Run} */
export function runner({ command: [program, ...before], home }) {
  return (...words) =>
    new Promise((resolve, reject) => {
      const given = [...before, "--home", home, ...words];
      const child = spawn(program, given, { stdio: ["ignore", "pipe", "pipe"] });
      const timer = setTimeout(() => child.kill(), ASK_MS);
      let out = "";
      let complaint = "";
      child.stdout.setEncoding("utf8").on("data", (/** @type {string} */ text) => {
        out += text;
        if (out.length > MAX_LENGTH) child.kill();
      });
      child.stderr.setEncoding("utf8").on("data", (/** @type {string} */ text) => {
        complaint = (complaint + text).slice(-MAX_COMPLAINT);
      });
      child.on("error", (/** @type {NodeJS.ErrnoException} */ { code }) => {
        clearTimeout(timer);
        reject(new Error(`${program} cannot be started (${code}): run \`durable-stream install\` again`));
      });
      child.on("close", (code) => {
        clearTimeout(timer);
        if (code === 0) resolve(out);
        else reject(new Error(complaint.trim().replace(/^durable-stream: /, "") || `durable-stream exited with code ${code}`));
      });
    });
}

/** The dialogs: the list, the actions for an entry, and the answers to a question. */
export class List {
  #screen;
  #run;

  /** @param {Screen} screen @param {Run} run */
  constructor(screen, run) {
    this.#screen = screen;
    this.#run = run;
  }

  /** Show the list. Never rejects: an error becomes a toast. */
  async open() {
    this.#screen.select(TITLE, [], "Looking…");
    await this.#act(async () => {
      const told = await this.#run("top", "--json");
      const state = told ? JSON.parse(told) : { waiting: [], agents: [] }; // it prints nothing before the first session
      const found = state.sidecar === false ? "The sidecar is not running, so nothing here goes on" : "Search";
      const entries = [...state.waiting.map((/** @type {any} */ each) => this.#waiting(each))];
      for (const agent of [...state.agents].reverse()) entries.push(this.#agent(agent));
      this.#screen.select(TITLE, entries, entries.length ? found : "No background work, and nothing is waiting for you");
    });
  }

  /** @param {any} agent */
  #agent(agent) {
    const ran = agent.ran === null ? "" : `${Math.round(agent.ran / 1000)} s`;
    const cost = agent.cost ? `$${agent.cost.toFixed(2)}` : "";
    return {
      title: agent.title,
      value: agent.id,
      description: agent.doing || agent.reason || "",
      footer: [agent.state, ran, cost].filter(Boolean).join(" · "),
      category: ENDED.has(agent.state) ? "Ended in the last hour" : "Running",
      onSelect: () => this.#chosen(agent),
    };
  }

  /** @param {any} each */
  #waiting(each) {
    const onSelect = () => void this.#asked(each);
    return { title: each.text, value: each.id, description: each.kind, category: "Waiting for you", onSelect };
  }

  /** @param {any} agent */
  #chosen(agent) {
    const options = [];
    if (agent.session) {
      const onSelect = () => {
        this.#screen.clear();
        this.#screen.open(agent.session);
      };
      options.push({ title: "Open its session", value: "open", onSelect });
    }
    if (!ENDED.has(agent.state)) {
      const onSelect = () => void this.#do(`${agent.title} is being cancelled`, "intents", agent.id, "--cancel");
      options.push({ title: "Cancel it and everything it started", value: "cancel", onSelect });
    }
    options.push({ title: "Back to the list", value: "back", onSelect: () => void this.open() });
    this.#screen.select(agent.title, options, agent.id);
  }

  /** @param {any} each */
  async #asked(each) {
    if (each.kind !== "question") {
      this.#answer(each, [each.text]);
      return;
    }
    this.#screen.select(each.text, [], "Looking…");
    await this.#act(async () => {
      // Ask for the whole question, because the list contains neither its number of parts nor its options.
      const { text, options, questions } = JSON.parse(await this.#run("checkpoints", each.id, "--json"));
      this.#answer({ id: each.id, options }, partsOf(text, questions));
    });
  }

  /**
   * Ask for the answer to the next part. After the last one, send all of them.
   *
   * @param {any} each
   * @param {string[]} parts
   * @param {string[]} given the answers so far
   */
  #answer(each, parts, given = []) {
    if (given.length === parts.length) {
      const answers = given.flatMap((text) => ["--answer", text]);
      void this.#do(`Answered: ${given.join("; ")}`, "checkpoints", each.id, ...answers);
      return;
    }
    const title = /** @type {string} */ (parts[given.length]);
    const onConfirm = (/** @type {string} */ text) => this.#answer(each, parts, [...given, text]);
    if (each.options.length === 0) {
      this.#screen.prompt(title, "Your answer", onConfirm);
      return;
    }
    const options = each.options.map((/** @type {string} */ option) => ({
      title: option,
      value: option,
      onSelect: () => onConfirm(option),
    }));
    this.#screen.select(title, options, each.id);
  }

  /** @param {string} said @param {string[]} words */
  async #do(said, ...words) {
    await this.#act(async () => {
      await this.#run(...words);
      this.#screen.clear();
      this.#screen.toast("info", said);
    });
  }

  /** @param {() => Promise<void>} work */
  async #act(work) {
    try {
      await work();
    } catch (error) {
      this.#screen.clear();
      this.#screen.toast("error", error instanceof Error ? error.message : String(error));
    }
  }
}

/**
 * What is asked in each part of a question. The text has one line for each part, unless a part has several lines.
 *
 * @param {string} text
 * @param {number} count
 */
function partsOf(text, count) {
  const lines = text.split("\n");
  if (lines.length === count) return lines;
  return count === 1 ? [text] : Array.from({ length: count }, (_, n) => `${text} (part ${n + 1} of ${count})`);
}
