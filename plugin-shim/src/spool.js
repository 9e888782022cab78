/**
 * The spool: one instance's unacknowledged items in a file.
 *
 * The first line is a header, then there is one line per item:
 * {"seq":n,"sum":"...","item":{...}}, seqs without gaps. Empty lines mean nothing. A line with a wrong sum
 * is damaged and never sent, so a missing seq always means an item lost to
 * damage. The lines are written synchronously and without fsync, because the page cache
 * survives a killed OpenCode, which is the spool's purpose. If this process dies, the
 * sidecar imports the file. If this process lives, it reads the lines back, sends them,
 * and deletes the file once all of them are acknowledged.
 */
import fs from "node:fs";
import path from "node:path";
import { crc32 } from "node:zlib";
import { MAX_ITEM_BYTES } from "./item.js";

/** @typedef {import("./queue.js").Item} Item */
/** @typedef {Item & {start: number, end: number}} Line an item with start and end of its line */

/** The header names the format. */
export const SPOOL_FORMAT = 2;

/** How many bytes to read at once; a longer line is read alone. */
const CHUNK_BYTES = 256 * 1024;
/** How long to keep an emptied file, because creating a file costs ten times an append, and hooks come in bursts. */
const KEEP_MS = 1000;
/** How long to wait after a failed open or write. */
const RETRY_MS = 1000;

/** Maximum length of a line: an item and its envelope. */
const MAX_LINE_BYTES = MAX_ITEM_BYTES + 1024;

