/**
 * The spool: one instance's unacknowledged items in a file.
 *
 * The first line is a header, then one line an item:
 * {"seq":n,"sum":"...","item":{...}}, seqs without holes. A line whose sum is
 * wrong is damaged and never sent; so a seq that is missing is an item lost to
 * damage, and nothing else. Written synchronously and without fsync: the page cache
 * outlives a killed OpenCode, and that is what the spool is for. If this
 * process dies, the sidecar takes the file in; if it lives, the lines are read
 * back and sent, and the file goes once all of them are acknowledged.
 */
import { createHash } from "node:crypto";
import fs from "node:fs";
import path from "node:path";
import { MAX_ITEM_BYTES } from "./item.js";

/** @typedef {import("./queue.js").Item} Item */
/** @typedef {Item & {start: number, end: number}} Line an item with the places of its line */

/** How much is read at once; a longer line is read alone. */
const CHUNK_BYTES = 256 * 1024;
/** For how long an emptied file is kept: making one costs ten times an append, and hooks come in bursts. */
const KEEP_MS = 1000;
/** After a failed open or write, for how long the disk is left alone. */
const RETRY_MS = 1000;

/** No line is longer: an item and what stands around it. */
const MAX_LINE_BYTES = MAX_ITEM_BYTES + 1024;

