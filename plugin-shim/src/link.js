/**
 * Keeps one instance's websocket connection to the sidecar, and renews it.
 *
 * The states are a table; an event that is not in the state's row changes nothing. Until
 * the sidecar has proved that it holds the home's token, no user data is sent, not
 * even the project's name.
 */
import { isNonce, isProof, judge, makeProof, newNonce } from "./handshake.js";
import { PROTOCOL, SHIM_VERSION } from "./version.js";

/**
 * waiting: the back-off is running. locating: the home's files are being read. asking: an
 * older sidecar was asked to make room, and has not ended yet. closing: `bye` was
 * sent, and the last acks may still come. disposed: the link is closed for good.
 *
 * @typedef {"waiting" | "locating" | "opening" | "proving" | "identifying" | "asking" | "live" | "closing" | "disposed"} State
 * @typedef {"try" | "found" | "absent" | "open" | "proved" | "ask" | "welcome" | "lost" | "dispose"} Happening
 */

/** @type {Record<State, Partial<Record<Happening, State>>>} */
export const NEXT = {
  waiting: { try: "locating", dispose: "disposed" },
  locating: { found: "opening", absent: "waiting", dispose: "disposed" },
  opening: { open: "proving", lost: "waiting", dispose: "disposed" },
  proving: { proved: "identifying", lost: "waiting", dispose: "disposed" },
  identifying: { welcome: "live", ask: "asking", lost: "waiting", dispose: "disposed" },
  asking: { lost: "waiting", dispose: "disposed" },
  live: { lost: "waiting", dispose: "closing" },
  closing: { lost: "disposed" },
  disposed: {},
};

/** After a link that lived this long, the back-off starts over. */
const GOOD_LINK_MS = 5000;
/** How long to wait for the last acks after `bye`. */
const LINGER_MS = 1000;
/** Maximum length of a frame from an unauthenticated sidecar, in characters. */
const MAX_UNPROVED = 64 * 1024;
/** A number of attempts that leads to the longest back-off. */
const MANY_TRIES = 30;
/** Maximum lossy bytes to send while the sidecar sends no frame; more bytes would pile up in this process. */
const MAX_LOSSY_BYTES = 4 * 1024 * 1024;
/**
 * Maximum number of frames accepted on one link, besides the acks of sent items. After that, the link is replaced,
 * because a flood of frames would starve OpenCode, and the answers to the sidecar's calls would pile up here.
 */
const MAX_FRAMES = 10_000;
/** A long frame counts as several of this length, in characters, because it holds OpenCode as long. */
const FRAME_LENGTH = 8192;
/** Maximum number of acks for one `hooks` frame, which has at most this many items. */
const ACKS_A_FRAME = 256;

const OPEN = 1;

/**
 * @typedef {object} Timings all in ms
 * @property {number} ackTimeoutMs the link is dropped after this time without an ack; also limits the handshake
 * @property {number} backoffMinMs
 * @property {number} backoffMaxMs
 * @property {number} refusedMs pause after meeting a sidecar without our protocol, where only an upgrade helps
 */

/**
 * The object that the link reports to and queries; see `Capture`.
 *
 * @typedef {object} Listener
 * @property {(ackedSeq: number, window: unknown) => void} welcomed
 * @property {(seq: number) => void} acknowledged
 * @property {() => void} lost
 * @property {() => void} flush
 * @property {() => number} waitingMs
 * @property {boolean} settled
 */

/**
 * @typedef {object} LinkParts
 * @property {() => Promise<import("./start.js").Place | "absent" | "unsafe">} locate
 * @property {import("./start.js").Starter} starter
 * @property {new (url: string) => WebSocket} WebSocket
 * @property {(token: string) => object} identity the fields of `identify` besides the proof
 * @property {import("./calls.js").Calls} calls
 * @property {{answered: (frame: any) => void, lost: () => void}} [tools]
 * @property {import("./counters.js").Counters} counters
 * @property {Timings} timings
 */

export class Link {
  #parts;
  /** @type {Listener | null} */
  #listener = null;
  /** @type {State} */
  #state = "waiting";
  /** @type {WebSocket | null} */
  #socket = null;
  /** @type {import("./start.js").Place | null} */
  #place = null;
  #nonce = "";
  #tries = 0;
  #refused = false;
  #liveSinceMs = 0;
  #lossyBytes = 0;
  /** How many more frames this link accepts. */
  #framesLeft = 0;
  /** @type {NodeJS.Timeout | undefined} the state's timer: back-off, handshake or linger */
  #timer;
  /** @type {NodeJS.Timeout | undefined} */
  #watchTimer;

  /** Data from the sidecar for the hooks that must answer at once. @type {Record<string, unknown>} */
  context = {};

  /** @param {LinkParts} parts */
  constructor(parts) {
    this.#parts = parts;
  }

  /** @returns {State} */
  get state() {
    return this.#state;
  }

  /** True if items may be sent. */
  get live() {
    return this.#state === "live";
  }

  /** Start in a later tick, because OpenCode waits for the plugin to load. @param {Listener} listener */
  start(listener) {
    this.#listener = listener;
    this.#after(0, () => void this.#attempt());
  }