const BEFORE_TEXT = /^\{"seq":([1-9]\d{0,15}),"sum":"([0-9a-f]{8})","item":/;
/** Maximum bytes of a line before its item, and of a line without its item. */
const MAX_BEFORE_TEXT = 64;
const MAX_AROUND_TEXT = MAX_BEFORE_TEXT + 2;
/** Lines are joined here, because to write a joined string costs a hook up to a microsecond more. */
const SCRATCH = Buffer.allocUnsafe(CHUNK_BYTES);

/**
 * @typedef {object} SpoolOptions
 * @property {string} dir created with mode 0700 if missing
 * @property {string} name of the file
 * @property {() => object} header content of the first line, called when a file is created
 * @property {number} limit maximum size of one file, in bytes
 * @property {import("./counters.js").Counters} counters
 */

export class Spool {
  #options;
  /** @type {number | null} */
  #fd = null;
  #size = 0;
  #full = false;
  #retryAtMs = 0;
  /** Offset of the first item's line. */
  #headerEnd = 0;
  /** @type {NodeJS.Timeout | undefined} */
  #removal;
  /** Offset of the first line that is not acknowledged. */
  #startAt = 0;
  /** Offset of the next line to read. */
  #readAt = 0;
  /** Incremented when offsets change during a read. */
  #life = 0;
  #reading = false;
  /** Number of files left to the sidecar so far. */
  #left = 0;
  /** @type {number[]} descriptors to close when the current read ends */
  #closing = [];

  /** Highest seq in the file; 0 if there is no file. */
  lastSeq = 0;

  /** @param {SpoolOptions} options */
  constructor(options) {
    this.#options = options;
  }

  get path() {
    return path.join(this.#options.dir, this.#options.name);
  }

  /** True if all lines were read. */
  get atEnd() {
    return this.#readAt >= this.#size;
  }

  /** Offset after the last line. */
  get end() {
    return this.#size;
  }

  /**
   * Write an item at the end.
   *
   * @param {Item} item above `lastSeq`
   * @returns {boolean} false if it is not written, because the file is at its limit or the disk failed a moment ago; the
   *   file still ends with a complete line
   */
  append(item) {
    if (this.#full || (this.#retryAtMs !== 0 && performance.now() < this.#retryAtMs)) return false;
    try {
      this.#open();
      return this.#write(item);
    } catch {
      this.#options.counters.spool_failures += 1;
      this.#retryAtMs = performance.now() + RETRY_MS;
      // No acknowledgement would ever delete a file without items.
      if (this.lastSeq === 0) this.remove();
      return false;
    }
  }

  /**
   * The next undamaged lines, at most one chunk. An empty list after an intervening
   * `rewind` or `remove`, if the whole chunk was damaged, and at the end.
   *
   * @returns {Promise<Line[]>} rejects if the disk fails
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
          // Every complete line ends with a newline, so the file is damaged, or somebody has cut it.
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

  /** Never read anything before `place` again, because it is acknowledged. @param {number} place offset */
  release(place) {
    if (place > this.#startAt) this.#startAt = place;
  }

  /** Read again from the first unacknowledged line. */
  rewind() {
    this.#life += 1;
    this.#readAt = this.#startAt;
  }

  /** Empty the file, because all of it is acknowledged; delete it if it stays empty. */
  clear() {
    if (this.#fd === null) return;
    const length = this.#size - this.#headerEnd;
    try {
      // Empty lines are no items, and a line costs a hook less where the file already has room for it. After `#size`, the
      // file has nothing but empty lines, unless a torn line could not be cut off, which made it `#full`.
      if (length <= SCRATCH.length && !this.#full) writeAll(this.#fd, SCRATCH.fill("\n", 0, length), length, this.#headerEnd);
      else fs.ftruncateSync(this.#fd, this.#headerEnd);
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

  /** Delete the file, because all of it is acknowledged. */
  remove() {
    if (this.#fd === null) return;
    try {
      fs.unlinkSync(this.path);
    } catch {
      // The file is already gone, or the sidecar will import the file and find only duplicates.
      this.#options.counters.spool_failures += 1;
    }
    this.close();
  }

  /**
   * Rename the file, so that the sidecar imports the file although our process lives.
   * Nothing more is written to it.
   */
  leave() {
    if (this.#fd === null) return;
    try {
      fs.renameSync(this.path, this.path.replace(/jsonl$/, `left${this.#left}.jsonl`));
      this.#left += 1;
    } catch {
      // The file keeps its name, and the sidecar imports the file once our process has ended.
      this.#options.counters.spool_failures += 1;
    }
    this.close();
  }

  /** Close the file and leave it to the sidecar. */
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
    // Check the home's owner first, because root can write into any home and would own the files it creates there.
    for (const [place, look] of /** @type {[string, typeof fs.statSync][]} */ ([[path.dirname(dir), fs.statSync], [dir, fs.lstatSync]])) {
      fs.mkdirSync(place, { recursive: true, mode: 0o700 });
      const about = look(place);
      if (!about.isDirectory() || (process.getuid && about.uid !== process.getuid())) {
        throw new Error("another user owns the spool's directory");
      }
    }
    const { O_RDWR, O_CREAT, O_EXCL, O_NOFOLLOW = 0 } = fs.constants;
    const fd = fs.openSync(this.path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0o600);
    try {
      // The umask may have reduced the mode.
      fs.fchmodSync(fd, 0o600);
      const line = Buffer.from(`${JSON.stringify(header())}\n`);
      writeAll(fd, line, line.length, 0);
      this.#fd = fd;
      this.#size = this.#startAt = this.#readAt = this.#headerEnd = line.length;
    } catch (error) {
      // Delete the file, because without a header it would block the name and tell the sidecar nothing.
      closeQuietly(fd);
      fs.unlinkSync(this.path);
      throw error;
    }
  }

  /** @param {Item} item */
  #write({ seq, text, bytes }) {
    const fd = /** @type {number} */ (this.#fd);
    const line = bytes <= SCRATCH.length - MAX_AROUND_TEXT ? SCRATCH : Buffer.allocUnsafe(bytes + MAX_AROUND_TEXT);
    let length = line.write(`{"seq":${seq},"sum":"${sumOf(seq, text)}","item":`);
    length += line.write(text, length);
    length += line.write("}\n", length);
    if (this.#size + length > this.#options.limit) {
      // Refuse all later items too, which wait in memory until the file is emptied, so that the order is kept.
      this.#full = true;
      this.#options.counters.spool_failures += 1;
      return false;
    }
    try {
      writeAll(fd, line, length, this.#size);
    } catch (error) {
      this.#cutTornTail(fd);
      throw error;
    }
    this.#size += length;
    this.lastSeq = seq;
    this.#options.counters.spooled += 1;
    return true;
  }

  /** @param {number} fd */
  #cutTornTail(fd) {
    try {
      fs.ftruncateSync(fd, this.#size);
    } catch {
      // Append nothing more, because nothing may follow a torn line. The complete lines can still be read back.
      this.#full = true;
    }
  }

  /** @param {Buffer} chunk complete lines, the first of them at #readAt */
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
 * @returns {{seq: number, text: string} | null} null if it is damaged
 */
function parseLine(line) {
  const before = line.toString("latin1", 0, MAX_BEFORE_TEXT).match(BEFORE_TEXT);
  if (!before || line[line.length - 1] !== 0x7d) return null;
  const seq = Number(before[1]);
  const text = line.subarray(before[0].length, -1);
  return Number.isSafeInteger(seq) && sumOf(seq, text) === before[2] ? { seq, text: text.toString() } : null;
}

/**
 * The sum includes the seq, so that a line with a changed seq cannot pass for the line of another item.
 *
 * @param {number} seq
 * @param {string | Buffer} text
 */
export function sumOf(seq, text) {
  return crc32(text, crc32(`${seq},`)).toString(16).padStart(8, "0");
}

/**
 * Write the first `length` bytes; the system may write only some of them at once.
 *
 * @param {number} fd
 * @param {Buffer} line
 * @param {number} length
 * @param {number} place offset in the file
 */
function writeAll(fd, line, length, place) {
  for (let done = 0; done < length; ) done += fs.writeSync(fd, line, done, length - done, place + done);
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
    // The descriptor is closed even if `closeSync` fails, and `write` has passed the data to the kernel.
  }
}
