/**
 * Finds the program of the Python package when no plugin file names it: for the npm package.
 */
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { defaultHome } from "./start.js";

const NAME = process.platform === "win32" ? "durable-stream.exe" : "durable-stream";

/**
 * The program that starts a sidecar: on the PATH, or where pipx and uv put programs. A service that a desktop started
 * often has a short PATH.
 *
 * @param {NodeJS.ProcessEnv} env
 * @returns {string | null}
 */
export function findProgram(env) {
  if (env.DURABLE_STREAM_COMMAND) return env.DURABLE_STREAM_COMMAND;
  const user = env.HOME || os.homedir();
  const named = [...(env.PATH ?? "").split(path.delimiter), env.PIPX_BIN_DIR, env.UV_TOOL_BIN_DIR];
  for (const place of [...named, path.join(user, ".local", "bin")]) {
    const file = place && path.isAbsolute(place) ? path.join(place, NAME) : null;
    if (file && isProgram(file)) return file;
  }
  return null;
}

/**
 * True if there is a home, so a sidecar may be running or hooks may be waiting in its spool.
 *
 * @param {NodeJS.ProcessEnv} env
 */
export function hasHome(env) {
  return fs.existsSync(env.DURABLE_STREAM_HOME || defaultHome(env));
}

/** @param {string} file */
function isProgram(file) {
  try {
    fs.accessSync(file, fs.constants.X_OK);
    return fs.statSync(file).isFile();
  } catch {
    return false;
  }
}