  /**
   * Send a frame after the items that wait for the end of the tick.
   *
   * @param {string} text
   * @returns {boolean} false if it was not sent; the link is then dropped
   */
  send(text) {
    this.#listener?.flush();
    return this.sendItems(text);
  }

  /**
   * Send a frame at once.
   *
   * @param {string} text
   * @returns {boolean} false if it was not sent; the link is then dropped
   */
  sendItems(text) {
    try {
      if (this.#socket?.readyState === OPEN) {
        this.#socket.send(text);
        return true;
      }
    } catch {
      // Treat a socket that throws as closed.
    }
    this.fail();
    return false;
  }

  /** Send items that may be lost: dropped if the link is not live or the sidecar is silent. @param {string} text */
  sendLossy(text) {
    const { counters } = this.#parts;
    if (!this.live || this.#lossyBytes > MAX_LOSSY_BYTES || !this.send(`{"type":"lossy","items":[${text}]}`)) {
      counters.lossy_dropped += 1;
      return;
    }
    this.#lossyBytes += text.length;
    counters.lossy_sent += 1;
  }

  /** Watch the items in flight, and drop the link if an ack is late. Repeated calls are cheap. */
  watch() {
    this.#framesLeft = Math.min(MAX_FRAMES, this.#framesLeft + ACKS_A_FRAME);
    if (this.#watchTimer) return;
    this.#armWatch(this.#parts.timings.ackTimeoutMs);
  }

  /** Drop this socket; the next attempt to connect follows after the back-off. */
  fail() {
    this.#end("lost");
  }

  /** Send `bye` and close for good. Everything unacknowledged is in the spool by now. */
  dispose() {
    if (this.#state === "live") {
      this.send('{"type":"bye","reason":"disposed"}');
    }
    if (this.#state === "live" && !this.#listener?.settled) {
      // Wait for acks that still arrive, because they save the sidecar from importing the spool.
      this.#move("dispose");
      this.#after(LINGER_MS, () => this.#end("lost"));
    } else {
      this.#end("dispose");
      this.#end("lost");
    }
  }

  /** @param {Happening} happening @returns {boolean} true if the state's row has it */
  #move(happening) {
    const next = NEXT[this.#state][happening];
    if (!next) return false;
    this.#state = next;
    return true;
  }

  /** @param {number} ms @param {() => void} act */
  #after(ms, act) {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(act, ms);
    // OpenCode must be able to exit without waiting for this timer.
    this.#timer.unref?.();
  }

