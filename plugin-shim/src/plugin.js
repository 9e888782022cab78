/**
 * The plugin, which turns calls of OpenCode's hooks into items.
 *
 * An error thrown in a hook loses the user's prompt, and a hook that waits blocks
 * OpenCode. So every body is wrapped, nothing is awaited, and nothing is ever
 * printed: the terminal belongs to OpenCode.
 */
import { createHash } from "node:crypto";
import { Background, hasList } from "./background.js";
import { COUNTERS } from "./counters.js";
import { goDirectly } from "./direct.js";
import { endIfAlone, headlessId, headlessMethods } from "./headless.js";
import { identity } from "./identity.js";
import { isOff, newInstance, textOrNull } from "./instance.js";
import { encodeItem } from "./item.js";
import { remember } from "./plugins.js";
import { Reserved } from "./reserved.js";
import { makeSetup } from "./service.js";
import { readTools } from "./tools.js";

const ASK_VERSION_MS = 3000;

/**
 * @typedef {object} Options
 * @property {string} [file] the URL of the plugin file
 * @property {string[]} [command] starts a sidecar; default DURABLE_STREAM_COMMAND, else "durable-stream" on the PATH
 * @property {string} [home] default DURABLE_STREAM_HOME, else the platform's data directory
 * @property {number} [memoryLimit] maximum bytes of items in memory while the spool fails, default 32 MiB
 * @property {number} [spoolLimit] maximum size of the spool file in bytes, default 256 MiB
 * @property {number} [ackTimeoutMs] default 3000
 * @property {number} [backoffMinMs] default 50
 * @property {number} [backoffMaxMs] default 2000
 * @property {number} [refusedMs] default 60,000
 * @property {number} [callTimeoutMs] default 30000
 * @property {number} [restartMs] how long a tool's call waits for the next sidecar, default 30,000
 * @property {NodeJS.ProcessEnv} [env] default process.env
 * @property {any} [WebSocket] default the global one
 * @property {any} [spawn] default child_process.spawn
 * @property {(counters: import("./counters.js").Counters) => void} [onCounters] receives each instance's live counters
 */

const DEEPENED = Symbol.for("durable-stream.subagent-depth");

/**
 * Make the plugin for every OpenCode: 1 calls `server`, 2 calls `setup`.
 *
 * OpenCode 2 refuses two plugins with the same id, so each copy has its own id.
 *
 * @param {Options} [options]
 * @param {string} [file] the URL of the plugin file
 */
export function plugin(options = {}, file = "") {
  const copy = createHash("sha256").update(file).digest("hex").slice(0, 8);
  return { id: `durable-stream-${copy}`, server: create({ file, ...options }), setup: makeSetup({ file, ...options }) };
}

/**
 * Make the plugin function of OpenCode 1, which it calls once per directory.
 *
 * With DURABLE_STREAM=off it returns no hooks and does nothing.
 *
 * @param {Options} [options]
 * @returns {(input: any) => Promise<Record<string, any>>} never rejects
 */
export function create(options = {}) {
  return async function durableStream(input) {
    try {
      const env = options.env ?? process.env;
      return isOff(env) ? {} : newHooks(options, env, input ?? {});
    } catch {
      // OpenCode works without a link, but would report a broken plugin if this function threw an error.
      return {};
    }
  };
}

/**
 * @param {Options} options
 * @param {NodeJS.ProcessEnv} env
 * @param {any} input what OpenCode passes to a plugin
 */
