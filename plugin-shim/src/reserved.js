/**
 * What other sessions have reserved, as the sidecar last told it. The model hears of it with the file that it reads or
 * edits; an edit fails only if the user wants that. Nobody is asked, because OpenCode waits for these hooks.
 */
import fs from "node:fs";
import path from "node:path";

/** The tools that change files, and the one that shows them, which comes before most edits. */
const EDITS = new Set(["edit", "write", "multiedit", "patch", "apply_patch"]);
const READS = new Set(["read"]);
/** How many warnings are remembered, so that none is repeated. */
const MOST_TOLD = 5000;

/**
 * @typedef {object} Entry one reservation; see `Desk.context`
 * @property {string[]} roots
 * @property {string[]} path
 * @property {number} until
 * @property {string[]} free
 * @property {string} text
 */

export class Reserved {
  #context;
  #told = new Set();

  /** @param {() => Record<string, any>} context the sidecar's, of the link */
  constructor(context) {
    this.#context = context;
  }

  /**
   * Why a call must not be made: null unless it is an edit, the user wants such edits refused, and somebody else has
   * reserved the file. Never throws.
   *
   * @param {any} call `tool`, `sessionID` and, in OpenCode 2, `input`
   * @param {any} output in OpenCode 1, `args`
   * @param {string} directory from which files are named
   * @returns {string | null}
   */
  refusal(call, output, directory) {
    try {
      if (this.#context().refuse !== true || !EDITS.has(call.tool)) return null;
      const found = this.#found(call.sessionID, call.input ?? output?.args, directory);
      return found.length > 0 ? `Not edited: ${found.join("; ")}: split the work or wait.` : null;
    } catch {
      // A getter threw an error, so this is another form of call: OpenCode goes on as without us.
      return null;
    }
  }

  /**
   * Add to the result of a call what the model should know after it read or edited a file, once for each session.
   * Never throws.
   *
   * @param {any} call `tool`, `sessionID` and `args` or, in OpenCode 2, `input` and `result`
   * @param {any} output in OpenCode 1, `output`
   * @param {string} directory
   */
  warn(call, output, directory) {
    try {
      const isEdit = EDITS.has(call.tool);
      if (!isEdit && !READS.has(call.tool)) return;
      const content = call.result?.content;
      if (typeof output?.output !== "string" && !Array.isArray(content)) return;
      const found = this.#found(call.sessionID, call.input ?? call.args, directory);
      const news = found.filter((text) => this.#isNews(JSON.stringify([call.sessionID, isEdit, text])));
      if (news.length === 0) return;
      const advice = isEdit ? "Tell the user, and edit nothing more there" : "Do not edit it: split the work or wait";
      const text = `[Durable Stream: ${news.join("; ")}. ${advice}.]`;
      if (Array.isArray(content)) call.result = { ...call.result, content: [...content, { type: "text", text }] };
      else if (!output.output.includes(text)) output.output += `\n\n${text}`;
    } catch {
      // The result cannot be changed: the model gets it as it is.
    }
  }

  /** @param {string} key */
  #isNews(key) {
    if (this.#told.has(key)) return false;
    if (this.#told.size >= MOST_TOLD) this.#told.clear();
    this.#told.add(key);
    return true;
  }

  /**
   * The texts of the reservations of others that have one of the files.
   *
   * @param {string} session @param {any} args @param {string} directory
   * @returns {string[]}
   */
  #found(session, args, directory) {
    try {
      /** @type {Entry[]} */
      const entries = this.#context().reserved ?? [];
      const now = Date.now();
      const others = entries.filter((each) => each.until > now && !each.free.includes(session));
      if (others.length === 0) return [];
      const named = filesOf(args).flatMap((file) => places(path.resolve(directory, file)));
      const files = [...named, ...named.flatMap((file) => copied(file, this.#context().copies))];
      const found = others.filter(({ roots, path: pattern }) =>
        files.some((file) => roots.some((root) => isBelow(file, root) && matches(pattern, path.relative(root, file)))),
      );
      return [...new Set(found.map((each) => each.text))];
    } catch {
      // The call has another form, or the file cannot be looked up: OpenCode goes on as without us.
      return [];
    }
  }
}

/** The files that a call names. @param {any} args @returns {string[]} */
function filesOf(args) {
  const named = [args?.filePath, args?.path, args?.file].filter((each) => typeof each === "string");
  const patch = args?.patchText ?? args?.patch ?? args?.input;
  if (typeof patch !== "string") return named;
  const inPatch = [...patch.matchAll(/^\*\*\* (?:(?:Add|Update|Delete) File|Move to): (.+)$/gm)].map((found) => found[1].trim());
  return [...named, ...inPatch];
}

/** A file as it is named, and where links lead. @param {string} file @returns {string[]} */
function places(file) {
  let above = file;
  while (true) {
    try {
      return [file, path.join(fs.realpathSync(above), path.relative(above, file))];
    } catch {
      // It does not exist yet.
      const next = path.dirname(above);
      if (next === above) return [file];
      above = next;
    }
  }
}

/** The user's file, if a file is in a private copy. @param {string} file @param {unknown} copies their folder @returns {string[]} */
function copied(file, copies) {
  if (typeof copies !== "string" || !isBelow(file, copies)) return [];
  const [, folder, ...whole] = path.relative(copies, file).split("/");
  return folder === "files" && whole.length > 0 ? [`/${whole.join("/")}`] : [];
}

/** @param {string} file @param {string} root */
function isBelow(file, root) {
  return file === root || file.startsWith(root.endsWith(path.sep) ? root : root + path.sep);
}

/** Whether a path of the project matches a reservation's, as `paths.py` has it. @param {string[]} pattern @param {string} file */
export function matches(pattern, file) {
  const segments = file.normalize("NFC").toLowerCase().split(path.sep);
  return meet(pattern, segments, "**", (one, two) => one === two || meet([...one], [...two], "*", isAlike));
}

/** @param {string} one @param {string} two */
function isAlike(one, two) {
  return one === two || one === "?" || two === "?";
}

/**
 * Whether some sequence matches two patterns, in which `star` stands for any number of elements; see `meet` of
 * `paths.py`.
 *
 * @param {string[]} one
 * @param {string[]} two
 * @param {string} star
 * @param {(one: string, two: string) => boolean} alike
 * @returns {boolean}
 */
function meet(one, two, star, alike) {
  if (!one.includes(star)) [one, two] = [two, one];
  const parts = split(one, star);
  const first = parts[0];
  const last = [...parts[parts.length - 1]].reverse();
  if (parts.length === 1) return one.length === two.length && begins(one, two, alike);
  if (two.includes(star)) {
    const others = split(two, star);
    return begins(first, others[0], alike) && begins(last, [...others[others.length - 1]].reverse(), alike);
  }
  if (two.length < first.length + last.length) return false;
  if (!begins(first, two, alike) || !begins(last, [...two].reverse(), alike)) return false;
  let at = first.length;
  const end = two.length - last.length;
  for (const part of parts.slice(1, -1)) {
    while (at + part.length <= end && !begins(part, two.slice(at), alike)) at += 1;
    at += part.length;
  }
  return at <= end;
}

/** @param {string[]} one @param {string[]} two @param {(one: string, two: string) => boolean} alike */
function begins(one, two, alike) {
  return one.every((each, at) => at >= two.length || alike(each, two[at]));
}

/** The parts between the stars. @param {string[]} pattern @param {string} star @returns {string[][]} */
function split(pattern, star) {
  /** @type {string[][]} */
  const parts = [[]];
  for (const each of pattern) {
    if (each === star) parts.push([]);
    else parts[parts.length - 1].push(each);
  }
  return parts;
}
