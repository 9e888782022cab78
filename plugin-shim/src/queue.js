/**
 * Holds the items that are only in memory, and numbers all items.
 *
 * This module is pure: it uses no clock and no I/O. Seqs are 1, 2, 3, ... over the life of an
 * instance, without gaps. An item that is lost here never had a seq, but the gap item that
 * reports the loss has one.
 */

/** @typedef {import("./item.js").Gap} Gap */

/**
 * @typedef {object} Item
 * @property {number} seq
 * @property {string} text
 * @property {number} bytes
 * @property {number} [hooks] how many hooks are lost with it, if not one: a gap stands for many
 */

/**
 * @typedef {object} Run consecutive items, ready for one frame
 * @property {number} first
 * @property {number} last
 * @property {number} bytes
 * @property {string[]} texts
 */

/** Once memory is full, refuse items until it is only this full, so that one gap item covers the whole burst. */
const ROOM_AGAIN = 0.75;

export class Queue {
  /** @type {Item[]} */
  #items = [];
  /** Index of the first live entry of #items; earlier entries are dropped. */
  #head = 0;
  #limit;
  #full = false;
  /** @type {Map<string, Gap & {bytes: number}>} unreported gaps by reason, in the order they opened */
  #gaps = new Map();

  /** Highest seq assigned. */
  last = 0;
  /** Bytes of item text in memory. */
  bytes = 0;

  /** @param {number} limit maximum bytes of item text in memory */
  constructor(limit) {
    this.#limit = limit;
  }

  get length() {
    return this.#items.length - this.#head;
  }

  /** How many hooks are lost if memory is. */
  get hooks() {
    const waiting = this.#items.slice(this.#head).map((item) => item.hooks ?? 1);
    return [...waiting, ...[...this.#gaps.values()].map((gap) => gap.lost)].reduce((sum, lost) => sum + lost, 0);
  }

  /** True if there is an unreported gap. */
  get hasGap() {
    return this.#gaps.size > 0;
  }

  /**
   * True if there is room for `bytes` more. Once there is no room, the result stays false
   * until a quarter of the limit is free.
   *
   * @param {number} bytes
   */
  room(bytes) {
    if (this.#full && this.bytes <= this.#limit * ROOM_AGAIN) this.#full = false;
    if (!this.#full && this.bytes + bytes > this.#limit && bytes > 0) this.#full = true;
    return !this.#full;
  }

  /**
   * Append an item under the next seq. Call `room` first.
   *
   * @param {string} text
   * @param {number} bytes
   * @param {number} [hooks]
   */
  add(text, bytes, hooks) {
    this.#items.push({ seq: ++this.last, text, bytes, hooks });
    this.bytes += bytes;
  }

  /**
   * Count a lost item in the gap of its reason.
   *
   * @param {"memory_full" | "unserialisable" | "feed_broken"} reason
   * @param {number} bytes
   * @param {number} [lost] 0 if nobody knows how many
   */
  lose(reason, bytes, lost = 1) {
    const gap = this.#gaps.get(reason) ?? { lost: 0, bytes: 0, reason };
    gap.lost += lost;
    gap.bytes += bytes;
    this.#gaps.set(reason, gap);
  }

  /** @returns {Gap[]} the unreported gaps; this removes them */
  takeGaps() {
    const gaps = [...this.#gaps.values()];
    this.#gaps.clear();
    return gaps;
  }

  /**
   * The next consecutive items above `after`.
   *
   * @param {number} after
   * @param {number} maxItems at least 1
   * @param {number} maxBytes a bigger item comes alone
   * @returns {Run | null} null if there is none
   */
  next(after, maxItems, maxBytes) {
    return nextRun(this.#items, this.#indexAfter(after), maxItems, maxBytes);
  }

  /** The first item above `seq`, if there is one. @param {number} seq @returns {Item | undefined} */
  after(seq) {
    return this.#items[this.#indexAfter(seq)];
  }

  /** Drop the items up to and including `seq`: they are durable, or in the spool. @param {number} seq */
  dropThrough(seq) {
    while (this.#head < this.#items.length && this.#items[this.#head].seq <= seq) {
      this.bytes -= this.#items[this.#head].bytes;
      this.#head += 1;
    }
    // Shifting the array on each drop would take quadratic time, so cut off dropped items once they are the majority.
    if (this.#head > 64 && this.#head * 2 > this.#items.length) {
      this.#items = this.#items.slice(this.#head);
      this.#head = 0;
    } else if (this.#head === this.#items.length) {
      this.#items = [];
      this.#head = 0;
    }
  }

  /** @param {number} seq */
  has(seq) {
    return this.after(seq - 1)?.seq === seq;
  }

  /** Seqs in memory have no gaps, and the newest is `last`. @param {number} seq at most `last` */
  #indexAfter(seq) {
    return Math.max(this.#head, this.#items.length - (this.last - seq));
  }
}

/**
 * A run from `start`. It ends before a gap in the seqs, because a frame states
 * only its first seq.
 *
 * @param {Item[]} items ascending
 * @param {number} start
 * @param {number} maxItems
 * @param {number} maxBytes
 * @returns {Run | null}
 */
export function nextRun(items, start, maxItems, maxBytes) {
  if (start >= items.length) return null;
  const first = items[start].seq;
  /** @type {string[]} */
  const texts = [];
  let bytes = 0;
  for (let i = start; i < items.length && texts.length < maxItems; i += 1) {
    const item = items[i];
    if (item.seq !== first + texts.length) break;
    if (texts.length > 0 && bytes + item.bytes > maxBytes) break;
    texts.push(item.text);
    bytes += item.bytes;
  }
  return { first, last: first + texts.length - 1, bytes, texts };
}
