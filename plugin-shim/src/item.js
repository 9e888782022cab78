/**
 * Encodes one hook call as JSON text.
 *
 * OpenCode mutates the objects that it passes to hooks, so they must be encoded
 * while the hook runs. After that, an item is text: frames and spool lines are
 * built by concatenation, and the shim never parses the text again.
 */

/** Larger items are cut. A frame may have 16 MiB, of which 1 MiB is left for the envelope. */
export const MAX_ITEM_BYTES = 15 * 1024 * 1024;

/** In an item that is too big, strings longer than this (UTF-16 units) are cut. */
const CUT_ABOVE = 1024 * 1024;
/** Length to which a string is cut (UTF-16 units). */
const CUT_TO = 64 * 1024;

/**
 * @typedef {object} Encoded
 * @property {string} text JSON of {hook, t, input, output}
 * @property {number} bytes its length in UTF-8
 * @property {boolean} cut whether long strings were shortened
 */

/**
 * @param {string} hook
 * @param {number} t when the hook was called, ms UTC
 * @param {unknown} input
 * @param {unknown} output
 * @returns {Encoded | null} null if it cannot be expressed as JSON (circular,
 *   BigInt, a getter that throws) or is still too big after cutting
 */
export function encodeItem(hook, t, input, output) {
  // A missing output becomes null, because the protocol requires all four keys.
  const item = { hook, t, input: input ?? null, output: output ?? null };
  try {
    const text = JSON.stringify(item);
    const bytes = Buffer.byteLength(text);
    if (bytes <= MAX_ITEM_BYTES) return { text, bytes, cut: false };
    const short = JSON.stringify(item, cutLongString);
    const shortBytes = Buffer.byteLength(short);
    return shortBytes <= MAX_ITEM_BYTES ? { text: short, bytes: shortBytes, cut: true } : null;
  } catch {
    // The caller counts the item as lost.
    return null;
  }
}

/**
 * Cut a long string. The result is a string, because readers expect text.
 *
 * @param {string} _key
 * @param {unknown} value
 */
function cutLongString(_key, value) {
  if (typeof value !== "string" || value.length <= CUT_ABOVE) return value;
  return `${value.slice(0, CUT_TO)}{"$cut":${value.length}}`;
}

/**
 * @typedef {object} Gap
 * @property {number} lost items
 * @property {"memory_full" | "unserialisable" | "spool_damaged" | "feed_broken"} reason
 * @property {number} [bytes] of their text; 0 if there was no text. Absent for damaged lines
 * @property {number} [first_seq] of the lost items; only items lost by the spool had seqs
 * @property {number} [last_seq] of the lost items
 */

/**
 * Encode the item that reports a gap to the sidecar.
 *
 * @param {Gap} gap
 * @param {number} t ms UTC
 */
export function encodeGap(gap, t) {
  return JSON.stringify({ hook: "capture.gap", t, input: gap, output: null });
}
