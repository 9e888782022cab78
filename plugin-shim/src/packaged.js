/**
 * The plugin of the npm package, to which no installation said where the program is.
 */
import { plugin } from "./plugin.js";
import { findProgram, hasHome } from "./program.js";

/**
 * Make the plugin, or one that does nothing if the Python package is not installed.
 *
 * OpenCode lists plugins by id, so that is where the second one says what is missing. An error would open a notice in
 * OpenCode's terminal at each start.
 *
 * @param {NodeJS.ProcessEnv} env
 * @param {string} file the URL of the package's entry
 */
export function packaged(env, file) {
  const program = findProgram(env);
  const made = plugin({ env, ...(program ? { command: [program] } : {}) }, file);
  if (program || hasHome(env)) return made;
  const id = made.id.replace("durable-stream-", "durable-stream-needs-its-python-package-");
  return { id, server: async () => ({}), setup: async () => undefined };
}
