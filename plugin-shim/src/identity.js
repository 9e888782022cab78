/**
 * What this process may do, as two keys: `kernel`, what the system allows it, and `environment`, its variables.
 *
 * Background work runs in a process that the asking OpenCode starts, so it may do what that one may. Two OpenCodes may
 * share such a process only if their keys are equal, and if each can see the other: some limits, such as Landlock's, are
 * in no file. An unknown variable counts: a variable is left out only if it names a terminal, or if OpenCode itself sets
 * it. The sidecar computes the same keys in `sidecar/background/hosts/identity.py`.
 */
import { createHmac } from "node:crypto";
import fs from "node:fs";
import { bootId } from "./start.js";

/** The lines of `/proc/PID/status` that count. */
const STATUS = /^(?:Uid|Gid|Groups|CapInh|CapPrm|CapEff|CapBnd|CapAmb|NoNewPrivs|Seccomp|Seccomp_filters):/;
const SPACES = ["cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts"];
/** The kernel's own pid namespace, whose number never changes. */
const FIRST_PIDS = "pid:[4026531836]";
/** The limits of a cgroup. Its name does not count, because a desktop gives each terminal its own cgroup. */
const CGROUP = ["cpu.max", "memory.high", "memory.max", "pids.max"];

/** Variables that name a terminal, or that OpenCode and this plugin set. */
const NOISE = new RegExp(
  "^(?:_|PWD|OLDPWD|SHLVL|LINES|COLUMNS|TERM|TERM_.*|COLORTERM|COLORFGBG|WINDOWID|WINDOW|STY|GPG_TTY|" +
    "SSH_TTY|SSH_CLIENT|SSH_CONNECTION|XDG_SESSION_.*|XDG_VTNR|XDG_SEAT|TMUX.*|ZELLIJ.*|VTE_.*|KONSOLE_.*|KITTY_.*|" +
    "WEZTERM_.*|ALACRITTY_.*|GHOSTTY_.*|GNOME_TERMINAL_.*|ITERM_.*|LC_TERMINAL.*|WT_.*|INVOCATION_ID|JOURNAL_STREAM|" +
    "AGENT|OPENCODE|OPENCODE_PID|OPENCODE_RUN_ID|OPENCODE_CLIENT|OPENCODE_SERVER_PASSWORD|OPENCODE_SERVER_USERNAME|" +
    "OPENCODE_PRINT_LOGS|OPENCODE_LOG_LEVEL|OPENCODE_CONSOLE_TOKEN|" +
    "npm_config_user_agent|DURABLE_STREAM.*)$",
);
/** Variables that hold places, perhaps several with `:` between them. */
const PLACES = /(?:PATH|DIRS?|HOME|CONFIG|FILE|ROOT)$/;

/** @param {string} file */
function read(file) {
  try {
    return fs.readFileSync(file, "utf8").replaceAll("\0", "").trim();
  } catch {
    return ""; // The system has no such file, or hides it.
  }
}

/** @param {string} file */
function readLink(file) {
  try {
    return fs.readlinkSync(file);
  } catch {
    return ""; // The system has no such file, or hides it.
  }
}

/** @param {number | string} pid @returns {string} when a process started, in ticks since the boot; empty if it ended */
export function startOf(pid) {
  const fields = read(`/proc/${pid}/stat`).split(")").at(-1)?.trim().split(" ") ?? [];
  return fields.length > 19 && fields[0] !== "Z" ? fields[19] : "";
}

/** Whether this process may look into another one, and so is in no narrower sandbox. @param {number} pid */
export function sees(pid) {
  return readLink(`/proc/${pid}/ns/mnt`) !== "";
}

/** The pid namespace of this process; empty if the system has none. A pid means something only in it. */
export function pidSpace() {
  return readLink("/proc/self/ns/pid");
}

/**
 * What a link says of the process that it belongs to.
 *
 * @param {string} token
 * @param {NodeJS.ProcessEnv} env
 */
export function identity(token, env) {
  kernel ??= kernelLines();
  const environment = digest(token, environmentLines(env, place()));
  return { kernel: digest(token, kernel), environment, pid_space: pidSpace(), program: process.execPath };
}

/** @type {string[] | undefined} */
let kernel;

