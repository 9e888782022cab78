/**
 * Decides where an item goes: to the socket, to the spool, or into memory.
 *
 * Invariant: the spool's seqs and the memory's each have no gaps, and memory reaches at least as far. So an item is
 * sent from memory if memory has it, else from the spool, and the seqs on a socket only rise. Memory holds items that
 * the spool refused, and those of the last moment, which the next frame takes together.
 */
import { encodeGap } from "./item.js";
import { Queue, nextRun } from "./queue.js";
import { Window } from "./window.js";

/** @typedef {import("./spool.js").Line} Line */
/** @typedef {import("./queue.js").Run} Run */

/** Maximum number of items and bytes in one `hooks` frame; a bigger item goes alone. */
const FRAME_ITEMS = 256;
const FRAME_BYTES = 1024 * 1024;

/** How long items are collected for a frame. Each frame wakes the sidecar and its ack wakes OpenCode, in mid-prompt. */
const COLLECT_MS = 20;

/**
 * The part of the link that `Capture` needs.
 *
 * @typedef {object} Sender
 * @property {boolean} live true if items may be sent
 * @property {(text: string) => boolean} sendItems returns false if sending lost the link
 * @property {() => void} watch drop the link if the ack of the items in flight is late
 * @property {() => void} fail drop this link and open another
 */

export class Capture {
  #queue;
  #spool;
  #mark;
  #window = new Window();
  #counters;
  /** @type {Sender} */
  #link;
  /** Highest seq sent on the current socket; equals #acked without a socket. */
  #sent = 0;
  #acked = 0;
  /** @type {Line[]} lines that were read from the spool but not yet sent */
  #chunk = [];
  #draining = false;
  #closed = false;
  /** @type {NodeJS.Timeout | undefined} set while a frame is due */
  #due;
  /** Incremented for each link, so that a read for an older link stops. */
  #life = 0;

  /**
   * @param {object} parts
   * @param {import("./spool.js").Spool} parts.spool
   * @param {import("./mark.js").Mark} parts.mark
   * @param {number} parts.memoryLimit bytes
   * @param {import("./counters.js").Counters} parts.counters
   * @param {Sender} parts.link
   */
  constructor({ spool, mark, memoryLimit, counters, link }) {
    this.#queue = new Queue(memoryLimit);
    this.#spool = spool;
    this.#mark = mark;
    this.#counters = counters;
    this.#link = link;
  }

  /** Highest seq that waits for an acknowledgement; 0 if none does. */
  get lastSeq() {
    return this.#acked < this.#queue.last ? this.#queue.last : 0;
  }

  /** True if nothing is waiting for an acknowledgement. */
  get settled() {
    return this.#acked >= this.#queue.last && !this.#queue.hasGap;
  }

  /**
   * Pass an item on in this tick. When `add` returns, the kernel has the item,
   * unless the spool failed.
   *
   * @param {string} text
   * @param {number} bytes
   */
  add(text, bytes) {
    this.#tellGaps(false);
    this.#take(text, bytes);
    this.#handOn();
  }

  /** Add a gap in the place of an item that could not be encoded, or whose hook failed. Never throws. */
  addLost() {
    this.#counters.lost_unserialisable += 1;
    this.#lose("unserialisable", 1);
  }

  /** OpenCode's events were not heard for a moment. */
  unheard() {
    this.#lose("feed_broken", 0);
  }

  /**
   * The link is up. Resend the items that the sidecar lacks, then continue live.
   *
   * @param {number} ackedSeq as the sidecar reports it; ignored if lower than ours
   * @param {unknown} windowSize
   */
  welcomed(ackedSeq, windowSize) {
    this.#life += 1;
    this.#window.reset(windowSize);
    this.#forgetThrough(Math.min(ackedSeq, this.#queue.last));
    this.#sent = this.#acked;
    this.#pump();
  }