const BEFORE_TEXT = /^\{"seq":([1-9]\d{0,15}),"sum":"([0-9a-f]{16})","item":/;
/** So many bytes of a line hold all that stands before its item. */
const MAX_BEFORE_TEXT = 64;

/**
 * @typedef {object} SpoolOptions
 * @property {string} dir made with mode 0700 when missing
 * @property {string} name of the file
 * @property {() => object} header what the first line says, asked when a file is begun
 * @property {number} limit most bytes of one file
 * @property {import("./counters.js").Counters} counters
 */

export class Spool {
  #options;
  /** @type {number | null} */
  #fd = null;
  #size = 0;
  #full = false;
  #retryAtMs = 0;
  /** Place of the first item's line. */
  #headerEnd = 0;
  /** @type {NodeJS.Timeout | undefined} */
  #removal;
  /** Place of the first line not wholly acknowledged. */
  #startAt = 0;
  /** Place of the next line to read. */
  #readAt = 0;
  /** Grows when places change under a read that is in progress. */
  #life = 0;
  #reading = false;
  /** Files left so far. */
  #left = 0;
  /** @type {number[]} descriptors to close when the read in progress ends */
  #closing = [];

  /** Highest seq in the file; 0 when there is no file. */
  lastSeq = 0;

  /** @param {SpoolOptions} options */
  constructor(options) {
    this.#options = options;
  }

  get path() {
    return path.join(this.#options.dir, this.#options.name);
  }

  /** Whether all lines were read. */
  get atEnd() {
    return this.#readAt >= this.#size;
  }

  /** Place after the last line. */
  get end() {
    return this.#size;
  }

  /** Whether `append` may succeed now; cheap, for a hook's hot path. */
  get usable() {
    return !this.#full && performance.now() >= this.#retryAtMs;
  }

  /**
   * Write items at the end, in order.
   *
   * @param {Item[]} items ascending, all above `lastSeq`
   * @returns {number} how many of them, from the first, are written whole. Fewer
   *   than given means the file is at its limit or the disk failed; the file
   *   then still ends with a whole line.
   */
  append(items) {
    if (!this.usable) return 0;
    try {
      this.#open();
      return this.#write(items);
    } catch {
      this.#options.counters.spool_failures += 1;
      this.#retryAtMs = performance.now() + RETRY_MS;
      return 0;
    }
  }

  /**
   * The next undamaged lines, at most one chunk of them; an empty list when
   * `rewind` or `remove` came in between, when all of the chunk was damaged, and at the end.
   *
   * @returns {Promise<Line[]>} rejects when the disk fails
   */
  async read() {
    const fd = this.#fd;
    if (fd === null || this.#reading) return [];
    const life = this.#life;
    this.#reading = true;
    try {
      for (let length = CHUNK_BYTES; ; length *= 4) {
        const left = this.#size - this.#readAt;
        if (left <= 0) return [];
        const buffer = Buffer.allocUnsafe(Math.min(length, left, MAX_LINE_BYTES));
        const got = await pread(fd, buffer, this.#readAt);
        if (life !== this.#life) return [];
        const lastNewline = buffer.subarray(0, got).lastIndexOf(0x0a);
        if (lastNewline >= 0) {
          const lines = this.#parse(buffer.subarray(0, lastNewline + 1));
          this.#readAt += lastNewline + 1;
          return lines;
        }
        if (length >= left || length >= MAX_LINE_BYTES) {
          // Lines are written whole and end: this is damage, or somebody cut the file.
          this.#options.counters.spool_read_failures += 1;
          this.#readAt = got < buffer.length ? this.#size : this.#readAt + got;
          return [];
        }
      }
    } finally {
      this.#reading = false;
      for (const old of this.#closing.splice(0)) closeQuietly(old);
    }
  }

  /** All before `place` is acknowledged: never read it again. @param {number} place */
  release(place) {
    if (place > this.#startAt) this.#startAt = place;
  }

  /** Read again from the first line not acknowledged. */
  rewind() {
    this.#life += 1;
    this.#readAt = this.#startAt;
  }

  /** Empty the file, and delete it if it stays empty: all of it is acknowledged. */
  clear() {
    if (this.#fd === null) return;
    try {
      fs.ftruncateSync(this.#fd, this.#headerEnd);
    } catch {
      this.remove();
      return;
    }
    this.#life += 1;
    this.#full = false;
    this.#size = this.#startAt = this.#readAt = this.#headerEnd;
    this.lastSeq = 0;
    this.#removal ??= setTimeout(() => this.#removeIdle(), KEEP_MS).unref();
  }

  /** Delete the file: all of it is acknowledged. */
  remove() {
    if (this.#fd === null) return;
    try {
      fs.unlinkSync(this.path);
    } catch {
      // Gone already, or it stays for the sidecar, to which its lines are duplicates.
      this.#options.counters.spool_failures += 1;
    }
    this.close();
  }

  /**
   * Leave the file to the sidecar, which takes one of this name although our
   * process lives. Nothing is written to it any more.
   */
  leave() {
    if (this.#fd === null) return;
    try {
      fs.renameSync(this.path, this.path.replace(/jsonl$/, `left${this.#left}.jsonl`));
      this.#left += 1;
    } catch {
      // It keeps its name, and is taken in when our process has ended.
      this.#options.counters.spool_failures += 1;
    }
    this.close();
  }

  /** Let go of the file and leave it to the sidecar. */
  close() {
    if (this.#fd === null) return;
    if (this.#reading) this.#closing.push(this.#fd);
    else closeQuietly(this.#fd);
    this.#fd = null;
    clearTimeout(this.#removal);
    this.#removal = undefined;
    this.#life += 1;
    this.#full = false;
    this.#size = this.#startAt = this.#readAt = this.lastSeq = 0;
  }

  #removeIdle() {
    this.#removal = undefined;
    if (this.lastSeq === 0) this.remove();
  }

  #open() {
    if (this.#fd !== null) return;
    const { dir, header } = this.#options;
    // The home first: root may write into any, and what it makes there is its own.
    for (const [place, look] of /** @type {[string, typeof fs.statSync][]} */ ([[path.dirname(dir), fs.statSync], [dir, fs.lstatSync]])) {
      fs.mkdirSync(place, { recursive: true, mode: 0o700 });
      const about = look(place);
      if (!about.isDirectory() || (process.getuid && about.uid !== process.getuid())) {
        throw new Error("the spool's directory is not ours");
      }
    }
    const { O_RDWR, O_APPEND, O_CREAT, O_EXCL, O_NOFOLLOW = 0 } = fs.constants;
    const fd = fs.openSync(this.path, O_RDWR | O_APPEND | O_CREAT | O_EXCL | O_NOFOLLOW, 0o600);
    try {
      // The umask took its share of the mode.
      fs.fchmodSync(fd, 0o600);
      const line = Buffer.from(`${JSON.stringify(header())}\n`);
      writeAll(fd, line);
      this.#fd = fd;
      this.#size = this.#startAt = this.#readAt = this.#headerEnd = line.length;
    } catch (error) {
      // A file without its header would block the name and tell the sidecar nothing.
      closeQuietly(fd);
      fs.unlinkSync(this.path);
      throw error;
    }
  }

  /** @param {Item[]} items */
  #write(items) {
    const fd = /** @type {number} */ (this.#fd);
    let text = "";
    let count = 0;
    let room = this.#options.limit - this.#size;
    for (const item of items) {
      const line = `{"seq":${item.seq},"sum":"${sumOf(item.seq, item.text)}","item":${item.text}}\n`;
      room -= item.bytes + (line.length - item.text.length);
      if (room < 0) {
        // Order leaves no choice: until the file is emptied, what follows waits behind this one in memory.
        this.#full = true;
        this.#options.counters.spool_failures += 1;
        break;
      }
      text += line;
      count += 1;
    }
    if (count === 0) return 0;
    const bytes = Buffer.from(text);
    try {
      writeAll(fd, bytes);
    } catch (error) {
      this.#cutTornTail(fd);
      throw error;
    }
    this.#size += bytes.length;
    this.lastSeq = items[count - 1].seq;
    this.#options.counters.spooled += count;
    return count;
  }

  /** @param {number} fd */
  #cutTornTail(fd) {
    try {
      fs.ftruncateSync(fd, this.#size);
    } catch {
      // With a torn line in it nothing may follow; what is whole can still be read back.
      this.#full = true;
    }
  }

  /** @param {Buffer} chunk whole lines, the first of them at #readAt */
  #parse(chunk) {
    /** @type {Line[]} */
    const lines = [];
    for (let start = 0; start < chunk.length; ) {
      const newline = chunk.indexOf(0x0a, start);
      const item = parseLine(chunk.subarray(start, newline));
      if (item) lines.push({ ...item, bytes: newline - start, start: this.#readAt + start, end: this.#readAt + newline + 1 });
      else this.#options.counters.spool_read_failures += 1;
      start = newline + 1;
    }
    return lines;
  }
}

/**
 * @param {Buffer} line
 * @returns {{seq: number, text: string} | null} null when it is damaged
 */
function parseLine(line) {
  const before = line.toString("latin1", 0, MAX_BEFORE_TEXT).match(BEFORE_TEXT);
  if (!before || line[line.length - 1] !== 0x7d) return null;
  const seq = Number(before[1]);
  const text = line.subarray(before[0].length, -1);
  return Number.isSafeInteger(seq) && sumOf(seq, text) === before[2] ? { seq, text: text.toString() } : null;
}

/**
 * The seq is in the sum too: a changed one must not pass for another item's.
 *
 * @param {number} seq
 * @param {string | Buffer} text
 */
export function sumOf(seq, text) {
  return createHash("sha256").update(`${seq},`).update(text).digest("hex").slice(0, 16);
}

/** @param {number} fd @param {Buffer} bytes */
function writeAll(fd, bytes) {
  for (let done = 0; done < bytes.length; ) done += fs.writeSync(fd, bytes, done);
}

/**
 * @param {number} fd
 * @param {Buffer} buffer
 * @param {number} place
 * @returns {Promise<number>} bytes read
 */
function pread(fd, buffer, place) {
  return new Promise((resolve, reject) => {
    fs.read(fd, buffer, 0, buffer.length, place, (error, got) => (error ? reject(error) : resolve(got)));
  });
}

/** @param {number} fd */
function closeQuietly(fd) {
  try {
    fs.closeSync(fd);
  } catch {
    // The descriptor is gone either way, and its data was handed over by write.
  }
}
