/**
 * The list of background work in OpenCode's terminal: what waits for the person, what runs and what has ended.
 *
 * The list uses the command line as a person would, so it needs no connection to the sidecar. OpenCode's own processes
 * may not decide for a person, so each answer and cancellation carries a proof that it was given here.
 */
import { spawn } from "node:child_process";
import { createHmac } from "node:crypto";
import { readToken } from "./start.js";

const ASK_MS = 30_000;
const MAX_LENGTH = 4 * 1024 * 1024;
const MAX_COMPLAINT = 500;
/** The longest ask that a dialog shows whole, in characters. A longer one can only be rejected here. */
const MAX_ASK = 500;
const PURPOSE = "durable-stream answer from the list 1";
const ENDED = new Set(["completed", "failed", "cancelled", "refused"]);

/** The title of the list and the text of its command, in every version of OpenCode. */
export const TITLE = "Background work";
export const ABOUT = "What is running and waiting, and its cost";

/**
 * @typedef {{command: string[], home: string}} Options
 * @typedef {(...words: string[]) => Promise<string>} Run runs `durable-stream` with these words; gives its stdout. An
 *   answer or a cancellation gets its proof
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
 * @property {boolean} isLive whether the terminal draws a session that another process works on as it changes
 */

/** @param {Options} options @returns {Run} */
export function runner({ command: [program, ...before], home }) {
  return async (...words) => {
    const proof = words.some((word) => word === "--answer" || word === "--cancel") ? await proofOf(home, words) : "";
    const env = proof ? { ...process.env, DURABLE_STREAM_PROOF: proof } : process.env;
    return new Promise((resolve, reject) => {
      const given = [...before, "--home", home, ...words];
      const child = spawn(program, given, { stdio: ["ignore", "pipe", "pipe"], env });
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
  };
}

/**
 * Proves that these words are an answer or a cancellation of a person in this list.
 *
 * @param {string} home
 * @param {string[]} words `checkpoints`, the id, and each answer after `--answer`; or `intents`, the id and `--cancel`
 */
async function proofOf(home, [, id = "", ...given]) {
  try {
    const answers = given.filter((_, n) => n % 2 === 1);
    return createHmac("sha256", await readToken(home)).update([PURPOSE, id, ...answers].join("\0")).digest("hex");
  } catch {
    return ""; // the sidecar then says why it refuses the answer
  }
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
      const output = await this.#run("top", "--json");
      const state = output ? JSON.parse(output) : { waiting: [], agents: [] }; // it prints nothing before the first session
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
      title: onOneLine(agent.title),
      value: agent.id,
      description: agent.doing || agent.reason || "",
      footer: [agent.asks > 0 ? "waiting for you" : agent.state, ran, cost].filter(Boolean).join(" · "),
      category: ENDED.has(agent.state) ? "Ended in the last hour" : "Running",
      onSelect: () => this.#chosen(agent),
    };
  }

  /** @param {any} each */
  #waiting(each) {
    const onSelect = () => void this.#asked(each);
    const title = cutMiddle(onOneLine(each.what ?? each.text), MAX_ASK);
    return { title, value: each.id, description: each.kind, category: "Waiting for you", onSelect };
  }

  /** @param {any} agent */
  #chosen(agent) {
    const options = [];
    if (agent.session) {
      const onSelect = () => {
        this.#screen.clear();
        this.#screen.open(agent.session);
      };
      const isPicture = !this.#screen.isLive && !ENDED.has(agent.state);
      const title = isPicture ? "See its session as it is now (not live)" : "Open its session";
      options.push({ title, value: "open", onSelect });
    }
    options.push(this.#back());
    if (!ENDED.has(agent.state)) {
      options.push({ title: "Cancel it and everything it started", value: "cancel", onSelect: () => this.#cancel(agent) });
    }
    this.#screen.select(onOneLine(agent.title), options, agent.id);
  }

  /** Ask before the work is lost. @param {any} agent */
  #cancel(agent) {
    const onSelect = () => void this.#do(`${agent.title} is being cancelled`, "intents", agent.id, "--cancel");
    const sure = { title: "Yes, cancel it and everything it started", value: "cancel", onSelect };
    this.#screen.select(`Cancel this? ${onOneLine(agent.title)}`, [this.#back("No, back to the list"), sure], agent.id);
  }

  /** The entry that changes nothing, which stands before every entry that cannot be taken back. */
  #back(title = "Back to the list") {
    return { title, value: "back", onSelect: () => void this.open() };
  }

  /** @param {any} each */
  async #asked(each) {
    this.#screen.select(cutMiddle(onOneLine(each.text), MAX_ASK), [], "Looking…");
    await this.#act(async () => {
      // Ask for the whole text, because the list's own text is cut and has neither options nor patterns.
      const whole = JSON.parse(await this.#run("checkpoints", each.id, "--json"));
      const always = whole.always ?? [];
      const isCut = whole.left_out > 0 || [whole.text, always.join(" ; ")].some((text) => text.length > MAX_ASK);
      if (isCut) this.#cut({ ...whole, id: each.id });
      else this.#answer({ ...whole, id: each.id, always }, partsOf(whole.text, whole.questions ?? 1).map(onOneLine));
    });
  }

  /** A person must not allow what they do not see. @param {any} each */
  #cut(each) {
    const rejected = () => void this.#do("Rejected", "checkpoints", each.id, "--answer", "reject");
    const canReject = each.kind === "permission" || each.kind === "question";
    const options = canReject ? [{ title: "Reject", value: "reject", onSelect: rejected }] : [];
    const seen = `Too long to be shown whole: \`durable-stream checkpoints ${each.id}\` shows and answers it`;
    this.#screen.select(cutMiddle(onOneLine(each.text), MAX_ASK), [this.#back(), ...options], seen);
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
    // "Always" allows more than the title says, so it is offered only if the patterns that it allows are known.
    const offered = each.options.filter((/** @type {string} */ option) => !isAlways(each, option) || each.always.length > 0);
    const options = offered.map((/** @type {string} */ option) => ({
      title: onOneLine(option),
      value: option,
      onSelect: () => (isAlways(each, option) ? this.#always(each, () => onConfirm(option)) : onConfirm(option)),
    }));
    this.#screen.select(title, options, each.id);
  }

  /** Show what "always" allows. The terminal cuts an option but not a title. @param {any} each @param {() => void} allow */
  #always(each, allow) {
    const options = [this.#back(), { title: "Allow always", value: "allow", onSelect: allow }];
    this.#screen.select(`Allow always: ${onOneLine(each.always.join(" ; "))}`, options, each.id);
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

/** @param {any} each @param {string} option */
function isAlways(each, option) {
  return each.kind === "permission" && option === "always";
}

/** Show what a screen would hide or obey, and line breaks, which may begin a second command. @param {string} text */
export function onOneLine(text) {
  const shown = text.replace(/[^\P{C}\n\t]/gu, (c) => `<U+${c.codePointAt(0)?.toString(16).toUpperCase().padStart(4, "0")}>`);
  return shown.trim().replace(/\s*\n\s*/g, " ⏎ ");
}

/** Keep the beginning and the end. @param {string} text @param {number} most */
export function cutMiddle(text, most) {
  if (text.length <= most) return text;
  const left = text.length - most + 40;
  const room = text.length - left;
  const begin = Math.ceil(room / 2);
  return `${text.slice(0, begin)} … ${left} characters left out … ${text.slice(text.length - room + begin)}`;
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
