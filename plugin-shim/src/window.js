/**
 * The frames in flight on one socket, which were sent but are not yet acknowledged.
 *
 * This module is pure: the clock is a parameter, in ms, and never goes back.
 */

/** Maximum number of items in flight if the sidecar names no window. */
const DEFAULT_SIZE = 512;
/** Once this many bytes are in flight, nothing more is sent; a bigger frame goes alone. */
const MAX_BYTES = 8 * 1024 * 1024;

/**
 * @typedef {object} Sent
 * @property {number} first
 * @property {number} last
 * @property {number} bytes
 * @property {number} end place in the spool after the frame's last line, -1 if the frame does not come from the spool
 */

export class Window {
  /** @type {Sent[]} */
  #frames = [];
  #size = DEFAULT_SIZE;
  #items = 0;
  #bytes = 0;
  #progressMs = 0;

  /** Start over for a new socket. @param {unknown} size maximum number of items in flight, from `welcome` */
  reset(size) {
    this.#size = typeof size === "number" && size >= 1 ? Math.floor(size) : DEFAULT_SIZE;
    this.#frames = [];
    this.#items = 0;
    this.#bytes = 0;
  }

  /** How many items may be sent now. */
  get room() {
    return this.#bytes < MAX_BYTES ? Math.max(0, this.#size - this.#items) : 0;
  }

  /** Items in flight. */
  get items() {
    return this.#items;
  }

  get empty() {
    return this.#frames.length === 0;
  }

  /** @param {Sent} frame @param {number} nowMs */
  add(frame, nowMs) {
    if (this.empty) this.#progressMs = nowMs;
    this.#frames.push(frame);
    this.#items += frame.last - frame.first + 1;
    this.#bytes += frame.bytes;
  }

  /**
   * Take an acknowledgement. The rest of a partly acknowledged frame stays in flight.
   *
   * @param {number} seq
   * @param {number} nowMs
   * @returns {number} place in the spool up to which everything is acknowledged; -1 if that place did not move
   */
  ack(seq, nowMs) {
    let end = -1;
    let done = 0;
    for (const frame of this.#frames) {
      if (frame.last > seq) {
        if (frame.first <= seq) {
          this.#items -= seq - frame.first + 1;
          frame.first = seq + 1;
        }
        break;
      }
      this.#items -= frame.last - frame.first + 1;
      this.#bytes -= frame.bytes;
      if (frame.end >= 0) end = frame.end;
      done += 1;
    }
    this.#frames.splice(0, done);
    this.#progressMs = nowMs;
    return end;
  }

  /**
   * How long the sidecar has acknowledged nothing while frames are in flight; 0 if no
   * frames are in flight. A slow sidecar that makes progress is not late.
   *
   * @param {number} nowMs
   */
  waitingMs(nowMs) {
    return this.empty ? 0 : nowMs - this.#progressMs;
  }
}