  async #attempt() {
    if (!this.#move("try")) return;
    const place = await this.#parts.locate();
    if (this.#state !== "locating") return;
    if (typeof place === "string") {
      if (place === "unsafe") this.#parts.counters.unsafe_files += 1;
      else this.#parts.starter.start();
      this.#move("absent");
      this.#backOff();
      return;
    }
    this.#move("found");
    this.#open(place);
  }

  /** @param {import("./start.js").Place} place */
  #open(place) {
    this.#place = place;
    this.#parts.counters.connects += 1;
    try {
      const url = place.socket ? `ws+unix://${place.socket}:/` : `ws://127.0.0.1:${place.port}/`;
      const socket = new this.#parts.WebSocket(url);
      this.#socket = socket;
      const ours = () => this.#socket === socket;
      socket.onopen = () => ours() && this.#hello();
      socket.onmessage = (/** @type {{data: unknown}} */ { data }) => ours() && this.#receive(data);
      socket.onerror = () => ours() && this.fail();
      socket.onclose = () => ours() && this.fail();
    } catch {
      this.fail();
      return;
    }
    this.#after(this.#parts.timings.ackTimeoutMs, () => {
      this.#parts.counters.handshake_timeouts += 1;
      this.fail();
    });
  }

  #hello() {
    if (!this.#move("open")) return;
    this.#nonce = newNonce();
    this.send(JSON.stringify({ type: "hello", role: "shim", protocol: PROTOCOL, nonce: this.#nonce }));
  }

  /** @param {unknown} data */
  #receive(data) {
    try {
      const proved = this.#state !== "proving";
      if (typeof data !== "string" || (!proved && data.length > MAX_UNPROVED)) throw new Error("not a frame");
      if (this.live && (this.#framesLeft -= 1 + data.length / FRAME_LENGTH) < 0) throw new Error("a flood");
      const frame = JSON.parse(data);
      this.#lossyBytes = 0;
      this.#handle(frame);
    } catch {
      this.#parts.counters.bad_frames += 1;
      this.fail();
    }
  }

  /** @param {any} frame */
  #handle(frame) {
    if (this.#state === "proving") {
      this.#challenged(frame);
    } else if (this.#state === "asking") {
      // Ignore the old sidecar's frames. When the old sidecar has closed the link, a new one is started.
    } else if (frame.type === "bye") {
      this.#refusedBy(frame.reason);
      this.fail();
    } else if (this.#state === "identifying") {
      if (frame.type === "welcome") this.#welcomed(frame);
      else this.#parts.counters.unknown_frames += 1;
    } else {
      this.#handleLive(frame);
    }
  }

  /** @param {any} frame */
  #handleLive(frame) {
    const { counters, calls } = this.#parts;
    switch (frame.type) {
      case "ack":
        if (!Number.isSafeInteger(frame.seq)) throw new Error("an ack without a seq");
        this.#tries = 0;
        this.#parts.starter.progressed();
        this.#listener?.acknowledged(frame.seq);
        if (this.#state === "closing" && this.#listener?.settled) this.#end("lost");
        break;
      case "call": {
        const socket = this.#socket;
        void calls.answer(frame).then((text) => {
          // Send nothing on a newer link, where the answer would be mistaken for the answer to another call.
          if (this.#socket === socket && this.live) this.send(text);
        });
        break;
      }
      case "result":
        this.#parts.tools?.answered(frame);
        break;
      case "context":
        this.context = frame.context ?? {};
        break;
      default:
        counters.unknown_frames += 1;
    }
  }

  /** @param {any} frame */
  #challenged(frame) {
    const { counters, identity } = this.#parts;
    const { port, token } = /** @type {import("./start.js").Place} */ (this.#place);
    if (frame.type === "bye") {
      this.fail();
      return;
    }
    const right =
      frame.type === "challenge" &&
      isNonce(frame.nonce) &&
      isProof(frame.proof, makeProof(token, "sidecar", port, this.#nonce, frame.nonce));
    if (!right) {
      counters.impostors += 1;
      this.#end("lost");
      this.#parts.starter.start();
      return;
    }
    const verdict = judge(frame, this.#parts.starter);
    if (verdict === "hopeless") {
      this.#refusedBy("unsupported");
      this.fail();
      return;
    }
    this.#move("proved");
    const proof = makeProof(token, "shim", port, this.#nonce, frame.nonce);
    this.send(JSON.stringify({ type: "identify", proof, shim_version: SHIM_VERSION, ...identity(token) }));
    if (verdict === "outdated") {
      counters.upgrades += 1;
      this.send('{"type":"bye","reason":"upgrade"}');
      this.#move("ask");
    }
  }

  /** Apply the reason of a sidecar's `bye` to the next attempt. @param {unknown} reason */
  #refusedBy(reason) {
    if (reason === "unsupported") {
      this.#parts.counters.refusals += 1;
      this.#refused = true;
    }
    // Wait long after these reasons. They do not change soon, and a sidecar that makes room must not be replaced by
    // another of the same version.
    if (reason === "auth" || reason === "protocol" || reason === "upgrade" || reason === "replaced") this.#tries = MANY_TRIES;
  }

  /** @param {any} frame */
  #welcomed(frame) {
    this.#move("welcome");
    clearTimeout(this.#timer);
    this.#parts.counters.welcomes += 1;
    this.#framesLeft = MAX_FRAMES;
    this.#liveSinceMs = performance.now();
    this.context = frame.context ?? {};
    this.#listener?.welcomed(Number.isSafeInteger(frame.acked_seq) ? frame.acked_seq : 0, frame.window);
  }

  /** @param {"lost" | "dispose"} happening */
  #end(happening) {
    const was = this.#state;
    if (!this.#move(happening)) return;
    clearTimeout(this.#timer);
    const socket = this.#socket;
    this.#socket = null;
    try {
      socket?.close();
    } catch {
      // A socket that cannot be closed is ending anyway, and it is no longer used.
    }
    if (socket) this.#parts.counters.lost_links += 1;
    if (was === "live" || was === "closing") {
      this.#listener?.lost();
      this.#parts.tools?.lost();
    }
    if (was === "live" && performance.now() - this.#liveSinceMs >= GOOD_LINK_MS) this.#tries = 0;
    if (this.#state !== "waiting") return;
    // The socket closed before it opened: the connection was refused, so no sidecar of ours listens on that port.
    if (was === "opening") this.#parts.starter.start();
    this.#backOff();
  }

  #backOff() {
    const { backoffMinMs, backoffMaxMs, refusedMs } = this.#parts.timings;
    const ms = this.#refused ? refusedMs : Math.min(backoffMaxMs, backoffMinMs * 2 ** Math.min(this.#tries, MANY_TRIES));
    this.#refused = false;
    this.#tries += 1;
    // Add jitter, so that the shims of one machine do not all connect at the same moment.
    this.#after(ms * (0.5 + Math.random() / 2), () => void this.#attempt());
  }

  /** @param {number} ms */
  #armWatch(ms) {
    this.#watchTimer = setTimeout(() => {
      this.#watchTimer = undefined;
      const waitingMs = this.live ? (this.#listener?.waitingMs() ?? 0) : 0;
      if (waitingMs === 0) return;
      const leftMs = this.#parts.timings.ackTimeoutMs - waitingMs;
      if (leftMs > 0) {
        this.#armWatch(leftMs);
      } else {
        this.#parts.counters.late_acks += 1;
        this.fail();
      }
    }, ms);
    this.#watchTimer.unref?.();
  }
}
