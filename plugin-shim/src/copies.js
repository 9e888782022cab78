/**
 * What this OpenCode does for the private copies of background work.
 *
 * The commands of `[phantom] setup` are children of this process. So they have its sandbox, limits and variables, as the
 * work has, and end with this process or with its link to the sidecar.
 */
import { spawn } from "node:child_process";
import { createHash, randomBytes } from "node:crypto";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { endAll } from "./headless.js";

/** How many bytes of the end of a command's output the sidecar gets. */
const TAIL = 16_000;
/** How long one call waits for the end of a command, ms. */
const WAIT_MS = 500;

/** Variables that would lead a command out of the copy, or that are not the user's. */
const AWAY = /^(?:GIT_(?:DIR|WORK_TREE|INDEX_FILE|COMMON_DIR|PREFIX)|OLDPWD|OPENCODE_SERVER_PASSWORD)$/;

/** Runs a command beside a shell that kills the whole group when its input ends: a pipe that only this process holds. */
const SHELL = `exec 3<&0 </dev/null
{ read -r _ <&3; kill -9 0; } >/dev/null 2>&1 &
/bin/sh -c "$1" 3<&-
code=$?
exec 2>/dev/null
kill -9 $!
exit $code`;

/** @typedef {{code: number | null, output: string}} Ended how a command ended; `code` is null if it was stopped */

export class Copies {
  #env;
  #spawn;
  /** @type {Map<string, {stop: () => void, ended: Promise<Ended>}>} */
  #runs = new Map();
  /** The variables of the commands of `variables.ask`; null until one has begun. @type {Map<string, object | null>} */
  #asked = new Map();

  /** @param {NodeJS.ProcessEnv} env @param {typeof spawn} [spawnChild] */
  constructor(env, spawnChild = spawn) {
    this.#env = env;
    this.#spawn = spawnChild;
  }

  /** The methods that the sidecar may call. @type {Record<string, (client: any, args: any) => Promise<any>>} */
  methods = {
    /** Begin a command, or wait for the one that has this `id`. Gives how it ended; null while it runs. */
    "setup.run": async (_, wanted) => {
      let run = this.#runs.get(wanted.id);
      try {
        this.#runs.set(wanted.id, (run ??= this.#begin(wanted)));
      } catch (error) {
        return { data: { code: 126, output: String(error) } }; // this process may not write in the copy
      }
      const late = new Promise((resolve) => setTimeout(resolve, WAIT_MS, null).unref());
      const ended = await Promise.race([run.ended, late]);
      if (ended) this.#runs.delete(wanted.id);
      return { data: ended };
    },
    /** Kill a command with what it started. Gives how it ended; null if there is none. */
    "setup.stop": async (_, { id }) => {
      const run = this.#runs.get(id);
      this.#runs.delete(id);
      run?.stop();
      return { data: await run?.ended };
    },
    /** Gives a command that does nothing. When it has begun, `variables.get` gives its variables, once. */
    "variables.ask": async () => {
      const command = `: durable-stream reads these variables: ${randomBytes(16).toString("hex")}; sleep 20; :`;
      this.#asked.set(command, null);
      return { data: command };
    },
    "variables.get": async (_, { command }) => {
      const data = this.#asked.get(command);
      this.#asked.delete(command);
      return { data };
    },
    /** Remove what OpenCode keeps of a directory that is gone, and that nobody can use any more. */
    "snapshots.remove": async (_, { project, directory }) => {
      if (!project || path.basename(project) !== project || project.startsWith(".") || fs.existsSync(directory)) return {};
      const data = this.#env.XDG_DATA_HOME || path.join(this.#env.HOME || os.homedir(), ".local", "share");
      const name = createHash("sha1").update(directory).digest("hex");
      await fs.promises.rm(path.join(data, "opencode", "snapshot", project, name), { recursive: true, force: true });
      return {};
    },
  };

  /** Hear that OpenCode 2 begins a command. @param {any} event */
  begins(event) {
    try {
      if (this.#asked.has(event.command)) this.#asked.set(event.command, { ...event.env });
    } catch {
      // A getter threw an error, so this is another form of event, and the sidecar gets nothing.
    }
  }

  /** End all commands: without its link to the sidecar, nobody waits for them, and the next sidecar begins anew. */
  lost() {
    for (const run of this.#runs.values()) run.stop();
    this.#runs.clear();
  }

  /** @param {{command: string, directory: string, project: string, variables?: NodeJS.ProcessEnv}} wanted */
  #begin({ command, directory, project, variables }) {
    const own = Object.entries(variables ?? this.#env).filter(([name]) => !AWAY.test(name));
    // A file without a name, which what the command leaves running may hold open.
    const name = path.join(directory, `.durable-stream-${randomBytes(8).toString("hex")}`);
    const file = fs.openSync(name, "wx+", 0o600);
    fs.unlinkSync(name);
    const child = this.#spawn("/bin/sh", ["-c", SHELL, "sh", command], {
      cwd: directory,
      env: { ...Object.fromEntries(own), PWD: directory, DURABLE_STREAM_PROJECT: project },
      detached: true,
      stdio: ["pipe", file, file],
    });
    let stopped = false;
    const stop = () => {
      stopped = true;
      if (child.pid) endAll(child.pid);
    };
    /** @type {Promise<Ended>} */
    const ended = new Promise((resolve) => {
      child.once("error", ({ message }) => resolve({ code: 126, output: message }));
      child.once("exit", (code, signal) => {
        const killed = stopped ? null : -os.constants.signals[signal ?? "SIGKILL"];
        resolve({ code: code ?? killed, output: tail(file) });
      });
    });
    return { stop, ended };
  }
}

/** The end of a file, which is then closed. @param {number} file */
function tail(file) {
  const { size } = fs.fstatSync(file);
  const text = Buffer.alloc(Math.min(size, TAIL));
  fs.readSync(file, text, 0, text.length, size - text.length);
  fs.closeSync(file);
  return text.toString();
}
