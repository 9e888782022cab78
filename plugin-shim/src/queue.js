/**
 * The items that are only in memory, and the numbering of all items.
 *
 * Pure: no clock, no I/O. Seqs are 1, 2, 3, ... over the life of an instance,
 * without holes. An item that is lost here never had a seq; the gap item that
 * tells of it has one.
 */

/** @typedef {import("./item.js").Gap} Gap */

/**
 * @typedef {object} Item
 * @property {number} seq
 * @property {string} text
 * @property {number} bytes
 */

/**
 * @typedef {object} Run consecutive items, ready for one frame
 * @property {number} first
 * @property {number} last
 * @property {number} bytes
 * @property {string[]} texts
 */

/** After memory was full, items are refused until it is this empty: one gap item tells of the whole burst. */
const ROOM_AGAIN = 0.75;

export class Queue {
  /** @type {Item[]} */
  #items = [];
  /** Index of the first live entry of #items; what is before it is gone. */
  #head = 0;
  #limit;
  #full = false;
  /** @type {Map<string, Gap & {bytes: number}>} by reason: gaps not yet told, in the order they opened */
  #gaps = new Map();

  /** Highest seq given out. */
  last = 0;
  /** Bytes of item text held. */
  bytes = 0;

  /** @param {number} limit most bytes of item text to hold */
  constructor(limit) {
    this.#limit = limit;
  }

  get length() {
    return this.#items.length - this.#head;
  }

  /** Whether a gap waits to be told. */
  get hasGap() {
    return this.#gaps.size > 0;
  }

  /**
   * Whether `bytes` more may be held. Once the answer was no, it stays no until
   * a quarter of the limit is free.
   *
   * @param {number} bytes
   */
  room(bytes) {
    if (this.#full && this.bytes <= this.#limit * ROOM_AGAIN) this.#full = false;
    if (!this.#full && this.bytes + bytes > this.#limit && bytes > 0) this.#full = true;
    return !this.#full;
  }

  /**
   * Append an item under the next seq. The caller has asked `room`.
   *
   * @param {string} text
   * @param {number} bytes
   */
  add(text, bytes) {
    this.#items.push({ seq: ++this.last, text, bytes });
    this.bytes += bytes;
  }

  /**
   * An item is lost: it is counted in the gap of its reason.
   *
   * @param {"memory_full" | "unserialisable"} reason
   * @param {number} bytes
   */
  lose(reason, bytes) {
    const gap = this.#gaps.get(reason) ?? { lost: 0, bytes: 0, reason };
    gap.lost += 1;
    gap.bytes += bytes;
    this.#gaps.set(reason, gap);
  }

  /** @returns {Gap[]} the gaps to be told now; they are forgotten here */
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
   * @returns {Run | null} null when there is none
   */
  next(after, maxItems, maxBytes) {
    return nextRun(this.#items, this.#indexAfter(after), maxItems, maxBytes);
  }

  /** The oldest items, at most `maxBytes` of them but at least one; empty when none is held. @param {number} maxBytes */
  oldest(maxBytes) {
    let end = this.#head;
    let bytes = 0;
    while (end < this.#items.length && (bytes === 0 || bytes + this.#items[end].bytes <= maxBytes)) {
      bytes += this.#items[end].bytes;
      end += 1;
    }
    return this.#items.slice(this.#head, end);
  }

  /** Forget the items up to and with `seq`: they are durable, or in the spool. @param {number} seq */
  dropThrough(seq) {
    while (this.#head < this.#items.length && this.#items[this.#head].seq <= seq) {
      this.bytes -= this.#items[this.#head].bytes;
      this.#head += 1;
    }
    // Shifting on each drop would be quadratic; the dead part is cut off when it is the bigger one.
    if (this.#head > 64 && this.#head * 2 > this.#items.length) {
      this.#items = this.#items.slice(this.#head);
      this.#head = 0;
    } else if (this.#head === this.#items.length) {
      this.#items = [];
      this.#head = 0;
    }
  }

  /** Whether an item above `seq` is held. @param {number} seq */
  hasAfter(seq) {
    return this.length > 0 && this.#items[this.#items.length - 1].seq > seq;
  }

  /** @param {number} seq */
  #indexAfter(seq) {
    let low = this.#head;
    let high = this.#items.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.#items[middle].seq <= seq) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}

/**
 * A run from `start`: it ends before a hole in the seqs, because a frame says
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
