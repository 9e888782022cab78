/**
 * The mark of an instance: an empty file that stands while the instance has items in memory alone, because the spool
 * refused them. If OpenCode ends meanwhile, in whatever way, they are lost, and the sidecar records a gap for the mark.
 *
 * Even a full disk has room for an empty file, and beside the home it can stand if the home cannot be written. All that
 * it says is its name: boot, instance, pid and, once the instance has ended, how many items are lost.
 */
import fs from "node:fs";
import path from "node:path";

/** How long to wait after a mark could not be made. */
const RETRY_MS = 1000;

export class Mark {
  #places;
  /** Where the mark stands; empty if it does not. */
  #path = "";
  #retryAtMs = 0;

  /** @param {string} home @param {string} name */
  constructor(home, name) {
    this.#places = [path.join(home, "spool", name), `${home}.${name}`];
  }

  /** Have the mark stand, or not. It costs nothing to repeat this. @param {boolean} stands */
  set(stands) {
    if (stands === (this.#path !== "")) return;
    if (stands) this.#make();
    else this.#change((file) => fs.unlinkSync(file));
  }

  /** The instance has ended. @param {number} lost items; if there are none, no mark stays */
  leave(lost) {
    this.#retryAtMs = 0;
    this.set(lost > 0);
    if (lost > 0 && this.#path) this.#change((file) => fs.renameSync(file, file + lost));
  }

  #make() {
    if (performance.now() < this.#retryAtMs) return;
    for (const place of this.#places) {
      try {
        // As for the spool: root would own the file that it makes in the home of another user.
        if (process.getuid && fs.statSync(path.dirname(place)).uid !== process.getuid()) continue;
        fs.closeSync(fs.openSync(place, "wx", 0o600));
        this.#path = place;
        return;
      } catch {
        // The next place may take it.
      }
    }
    this.#retryAtMs = performance.now() + RETRY_MS;
  }

  /** @param {(file: string) => void} change */
  #change(change) {
    try {
      change(this.#path);
    } catch {
      // The sidecar takes the mark, with the name that it has, once our process has ended.
    }
    this.#path = "";
  }
}