function newHooks(options, env, input) {
  /** @type {{value: string | null}} */
  const version = { value: null };
  goDirectly(input.client);
  const headless = headlessId(env);
  const { home, counters, tools, link, capture, record } = newInstance(
    options,
    env,
    input.client,
    () => ({
      project: textOrNull(input.project?.id),
      directory: textOrNull(input.directory),
      worktree: textOrNull(input.worktree),
      opencode_version: version.value,
    }),
    (token) => ({ headless, ...identity(token, env) }),
    (place, copies) => ({ ...headlessMethods(place, env, options.spawn), ...(headless ? copies : {}) }),
  );
  if (headless) endIfAlone(env, link);
  askVersion(input.client, version);

  /**
   * Do a hook's whole work.
   *
   * @param {string} hook
   * @param {unknown} hookInput
   * @param {unknown} output
   */
  const take = (hook, hookInput, output) => {
    try {
      const type = hook === "event" ? typeOf(hookInput) : undefined;
      // A new session contains the version of the OpenCode that created the session.
      if (type === "session.created") version.value ??= versionIn(hookInput);
      const lossy = type === "message.part.delta";
      // Drop deltas that nobody wants before encoding them, because there are many.
      if (lossy && !record && !link.context.lossy) {
        counters.lossy_dropped += 1;
        return;
      }
      const encoded = encodeItem(hook, Date.now(), hookInput, output);
      if (encoded) record?.(encoded.text);
      if (lossy) {
        if (encoded && link.context.lossy) link.sendLossy(encoded.text);
        else counters.lossy_dropped += 1;
      } else if (encoded) {
        if (encoded.cut) counters.cut += 1;
        capture.add(encoded.text, encoded.bytes);
      } else {
        capture.addLost();
      }
    } catch {
      counters.hook_errors += 1;
      capture.addLost();
    }
  };

  const reserved = new Reserved(() => link.context);
  const directory = textOrNull(input.directory) ?? "/";
  const own = headless
    ? { config: allowSubagents }
    : new Background(input.client, (...call) => tools.call(...call), hasList(options.file)).hooks();
  // The same object, from which the tools' hooks may remove one.
  const hooks = Object.assign(tools.hooks(readTools(home)), {
    ...own,
    /** @param {any} config */
    config: async (config) => {
      remember(input.client, config);
      await own.config(config);
    },
    /** @param {unknown} hookInput */
    event: async (hookInput) => take("event", hookInput, null),
    /** @param {unknown} hookInput @param {unknown} output */
    "chat.message": async (hookInput, output) => take("chat.message", hookInput, output),
    /** The error is what the model reads instead of a result. @param {any} hookInput @param {any} output */
    "tool.execute.before": async (hookInput, output) => {
      const refusal = reserved.refusal(hookInput, output, directory);
      if (refusal) throw new Error(refusal);
    },
    /** @param {any} hookInput @param {any} output */
    "tool.execute.after": async (hookInput, output) => {
      reserved.warn(hookInput, output, directory);
      take("tool.execute.after", hookInput, output);
    },
    dispose: async () => {
      try {
        capture.close();
        link.dispose();
      } catch {
        counters.hook_errors += 1;
      }
    },
  });
  // The counters are not enumerable, so that OpenCode sees only hooks.
  return Object.defineProperty(hooks, COUNTERS, { value: counters });
}

/**
 * Let a phantom start as many levels of subagents as the user's session may start. OpenCode counts a phantom as one
 * level deep, because a phantom is a child of the session that started the phantom.
 *
 * @param {any} config OpenCode's, which is changed here; a second copy of the plugin gets the same object
 */
async function allowSubagents(config) {
  try {
    if (DEEPENED in config) return;
    Object.defineProperty(config, DEEPENED, { value: true });
    config.subagent_depth = (config.subagent_depth ?? 1) + 1;
  } catch {
    // The config cannot be changed, so OpenCode's task tool refuses to start a subagent and says why.
  }
}

/** @param {any} hookInput @returns {unknown} */
function typeOf(hookInput) {
  try {
    return hookInput?.event?.type;
  } catch {
    // A getter threw an error, so encoding the item will fail too, which reports the loss.
    return undefined;
  }
}

/** @param {any} hookInput */
function versionIn(hookInput) {
  try {
    return textOrNull(hookInput.event.properties.info.version);
  } catch {
    // The event has another shape, but OpenCode's health route also gives the version.
    return null;
  }
}

/**
 * OpenCode does not tell a plugin its version, but its health route does, even
 * in-process. The route is called some time after the start and not awaited, because it
 * costs 165 ms at start-up. So the first link may give null as the version.
 *
 * @param {any} client
 * @param {{value: string | null}} version
 */
function askVersion(client, version) {
  const timer = setTimeout(async () => {
    try {
      const { data } = await client._client.get({ url: "/global/health" });
      version.value ??= textOrNull(data?.version);
    } catch {
      // This version of OpenCode has no health route, so its version stays null.
    }
  }, ASK_VERSION_MS);
  timer.unref?.();
}