function place() {
  try {
    return process.cwd();
  } catch {
    return ""; // The directory was removed.
  }
}

/** What the system allows this process, as lines of text. */
export function kernelLines() {
  const status = read("/proc/self/status").split("\n");
  // Without these files, the rights of a process are unknown, so it shares with nobody.
  if (status.length < 2) return [`process=${bootId()}`];
  const lines = status.filter((line) => STATUS.test(line)).map((line) => line.replace(/:\s*/, "=").replace(/\s+/g, " ").trim());
  const isFirst = readLink("/proc/self/ns/pid") === FIRST_PIDS;
  // Another kernel gives process 1 other numbers.
  const known = isFirst && isBesideOne() ? ["mnt", "net"] : [];
  for (const name of SPACES) lines.push(`ns.${name}=${known.includes(name) ? "1" : readLink(`/proc/self/ns/${name}`)}`);
  lines.push(`root=${inode("/")}`, `label=${read("/proc/self/attr/current")}`);
  // A process may raise its soft limits, and OpenCode does.
  for (const line of read("/proc/self/limits").split("\n").slice(1)) {
    lines.push(`limit.${line.slice(0, 26).trim()}=${line.slice(47, 68).trim()}`);
  }
  lines.push(...cgroupLines());
  // Nobody can read what a filter of system calls allows. Those of process 1 are everybody's.
  const filters = (/** @type {string} */ text) => text.match(/^Seccomp_filters:\s*(\d+)/m)?.[1] ?? "0";
  if (filters(status.join("\n")) !== filters(read("/proc/1/status"))) lines.push(`process=${bootId()}`);
  // In a pid namespace, the numbers above are used again when its first process has ended.
  if (!isFirst) lines.push(`one=${read("/proc/sys/kernel/random/boot_id")}:${startOf(1)}`);
  return lines;
}

/**
 * Whether this process has the mounts, users and network of process 1. The id of a mount, and the inode of a network's
 * file, are unique while they last, and everybody may read them.
 */
function isBesideOne() {
  const first = (/** @type {string} */ file) => read(file).split("\n")[0];
  const own = inode("/proc/self/net/dev");
  /** @param {string} name */
  const like = (name) => first(`/proc/self/${name}`) !== "" && first(`/proc/self/${name}`) === first(`/proc/1/${name}`);
  return ["mountinfo", "uid_map", "gid_map"].every(like) && own !== "" && own === inode("/proc/1/net/dev");
}

/** @param {string} file @returns {string} what tells a file from all others; empty if there is none */
export function inode(file) {
  try {
    const { dev, ino } = fs.statSync(file, { bigint: true });
    return `${dev}:${ino}`;
  } catch {
    return "";
  }
}

function cgroupLines() {
  let place = read("/proc/self/cgroup").match(/^0::(.*)$/m)?.[1] ?? "";
  const lines = [];
  for (; place.startsWith("/") && place !== "/"; place = place.slice(0, place.lastIndexOf("/"))) {
    for (const name of CGROUP) {
      const limit = read(`/sys/fs/cgroup${place}/${name}`);
      if (limit && !limit.startsWith("max")) lines.push(`${name}=${limit}`);
    }
  }
  return lines;
}

/** @param {NodeJS.ProcessEnv} env @param {string} cwd */
export function environmentLines(env, cwd) {
  const variables = Object.entries(env).filter(([name, value]) => value !== undefined && !NOISE.test(name));
  const relative = variables.some(([name, value]) => isRelative(name, String(value)));
  // A relative place is another one in each directory.
  return [...variables.map(([name, value]) => `${name}=${value}`), ...(relative ? [`=${cwd}`] : [])];
}

/** @param {string} name @param {string} value */
function isRelative(name, value) {
  const listed = PLACES.test(name) ? value.split(":") : [];
  return /^\.{1,2}(?:\/|$)/.test(value) || (value !== "" && listed.some((place) => !place.startsWith("/")));
}

/** @param {string} token @param {string[]} lines */
export function digest(token, lines) {
  const sorted = lines.map((line) => Buffer.from(line)).sort(Buffer.compare);
  const hash = createHmac("sha256", token);
  for (const line of sorted) hash.update(line).update("\0");
  return hash.digest("hex").slice(0, 32);
}
