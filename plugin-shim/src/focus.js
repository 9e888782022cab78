/**
 * Tells the sidecar whether this terminal is in front, and which session it shows.
 *
 * OpenCode asks the terminal for focus reports and passes them on. The focus of a terminal that reports nothing is
 * `unknown`: nobody knows whether somebody looks at it.
 */
import fs from "node:fs";
import path from "node:path";

export const FOLDER = "terminals";
/** How often the session on screen is looked up, ms. */
const LOOK_MS = 1000;

/**
 * @param {any} renderer what draws OpenCode's terminal
 * @param {string} home
 * @param {() => string | undefined} session the session on screen
 * @returns {() => void} what ends it
 */
export function tellFocus(renderer, home, session) {
  if (typeof renderer?.on !== "function" || typeof renderer.off !== "function") return () => {};
  const file = path.join(home, FOLDER, `${process.pid}.json`);
  let focus = "unknown";
  let written = "";
  const tell = () => {
    try {
      const now = JSON.stringify({ session: session() ?? null, focus });
      if (now === written) return;
      fs.mkdirSync(path.dirname(file), { recursive: true, mode: 0o700 });
      fs.writeFileSync(`${file}.new`, now, { mode: 0o600 });
      fs.renameSync(`${file}.new`, file);
      written = now;
    } catch {
      // the home is gone or full: then the focus is unknown, which the sidecar can live with
    }
  };
  const front = () => void ((focus = "front"), tell());
  const away = () => void ((focus = "away"), tell());
  renderer.on("focus", front);
  renderer.on("blur", away);
  const timer = setInterval(tell, LOOK_MS);
  timer.unref?.();
  return () => {
    clearInterval(timer);
    renderer.off("focus", front);
    renderer.off("blur", away);
    try {
      fs.rmSync(file, { force: true });
    } catch {
      // the sidecar ignores the file of a terminal that has ended, and removes it
    }
  };
}
