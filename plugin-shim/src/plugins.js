/**
 * The plugins that OpenCode 1 loaded for a directory, of which it has no list.
 *
 * Its configuration names them, also those that do not exist. So each is imported again, only when the sidecar asks.
 * The runtime has kept the modules that OpenCode imported, so none of them runs a second time.
 */
import fs from "node:fs";
import path from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

/** The names of the plugins in the configuration, for each client of OpenCode. @type {WeakMap<object, string[]>} */
const configured = new WeakMap();

/**
 * Remember what a configuration names. Reads nothing.
 *
 * @param {any} client
 * @param {any} config
 */
export function remember(client, config) {
  try {
    const names = (config.plugin ?? []).map((/** @type {any} */ each) => String(Array.isArray(each) ? each[0] : each));
    configured.set(client, names);
  } catch {
    // The configuration has an unknown form, so `listed` says that the plugins are unknown.
  }
}

/**
 * Answer the call `plugin.list`: each plugin's name in the configuration, and why it is not loaded.
 *
 * @param {any} client
 * @returns {Promise<{data?: {name: string, error?: string}[], error?: Error}>}
 */
export async function listed(client) {
  const names = client && configured.get(client);
  if (!names) return { error: new Error("OpenCode has not named its plugins yet") };
  const about = async (/** @type {string} */ name) => ({ name, ...(await fault(name)) });
  return { data: await Promise.all(names.map(about)) };
}

/** @param {string} name */
async function fault(name) {
  try {
    // OpenCode keeps packages from a registry in one place for all directories.
    if (name.startsWith("file:")) await import(entry(name));
    return {};
  } catch (error) {
    return { error: String(error instanceof Error ? error.message : error).slice(0, 500) };
  }
}

/** The URL that OpenCode imports for a file or a folder. @param {string} url */
function entry(url) {
  const folder = fileURLToPath(url);
  if (!fs.statSync(folder).isDirectory()) return url;
  const { exports, main } = JSON.parse(fs.readFileSync(path.join(folder, "package.json"), "utf8"));
  const server = exports?.["./server"];
  return pathToFileURL(path.join(folder, server?.import ?? server?.default ?? server ?? main)).href;
}