  /** @param {number} seq everything up to it is durable */
  acknowledged(seq) {
    const through = Math.min(seq, this.#sent);
    if (through <= this.#acked) return;
    this.#spool.release(this.#window.ack(through, performance.now()));
    this.#forgetThrough(through);
    this.#tellGaps(false);
    if (!this.#due) this.#pump();
  }

  /** The link is gone: move items that are only in memory to the spool. */
  lost() {
    this.#life += 1;
    this.#window.reset(undefined);
    this.#chunk = [];
    this.#spool.rewind();
    this.#sent = this.#acked;
    this.#makeRoom();
    if (this.#closed) this.#leave();
  }

  /** The instance is ending: send what fits. Once no more acks can come, leave the spool with the rest to the sidecar. */
  close() {
    this.#closed = true;
    this.#tellGaps(true);
    this.#pump();
    this.#makeRoom();
    if (this.settled) this.#spool.remove();
    else if (!this.#link.live) this.#leave();
  }

  /** Send what is collected, so that another frame does not overtake it. */
  flush() {
    if (this.#due) this.#pump();
  }

  /** How long the items in flight have waited without progress, ms. */
  waitingMs() {
    return this.#window.waitingMs(performance.now());
  }

  /** Leave the spool to the sidecar. What is only in memory is lost. */
  #leave() {
    this.#spool.leave();
    this.#mark.leave(this.#queue.hooks);
  }

  /** @param {"unserialisable" | "feed_broken"} reason @param {number} lost */
  #lose(reason, lost) {
    try {
      this.#queue.lose(reason, 0, lost);
      this.#tellGaps(false);
      this.#handOn();
    } catch {
      // This is called where a hook has failed already. The next item tells the gap.
      this.#counters.hook_errors += 1;
    }
  }

  /** @param {string} text @param {number} bytes */
  #take(text, bytes) {
    if (!this.#queue.room(bytes)) this.#makeRoom();
    if (this.#queue.room(bytes)) {
      this.#queue.add(text, bytes);
      this.#counters.items += 1;
    } else {
      this.#queue.lose("memory_full", bytes);
      this.#counters.lost_memory_full += 1;
    }
  }

  /** @param {boolean} atOnce true to exceed the memory limit, because there is no later chance */
  #tellGaps(atOnce) {
    if (!this.#queue.hasGap) return;
    if (!this.#queue.room(0)) this.#makeRoom();
    if (!this.#queue.room(0) && !atOnce) return;
    for (const gap of this.#queue.takeGaps()) {
      const text = encodeGap(gap, Date.now());
      this.#queue.add(text, Buffer.byteLength(text), gap.lost);
      this.#counters.items += 1;
    }
  }

  /**
   * When `#handOn` returns, the new item survives a kill -9 of this process: it is in the spool. A socket may drop frames
   * that the sidecar has not read, when the sidecar writes an ack to a dead process (measured: 418 of 500 frames), and
   * what exceeds the kernel's buffers stays in this process. Without a usable spool, the socket is all there is.
   */
  #handOn() {
    this.#spill();
    if (!this.#canSend) this.#queue.dropThrough(this.#spool.lastSeq);
    else if (this.#queue.after(this.#spool.lastSeq)) this.#pump();
    else this.#due ??= setTimeout(() => this.flush(), COLLECT_MS).unref();
  }

  /** True if the window has room for the next item, and memory has it. */
  get #canSend() {
    return this.#link.live && this.#window.room > 0 && this.#queue.has(this.#sent + 1);
  }

  /** Write to the spool what only memory has, as far as the spool accepts it. Memory keeps what is not sent yet. */
  #spill() {
    let item = this.#queue.after(this.#spool.lastSeq);
    while (item && this.#spool.append(item)) item = this.#queue.after(this.#spool.lastSeq);
    this.#mark.set(item !== undefined || this.#queue.hasGap);
  }

  /** Keep in memory only what the spool does not accept. */
  #makeRoom() {
    this.#spill();
    this.#queue.dropThrough(this.#spool.lastSeq);
  }

  /** Send what may be sent: at once from memory, asynchronously from the spool. */
  #pump() {
    clearTimeout(this.#due);
    this.#due = undefined;
    while (this.#canSend) {
      const run = this.#queue.next(this.#sent, Math.min(this.#window.room, FRAME_ITEMS), FRAME_BYTES);
      if (!run || !this.#send(run, -1)) return;
    }
    this.#queue.dropThrough(Math.min(this.#sent, this.#spool.lastSeq));
    if (this.#link.live && this.#spool.lastSeq > this.#sent) void this.#drain();
  }

  /** Send the spool's lines until the window is full, the link changes, or none is left. */
  async #drain() {
    if (this.#draining) return;
    this.#draining = true;
    const life = this.#life;
    try {
      while (life === this.#life && this.#link.live && this.#window.room > 0) {
        if (this.#chunk.length === 0) {
          if (this.#spool.lastSeq <= this.#sent) break;
          // Check `atEnd` before awaiting `read`, because a hook may append lines meanwhile, which are not missing.
          if (this.#spool.atEnd) {
            this.#chunk = this.#withGaps([], true);
            continue;
          }
          const lines = await this.#spool.read();
          if (life !== this.#life) break;
          this.#chunk = this.#withGaps(lines, false);
          continue;
        }
        const run = nextRun(this.#chunk, 0, Math.min(this.#window.room, FRAME_ITEMS), FRAME_BYTES);
        if (!run) break;
        const lines = this.#chunk.splice(0, run.texts.length);
        if (!this.#send(run, lines[lines.length - 1].end)) break;
      }
    } catch {
      // The lines are still in the spool, so the next link sends them, or the sidecar imports them.
      this.#counters.spool_read_failures += 1;
      if (life === this.#life) this.#link.fail();
    } finally {
      this.#draining = false;
    }
    // Either a new link was opened while this drain was still running, or the spool is sent and memory is next.
    if (life !== this.#life || this.#spool.lastSeq <= this.#sent) this.#pump();
  }

  /**
   * The lines to send, in order. The spool's seqs have no gaps, so missing lines
   * were damaged in the file. A gap item with the last missing seq replaces those lines.
   *
   * @param {Line[]} lines
   * @param {boolean} atEnd true if no more lines follow
   * @returns {Line[]}
   */
  #withGaps(lines, atEnd) {
    const { lastSeq, end } = this.#spool;
    /** @type {Line[]} */
    const whole = [];
    let last = this.#sent;
    const tellUpTo = (/** @type {number} */ seq, /** @type {number} */ place) => {
      if (seq <= last) return;
      const text = encodeGap({ lost: seq - last, reason: "spool_damaged", first_seq: last + 1, last_seq: seq }, Date.now());
      this.#counters.lost_spool_damaged += seq - last;
      whole.push({ seq, text, bytes: Buffer.byteLength(text), start: place, end: place });
      last = seq;
    };
    for (const line of lines) {
      // Skip lines of items that are already in flight, because such items are also written to the spool.
      if (line.seq <= last || line.seq > lastSeq) continue;
      tellUpTo(line.seq - 1, line.start);
      whole.push(line);
      last = line.seq;
    }
    if (atEnd) tellUpTo(lastSeq, end);
    return whole;
  }

  /**
   * @param {Run} run
   * @param {number} end place in the spool after the run, -1 for memory
   */
  #send(run, end) {
    const text = `{"type":"hooks","first_seq":${run.first},"items":[${run.texts.join(",")}]}`;
    if (!this.#link.sendItems(text)) return false;
    this.#window.add({ first: run.first, last: run.last, bytes: run.bytes, end }, performance.now());
    this.#sent = run.last;
    this.#counters.sent += run.texts.length;
    this.#link.watch();
    return true;
  }

  /** @param {number} seq */
  #forgetThrough(seq) {
    if (seq <= this.#acked) return;
    this.#acked = seq;
    this.#counters.acked = seq;
    this.#queue.dropThrough(seq);
    if (this.settled) this.#mark.set(false);
    if (this.#spool.lastSeq > 0 && this.#spool.lastSeq <= seq) {
      this.#chunk = [];
      if (this.#closed) this.#spool.remove();
      else this.#spool.clear();
    }
  }
}
